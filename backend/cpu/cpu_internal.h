/* cpu_internal.h - what the files of the CPU backend share: its captured graph and its device.
 *
 * A graph is the lowered list: one launch per kernel with arguments that never change. Replaying it
 * is one job of the worker team that walks the list, with a barrier after every launch. */
#ifndef RP_BACKEND_CPU_INTERNAL_H
#define RP_BACKEND_CPU_INTERNAL_H

#include "backend/cpu/cpu_memory.h"
#include "backend/fuse.h"
#include "base/memory.h"
#include "device/cpu_isa.h"
#include "device/cpu_team.h"
#include "device/device.h"
#include "device/step_cpu.h"

struct rp_cpu_launch {
    void (*run)(const void *args, const struct rp_cpu_worker *worker);
    void *args;                   /* in the graph's memory */
    const struct rp_graph *graph; /* it belongs to */
    struct rp_launch_info info;
};

struct rp_graph {
    struct rp_device *device;
    struct rp_arena memory; /* argument blocks and the list */
    struct rp_cpu_launch *launches;
    uint32_t launch_count;
    bool eager;
    _Atomic uint64_t last_ns; /* of its last replay; 0: there was none */
    /* Stamps from its first launch on; counts say whether the current step is stamped. NULL: the
     * step has no stamps. */
    struct rp_node_stamp *stamps;
    const struct rp_live_counts *counts;
};

/* A copy or fill that waits in the stream. */
struct rp_cpu_transfer {
    unsigned char *to;
    const unsigned char *from; /* NULL: fill with byte */
    size_t bytes;
    int byte;
};
#define RP_CPU_TRANSFERS 128 /* more than the 64 jobs that the team queues */

struct rp_cpu_exchange;

struct rp_device {
    struct rp_cpu_team *team;
    enum rp_cpu_isa isa;
    uint64_t last_job;
    struct rp_cpu_transfer transfers[RP_CPU_TRANSFERS];
    uint32_t next_transfer;
    struct rp_candidate *sample_scratch; /* (workers, sample_vocab) */
    float *sample_copies;                /* (workers, sample_vocab) */
    uint32_t sample_vocab;
    uint64_t allocation_count; /* since open */
    _Atomic uint64_t last_replay_ns;
    _Atomic uint64_t launches; /* that worker 0 has run */
    double slow_share;         /* rp_device_config's, as the next one */
    bool short_steps_here;
    /* An injected fault (--debug-fault): sticky, as on a GPU. */
    _Atomic bool failed;
    _Atomic bool released; /* ends a hang, when the device is closed */
    const char *fault;     /* what last_error says; NULL: another rank has failed */
    /* In a group: cpu_exchange.h. */
    struct rp_cpu_exchange *exchange;
    uint32_t rank;
    uint32_t exchange_count; /* begun so far; worker 0 writes it between two barriers */
};

extern const struct rp_fusion_table rp_cpu_fusions; /* cpu_lower.c */

/* Lowers ops [begin, end) into graph->launches. UNSUPPORTED names the operator. */
int rp_cpu_lower(struct rp_graph *graph, const struct rp_program *program, uint32_t begin,
                 uint32_t end, const struct rp_bucket *bucket, const struct rp_bindings *bindings,
                 const struct rp_lower_options *options, struct rp_error *err);

#endif
