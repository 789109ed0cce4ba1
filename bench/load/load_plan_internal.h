/* load_plan_internal.h - interface between the parts of the plan: load_plan.c checks the source and
 * calls, in this order, load_trace (rows), load_prompt (prompts), load_arrival (times), load_cache
 * (expected cache hits).
 *
 * `source` has been checked here, with its defaults filled in. */
#ifndef RP_BENCH_LOAD_PLAN_INTERNAL_H
#define RP_BENCH_LOAD_PLAN_INTERNAL_H

#include "bench/load/load_plan.h"

#define RP_LOAD_REQUESTS_MAX     (1u << 24)
#define RP_LOAD_TOKENS_MAX       (1u << 30) /* maximum tokens of one request */
#define RP_LOAD_PROMPT_BYTES_MAX ((size_t)4 << 30)
#define RP_LOAD_TRACE_BLOCK      512u /* tokens per hash id in Mooncake traces */

/* A request without its prompt: scaled lengths, and for Mooncake its ids hashes[hash_begin, +
 * hash_count). */
struct rp_load_row {
    uint64_t at_ns; /* arrival time in the trace, unscaled */
    uint32_t input, output;
    uint32_t number; /* index in the source, from 0 */
    uint32_t hash_count;
    size_t hash_begin;
};

struct rp_load_rows {
    struct rp_load_row *rows;
    uint64_t *hashes;
    size_t count, capacity, hash_count, hash_capacity;
    uint32_t seen, skipped;
};

void rp_load_rows_free(struct rp_load_rows *rows);
/* Adds the next row of the source, or skips it. */
int rp_load_rows_add(struct rp_load_rows *rows, const struct rp_load_source *source,
                     const struct rp_load_row *row, struct rp_error *err) RP_MUST_USE;

/* Rows of a trace, in ascending time. */
int rp_load_trace_read(const struct rp_load_source *source, struct rp_load_rows *rows,
                       struct rp_error *err) RP_MUST_USE;

/* Creates the prompts of out->requests (count and lengths set) from random ids, Mooncake blocks, or
 * text. */
int rp_load_prompt_ids(const struct rp_load_source *source, const struct rp_load_rows *rows,
                       struct rp_load_plan *out, struct rp_error *err) RP_MUST_USE;
int rp_load_prompt_text(const struct rp_load_source *source, const struct rp_load_rows *rows,
                        struct rp_load_plan *out, struct rp_error *err) RP_MUST_USE;

/* Sets at_ns of every request. */
int rp_load_arrival_times(const struct rp_load_source *source, const struct rp_load_rows *rows,
                          struct rp_load_plan *out, struct rp_error *err) RP_MUST_USE;

/* Sets cached_tokens of every request, in the order of the plan. */
int rp_load_cache_count(struct rp_load_plan *plan, uint32_t page_tokens,
                        struct rp_error *err) RP_MUST_USE;

#endif
