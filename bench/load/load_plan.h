/* load_plan.h - makes the list of requests of a load test: where prompts and lengths come from, and
 * when they arrive.
 *
 * Deterministic: the same source and seed give the same plan on every machine. Thread: any. */
#ifndef RP_BENCH_LOAD_PLAN_H
#define RP_BENCH_LOAD_PLAN_H

#include "bench/load/load.h"

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
    /* gaps ~ Gamma(shape burstiness, scale 1 / (rate * burstiness)); burstiness 1: Poisson */
    RP_LOAD_GAMMA,
    RP_LOAD_TRACE /* the trace's own times */
};

enum rp_load_ramp { RP_LOAD_NO_RAMP, RP_LOAD_RAMP_LINEAR, RP_LOAD_RAMP_EXPONENTIAL };

/* Uniform in [mean * (1 - range), mean * (1 + range)], whole numbers, at least 1 (vllm's
 * --random-range-ratio). */
struct rp_load_lengths {
    uint32_t mean;
    double range; /* 0 to below 1 */
};

/* Zero is a valid value of every field that has a default. */
struct rp_load_source {
    enum rp_load_dataset dataset;
    const char *path; /* of the trace or the text */
    /* Requests of the source, those among them that are left out as well; 0: all of a trace. A
     * trace that has fewer gives what it has. */
    uint32_t count;
    /* Another seed: other prompts, so that a server's prefix cache does not know them. (Sonnet's
     * instruction, a dozen tokens, is always the same.) */
    uint64_t seed;
    uint32_t vocab_begin, vocab_end; /* ids are drawn from [begin, end); text needs none */
    /* Random: behind the prefix; sonnet: with the prefix, as in vllm; traces have their own. */
    struct rp_load_lengths input, output;
    uint32_t prefix_tokens; /* random and sonnet: leading tokens that all prompts share */
    uint32_t max_context;   /* input + output beyond it are left out and counted; 0: no limit */
    /* Text and sonnet: how many tokens a text has is known to the server alone. Pieces are cut to
     * input tokens times this, and max_context is held against that estimate. 0: 4. */
    double text_bytes_per_token;

    enum rp_load_arrival arrival;
    double rate;       /* requests per second */
    double burstiness; /* of RP_LOAD_GAMMA; 0: 1 */
    enum rp_load_ramp ramp;
    double ramp_begin, ramp_end; /* rates at the first and last request, instead of rate */

    double time_scale;   /* of a trace's times: 0.5 plays it twice as fast; 0: 1 */
    double length_scale; /* of a trace's lengths; 0: 1, with block_tokens block_tokens / 512 */
    /* Mooncake: tokens of the block that one hash id becomes, as the lengths are scaled (a trace's
     * block is 512). Blocks of equal id have equal tokens, and a prompt is a chain of them as long
     * as its scaled length: the last one is cut. More than 512 * length_scale: the last ids of a
     * prompt are not needed; less: an error, for they do not suffice. 0: 512 * length_scale,
     * rounded up. */
    uint32_t block_tokens;
    /* the server's page: what rp_load_request.cached_tokens counts in; 0: 16 */
    uint32_t page_tokens;
};

/* Zero fields become their defaults, as rp_load_plan_make takes them; for reports. */
void rp_load_source_fill(struct rp_load_source *source);

/* The first request comes at 0, the last at (count - 1) / rate: gaps are drawn, then scaled to a
 * mean of exactly 1 / rate, as vllm does, so that runs with other seeds offer the same load. With a
 * ramp the gap before request i is one of the rate at i. A trace's times count from its first
 * request that is sent.
 *
 * Text: ids are NULL, input_tokens and cached_tokens 0, for only the server can count them.
 *
 * RP_STATUS_INVALID, _RANGE (of a number, or of the memory: more than 4 GiB of prompts), _FORMAT
 * (of a file: err names file, line and field), _NOT_FOUND, _IO, _NO_MEMORY. Nothing is to be freed
 * then. */
int rp_load_plan_make(const struct rp_load_source *source, struct rp_load_plan *out,
                      struct rp_error *err) RP_MUST_USE;

#endif
