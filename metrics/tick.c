#include "metrics/tick.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>
#if RP_TICK_COUNTER
#include <cpuid.h>
#endif

struct rp_tick_line rp_tick_lines[RP_TICK_LINES];
_Atomic uint64_t rp_tick_version;

#define SECOND_NS 1000000000u
#define LEARN_NS  10000000u
#define AHEAD_NS  1000000u
#define WRONG_NS  1000000
#define RATE_ONE  4294967296.0

/* The two clocks at one moment. */
struct pair {
    uint64_t counter, ns;
};
static struct pair last;      /* owner */
static _Atomic uint64_t rate; /* ns * 2^32 a tick; 0: not in use */

/* The counter amid the tightest of a few looks at the clock: interrupts and other guests come
 * between. */
static struct pair look(void) {
    struct pair best = {0, 0};
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 16; i++) {
        uint64_t before = rp_tick_counter(), ns = rp_clock_ns(), after = rp_tick_counter();
        if (after - before < least) {
            least = after - before;
            best = (struct pair){before + (after - before) / 2, ns};
        }
    }
    return best;
}

/* Whether the counter is constant and does not stop (the processor says both in one bit), and the
 * kernel has not turned away from it. */
static bool counter_is_sound(void) {
#if RP_TICK_COUNTER
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(0x80000007, &a, &b, &c, &d) || !(d & (1u << 8)))
        return false;
    char name[64] = "";
    FILE *file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
    if (!file)
        return false;
    if (!fgets(name, sizeof name, file))
        name[0] = '\0';
    fclose(file);
    name[strcspn(name, "\n")] = '\0';
    return strcmp(name, "tsc") == 0 || strcmp(name, "kvm-clock") == 0 ||
           strcmp(name, "hyperv_clocksource_tsc_page") == 0;
#else
    return false;
#endif
}

static uint64_t rate_between(struct pair from, struct pair to) {
    return (uint64_t)((double)(to.ns - from.ns) / (double)(to.counter - from.counter) * RATE_ONE);
}

static void publish(const struct rp_tick_next *next) {
    uint64_t version = atomic_load_explicit(&rp_tick_version, memory_order_relaxed) + 1;
    struct rp_tick_line *line = &rp_tick_lines[version % RP_TICK_LINES];
    /* release: a reader that sees a word of this line sees that the one before it was out, and
     * tries again. */
    atomic_store_explicit(&line->counter0, next->counter0, memory_order_release);
    atomic_store_explicit(&line->ns0, next->ns0, memory_order_release);
    atomic_store_explicit(&line->before, next->before, memory_order_release);
    atomic_store_explicit(&line->after, next->after, memory_order_release);
    atomic_store_explicit(&rp_tick_version, version, memory_order_release);
    atomic_store_explicit(&rate, next->after, memory_order_relaxed);
}

bool rp_tick_start(void) {
    if (atomic_load_explicit(&rp_tick_version, memory_order_relaxed))
        return true;
    if (!counter_is_sound())
        return false;
    struct pair first = look();
    nanosleep(&(struct timespec){.tv_nsec = LEARN_NS}, NULL);
    last = look();
    if (last.counter <= first.counter || last.ns <= first.ns)
        return false;
    uint64_t learnt = rate_between(first, last);
    publish(&(struct rp_tick_next){last.counter, last.ns, learnt, learnt});
    return true;
}

struct rp_tick_next rp_tick_follow(uint64_t counter, uint64_t ours, uint64_t truth,
                                   uint64_t old_rate, uint64_t seen_rate, uint64_t ahead) {
    double wrong = (double)(int64_t)(truth - ours) / SECOND_NS;
    double most = 500e-6;
    double factor = wrong > most ? most : wrong < -most ? -most : wrong;
    return (struct rp_tick_next){
        .counter0 = counter + ahead,
        .ns0 = ours + (uint64_t)(((rp_tick_wide)ahead * old_rate) >> 32),
        .before = old_rate,
        .after = (uint64_t)((double)seen_rate * (1.0 + factor)),
    };
}

static void give_up(int64_t wrong) {
    atomic_store_explicit(&rp_tick_version, 0, memory_order_release);
    atomic_store_explicit(&rate, 0, memory_order_relaxed);
    rp_log(RP_LOG_WARN, "clock: the time stamp counter was off by %lld ns and is not used any more",
           (long long)wrong);
}

void rp_tick_check(void) {
    uint64_t old_rate = atomic_load_explicit(&rate, memory_order_relaxed);
    if (old_rate == 0 || rp_clock_ns() - last.ns < SECOND_NS)
        return;
    for (int attempt = 0; attempt < 4; attempt++) {
        struct pair now = look();
        uint64_t version = atomic_load_explicit(&rp_tick_version, memory_order_relaxed);
        const struct rp_tick_line *line = &rp_tick_lines[version % RP_TICK_LINES];
        uint64_t ours = rp_tick_line_ns(now.counter,
                                        atomic_load_explicit(&line->counter0, memory_order_relaxed),
                                        atomic_load_explicit(&line->ns0, memory_order_relaxed),
                                        atomic_load_explicit(&line->before, memory_order_relaxed),
                                        atomic_load_explicit(&line->after, memory_order_relaxed));
        int64_t wrong = (int64_t)(now.ns - ours);
        if (wrong > WRONG_NS || wrong < -WRONG_NS || now.counter <= last.counter) {
            give_up(wrong);
            return;
        }
        uint64_t ahead = (uint64_t)(AHEAD_NS * RATE_ONE / (double)old_rate);
        struct rp_tick_next next =
            rp_tick_follow(now.counter, ours, now.ns, old_rate, rate_between(last, now), ahead);
        if (rp_tick_counter() >= next.counter0) /* held up: what is ahead must still be ahead */
            continue;
        publish(&next);
        last = now;
        return;
    }
}

void rp_tick_stop(void) {
    atomic_store_explicit(&rp_tick_version, 0, memory_order_release);
    atomic_store_explicit(&rate, 0, memory_order_relaxed);
}

double rp_tick_hertz(void) {
    uint64_t now = atomic_load_explicit(&rate, memory_order_relaxed);
    return now ? 1e9 * RATE_ONE / (double)now : 0.0;
}
