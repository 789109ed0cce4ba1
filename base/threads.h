/* threads.h - the registry of this process's threads: TID, and whether a thread computes steps; a
 * wait for a semaphore that ends.
 * Names are the kernel's (/proc/self/task/TID/comm), so every tool shows the same ones.
 * Thread: any; lock-free. A thread that does not fit in the table is named and not registered. */
#ifndef RP_BASE_THREADS_H
#define RP_BASE_THREADS_H

#include "base/base.h"

#include <semaphore.h>

#define RP_THREADS_MAX 1280 /* the CPU backend's 1024 and others */

enum rp_thread_role {
    RP_THREAD_HOST, /* everything else */
    RP_THREAD_STEP  /* a step waits for it: the engine thread and the CPU backend's workers */
};

struct rp_thread {
    int32_t tid;
    enum rp_thread_role role;
};

/* Names and registers the calling thread: first and last statement of a thread's function. name: at
 * most 15 bytes; NULL: keeps its name. */
void rp_thread_begin(const char *name, enum rp_thread_role role);
void rp_thread_end(void);
/* Registered threads, at most `capacity`; returns how many. */
uint32_t rp_thread_list(struct rp_thread *out, uint32_t capacity);

/* Waits for a post, at most this long by rp_clock_ns (with a C library that cannot, by the time of
 * day); false: there was none. */
bool rp_sem_wait_ns(sem_t *sem, uint64_t ns);

#endif
