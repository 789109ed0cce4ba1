/* load_plan.h - makes the list of requests of a load test: where prompts and lengths come from, and when they arrive.
 *
 * Deterministic: the same source and seed give the same plan on every machine. Thread: any. */
#ifndef RP_BENCH_LOAD_PLAN_H
#define RP_BENCH_LOAD_PLAN_H

#include "bench/load.h"

enum rp_load_dataset {
    RP_LOAD_RANDOM,  /* uniform token ids of given length distributions */
    RP_LOAD_SONNET,  /* lines of a text file behind a shared prefix (vllm's "sonnet") */
    RP_LOAD_TEXT,    /* pieces of a text file */
    RP_LOAD_AZURE,   /* CSV: TIMESTAMP,ContextTokens,GeneratedTokens */
    RP_LOAD_MOONCAKE /* jsonl: timestamp (ms), input_length, output_length, hash_ids */
};

enum rp_load_arrival {
    RP_LOAD_CLOSED,   /* a request is sent when another has ended: max_concurrency at a time */
    RP_LOAD_CONSTANT, /* every 1 / rate seconds */
    RP_LOAD_GAMMA, /* gaps ~ Gamma(shape burstiness, scale 1 / (rate * burstiness)); burstiness 1: Poisson */
    RP_LOAD_TRACE /* the trace's own times */
};

enum rp_load_ramp { RP_LOAD_NO_RAMP, RP_LOAD_RAMP_LINEAR, RP_LOAD_RAMP_EXPONENTIAL };

/* Uniform in [mean * (1 - range), mean * (1 + range)], whole numbers, at least 1 (vllm's --random-range-ratio). */
struct rp_load_lengths {
    uint32_t mean;
    double range; /* 0 to below 1 */
};

struct rp_load_source {
    enum rp_load_dataset dataset;
    const char *path; /* of the trace or the text */
    uint32_t count;   /* requests; 0: all of a trace */
    uint64_t
        seed; /* another seed: other prompts, so that a server's prefix cache does not know them */
    uint32_t vocab_begin, vocab_end; /* ids are drawn from [begin, end) */
    struct rp_load_lengths input, output;
    uint32_t prefix_tokens; /* random and sonnet: leading tokens that all prompts share */
    uint32_t max_context;   /* input + output beyond it are left out and counted; 0: no limit */

    enum rp_load_arrival arrival;
    double rate;       /* requests per second */
    double burstiness; /* of RP_LOAD_GAMMA */
    enum rp_load_ramp ramp;
    double ramp_begin, ramp_end; /* rates at the first and last request */

    double time_scale;   /* of a trace's times: 0.5 plays it twice as fast */
    double length_scale; /* of a trace's lengths */
    /* Mooncake: tokens of the block that one hash id becomes, as the lengths are scaled (a trace's block is 512). Blocks
     * of equal id have equal tokens, and a prompt is a chain of them. 0: 512 * length_scale. */
    uint32_t block_tokens;
    uint32_t
        page_tokens; /* the server's page: what rp_load_request.cached_tokens counts in; 0: 16 */
};

/* RP_STATUS_INVALID, RP_STATUS_NOT_FOUND, RP_STATUS_NO_MEMORY: err names the file, line and field. */
int rp_load_plan_make(const struct rp_load_source *source, struct rp_load_plan *out,
                      struct rp_error *err) RP_MUST_USE;

#endif
