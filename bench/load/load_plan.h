/* load_plan.h - creates the requests of a load test: prompts, lengths and arrival times.
 *
 * Deterministic: the same source and seed give the same plan on every machine. Thread: any. */
#ifndef RP_BENCH_LOAD_PLAN_H
#define RP_BENCH_LOAD_PLAN_H

#include "bench/load/load.h"

enum rp_load_dataset {
    RP_LOAD_RANDOM,  /* uniform token ids of given length distributions */
    RP_LOAD_SONNET,  /* lines of a text file after a shared prefix (vllm's "sonnet") */
    RP_LOAD_TEXT,    /* pieces of a text file */
    RP_LOAD_AZURE,   /* CSV: TIMESTAMP,ContextTokens,GeneratedTokens */
    RP_LOAD_MOONCAKE /* jsonl: timestamp (ms), input_length, output_length, hash_ids */
};

enum rp_load_arrival {
    RP_LOAD_CLOSED,   /* a request is sent when another has ended: max_concurrency in flight */
    RP_LOAD_CONSTANT, /* every 1 / rate seconds */
    /* gaps ~ Gamma(shape burstiness, scale 1 / (rate * burstiness)); burstiness 1: Poisson */
    RP_LOAD_GAMMA,
    RP_LOAD_TRACE /* the trace's own times */
};

enum rp_load_ramp { RP_LOAD_NO_RAMP, RP_LOAD_RAMP_LINEAR, RP_LOAD_RAMP_EXPONENTIAL };

/* Uniform integers in [mean * (1 - range), mean * (1 + range)], at least 1 (vllm's
 * --random-range-ratio). */
struct rp_load_lengths {
    uint32_t mean;
    double range; /* 0 to below 1 */
};

/* Zero is a valid value of every field that has a default. */
struct rp_load_source {
    enum rp_load_dataset dataset;
    const char *path; /* path of the trace or text file */
    /* Requests taken from the source, including skipped ones; 0: all of a trace. A shorter trace
     * gives all it has. */
    uint32_t count;
    /* A different seed gives different prompts, which a server's prefix cache does not contain.
     * (Sonnet's instruction, a dozen tokens, is always the same.) */
    uint64_t seed;
    uint32_t vocab_begin, vocab_end; /* ids are drawn from [begin, end); unused for text */
    /* Random: input excludes the prefix; sonnet: includes it, as in vllm; traces have their own
     * lengths. */
    struct rp_load_lengths input, output;
    uint32_t prefix_tokens; /* random and sonnet: leading tokens shared by all prompts */
    /* requests with more input + output are skipped and counted; 0: no limit */
    uint32_t max_context;
    /* Text and sonnet: only the server knows how many tokens a text has. Texts are cut to this many
     * bytes per input token, and max_context is checked against that estimate. 0: 4. */
    double text_bytes_per_token;

    enum rp_load_arrival arrival;
    double rate;       /* requests per second */
    double burstiness; /* for RP_LOAD_GAMMA; 0: 1 */
    enum rp_load_ramp ramp;
    double ramp_begin, ramp_end; /* rates at the first and last request, instead of rate */

    double time_scale; /* factor for a trace's times: 0.5 replays it twice as fast; 0: 1 */
    /* factor for a trace's lengths; 0: 1, or block_tokens / 512 if block_tokens is set */
    double length_scale;
    /* Mooncake: tokens per hash id after scaling (a trace's block is 512 tokens). Blocks with equal
     * ids have equal tokens, and a prompt is a sequence of them with its scaled length: the last
     * one is cut. More than 512 * length_scale: the last ids of a prompt are unused; less: an
     * error, since they do not suffice. 0: 512 * length_scale, rounded up. */
    uint32_t block_tokens;
    /* the server's page size, the unit of rp_load_request.cached_tokens; 0: 16 */
    uint32_t page_tokens;
};

/* Replaces zero fields by the defaults that rp_load_plan_make uses; for reports. */
void rp_load_source_fill(struct rp_load_source *source);

/* The first request arrives at 0, the last at (count - 1) / rate: gaps are drawn, then scaled to a
 * mean of exactly 1 / rate, as in vllm, so that runs with different seeds offer the same load. With
 * a ramp the gap before request i uses the rate at i. A trace's times are relative to its first
 * request that is sent.
 *
 * Text: ids are NULL, input_tokens and cached_tokens 0, since only the server can count them.
 *
 * RP_STATUS_INVALID, _RANGE (of a number, or of the memory: more than 4 GiB of prompts), _FORMAT
 * (of a file: err names file, line and field), _NOT_FOUND, _IO, _NO_MEMORY. After an error nothing
 * needs to be freed. */
int rp_load_plan_make(const struct rp_load_source *source, struct rp_load_plan *out,
                      struct rp_error *err) RP_MUST_USE;

#endif
