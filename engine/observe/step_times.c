/* step_times.c - how long steps take: on the device, between two of them, and in the engine
 * thread. */
#include "device/experts.h"
#include "engine/engine_internal.h"

static const double step_bounds[] = {0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01,
                                     0.02,   0.05,   0.1,   0.5,   2.0};
static const double token_bounds[] = {1,   8,    16,   32,   64,   128,  256,
                                      512, 1024, 2048, 4096, 8192, 16384};
static const double small_bounds[] = {1e-6, 3e-6, 1e-5, 2e-5, 5e-5, 1e-4, 3e-4, 1e-3, 1e-2, 0.1};

static const double byte_bounds[] = {65536, 1048576, 16777216, 268435456};

static const double expert_bounds[RP_EXPERT_BINS - 1] = {1,   2,   4,   8,    16,   32,   64,
                                                         128, 256, 512, 1024, 2048, 4096, 8192};

/* The device's counts, as they are now, in place of the histogram's. */
static void copy_bins(struct rp_histogram *to, const uint64_t *bins, double sum) {
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    for (uint32_t i = 0; i < RP_EXPERT_BINS; i++)
        atomic_store_explicit(&to->buckets[i], __atomic_load_n(&bins[i], __ATOMIC_RELAXED),
                              memory_order_relaxed);
    atomic_store_explicit(&to->sum_bits, bits, memory_order_relaxed);
}

static void note_experts(struct rp_engine *engine) {
    const struct rp_expert_stats *stats = engine->batch.view.expert_stats;
    struct rp_engine_metrics *metrics = &engine->metrics;
    copy_bins(&metrics->expert_rows, stats->rows_bins,
              (double)__atomic_load_n(&stats->rows, __ATOMIC_RELAXED));
    copy_bins(&metrics->expert_imbalance, stats->ratio_bins,
              (double)__atomic_load_n(&stats->ratio_thousandths, __ATOMIC_RELAXED) * 1e-3);
    atomic_store_explicit(&metrics->expert_layer_steps.value,
                          __atomic_load_n(&stats->samples, __ATOMIC_RELAXED), memory_order_relaxed);
}

bool rp_engine_times_init(struct rp_engine *engine) {
    struct rp_engine_metrics *metrics = &engine->metrics;
    for (int i = 0; i < 2; i++)
        rp_histogram_init(&metrics->step_seconds[i], step_bounds, RP_ARRAY_COUNT(step_bounds));
    rp_histogram_init(&metrics->step_tokens, token_bounds, RP_ARRAY_COUNT(token_bounds));
    rp_histogram_init(&metrics->step_device_seconds, step_bounds, RP_ARRAY_COUNT(step_bounds));
    rp_histogram_init(&metrics->step_gap_seconds, small_bounds, RP_ARRAY_COUNT(small_bounds));
    rp_histogram_init(&metrics->step_swap_bytes, byte_bounds, RP_ARRAY_COUNT(byte_bounds));
    if (engine->model->config.experts.count) {
        rp_histogram_init(&metrics->expert_rows, expert_bounds, RP_ARRAY_COUNT(expert_bounds));
        rp_histogram_init(&metrics->expert_imbalance, rp_expert_ratio_bounds, RP_EXPERT_BINS - 1);
    }
    rp_histogram_init(&metrics->step_host_seconds, small_bounds, RP_ARRAY_COUNT(small_bounds));
    engine->observer.times = rp_calloc(RP_STEP_TIMES, sizeof *engine->observer.times);
    return engine->observer.times && rp_step_records_init(&engine->observer.records);
}

void rp_engine_note_step(struct rp_engine *engine, const struct rp_pending_step *step) {
    struct rp_engine_metrics *metrics = &engine->metrics;
    uint64_t begin = engine->batch.begin_ns, end = engine->batch.end_ns;
    struct rp_step_times *times =
        &engine->observer.times[engine->observer.times_count++ % RP_STEP_TIMES];
    *times = (struct rp_step_times){
        .device_ns = end - begin, .rows = step->plan.row_count, .tokens = step->plan.token_count};
    rp_histogram_observe(&metrics->step_device_seconds, (double)times->device_ns * 1e-9);
    if (step->behind && engine->observer.device_end_ns && begin > engine->observer.device_end_ns) {
        times->gap_ns = begin - engine->observer.device_end_ns;
        rp_histogram_observe(&metrics->step_gap_seconds, (double)times->gap_ns * 1e-9);
    }
    engine->observer.device_end_ns = end;
    if (engine->model->config.experts.count)
        note_experts(engine);
}

void rp_engine_note_turn(struct rp_engine *engine, uint64_t turn_ns) {
    uint64_t host_ns = turn_ns - RP_MIN(turn_ns, engine->observer.waited_ns);
    engine->observer.times[(engine->observer.times_count - 1) % RP_STEP_TIMES].host_ns = host_ns;
    rp_histogram_observe(&engine->metrics.step_host_seconds, (double)host_ns * 1e-9);
    /* release: whoever sees the count sees the times. */
    atomic_store_explicit(&engine->observer.times_known, engine->observer.times_count,
                          memory_order_release);
}

uint64_t rp_engine_steps_timed(const struct rp_engine *engine) {
    return atomic_load_explicit(&((struct rp_engine *)engine)->observer.times_known,
                                memory_order_acquire);
}

uint32_t rp_engine_step_times(const struct rp_engine *engine, struct rp_step_times *out,
                              uint32_t capacity) {
    uint64_t kept = RP_MIN(engine->observer.times_count, (uint64_t)RP_STEP_TIMES);
    uint32_t count = (uint32_t)RP_MIN(kept, (uint64_t)capacity);
    for (uint32_t i = 0; i < count; i++)
        out[i] = engine->observer.times[(engine->observer.times_count - count + i) % RP_STEP_TIMES];
    return count;
}
