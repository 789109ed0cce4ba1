#include "bench/pair.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/memory.h"
#include "bench/bench_engine.h"

#include <string.h>
#include <time.h>

/* ---- blocks --------------------------------------------------------------------------------- */

static void close_sides(const struct rp_pair_side *const sides[2]) {
    for (int i = 0; i < 2; i++)
        if (sides[i]->close)
            sides[i]->close(sides[i]->ctx);
}

/* Opens both sides and takes a discarded sample of each. */
static int open_sides(const struct rp_pair_side *const sides[2],
                      const struct rp_pair_run_options *options, uint32_t block, uint64_t seed,
                      struct rp_error *err) {
    int status = RP_OK;
    double ignored;
    for (uint32_t i = 0; i < 2 && status == RP_OK; i++) {
        const struct rp_pair_side *side = sides[(block + i) % 2];
        status = side->open ? side->open(side->ctx, err) : RP_OK;
    }
    for (uint32_t i = 0; i < 2 && status == RP_OK; i++)
        status =
            sides[i]->sample(sides[i]->ctx, &options->load, options->clock, seed, &ignored, err);
    return status;
}

static int run_block(const struct rp_pair_side *const sides[2],
                     const struct rp_pair_run_options *options, uint32_t block, double values[4],
                     struct rp_error *err) {
    uint64_t seed = options->seed + 3 * (uint64_t)block;
    int status = RP_OK;
    if (block == 0 || !options->keep) {
        if (block > 0)
            close_sides(sides);
        status = open_sides(sides, options, block, seed, err);
    }
    for (uint32_t i = 0; i < 4 && status == RP_OK; i++) {
        const struct rp_pair_side *side = sides[i == 1 || i == 2];
        status = side->sample(side->ctx, &options->load, options->clock, seed + 1 + i / 2,
                              &values[i], err);
    }
    return status;
}

int rp_pair_run(const struct rp_pair_side *a, const struct rp_pair_side *b,
                const struct rp_pair_run_options *options, struct rp_comparison *out,
                struct rp_error *err) {
    const struct rp_pair_side *const sides[2] = {a, b};
    double *values = rp_calloc(options->blocks, 4 * sizeof *values);
    if (!values)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for samples");
    int status = RP_OK;
    for (uint32_t block = 0; block < options->blocks && status == RP_OK; block++) {
        status = run_block(sides, options, block, values + 4 * (size_t)block, err);
        if (status == RP_OK && options->progress)
            options->progress(options->ctx, block + 1, values + 4 * (size_t)block);
    }
    close_sides(sides);
    if (status == RP_OK)
        status = rp_compare_blocks(rp_pair_measure_name(options->load.measure),
                                   options->load.measure != RP_PAIR_STEP, values, options->blocks,
                                   options->margin, out, err);
    rp_free(values);
    return status;
}

/* ---- an engine in this process -------------------------------------------------------------- */

int rp_pair_engine_open(const struct rp_engine_run_model *model,
                        const struct rp_engine_config *config, const struct rp_pair_load *load,
                        struct rp_pair_engine *out, struct rp_error *err) {
    memset(out, 0, sizeof *out);
    out->sequences = load->sequences;
    out->input = load->input;
    out->output = load->output;
    int status = rp_engine_run_open(model, config, &out->run, err);
    if (status != RP_OK)
        return status;
    if (!rp_engine_fits(out->run.engine, load->input, load->output))
        return rp_error_set(err, RP_STATUS_RANGE,
                            "a sequence of %u prompt and %u output tokens does not fit this engine",
                            load->input, load->output);
    if (rp_engine_queue_capacity(out->run.engine) < load->sequences)
        return rp_error_set(err, RP_STATUS_RANGE, "%u sequences do not fit the queue",
                            load->sequences);
    size_t ids;
    if (!rp_mul_overflow(load->sequences, load->input, &ids)) {
        out->prompts = rp_calloc(ids, sizeof *out->prompts);
        out->requests = rp_calloc(load->sequences, sizeof *out->requests);
        out->has_token = rp_calloc(load->sequences, sizeof *out->has_token);
        out->gaps_ms = rp_calloc(load->output, sizeof *out->gaps_ms);
    }
    return out->prompts && out->requests && out->has_token && out->gaps_ms
               ? RP_OK
               : rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for the load");
}

void rp_pair_engine_close(struct rp_pair_engine *engine) {
    if (engine->sequences) /* 0: never opened, or closed already */
        rp_engine_run_close(&engine->run);
    rp_free(engine->prompts);
    rp_free(engine->requests);
    rp_free(engine->has_token);
    rp_free(engine->gaps_ms);
    memset(engine, 0, sizeof *engine);
}

/* The shared prefix does not depend on the seed. */
static void make_requests(struct rp_pair_engine *engine, const struct rp_pair_load *load,
                          uint64_t seed) {
    uint32_t vocab = engine->run.model.config.vocab;
    for (uint32_t i = 0; i < load->sequences; i++) {
        int32_t *prompt = engine->prompts + (size_t)i * load->input;
        uint64_t state = 1;
        for (uint32_t t = 0; t < load->input; t++) {
            if (t == load->shared)
                state = (seed << 16) + i + 2;
            state = state * 6364136223846793005u + 1442695040888963407u;
            prompt[t] = (int32_t)((state >> 33) % vocab);
        }
        engine->requests[i] = (struct rp_request){.id = i,
                                                  .prompt = prompt,
                                                  .prompt_count = load->input,
                                                  .max_tokens = load->output,
                                                  .sampling = {.top_p = 1.0f, .seed = i}};
    }
}

enum { SAMPLE_TRIES = 8 };

/* Token times of a sample. All tokens of a step in which every sequence decodes share one time. */
struct observed {
    struct rp_pair_engine *engine;
    const struct rp_pair_load *load;
    enum rp_pair_clock clock;
    uint64_t time_ns; /* time of the current step's results */
    uint64_t full_ns; /* when the last full step was read, by the chosen clock; 0: none yet */
    uint32_t at_time, gaps, started, output_tokens;
};

static uint64_t process_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void on_event(void *ctx, const struct rp_event *event) {
    struct observed *seen = ctx;
    bool *has_token = &seen->engine->has_token[event->request->id];
    if (event->kind != RP_EVENT_TOKEN)
        return;
    seen->output_tokens++;
    seen->started += !*has_token;
    *has_token = true;
    if (event->time_ns != seen->time_ns) {
        seen->time_ns = event->time_ns;
        seen->at_time = 0;
    }
    if (++seen->at_time < seen->load->sequences)
        return;
    uint64_t now = seen->clock == RP_PAIR_CPU ? process_ns() : seen->time_ns;
    if (seen->full_ns && seen->gaps < seen->load->output)
        seen->engine->gaps_ms[seen->gaps++] = (double)(now - seen->full_ns) * 1e-6;
    seen->full_ns = now;
}

/* *full: some step decoded all sequences together. */
static int sample_once(struct rp_pair_engine *engine, const struct rp_pair_load *load,
                       enum rp_pair_clock clock, uint64_t seed, double *out, bool *full,
                       struct rp_error *err) {
    struct observed seen = {.engine = engine, .load = load, .clock = clock};
    make_requests(engine, load, seed);
    memset(engine->has_token, 0, load->sequences * sizeof *engine->has_token);
    uint64_t wall = rp_clock_ns(), cpu = process_ns();
    int status = rp_engine_run_requests(&engine->run, engine->requests, load->sequences, on_event,
                                        &seen, err);
    double seconds = clock == RP_PAIR_CPU ? (double)(process_ns() - cpu) * 1e-9
                                          : (double)(rp_clock_ns() - wall) * 1e-9;
    if (status != RP_OK)
        return status;
    if (load->measure != RP_PAIR_STEP) {
        double tokens = load->measure == RP_PAIR_OUTPUT ? (double)seen.output_tokens
                                                        : (double)load->sequences * load->input;
        *out = tokens / seconds;
        *full = true;
        return RP_OK;
    }
    *full = seen.gaps != 0;
    *out = *full ? rp_bench_quantile(engine->gaps_ms, seen.gaps, 0.5) : 0;
    return RP_OK;
}

int rp_pair_engine_sample(struct rp_pair_engine *engine, const struct rp_pair_load *load,
                          enum rp_pair_clock clock, uint64_t seed, double *out,
                          struct rp_error *err) {
    RP_ASSERT(load->sequences <= engine->sequences && load->input <= engine->input &&
              load->output <= engine->output);
    /* If this thread is descheduled between two submissions, the first sequence may end before the
     * last one begins. The sample is then repeated. */
    for (int tries = 0; tries < SAMPLE_TRIES; tries++) {
        bool full;
        int status = sample_once(engine, load, clock, seed, out, &full, err);
        if (status != RP_OK || full)
            return status;
    }
    return rp_error_set(err, RP_STATUS_RANGE,
                        "the %u sequences never decode together: use fewer, or more output tokens",
                        load->sequences);
}
