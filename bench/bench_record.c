#include "bench/bench_record.h"

#include "base/memory.h"
#include "bench/bench_engine.h"
#include "bench/check_internal.h"
#include "engine/observe/request_account.h"
#include "engine/observe/step_record.h"
#include "metrics/latency.h"
#include "metrics/metrics.h"
#include "metrics/recorder.h"
#include "metrics/tick.h"

#define PASSES      9
#define ROWS_MAX    256
#define PAGE_TOKENS 64
/* Requests are as far apart in memory as in a server, where each is part of a completion. */
#define REQUEST_STRIDE 8192
#define COLD_BYTES     ((size_t)8 << 20)

struct bench {
    struct rp_recorder *recorder;
    struct rp_trace_ring *ring;
    struct rp_latency *latency;
    struct rp_histogram histogram;
    struct rp_step_records records;
    struct rp_model model;
    struct rp_account account;
    unsigned char *requests; /* (ROWS_MAX, REQUEST_STRIDE) struct rp_request */
    uint64_t now_ns;
    uint32_t position;
    unsigned char *cold; /* (COLD_BYTES) */
    uint64_t spent_ns;   /* time measured by the operation itself; 0: use its total time */
    volatile uint64_t sink;
};

static void read_system_clock(struct bench *bench, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        bench->sink = rp_clock_ns();
}

static void read_recording_clock(struct bench *bench, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        bench->sink = rp_tick_ns();
}

static void put_timed_event(struct bench *bench, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        rp_trace_put(bench->ring, RP_TRACE_WRITTEN, rp_tick_ns(), i, 0, i, 0);
}

static void put_token_event(struct bench *bench, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        rp_trace_put(bench->ring, RP_TRACE_TOKEN, 1000 + i, i, 0, i, 0);
}

/* Values from 1 us to 1 s, so that not all slots are in the cache. */
static uint64_t next_value(uint64_t value) {
    value = value * 6364136223846793005u + 1442695040888963407u;
    return value;
}

static void record_duration(struct bench *bench, uint32_t count) {
    uint64_t value = 1, now = rp_tick_ns();
    for (uint32_t i = 0; i < count; i++) {
        value = next_value(value);
        rp_latency_record(bench->latency, now, 1000u + (value >> 44) * (value >> 54));
    }
}

static void histogram(struct bench *bench, uint32_t count) {
    uint64_t value = 1;
    for (uint32_t i = 0; i < count; i++) {
        value = next_value(value);
        rp_histogram_observe(&bench->histogram, (double)(value >> 44) * 1e-6);
    }
}

static void put_step_record(struct bench *bench, uint32_t count) {
    struct rp_step_record record = {.graph = 1};
    for (uint32_t i = 0; i < count; i++) {
        record.step = i;
        rp_step_records_put(&bench->records, &record);
    }
}

/* A decode step of this many sequences, each a token longer than in the previous step; as passed by
 * the engine. */
static struct rp_account_step next_step(struct bench *bench, uint32_t rows) {
    const struct rp_account_step step = {.step = bench->now_ns / 3510000,
                                         .bucket = {.tokens = rows, .logit_rows = rows},
                                         .token_count = rows,
                                         .sample_count = rows,
                                         .device_ns = 3500000,
                                         .begin_ns = bench->now_ns,
                                         .end_ns = bench->now_ns + 3500000,
                                         .read_ns = bench->now_ns + 3510000};
    bench->now_ns = step.read_ns;
    bench->position = 1 + (bench->position + 1) % 4096;
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t start = bench->position + i * 7;
        bench->account.rows[i] = (struct rp_account_row){
            .request = (struct rp_request *)(void *)(bench->requests + (size_t)i * REQUEST_STRIDE),
            .slot = i,
            .start = start,
            .count = 1,
            .pages = start / PAGE_TOKENS + 1,
            .decode = true,
            .samples = true,
            .sampled = true};
    }
    return step;
}

static void account_steps(struct bench *bench, uint32_t count, uint32_t rows) {
    for (uint32_t n = 0; n < count / rows; n++) {
        const struct rp_account_step step = next_step(bench, rows);
        rp_account_step(&bench->account, &step, bench->account.rows, rows, NULL);
    }
}

static void account_1_row(struct bench *bench, uint32_t count) { account_steps(bench, count, 1); }
static void account_32_rows(struct bench *bench, uint32_t count) {
    account_steps(bench, count, 32);
}
static void account_256_rows(struct bench *bench, uint32_t count) {
    account_steps(bench, count, 256);
}

/* Evicts the caches first, as happens between two steps of a server. At most 64 Ki rows. */
static void account_cold_steps(struct bench *bench, uint32_t count, uint32_t rows) {
    uint32_t steps = RP_MAX(RP_MIN(count, 1u << 16) / rows, 1u);
    uint64_t spent_ns = 0;
    for (uint32_t n = 0; n < steps; n++) {
        const struct rp_account_step step = next_step(bench, rows);
        for (size_t at = 0; at < COLD_BYTES; at += RP_CACHE_LINE)
            bench->cold[at]++;
        uint64_t begin = rp_tick_ns();
        rp_account_step(&bench->account, &step, bench->account.rows, rows, NULL);
        spent_ns += rp_tick_ns() - begin;
    }
    bench->spent_ns = (uint64_t)((double)spent_ns * count / ((double)steps * rows));
}

static void account_32_cold_rows(struct bench *bench, uint32_t count) {
    account_cold_steps(bench, count, 32);
}
static void account_256_cold_rows(struct bench *bench, uint32_t count) {
    account_cold_steps(bench, count, 256);
}

static double measure(struct bench *bench, void (*work)(struct bench *bench, uint32_t count),
                      uint32_t count) {
    double ns[PASSES];
    work(bench, count);
    for (int i = 0; i < PASSES; i++) {
        uint64_t begin = rp_clock_ns();
        bench->spent_ns = 0;
        work(bench, count);
        uint64_t spent_ns = rp_clock_ns() - begin;
        ns[i] = (double)(bench->spent_ns ? bench->spent_ns : spent_ns) / count;
    }
    return rp_bench_quantile(ns, PASSES, 0.5);
}

/* Attribution for the steps of a small Llama model: the cost per row does not depend on the model's
 * size. */
static int open_account(struct bench *bench, struct rp_error *err) {
    const struct rp_model_config shape = rp_check_shape(RP_FAMILY_LLAMA);
    struct rp_program program;
    int status = rp_model_random(&shape, RP_DTYPE_BF16, 1, 0, &bench->model, err);
    rp_program_init(&program);
    if (status == RP_OK)
        status = rp_model_emit(&bench->model, &program, err);
    if (status != RP_OK) {
        rp_program_deinit(&program);
        return status;
    }
    const struct rp_account_config config = {.program = &program,
                                             .kv_dtype = RP_DTYPE_BF16,
                                             .graph_count = 1,
                                             .slot_count = ROWS_MAX,
                                             .row_capacity = ROWS_MAX,
                                             .padding_costs = true,
                                             .balance = 206};
    bench->requests = rp_calloc(ROWS_MAX, REQUEST_STRIDE);
    bench->cold = rp_calloc(COLD_BYTES, 1);
    bool made = bench->requests && bench->cold && rp_account_init(&bench->account, &config);
    rp_program_deinit(&program);
    return made ? RP_OK : rp_check_no_memory(err);
}

static int open_bench(struct bench *bench, struct rp_error *err) {
    static const double bounds[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1};
    const struct rp_recorder_config config = {.seconds = 60, .mib = 64};
    rp_tick_start();
    rp_histogram_init(&bench->histogram, bounds, RP_ARRAY_COUNT(bounds));
    bench->latency = rp_calloc(1, sizeof *bench->latency);
    if (!bench->latency || !rp_step_records_init(&bench->records))
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    int status = rp_recorder_create(&config, &bench->recorder, err);
    if (status == RP_OK)
        bench->ring = rp_recorder_add(bench->recorder, "engine", RP_RECORDER_ENGINE);
    return status == RP_OK ? open_account(bench, err) : status;
}

int rp_bench_record(uint32_t count, struct rp_bench_record_result out[RP_BENCH_RECORD_RESULTS],
                    struct rp_error *err) {
    static const struct {
        const char *name;
        void (*work)(struct bench *bench, uint32_t count);
    } works[RP_BENCH_RECORD_RESULTS] = {
        {"CLOCK_MONOTONIC", read_system_clock},
        {"recording clock", read_recording_clock},
        {"event, including a clock read", put_timed_event},
        {"token event, time given", put_token_event},
        {"duration, four windows", record_duration},
        {"histogram with ten buckets", histogram},
        {"step record", put_step_record},
        {"attribution of a row, 1 per step", account_1_row},
        {"attribution of a row, 32 per step", account_32_rows},
        {"attribution of a row, 256 per step", account_256_rows},
        {"attribution of a row, 32 per step, cold", account_32_cold_rows},
        {"attribution of a row, 256 per step, cold", account_256_cold_rows}};
    struct bench bench = {.sink = 0};
    int status = open_bench(&bench, err);
    for (uint32_t i = 0; i < RP_BENCH_RECORD_RESULTS && status == RP_OK; i++)
        out[i] =
            (struct rp_bench_record_result){works[i].name, measure(&bench, works[i].work, count)};
    rp_recorder_destroy(bench.recorder);
    rp_step_records_deinit(&bench.records);
    rp_account_deinit(&bench.account);
    rp_free(bench.requests);
    rp_free(bench.cold);
    rp_model_deinit(&bench.model);
    rp_free(bench.latency);
    return status;
}
