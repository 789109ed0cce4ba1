#include "base/threads.h"

#include <stdatomic.h>

#if defined(__linux__)
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* TID times two, plus the role; 0: free. */
static _Atomic int64_t slots[RP_THREADS_MAX];

static int32_t own_tid(void) {
#if defined(__linux__)
    return (int32_t)syscall(SYS_gettid);
#else
    return 0;
#endif
}

void rp_thread_begin(const char *name, enum rp_thread_role role) {
    int64_t entry = (int64_t)own_tid() * 2 + role;
#if defined(__linux__)
    if (name)
        prctl(PR_SET_NAME, name, 0, 0, 0);
#endif
    for (uint32_t i = 0; i < RP_THREADS_MAX; i++) {
        int64_t empty = 0;
        if (atomic_compare_exchange_strong(&slots[i], &empty, entry))
            return;
    }
}

void rp_thread_end(void) {
    int64_t tid = own_tid();
    for (uint32_t i = 0; i < RP_THREADS_MAX; i++)
        if (atomic_load(&slots[i]) / 2 == tid)
            atomic_store(&slots[i], 0);
}

uint32_t rp_thread_list(struct rp_thread *out, uint32_t capacity) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < RP_THREADS_MAX && count < capacity; i++) {
        int64_t entry = atomic_load(&slots[i]);
        if (entry)
            out[count++] = (struct rp_thread){.tid = (int32_t)(entry / 2),
                                              .role = (enum rp_thread_role)(entry % 2)};
    }
    return count;
}
