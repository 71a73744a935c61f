/*
 * Tries scripts/musl/shelf.c with musl's real malloc: blocks keep their bytes, calloc's are zero, a map that malloc did not
 * ask for goes back to the kernel, and a burst needs few new pages. Linked and run by scripts/test.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "shelf_test: line %d: %s\n", __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

#define BLOCKS 64

/* Pages that the kernel has given so far (proc(5), minflt). */
static size_t faults(void) {
    char line[256];
    size_t count = 0;
    FILE *file = fopen("/proc/self/stat", "r");
    CHECK(file && fgets(line, sizeof line, file));
    fclose(file);
    CHECK(sscanf(strrchr(line, ')') + 1, " %*c %*d %*d %*d %*d %*d %*u %zu", &count) == 1);
    return count;
}

/* Blocks of all sizes around the shelf's bounds, each full of a byte of its own. */
static void *churn(void *seed) {
    unsigned state = (unsigned)(size_t)seed;
    unsigned char *blocks[BLOCKS] = {0};
    size_t sizes[BLOCKS] = {0};
    for (int round = 0; round < 40000; round++) {
        state = state * 1664525 + 1013904223;
        unsigned at = state >> 8 & (BLOCKS - 1), zeroed = state >> 16 & 1;
        for (size_t i = 0; i < sizes[at]; i += 509) CHECK(blocks[at][i] == at);
        free(blocks[at]);
        sizes[at] = (state >> 17) % 90000;
        blocks[at] = zeroed ? calloc(1, sizes[at]) : malloc(sizes[at]);
        CHECK(blocks[at]);
        for (size_t i = 0; zeroed && i < sizes[at]; i++) CHECK(blocks[at][i] == 0);
        memset(blocks[at], (int)at, sizes[at]);
    }
    for (int at = 0; at < BLOCKS; at++) free(blocks[at]);
    return NULL;
}

/* As std's stack for signals: its first page is a guard. Were it kept, malloc would get a page that cannot be written. */
static void foreign_maps_are_not_kept(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), length = 3 * page;
    char *map = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(map != MAP_FAILED && mprotect(map, page, PROT_NONE) == 0);
    CHECK(munmap(map, length) == 0);
    CHECK(madvise(map, length, MADV_NORMAL) != 0);
}

/* A few small blocks again and again, not so often that malloc itself keeps their map. */
static size_t burst(int turns) {
    size_t before = faults();
    for (int turn = 0; turn < turns; turn++) {
        char *blocks[3];
        for (int i = 0; i < 3; i++) memset(blocks[i] = malloc(1900), turn, 1900);
        for (int i = 0; i < 3; i++) free(blocks[i]);
    }
    return faults() - before;
}

int main(void) {
    foreign_maps_are_not_kept();
    CHECK(burst(90) < 50);
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)) == 0);
    for (size_t i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    churn(NULL);
    foreign_maps_are_not_kept();
    puts("shelf_test: ok");
    return 0;
}
