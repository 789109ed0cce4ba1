/* thread_stats.h - what the kernel knows of each thread of this process: name, where it may run and
 * where it ran, how long it ran and waited for a processor, migrations, context switches.
 *
 * Thread: any. Reads files of /proc and /sys, some 50 us a thread. Memory: none kept. */
#ifndef RP_METRICS_THREAD_STATS_H
#define RP_METRICS_THREAD_STATS_H

#include "base/base.h"

#include <sched.h>

#define RP_THREAD_STATS_MAX 128

struct rp_thread_stats {
    int32_t tid;
    char name[16];
    bool computes_steps; /* base/threads.h */
    cpu_set_t affinity;
    int32_t processor, node;         /* where it ran last; -1: not known */
    uint64_t run_ns, wait_ns;        /* on a processor; runnable without one */
    uint64_t voluntary, involuntary; /* context switches */
    int64_t migrations;              /* -1: this kernel does not tell */
};

/* Threads in the order of their TIDs, at most `capacity`; *out_all: how many there are. */
uint32_t rp_thread_stats_read(struct rp_thread_stats *out, uint32_t capacity, uint32_t *out_all);
/* The NUMA node of a processor; -1: not known. */
int32_t rp_numa_node_of(int32_t processor);

#endif
