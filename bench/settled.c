#include "bench/settled.h"

#include <math.h>
#include <string.h>

#define TOLERANCE 0.02

/* RP_SETTLED_WINDOW consecutive samples in ascending order. */
struct window {
    double sorted[RP_SETTLED_WINDOW];
    uint32_t count;
};

static void insert(struct window *window, double value) {
    uint32_t at = window->count++;
    for (; at > 0 && window->sorted[at - 1] > value; at--)
        window->sorted[at] = window->sorted[at - 1];
    window->sorted[at] = value;
}

static void remove_value(struct window *window, double value) {
    uint32_t at = 0;
    while (at + 1 < window->count && window->sorted[at] != value)
        at++;
    window->count--;
    memmove(window->sorted + at, window->sorted + at + 1,
            (window->count - at) * sizeof *window->sorted);
}

static double median(const struct window *window) {
    return 0.5 * (window->sorted[(window->count - 1) / 2] + window->sorted[window->count / 2]);
}

struct rp_settled rp_settled_find(const double *samples, uint32_t count) {
    struct window now = {.count = 0}, next = {.count = 0};
    if (count < RP_SETTLED_SAMPLES)
        return (struct rp_settled){.why_not = "fewer than 100 samples"};
    for (uint32_t i = 0; i < RP_SETTLED_WINDOW; i++) {
        insert(&now, samples[i]);
        insert(&next, samples[RP_SETTLED_WINDOW + i]);
    }
    for (uint32_t i = 0;; i++) {
        if (fabs(median(&now) - median(&next)) <= TOLERANCE * fabs(median(&next)))
            return (struct rp_settled){.reliable = true, .after = i};
        if (i + RP_SETTLED_SAMPLES == count)
            return (struct rp_settled){.why_not = "not settled"};
        remove_value(&now, samples[i]);
        insert(&now, samples[i + RP_SETTLED_WINDOW]);
        remove_value(&next, samples[i + RP_SETTLED_WINDOW]);
        insert(&next, samples[i + RP_SETTLED_SAMPLES]);
    }
}
