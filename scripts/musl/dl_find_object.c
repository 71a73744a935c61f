/*
 * Debian's libgcc_eh.a finds unwind tables through glibc's _dl_find_object (since 2.35), which musl does not have.
 * This is that function on top of dl_iterate_phdr; build-musl puts it into libunwind.a beside libgcc_eh.
 */
#define _GNU_SOURCE
#include <link.h>
#include <pthread.h>
#include <stdint.h>

/* The layout that glibc documents for struct dl_find_object on x86_64 and aarch64. */
struct found {
    unsigned long long flags;
    void *map_start;
    void *map_end;
    struct link_map *link_map;
    void *eh_frame;
    unsigned long long reserved[7];
};

struct search {
    uintptr_t pc;
    struct found *found;
    int hit;
};

static int visit(struct dl_phdr_info *object, size_t size, void *context) {
    struct search *search = context;
    uintptr_t eh_frame = 0;
    int covers = 0;
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + header->p_vaddr;
        uintptr_t end = start + header->p_memsz;
        if (header->p_type == PT_LOAD && search->pc >= start && search->pc < end) {
            covers = 1;
            search->found->map_start = (void *)start;
            search->found->map_end = (void *)end;
        }
        if (header->p_type == PT_GNU_EH_FRAME) eh_frame = start;
    }
    if (!covers || !eh_frame) return 0;
    search->found->flags = 0;
    search->found->link_map = 0;
    search->found->eh_frame = (void *)eh_frame;
    search->hit = 1;
    return 1;
}

int _dl_find_object(void *pc, struct found *found) {
    struct search search = {(uintptr_t)pc, found, 0};
    dl_iterate_phdr(visit, &search);
    return search.hit ? 0 : -1;
}

/*
 * libgcc_eh refers to these weakly. In a static link nothing else may pull them in, the references stay NULL, and the
 * first unwind jumps there; strong references force them in.
 */
#define KEEP(function) (void *)function
__attribute__((used)) static void *const keep[] = {
    KEEP(pthread_once),        KEEP(pthread_mutex_lock),  KEEP(pthread_mutex_unlock),   KEEP(pthread_key_create),
    KEEP(pthread_getspecific), KEEP(pthread_setspecific), KEEP(pthread_create),         KEEP(pthread_cond_wait),
    KEEP(pthread_cond_broadcast), KEEP(pthread_cond_destroy),
};
