/* cpu_gate.h - a counter that one thread advances and others wait for: they spin for at most 20 us,
 * then sleep on a futex (elsewhere than on Linux: on a condition variable). */
#ifndef RP_DEVICE_CPU_GATE_H
#define RP_DEVICE_CPU_GATE_H

#include "base/base.h"

#include <pthread.h>
#include <stdatomic.h>

#define RP_CPU_NO_DEADLINE UINT64_MAX

struct rp_cpu_gate {
    _Alignas(RP_CACHE_LINE) _Atomic uint32_t word;
    _Atomic uint32_t sleepers;
#if !defined(__linux__)
    pthread_mutex_t mutex;
    pthread_cond_t cond;
#endif
};

/* The gate is zeroed before. false: the system has no resources. */
bool rp_cpu_gate_init(struct rp_cpu_gate *gate);
void rp_cpu_gate_deinit(struct rp_cpu_gate *gate);

static inline bool rp_cpu_gate_passed(struct rp_cpu_gate *gate, uint32_t seen) {
    /* acquire: what the signaller wrote before it opened the gate is visible once this is true. */
    return atomic_load_explicit(&gate->word, memory_order_acquire) != seen;
}
/* Moves the counter on to `value`; one thread at a time does so. */
void rp_cpu_gate_open(struct rp_cpu_gate *gate, uint32_t value);
/* Moves the counter on by one; any thread at any time. */
void rp_cpu_gate_advance(struct rp_cpu_gate *gate);
/* Spins; true when the counter differs from `seen`. yield: lets other threads run in between. */
bool rp_cpu_gate_spin(struct rp_cpu_gate *gate, uint32_t seen, bool yield);
/* Sleeps until the counter differs from `seen`; false when the deadline (rp_clock_ns) passed
 * first. */
bool rp_cpu_gate_wait(struct rp_cpu_gate *gate, uint32_t seen, uint64_t deadline_ns);

#endif
