/*
 * A shelf between musl's malloc and the kernel. malloc gives a map back as soon as nothing in it is used and asks for the like of it
 * a moment later: some 50 times until Envoy runs, and once for three HTTP/2 frames of a large response. A few of these maps stay here
 * and are handed out again, without two system calls and a page fault for each of their pages.
 *
 * A process that forks while another of its threads is in here has a child that must not allocate before exec; footman and std only
 * spawn, which allocates nothing there.
 *
 * scripts/build-musl links it in and sends malloc here (ld --wrap). Only maps that were handed out here are kept: one that std or a
 * thread makes for itself may have pages that cannot be written. docs/decisions/allocator.md has the measurements.
 */
#include <sched.h>
#include <stddef.h>
#include <string.h>

/* Two sorts of maps come again at once: a page or two of small blocks, and three frames of 16 KiB, 56 KiB with malloc's own
 * bytes. All others go back to the kernel: an idle agent would keep them in vain. */
#define SMALL (8u << 10)
#define FRAMES (48u << 10)
#define LARGEST (64u << 10)

/* So many bytes are kept: two such maps. */
#define KEPT (128u << 10)

_Static_assert(LARGEST <= KEPT, "what comes back must find room");

/* So many maps are remembered, kept or in use. */
#define REMEMBERED 8

/* PROT_READ | PROT_WRITE, and MAP_PRIVATE | MAP_ANONYMOUS: what malloc asks for. */
#define PROT 3
#define FLAGS 0x22

/* MAP_POPULATE, for a map of one page: malloc writes to it at once. */
#define POPULATE 0x8000
#define PAGE 4096

void *__real___mmap(void *start, size_t length, int prot, int flags, int fd, long offset);
int __real___munmap(void *start, size_t length);

static struct map {
    void *start; /* NULL: nothing is remembered here */
    size_t length;
    int kept;
} maps[REMEMBERED];

/* Bytes on the shelf. */
static size_t kept;

/* The map that is forgotten next. */
static unsigned oldest;

/* Held for some instructions, or for the kernel's munmap; the agent has one thread nearly always. */
static char lock;

static void take_lock(void) {
    while (__atomic_test_and_set(&lock, __ATOMIC_ACQUIRE)) sched_yield();
}

static void leave_lock(void) { __atomic_clear(&lock, __ATOMIC_RELEASE); }

/* Forgets a map; a kept one goes back to the kernel. */
static void forget(struct map *map) {
    if (map->start && map->kept) {
        kept -= map->length;
        __real___munmap(map->start, map->length);
    }
    map->start = NULL;
}

static int comes_again(size_t length) { return length <= SMALL || (length >= FRAMES && length <= LARGEST); }

static struct map *find(void *start, size_t length) {
    for (struct map *map = maps; map < maps + REMEMBERED; map++)
        if (map->start == start && map->length == length && !map->kept) return map;
    return NULL;
}

void *__wrap___mmap(void *start, size_t length, int prot, int flags, int fd, long offset) {
    if (start || prot != PROT || flags != FLAGS || !comes_again(length))
        return __real___mmap(start, length, prot, flags, fd, offset);
    take_lock();
    for (struct map *map = maps; map < maps + REMEMBERED; map++) {
        if (map->start && map->kept && map->length == length) {
            map->kept = 0;
            kept -= length;
            start = map->start;
            leave_lock();
            /* As the kernel's: malloc counts on it for calloc. */
            return memset(start, 0, length);
        }
    }
    leave_lock();
    start = __real___mmap(NULL, length, prot, length == PAGE ? flags | POPULATE : flags, fd, offset);
    if (start != (void *)-1) {
        /* Malloc reads here before it writes: the first would fault for a page of zeros, the second for one of its own. */
        *(volatile char *)start = 0;
        take_lock();
        struct map *map = &maps[oldest++ % REMEMBERED];
        forget(map);
        *map = (struct map){start, length, 0};
        leave_lock();
    }
    return start;
}

int __wrap___munmap(void *start, size_t length) {
    if (!start || !comes_again(length)) return __real___munmap(start, length);
    take_lock();
    struct map *map = find(start, length);
    if (map) {
        map->kept = 1;
        kept += length;
        for (unsigned i = 0; kept > KEPT; i++) {
            struct map *other = &maps[(oldest + i) % REMEMBERED];
            if (other != map && other->kept) forget(other);
        }
    }
    leave_lock();
    return map ? 0 : __real___munmap(start, length);
}

int __wrap_munmap(void *start, size_t length) { return __wrap___munmap(start, length); }
