#include "base/threads.h"

#include <errno.h>
#include <stdatomic.h>
#include <time.h>

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

/* glibc 2.30 */
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 30)
#define WAIT_CLOCK             CLOCK_MONOTONIC
#define wait_until(sem, until) sem_clockwait(sem, WAIT_CLOCK, until)
#else
#define WAIT_CLOCK             CLOCK_REALTIME
#define wait_until(sem, until) sem_timedwait(sem, until)
#endif

bool rp_sem_wait_ns(sem_t *sem, uint64_t ns) {
    struct timespec until;
    int status;
    clock_gettime(WAIT_CLOCK, &until);
    ns += (uint64_t)until.tv_nsec;
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    do
        status = wait_until(sem, &until);
    while (status != 0 && errno == EINTR);
    return status == 0;
}
