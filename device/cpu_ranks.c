#include "device/cpu_ranks.h"

#include "base/memory.h"
#include "device/cpu_gate.h"

#include <string.h>

struct rp_cpu_ranks {
    struct rp_cpu_gate phase; /* advanced by the last rank to come, and when it is broken */
    _Alignas(RP_CACHE_LINE) _Atomic uint32_t arrived;
    _Atomic bool broken;
    uint32_t count;
};

struct rp_cpu_ranks *rp_cpu_ranks_create(uint32_t count) {
    struct rp_cpu_ranks *ranks = rp_alloc_aligned(sizeof *ranks, RP_CACHE_LINE);
    if (!ranks)
        return NULL;
    memset(ranks, 0, sizeof *ranks);
    ranks->count = count;
    if (rp_cpu_gate_init(&ranks->phase))
        return ranks;
    rp_free_aligned(ranks);
    return NULL;
}

void rp_cpu_ranks_destroy(struct rp_cpu_ranks *ranks) {
    if (!ranks)
        return;
    rp_cpu_gate_deinit(&ranks->phase);
    rp_free_aligned(ranks);
}

bool rp_cpu_ranks_wait(struct rp_cpu_ranks *ranks) {
    /* acquire, and before `broken` is read: who breaks sets it before it advances the phase. */
    uint32_t seen = atomic_load_explicit(&ranks->phase.word, memory_order_acquire);
    if (atomic_load_explicit(&ranks->broken, memory_order_acquire))
        return false;
    /* acq_rel: the last to come has seen everything that the others wrote, and passes it on. */
    uint32_t before = atomic_fetch_add_explicit(&ranks->arrived, 1, memory_order_acq_rel);
    if (before + 1 == ranks->count) {
        atomic_store_explicit(&ranks->arrived, 0, memory_order_relaxed);
        rp_cpu_gate_advance(&ranks->phase);
    } else if (!rp_cpu_gate_spin(&ranks->phase, seen, true)) {
        rp_cpu_gate_wait(&ranks->phase, seen, RP_CPU_NO_DEADLINE);
    }
    return !atomic_load_explicit(&ranks->broken, memory_order_acquire);
}

void rp_cpu_ranks_break(struct rp_cpu_ranks *ranks) {
    atomic_store(&ranks->broken, true);
    rp_cpu_gate_advance(&ranks->phase);
}
