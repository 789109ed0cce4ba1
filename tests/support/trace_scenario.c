#include "tests/support/trace_scenario.h"

#include "metrics/trace_ring.h"

#include <stdio.h>
#include <string.h>

enum { FIRST = 17, SECOND = 18, OLD = 9 }; /* requests */

static struct rp_trace_ring engine, loop, worker;
static uint32_t made[32]; /* tokens of each request */

static uint64_t at(int64_t us) { return RP_SCENARIO_BEGIN_NS + (uint64_t)(us * 1000); }

static void span(struct rp_trace_ring *ring, enum rp_trace_kind kind, int64_t begin, int64_t end,
                 uint32_t a, uint16_t b, uint64_t id) {
    rp_trace_put(ring, kind, at(begin), a, b, id, (uint64_t)(end - begin) * 1000);
}

static void instant(struct rp_trace_ring *ring, enum rp_trace_kind kind, int64_t us, uint32_t a,
                    uint16_t b, uint64_t id, uint64_t v) {
    rp_trace_put(ring, kind, at(us), a, b, id, v);
}

struct row {
    uint32_t request, tokens;
    bool decode, sampled;
};

/* One step: planned and launched from plan to launched, on the device from begin to end, read at
 * `read`. */
static void step(uint64_t number, uint16_t bucket, int64_t plan, int64_t launched, int64_t begin,
                 int64_t end, int64_t read, const struct row *rows, uint32_t count) {
    uint32_t tokens = 0, sampled = 0;
    for (uint32_t i = 0; i < count; i++) {
        tokens += rows[i].tokens;
        sampled += rows[i].sampled;
        if (!rows[i].decode)
            instant(&engine, RP_TRACE_ROW, plan + 20, rows[i].tokens, rows[i].sampled,
                    rows[i].request, number);
    }
    int64_t planned = plan + 50;
    span(&engine, RP_TRACE_PLAN, plan, planned, count, 0, number);
    /* Shorter than the microsecond to which some viewers round. */
    uint64_t launch_ns = number == 7 ? 450 : (uint64_t)(launched - planned) * 1000;
    rp_trace_put(&engine, RP_TRACE_LAUNCH, at(planned), 256, bucket, number, launch_ns);
    span(&engine, RP_TRACE_WAIT, read - 200, read, 0, 0, number);
    span(&engine, RP_TRACE_REPLAY, begin, end, tokens, bucket, number);
    instant(&engine, RP_TRACE_PADDING, end, 3, bucket, number, count);
    for (uint32_t i = 0; i < count; i++)
        if (rows[i].sampled)
            instant(&engine, RP_TRACE_TOKEN, read, made[rows[i].request]++, 0, rows[i].request,
                    number);
    span(&engine, RP_TRACE_COMMIT, read, read + 30, sampled, 0, number);
    span(&engine, RP_TRACE_EMIT, read + 30, read + 40, sampled, 0, 0);
    span(&loop, RP_TRACE_EVENTS, read + 60, read + 160, sampled, 0, 0);
    for (uint32_t i = 0; i < count; i++)
        if (rows[i].sampled)
            instant(&loop, RP_TRACE_WRITTEN, read + 100, 40, 0, rows[i].request,
                    made[rows[i].request] - 1);
}

static void idle(int64_t begin, int64_t end, enum rp_idle_cause cause, uint64_t before) {
    span(&engine, RP_TRACE_IDLE, begin, end, 0, (uint16_t)cause, before);
}

static void counters(int64_t us, uint32_t running, uint32_t waiting, uint32_t swapped,
                     uint32_t free) {
    instant(&engine, RP_TRACE_LOAD, us, running, 0, waiting, swapped);
    instant(&engine, RP_TRACE_PAGES, us, free, 0, 64 - free, 5);
    instant(&engine, RP_TRACE_RATE, us, 2000, 0, 900, 0);
}

static void arrive(void) {
    span(&loop, RP_TRACE_POLL, 0, 100, 0, 0, 0);
    span(&loop, RP_TRACE_READ, 100, 150, 900, 0, 0);
    instant(&loop, RP_TRACE_RECEIVED, 110, 812, 0, FIRST, 0);
    span(&worker, RP_TRACE_WORK, 150, 450, 20000, RP_TRACE_JOB_TEXT, 0);
    span(&loop, RP_TRACE_TOKENIZED, 150, 460, 40, 0, FIRST);
    instant(&loop, RP_TRACE_QUEUED, 470, 40, 0, FIRST, 6);
    span(&loop, RP_TRACE_READ, 1200, 1250, 300, 0, 0);
    instant(&loop, RP_TRACE_RECEIVED, 1210, 250, 0, SECOND, 0);
    span(&loop, RP_TRACE_TOKENIZED, 1220, 1240, 8, 0, SECOND);
    instant(&loop, RP_TRACE_QUEUED, 1245, 8, 0, SECOND, 100);
}

/* Stamps of step 4: each node begins a little before its predecessor ends. */
static void nodes(void) {
    for (uint32_t i = 0; i < 5; i++)
        span(&engine, RP_TRACE_NODE, 7000 + 190 * (int64_t)i, 7200 + 190 * (int64_t)i, i, 2, 4);
}

static void live(void) {
    const struct row old = {OLD, 1, true, true};
    const struct row first[] = {{FIRST, 32, false, false}},
                     second[] = {{FIRST, 8, false, true}, old};
    const struct row third[] = {{FIRST, 1, true, true}, {SECOND, 8, false, true}, old};
    const struct row both[] = {{FIRST, 1, true, true}, {SECOND, 1, true, true}};
    const struct row three[] = {{FIRST, 1, true, true}, {SECOND, 1, true, true}, old};
    const struct row last[] = {{SECOND, 1, true, true}};
    memset(made, 0, sizeof made);
    instant(&engine, RP_TRACE_LOAD, -4000, 1, 0, 0, 0);
    instant(&engine, RP_TRACE_ADMITTED, -3000, 0, 0, OLD, 1);
    step(1, 2, -2000, -1900, -1880, -900, -880, &old, 1);
    arrive();
    idle(-900, 1010, RP_IDLE_NO_WORK, 2);
    span(&engine, RP_TRACE_SLEEP, -800, 900, 0, 0, 0);
    span(&engine, RP_TRACE_ACCEPT, 900, 905, 1, 0, 0);
    instant(&engine, RP_TRACE_ADMITTED, 920, 0, 3, FIRST, 2);
    step(2, 5, 910, 1000, 1010, 3000, 3010, first, 1);
    step(3, 5, 1010, 1100, 3000, 5000, 5010, second,
         2); /* launched while 2 runs; begins as it ends */
    instant(&engine, RP_TRACE_ADMITTED, 5060, 4, 1, SECOND, 4);
    counters(5060, 3, 0, 0, 40);
    idle(5000, 5060, RP_IDLE_RESULT, 4);
    idle(5060, 5200, RP_IDLE_PLAN, 4);
    idle(5200, 7000, RP_IDLE_LAUNCH, 4);
    step(4, 2, 5050, 6990, 7000, 8000, 8010, third, 3);
    nodes();
    instant(&engine, RP_TRACE_SWAP_OUT, 7100, 3, 0, OLD, 5); /* by the plan of 5, while 4 runs */
    step(5, 2, 7080, 7180, 7999, 9000, 9010, both, 2);       /* a microsecond of jitter */
    counters(7100, 2, 0, 1, 1);
    instant(&engine, RP_TRACE_SWAP_IN, 8100, 3, 0, OLD, 6);
    step(6, 2, 8080, 8180, 9000, 10000, 10010, three, 3);
    step(7, 2, 9080, 9180, 10000, 11000, 11010, three, 3);
    instant(&engine, RP_TRACE_CLOSED, 11010, 4, 1, FIRST, 0);
    instant(&engine, RP_TRACE_CLOSED, 11010, 5, 2, OLD, 0);
    instant(&loop, RP_TRACE_ANSWERED, 11200, 600, 200, FIRST, 0);
    instant(&loop, RP_TRACE_ANSWERED, 14000, 700, 200, OLD, 0); /* a slow reader */
    counters(11020, 1, 0, 0, 60);
    step(8, 2, 10080, 10180, 11000, 12000, 12010, last, 1);
    instant(&engine, RP_TRACE_POWER, 15000, 312000, 54, 1980, 0);
    idle(12000, 19500, RP_IDLE_CLIENT, 9);
    step(9, 2, 19300, 19400, 19500, 21000, 21010, last, 1); /* the window ends in it */
}

uint64_t rp_scenario_events(struct rp_trace_event out[RP_SCENARIO_EVENTS_MAX]) {
    struct rp_trace_ring *rings[] = {&engine, &loop, &worker};
    static const char *const names[] = {"engine", "loop", "worker"};
    uint64_t count = 0;
    for (size_t i = 0; i < RP_ARRAY_COUNT(rings); i++)
        RP_ASSERT(rp_trace_ring_init(rings[i], names[i], 256));
    live();
    for (size_t i = 0; i < RP_ARRAY_COUNT(rings); i++) {
        bool whole = false;
        count +=
            rp_trace_ring_copy(rings[i], 0, out + count, RP_SCENARIO_EVENTS_MAX - count, &whole);
        RP_ASSERT(whole);
        rp_trace_ring_deinit(rings[i]);
    }
    rp_trace_sort(out, count);
    return count;
}

static bool name(void *ctx, enum rp_trace_name_of of, uint32_t bucket, uint32_t value, char *out,
                 size_t size) {
    static const char *const nodes_of_2[] = {"embed", "layer.0.qkv", "layer.0.\"attn\"\xff",
                                             "sample"};
    (void)ctx;
    if (of == RP_NAME_BUCKET)
        snprintf(out, size, value == 2 ? "decode 4" : "mixed 64");
    else if (of == RP_NAME_NODE && bucket == 2 && value < RP_ARRAY_COUNT(nodes_of_2))
        snprintf(out, size, "%s", nodes_of_2[value]);
    else if (of == RP_NAME_REASON)
        snprintf(out, size, value == 1 ? "stop" : "length");
    else
        return false;
    return true;
}

struct rp_trace_info rp_scenario_info(void) {
    return (struct rp_trace_info){.begin_ns = RP_SCENARIO_BEGIN_NS,
                                  .end_ns = RP_SCENARIO_END_NS,
                                  .wanted_ns = 30000000,
                                  .whole = false,
                                  .unix_ns = UINT64_C(1800000000000000000),
                                  .version = "1.2.3",
                                  .model = "a \"model\"",
                                  .names = {.name = name}};
}
