#include "server/observe/flight_watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const rp_flight_triggers[RP_FLIGHT_TRIGGER_COUNT] = {
#define X(name, text) [RP_FLIGHT_##name] = text,
    RP_FLIGHT_TRIGGERS(X)
#undef X
};

struct rp_flight_rules rp_flight_rules_default(void) {
    return (struct rp_flight_rules){.slo_count_min = 20,
                                    .step_factor = 10.0,
                                    .step_excess_ns = 2000000,
                                    .step_count_min = 32,
                                    .wait_slack_ns = 100000000,
                                    .preemptions = 8,
                                    .burst_ns = UINT64_C(2000000000)};
}

void rp_flight_watch_init(struct rp_flight_watch *watch, const struct rp_flight_rules *rules) {
    memset(watch, 0, sizeof *watch);
    watch->rules = *rules;
}

static bool failed(struct rp_flight_watch *watch, const struct rp_flight_view *view,
                   struct rp_flight_cause *out) {
    if (!view->failure || watch->failure_said)
        return false;
    watch->failure_said = true;
    *out = (struct rp_flight_cause){.trigger = RP_FLIGHT_DEVICE};
    snprintf(out->text, sizeof out->text, "the device has failed: %.200s", view->failure);
    return true;
}

static bool graph_missing(struct rp_flight_watch *watch, const struct rp_flight_view *view,
                          struct rp_flight_cause *out) {
    if (!view->graphs_missing || !view->steps_total || watch->graphs_said)
        return false;
    watch->graphs_said = true;
    *out =
        (struct rp_flight_cause){.trigger = RP_FLIGHT_GRAPH_MISSING, .value = view->graphs_missing};
    snprintf(out->text, sizeof out->text,
             "%u sizes could not be captured: their steps replay a larger graph",
             view->graphs_missing);
    return true;
}

static bool pages_out(struct rp_flight_watch *watch, const struct rp_flight_view *view,
                      struct rp_flight_cause *out) {
    const uint32_t looks_kept = RP_ARRAY_COUNT(watch->looked_ns);
    uint64_t before = view->preemptions;
    for (uint32_t i = 0; i < RP_MIN(watch->looks, looks_kept); i++)
        if (view->now_ns - watch->looked_ns[i] <= watch->rules.burst_ns)
            before = RP_MIN(before, watch->preemptions[i]);
    watch->looked_ns[watch->looks % looks_kept] = view->now_ns;
    watch->preemptions[watch->looks++ % looks_kept] = view->preemptions;
    uint64_t burst = view->preemptions - before;
    if (!watch->rules.preemptions || burst < watch->rules.preemptions)
        return false;
    *out = (struct rp_flight_cause){.trigger = RP_FLIGHT_PAGES_OUT,
                                    .value = (double)burst,
                                    .limit = (double)watch->rules.preemptions};
    snprintf(out->text, sizeof out->text,
             "pages ran out: %llu requests were swapped out within %.3g s",
             (unsigned long long)burst, (double)watch->rules.burst_ns * 1e-9);
    /* Starts counting the next burst. */
    for (uint32_t i = 0; i < looks_kept; i++)
        watch->preemptions[i] = view->preemptions;
    return true;
}

static bool slo_broken(struct rp_flight_watch *watch, const struct rp_flight_view *view,
                       struct rp_flight_cause *out) {
    static const char *const names[] = {"time to first token", "time per output token",
                                        "time of a request", "time between tokens"};
    for (uint32_t i = 0; i < RP_FLIGHT_SLOS; i++) {
        double limit = (double)watch->rules.slo_ns[i];
        bool broken = limit > 0 && view->latency[i].count >= watch->rules.slo_count_min &&
                      view->latency[i].p99_ns > limit;
        if (!broken || watch->slo_said[i]) {
            watch->slo_said[i] = broken;
            continue;
        }
        watch->slo_said[i] = true;
        *out = (struct rp_flight_cause){.trigger = (enum rp_flight_trigger)(RP_FLIGHT_SLO_TTFT + i),
                                        .value = view->latency[i].p99_ns / 1e9,
                                        .limit = limit / 1e9};
        snprintf(out->text, sizeof out->text,
                 "%s: p99 of the last 10 s is %.4g ms, the objective %.4g ms", names[i],
                 view->latency[i].p99_ns * 1e-6, limit * 1e-6);
        return true;
    }
    return false;
}

static int compare_us(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return a < b ? -1 : a > b;
}

/* Median of the bucket's recent steps; re-sorted only occasionally. */
static uint32_t median_of(struct rp_flight_watch *watch, uint32_t bucket) {
    uint32_t sorted[RP_FLIGHT_KEPT];
    uint32_t kept = RP_MIN(watch->buckets[bucket].count, (uint32_t)RP_FLIGHT_KEPT);
    if (watch->buckets[bucket].count >= watch->buckets[bucket].until) {
        memcpy(sorted, watch->buckets[bucket].kept, kept * sizeof *sorted);
        qsort(sorted, kept, sizeof *sorted, compare_us);
        watch->buckets[bucket].median = sorted[kept / 2];
        watch->buckets[bucket].until = watch->buckets[bucket].count + 16;
    }
    return watch->buckets[bucket].median;
}

static void describe_slow(struct rp_flight_cause *out, double took_ns, double median_ns,
                          uint32_t bucket) {
    snprintf(out->text, sizeof out->text,
             "step %llu took %.4g ms, %.3g times the median of its bucket (%u)",
             (unsigned long long)out->step, took_ns * 1e-6, took_ns / RP_MAX(median_ns, 1.0),
             bucket);
}

/* A step is descheduled when one of its threads waited for a processor for at least half of the
 * excess over the median. The wait is measured between the samples around the step; if they are far
 * apart (the sampler waited too), it is taken to be even over the time between them. */
static void explain_by_wait(struct rp_flight_cause *out, const struct rp_flight_rules *rules,
                            const struct rp_flight_view *view, const struct rp_step_record *step,
                            double excess_ns) {
    out->wait_known = view->waits &&
                      rp_sched_waits_between(view->waits, step->begin_ns, step->end_ns, &out->wait);
    if (!out->wait_known)
        return;
    uint64_t took_ns = step->end_ns - step->begin_ns;
    double waited_ns = (double)out->wait.waited_ns;
    if (out->wait.window_ns - took_ns > rules->wait_slack_ns)
        waited_ns *= (double)took_ns / (double)out->wait.window_ns;
    if (waited_ns < 0.5 * excess_ns)
        return;
    size_t len = strlen(out->text);
    out->trigger = RP_FLIGHT_DESCHEDULED;
    snprintf(out->text + len, sizeof out->text - len,
             ": thread %d was runnable without a processor for %.4g ms of %.4g ms around it",
             (int)out->wait.tid, (double)out->wait.waited_ns * 1e-6,
             (double)out->wait.window_ns * 1e-6);
}

static bool is_slow(struct rp_flight_watch *watch, const struct rp_flight_view *view,
                    const struct rp_step_record *step, struct rp_flight_cause *out) {
    const struct rp_flight_rules *rules = &watch->rules;
    uint32_t bucket = step->graph;
    if (bucket >= RP_FLIGHT_BUCKETS || step->end_ns < step->begin_ns)
        return false;
    uint64_t took = step->end_ns - step->begin_ns;
    bool slow = false;
    if (watch->buckets[bucket].count >= rules->step_count_min) {
        double median = (double)median_of(watch, bucket) * 1e3;
        slow = (double)took > rules->step_factor * median &&
               (double)took > median + (double)rules->step_excess_ns;
        if (slow) {
            *out = (struct rp_flight_cause){.trigger = RP_FLIGHT_SLOW_STEP,
                                            .value = (double)took / 1e9,
                                            .limit = rules->step_factor * median * 1e-9,
                                            .step = step->step};
            describe_slow(out, (double)took, median, bucket);
            explain_by_wait(out, rules, view, step, (double)took - median);
        }
    }
    watch->buckets[bucket].kept[watch->buckets[bucket].count++ % RP_FLIGHT_KEPT] =
        (uint32_t)RP_MIN(took / 1000, (uint64_t)UINT32_MAX);
    return slow;
}

/* Finds the slowest of the slow steps, and the slowest of the descheduled ones for the last rule.
 */
static bool step_slow(struct rp_flight_watch *watch, const struct rp_flight_view *view,
                      struct rp_flight_cause *out) {
    struct rp_flight_cause cause;
    *out = watch->descheduled = (struct rp_flight_cause){.value = 0};
    for (uint32_t i = 0; i < view->step_count && watch->rules.step_factor > 0; i++) {
        if (!is_slow(watch, view, &view->steps[i], &cause))
            continue;
        struct rp_flight_cause *slowest =
            cause.trigger == RP_FLIGHT_DESCHEDULED ? &watch->descheduled : out;
        if (cause.value > slowest->value)
            *slowest = cause;
    }
    return out->value > 0;
}

static bool step_descheduled(struct rp_flight_watch *watch, const struct rp_flight_view *view,
                             struct rp_flight_cause *out) {
    (void)view;
    *out = watch->descheduled;
    return out->value > 0;
}

bool rp_flight_watch_look(struct rp_flight_watch *watch, const struct rp_flight_view *view,
                          struct rp_flight_cause *out) {
    static bool (*const rules[])(struct rp_flight_watch *, const struct rp_flight_view *,
                                 struct rp_flight_cause *) = {
        failed, pages_out, step_slow, slo_broken, graph_missing, step_descheduled};
    bool any = false;
    /* Evaluates every rule, also after one has fired, because the rules keep state. */
    for (size_t i = 0; i < RP_ARRAY_COUNT(rules); i++) {
        struct rp_flight_cause cause;
        if (!rules[i](watch, view, &cause))
            continue;
        if (!any)
            *out = cause;
        any = true;
    }
    return any;
}
