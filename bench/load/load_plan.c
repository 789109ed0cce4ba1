#include "bench/load/load_plan_internal.h"

#include "base/memory.h"
#include "bench/load/load_random.h"

#include <math.h>
#include <string.h>

#define SCALE_MAX 1e6
#define RATE_MAX  1e9

void rp_load_plan_free(struct rp_load_plan *plan) {
    rp_free(plan->requests);
    rp_free(plan->ids);
    rp_free(plan->text);
    memset(plan, 0, sizeof *plan);
}

static bool is_trace(const struct rp_load_source *source) {
    return source->dataset == RP_LOAD_AZURE || source->dataset == RP_LOAD_MOONCAKE;
}

static bool is_text(const struct rp_load_source *source) {
    return source->dataset == RP_LOAD_SONNET || source->dataset == RP_LOAD_TEXT;
}

/* Whether value is in (0, max]; false for NaN. */
static bool positive(double value, double max) { return value > 0 && value <= max; }

static int bad(struct rp_error *err, const char *field, const char *rule) {
    return rp_error_set(err, RP_STATUS_INVALID, "%s must be %s", field, rule);
}

static int check_lengths(const char *name, const struct rp_load_lengths *lengths,
                         struct rp_error *err) {
    if (lengths->mean == 0 || lengths->mean > RP_LOAD_TOKENS_MAX)
        return rp_error_set(err, RP_STATUS_INVALID, "%s length must be 1 to %u", name,
                            RP_LOAD_TOKENS_MAX);
    if (!(lengths->range >= 0 && lengths->range < 1))
        return rp_error_set(err, RP_STATUS_INVALID, "%s range must be 0 to below 1", name);
    return RP_OK;
}

static int check_prompts(const struct rp_load_source *source, struct rp_error *err) {
    if ((unsigned)source->dataset > RP_LOAD_MOONCAKE)
        return bad(err, "dataset", "a known one");
    if (source->dataset != RP_LOAD_RANDOM && (!source->path || !*source->path))
        return bad(err, "path", "set for this dataset");
    if (source->count > RP_LOAD_REQUESTS_MAX || (!is_trace(source) && source->count == 0))
        return rp_error_set(err, RP_STATUS_INVALID, "count must be 1 to %u", RP_LOAD_REQUESTS_MAX);
    if (!is_text(source) &&
        (source->vocab_begin >= source->vocab_end || source->vocab_end > INT32_MAX))
        return bad(err, "the vocabulary", "at least one id, all below 2^31 - 1");
    if (source->prefix_tokens && source->dataset != RP_LOAD_RANDOM &&
        source->dataset != RP_LOAD_SONNET)
        return bad(err, "prefix_tokens", "0: this dataset has no shared prefix");
    if (source->prefix_tokens > RP_LOAD_TOKENS_MAX)
        return rp_error_set(err, RP_STATUS_INVALID, "prefix_tokens must be at most %u",
                            RP_LOAD_TOKENS_MAX);
    if (is_trace(source))
        return RP_OK;
    int status = check_lengths("input", &source->input, err);
    if (status == RP_OK)
        status = check_lengths("output", &source->output, err);
    if (status == RP_OK && source->dataset == RP_LOAD_SONNET &&
        source->input.mean * (1 - source->input.range) <= source->prefix_tokens)
        status = bad(err, "input length", "above prefix_tokens, which it includes");
    return status;
}

static int check_arrival(const struct rp_load_source *source, struct rp_error *err) {
    bool drawn = source->arrival == RP_LOAD_CONSTANT || source->arrival == RP_LOAD_GAMMA;
    if ((unsigned)source->arrival > RP_LOAD_TRACE ||
        (unsigned)source->ramp > RP_LOAD_RAMP_EXPONENTIAL)
        return bad(err, "arrival and ramp", "known ones");
    if (source->arrival == RP_LOAD_TRACE && !is_trace(source))
        return bad(err, "arrival", "a different one: only a trace has times");
    if (source->ramp != RP_LOAD_NO_RAMP && !drawn)
        return bad(err, "ramp", "none: only constant and gamma arrivals have a rate");
    if (drawn && source->ramp == RP_LOAD_NO_RAMP && !positive(source->rate, RATE_MAX))
        return bad(err, "rate", "above 0 and at most 1e9 requests/s");
    if (source->ramp != RP_LOAD_NO_RAMP &&
        (!positive(source->ramp_begin, RATE_MAX) || !positive(source->ramp_end, RATE_MAX)))
        return bad(err, "ramp_begin and ramp_end", "above 0 and at most 1e9 requests/s");
    if (source->arrival == RP_LOAD_GAMMA &&
        !(source->burstiness >= 0.01 && source->burstiness <= 1e6))
        return bad(err, "burstiness", "0.01 to 1e6");
    return RP_OK;
}

static int check_scales(const struct rp_load_source *source, struct rp_error *err) {
    if (!positive(source->time_scale, SCALE_MAX))
        return bad(err, "time_scale", "above 0 and at most 1e6");
    if (!positive(source->length_scale, SCALE_MAX))
        return bad(err, "length_scale", "above 0 and at most 1e6");
    if (!positive(source->text_bytes_per_token, 1024))
        return bad(err, "text_bytes_per_token", "above 0 and at most 1024");
    if (source->block_tokens == 0 || source->block_tokens > RP_LOAD_TOKENS_MAX)
        return rp_error_set(err, RP_STATUS_INVALID, "block_tokens must be 1 to %u",
                            RP_LOAD_TOKENS_MAX);
    if (source->dataset == RP_LOAD_MOONCAKE &&
        source->block_tokens < source->length_scale * RP_LOAD_TRACE_BLOCK)
        return rp_error_set(err, RP_STATUS_INVALID,
                            "block_tokens is %u, must be at least %u * length_scale (%g) to "
                            "cover a prompt",
                            source->block_tokens, RP_LOAD_TRACE_BLOCK,
                            RP_LOAD_TRACE_BLOCK * source->length_scale);
    if (source->page_tokens > RP_LOAD_TOKENS_MAX)
        return rp_error_set(err, RP_STATUS_INVALID, "page_tokens must be 1 to %u",
                            RP_LOAD_TOKENS_MAX);
    return RP_OK;
}

void rp_load_source_fill(struct rp_load_source *source) {
    if (source->burstiness == 0)
        source->burstiness = 1;
    if (source->text_bytes_per_token == 0)
        source->text_bytes_per_token = 4;
    if (source->time_scale == 0)
        source->time_scale = 1;
    if (source->length_scale == 0)
        source->length_scale = source->dataset == RP_LOAD_MOONCAKE && source->block_tokens
                                   ? (double)source->block_tokens / RP_LOAD_TRACE_BLOCK
                                   : 1;
    if (source->block_tokens == 0 && positive(source->length_scale, SCALE_MAX))
        source->block_tokens = (uint32_t)ceil(RP_LOAD_TRACE_BLOCK * source->length_scale);
    if (source->page_tokens == 0)
        source->page_tokens = 16;
}

static uint32_t draw_length(struct rp_load_random *random, const struct rp_load_lengths *lengths) {
    double low = floor(lengths->mean * (1 - lengths->range));
    double high = ceil(lengths->mean * (1 + lengths->range));
    uint32_t first = (uint32_t)RP_MAX(low, 1.0);
    return first + rp_load_random_below(random, (uint32_t)high - first + 1);
}

static int draw_rows(const struct rp_load_source *source, struct rp_load_rows *rows,
                     struct rp_error *err) {
    struct rp_load_random random = rp_load_random_begin(source->seed, RP_LOAD_STREAM_LENGTHS, 0);
    int status = RP_OK;
    for (uint32_t i = 0; status == RP_OK && i < source->count; i++) {
        struct rp_load_row row = {.input = draw_length(&random, &source->input)};
        row.output = draw_length(&random, &source->output);
        if (source->dataset == RP_LOAD_RANDOM)
            row.input += source->prefix_tokens;
        status = rp_load_rows_add(rows, source, &row, err);
    }
    return status;
}

static int make_requests(const struct rp_load_source *source, const struct rp_load_rows *rows,
                         struct rp_load_plan *out, struct rp_error *err) {
    out->skipped = rows->skipped;
    if (rows->count == 0) {
        int status = rp_error_set(err, RP_STATUS_INVALID,
                                  "none of %u requests fits into a context of %u tokens",
                                  rows->seen, source->max_context);
        rp_error_hint(err, is_trace(source) ? "lower length_scale" : "lower the lengths");
        return status;
    }
    out->requests = rp_calloc(rows->count, sizeof *out->requests);
    if (!out->requests)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for requests");
    out->count = (uint32_t)rows->count;
    for (uint32_t i = 0; i < out->count; i++)
        out->requests[i].output_tokens = rows->rows[i].output;
    int status =
        (is_text(source) ? rp_load_prompt_text : rp_load_prompt_ids)(source, rows, out, err);
    if (status == RP_OK)
        status = rp_load_arrival_times(source, rows, out, err);
    if (status == RP_OK)
        status = rp_load_cache_count(out, source->page_tokens, err);
    return status;
}

int rp_load_plan_make(const struct rp_load_source *given, struct rp_load_plan *out,
                      struct rp_error *err) {
    struct rp_load_source source = *given;
    struct rp_load_rows rows = {.count = 0};
    memset(out, 0, sizeof *out);
    rp_load_source_fill(&source);
    int status = check_prompts(&source, err);
    if (status == RP_OK)
        status = check_arrival(&source, err);
    if (status == RP_OK)
        status = check_scales(&source, err);
    if (status == RP_OK)
        status = (is_trace(&source) ? rp_load_trace_read : draw_rows)(&source, &rows, err);
    if (status == RP_OK)
        status = make_requests(&source, &rows, out, err);
    rp_load_rows_free(&rows);
    if (status != RP_OK)
        rp_load_plan_free(out);
    return status;
}
