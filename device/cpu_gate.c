#include "device/cpu_gate.h"

#include "base/clock.h"

#include <sched.h>

#if defined(__linux__)
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

/* More than a barrier between balanced workers needs, less than the scheduler's tick. */
#define SPIN_NS 20000u
/* Pauses before the clock is read for the first time; about half a microsecond on Zen 4. */
#define SPIN_PAUSES 32

static inline void cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#if defined(__linux__)

bool rp_cpu_gate_init(struct rp_cpu_gate *gate) {
    (void)gate;
    return true;
}

void rp_cpu_gate_deinit(struct rp_cpu_gate *gate) { (void)gate; }

/* Sleeps while word == seen; may return early for any reason. */
static void gate_sleep(struct rp_cpu_gate *gate, uint32_t seen, uint64_t deadline_ns) {
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                             .tv_nsec = (long)(deadline_ns % 1000000000u)};
    /* WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC, as rp_clock_ns is. */
    syscall(SYS_futex, &gate->word, FUTEX_WAIT_BITSET_PRIVATE, seen,
            deadline_ns == RP_CPU_NO_DEADLINE ? NULL : &until, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void gate_wake(struct rp_cpu_gate *gate) {
    syscall(SYS_futex, &gate->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

#else

bool rp_cpu_gate_init(struct rp_cpu_gate *gate) {
    if (pthread_mutex_init(&gate->mutex, NULL) != 0)
        return false;
    if (pthread_cond_init(&gate->cond, NULL) == 0)
        return true;
    pthread_mutex_destroy(&gate->mutex);
    return false;
}

void rp_cpu_gate_deinit(struct rp_cpu_gate *gate) {
    pthread_cond_destroy(&gate->cond);
    pthread_mutex_destroy(&gate->mutex);
}

static void gate_sleep(struct rp_cpu_gate *gate, uint32_t seen, uint64_t deadline_ns) {
    pthread_mutex_lock(&gate->mutex);
    if (atomic_load(&gate->word) == seen) {
        if (deadline_ns == RP_CPU_NO_DEADLINE) {
            pthread_cond_wait(&gate->cond, &gate->mutex);
        } else {
            /* Condition variables wait for wall time by default: turn what is left into it. */
            uint64_t now = rp_clock_ns(), left = deadline_ns > now ? deadline_ns - now : 0;
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            left += (uint64_t)until.tv_nsec;
            until.tv_sec += (time_t)(left / 1000000000u);
            until.tv_nsec = (long)(left % 1000000000u);
            pthread_cond_timedwait(&gate->cond, &gate->mutex, &until);
        }
    }
    pthread_mutex_unlock(&gate->mutex);
}

static void gate_wake(struct rp_cpu_gate *gate) {
    pthread_mutex_lock(&gate->mutex);
    pthread_cond_broadcast(&gate->cond);
    pthread_mutex_unlock(&gate->mutex);
}

#endif

void rp_cpu_gate_open(struct rp_cpu_gate *gate, uint32_t value) {
    /* Sequentially consistent against the sleeper's count: either the sleeper's last look at the
     * word sees this step, or this load sees the sleeper. */
    atomic_store_explicit(&gate->word, value, memory_order_seq_cst);
    if (atomic_load_explicit(&gate->sleepers, memory_order_seq_cst) != 0)
        gate_wake(gate);
}

bool rp_cpu_gate_spin(struct rp_cpu_gate *gate, uint32_t seen, bool yield) {
    for (int i = 0; i < SPIN_PAUSES; i++) {
        if (rp_cpu_gate_passed(gate, seen))
            return true;
        cpu_pause();
    }
    uint64_t end = rp_clock_ns() + SPIN_NS;
    do {
        for (int i = 0; i < SPIN_PAUSES; i++) {
            if (rp_cpu_gate_passed(gate, seen))
                return true;
            cpu_pause();
        }
        if (yield)
            sched_yield();
    } while (rp_clock_ns() < end);
    return rp_cpu_gate_passed(gate, seen);
}

bool rp_cpu_gate_wait(struct rp_cpu_gate *gate, uint32_t seen, uint64_t deadline_ns) {
    for (;;) {
        if (rp_cpu_gate_passed(gate, seen))
            return true;
        if (deadline_ns != RP_CPU_NO_DEADLINE && rp_clock_ns() >= deadline_ns)
            return false;
        atomic_fetch_add_explicit(&gate->sleepers, 1, memory_order_seq_cst);
        if (atomic_load_explicit(&gate->word, memory_order_seq_cst) == seen)
            gate_sleep(gate, seen, deadline_ns);
        atomic_fetch_sub_explicit(&gate->sleepers, 1, memory_order_relaxed);
    }
}

void rp_cpu_gate_advance(struct rp_cpu_gate *gate) {
    atomic_fetch_add_explicit(&gate->word, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&gate->sleepers, memory_order_seq_cst) != 0)
        gate_wake(gate);
}
