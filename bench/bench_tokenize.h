/* bench_tokenize.h - throughput of a tokenizer on a text, on one thread.
 *
 * A pass encodes the whole text in one call with an empty scratch (cold: as for a worker's first
 * request), again with one that has seen the text (warm), and decodes the ids token by token as a
 * stream. Passes run until `passes` or `seconds` is reached; those after the cold times have
 * settled count (settled.h). When they have not settled, or are fewer than 100, the result is
 * unreliable and all count.
 *
 * MB are 10^6 bytes of the text; for decoding, of the decoded text. Thread: one, the caller's. */
#ifndef RP_BENCH_BENCH_TOKENIZE_H
#define RP_BENCH_BENCH_TOKENIZE_H

#include "base/status.h"
#include "bench/pair.h"

struct rp_bench_rate {
    double best, median; /* MB/s */
    double spread;       /* (p90 - p10) / median of the passes' times */
};

struct rp_bench_tokenize_result {
    uint64_t tokens;
    uint64_t decoded_bytes;
    struct rp_bench_rate cold, warm, decode;
    bool round_trips; /* the decoded text equals the input */
    uint32_t passes;  /* passes that counted */
    bool reliable;
    uint32_t settled_after;
    double load_seconds;
    uint64_t tokenizer_bytes, scratch_bytes; /* memory in use after the last pass */
};

struct rp_bench_tokenize_config {
    const char *tokenizer; /* a model directory or a tokenizer.json */
    const char *text;
    size_t len;
    uint32_t passes; /* maximum; at least one is run */
    double seconds;  /* no pass begins later than this */
    enum rp_pair_clock clock;
};

/* Returns the status of rp_tokenizer_open or rp_tokenizer_encode; *loaded tells which of them
 * failed. */
int rp_bench_tokenize(const struct rp_bench_tokenize_config *config,
                      struct rp_bench_tokenize_result *out, bool *loaded,
                      struct rp_error *err) RP_MUST_USE;

#endif
