/* stack_sampler.h - call stacks of all threads of this process, sampled while they run.
 *
 * Each thread has a timer on its own processor time (timer_create, SIGEV_THREAD_ID), so a thread
 * that waits is neither sampled nor woken. The SIGPROF handler stores return addresses in memory
 * that was allocated before; names are looked up later (symbols.h).
 *
 * The handler unwinds with backtrace(), that is with the unwind tables that every x86-64 and
 * AArch64 library has: libc, libuv and OpenSSL are built without frame pointers, so a walk along
 * these would end there. It is safe in a handler where the tables are found without a lock
 * (_dl_find_object, glibc 2.35); elsewhere sampling is refused. rp_stacks_prepare makes the first
 * call, which loads libgcc.
 *
 * Thread: any that may sleep; one sampling at a time. Memory: the caller's, fixed. */
#ifndef RP_METRICS_STACK_SAMPLER_H
#define RP_METRICS_STACK_SAMPLER_H

#include "base/status.h"

#define RP_STACK_DEPTH   48
#define RP_STACK_THREADS 1280
#define RP_STACK_SAMPLES 16384 /* 6.5 MB */

struct rp_stack_sample {
    uint32_t thread; /* index into names */
    uint32_t depth;
    const void *frames[RP_STACK_DEPTH]; /* the interrupted instruction, then return addresses */
};

struct rp_stacks {
    char names[RP_STACK_THREADS][16];
    uint32_t thread_count;
    uint32_t unsampled;             /* threads that block SIGPROF, or beyond RP_STACK_THREADS */
    uint32_t sample_count, dropped; /* dropped: there was no more room */
    double seconds;
    struct rp_stack_sample samples[RP_STACK_SAMPLES];
};

/* At the start of the program, before a system call filter forbids to load a library. Optional
 * otherwise. */
void rp_stacks_prepare(void);
/* Samples every thread that exists now, `hz` times per second of its processor time, for so long.
 * IN_USE: another sampling runs; UNSUPPORTED: this system cannot. */
int rp_stacks_sample(struct rp_stacks *stacks, double seconds, uint32_t hz,
                     struct rp_error *err) RP_MUST_USE;

#endif
