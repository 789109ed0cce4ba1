/* load_result.c - compares a metric of two result files, with a bootstrap over their requests. */
#include "base/memory.h"
#include "bench/load/load_compare.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS         10u /* blocks of neighboring requests in a resample */
#define REQUESTS_MIN   20u /* below this there is no interval */
#define RESAMPLES_MAX  2000u
#define RESAMPLES_MIN  400u
#define RESAMPLE_WORK  2e8 /* approximate limit of values read in all resamples */
#define BOOTSTRAP_SEED 20250601u

/* A value of a quantity and its request. */
struct sample {
    double ms;
    uint32_t request;
};

struct rp_load_result {
    json_t *root;
    char name[64];                              /* file name, for messages */
    uint32_t count;                             /* requests with details; 0: no details */
    bool *counted;                              /* (count) included in latencies */
    struct sample *samples[RP_LOAD_QUANTITIES]; /* ascending */
    uint32_t sample_count[RP_LOAD_QUANTITIES];
    uint32_t *weights; /* (count) times drawn by the current resample */
};

#define RATES "request_throughput", "request_goodput", "output_throughput", "total_token_throughput"

const char *const rp_compare_metrics[] = {"request_throughput",
                                          "request_goodput",
                                          "output_throughput",
                                          "total_token_throughput",
                                          "mean_ttft_ms",
                                          "median_ttft_ms",
                                          "p99_ttft_ms",
                                          "mean_tpot_ms",
                                          "median_tpot_ms",
                                          "p99_tpot_ms",
                                          "mean_itl_ms",
                                          "median_itl_ms",
                                          "p99_itl_ms",
                                          "mean_e2el_ms",
                                          "median_e2el_ms",
                                          "p99_e2el_ms",
                                          NULL};

/* ---- reading -------------------------------------------------------------------------------- */

static int no_memory(struct rp_error *err) {
    return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
}

static int malformed(const struct rp_load_result *result, const char *key, struct rp_error *err) {
    return rp_error_set(err, RP_STATUS_FORMAT, "%s: \"%s\" is inconsistent with the other details",
                        result->name, key);
}

static int compare_samples(const void *a, const void *b) {
    const struct sample *left = a, *right = b;
    if (left->ms != right->ms)
        return left->ms > right->ms ? 1 : -1;
    return (left->request > right->request) - (left->request < right->request);
}

static void add_sample(struct rp_load_result *result, enum rp_load_quantity quantity, double ms,
                       uint32_t request) {
    result->samples[quantity][result->sample_count[quantity]++] = (struct sample){ms, request};
}

/* Whether request i is included in latencies: it succeeded and, if the file says so (vllm's does
 * not), is not part of the warm-up. */
static bool is_counted(const json_t *root, size_t i) {
    const json_t *counted = json_array_get(json_object_get(root, "counted"), i);
    const json_t *error = json_array_get(json_object_get(root, "errors"), i);
    const json_t *output = json_array_get(json_object_get(root, "output_lens"), i);
    if (counted)
        return json_is_true(counted);
    return json_number_value(output) > 0 && (!error || json_string_length(error) == 0);
}

static int allocate(struct rp_load_result *result, uint32_t count, size_t gaps,
                    struct rp_error *err) {
    result->counted = rp_calloc(count + 1u, sizeof *result->counted);
    result->weights = rp_calloc(count + 1u, sizeof *result->weights);
    bool failed = !result->counted || !result->weights;
    for (int q = 0; q < RP_LOAD_QUANTITIES; q++) {
        size_t room = (q == RP_LOAD_ITL ? gaps : count) + 1;
        result->samples[q] = rp_calloc(room, sizeof *result->samples[q]);
        failed |= !result->samples[q];
    }
    return failed ? no_memory(err) : RP_OK;
}

static bool is_time(const json_t *value) {
    return json_is_number(value) && json_number_value(value) >= 0;
}

/* Adds one request's values; false: malformed. */
static bool read_request(struct rp_load_result *result, uint32_t i) {
    const json_t *root = result->root;
    const json_t *ttft = json_array_get(json_object_get(root, "ttfts"), i);
    const json_t *gaps = json_array_get(json_object_get(root, "itls"), i);
    const json_t *output = json_array_get(json_object_get(root, "output_lens"), i);
    const json_t *whole = json_array_get(json_object_get(root, "e2els"), i);
    if (!is_time(ttft) || !json_is_array(gaps) || !is_time(output))
        return false;
    double first_ms = json_number_value(ttft) * 1e3, rest_ms = 0.0;
    for (size_t g = 0; g < json_array_size(gaps); g++) {
        const json_t *gap = json_array_get(gaps, g);
        if (!is_time(gap))
            return false;
        add_sample(result, RP_LOAD_ITL, json_number_value(gap) * 1e3, i);
        rest_ms += json_number_value(gap) * 1e3;
    }
    if (first_ms > 0)
        add_sample(result, RP_LOAD_TTFT, first_ms, i);
    if (first_ms > 0 && json_number_value(output) > 1)
        add_sample(result, RP_LOAD_TPOT, rest_ms / (json_number_value(output) - 1), i);
    add_sample(result, RP_LOAD_E2EL,
               is_time(whole) ? json_number_value(whole) * 1e3 : first_ms + rest_ms, i);
    return true;
}

static int read_details(struct rp_load_result *result, struct rp_error *err) {
    static const char *const keys[] = {"ttfts",  "itls",    "output_lens", "input_lens",
                                       "errors", "counted", "e2els"};
    const json_t *itls = json_object_get(result->root, "itls");
    size_t count = json_array_size(json_object_get(result->root, "ttfts")), gaps = 0;
    if (count == 0 || !json_is_array(itls) || !json_object_get(result->root, "output_lens"))
        return RP_OK;
    for (size_t k = 0; k < RP_ARRAY_COUNT(keys); k++) {
        const json_t *list = json_object_get(result->root, keys[k]);
        if (list && (!json_is_array(list) || json_array_size(list) != count))
            return malformed(result, keys[k], err);
    }
    for (size_t i = 0; i < count; i++)
        gaps += json_array_size(json_array_get(itls, i));
    if (count >= UINT32_MAX || gaps >= UINT32_MAX)
        return rp_error_set(err, RP_STATUS_RANGE, "%s: too many requests", result->name);
    int status = allocate(result, (uint32_t)count, gaps, err);
    if (status != RP_OK)
        return status;
    result->count = (uint32_t)count;
    for (uint32_t i = 0; i < count; i++) {
        result->counted[i] = is_counted(result->root, i);
        if (result->counted[i] && !read_request(result, i))
            return malformed(result, "ttfts", err);
    }
    for (int q = 0; q < RP_LOAD_QUANTITIES; q++)
        qsort(result->samples[q], result->sample_count[q], sizeof(struct sample), compare_samples);
    return RP_OK;
}

int rp_load_result_read(const char *path, struct rp_load_result **out, struct rp_error *err) {
    json_error_t where;
    const char *slash = strrchr(path, '/');
    struct rp_load_result *result = rp_calloc(1, sizeof *result);
    *out = NULL;
    if (!result)
        return no_memory(err);
    snprintf(result->name, sizeof result->name, "%s", slash ? slash + 1 : path);
    int status = RP_OK;
    result->root = json_load_file(path, 0, &where);
    if (!result->root) {
        bool unopened = json_error_code(&where) == json_error_cannot_open_file;
        status = rp_error_set(err, unopened ? RP_STATUS_NOT_FOUND : RP_STATUS_FORMAT,
                              unopened ? "%s: cannot be opened" : "%s: line %d: not valid JSON",
                              path, where.line);
    } else if (!json_is_object(result->root) || !json_object_get(result->root, "duration")) {
        status = rp_error_set(err, RP_STATUS_FORMAT, "%s: not a load test result: no \"duration\"",
                              path);
    } else {
        status = read_details(result, err);
    }
    if (status != RP_OK) {
        rp_load_result_free(result);
        return status;
    }
    *out = result;
    return RP_OK;
}

void rp_load_result_free(struct rp_load_result *result) {
    if (!result)
        return;
    json_decref(result->root);
    rp_free(result->counted);
    rp_free(result->weights);
    for (int q = 0; q < RP_LOAD_QUANTITIES; q++)
        rp_free(result->samples[q]);
    rp_free(result);
}

/* ---- warnings ------------------------------------------------------------------------------- */

static bool is_unreliable(const struct rp_load_result *result) {
    return json_is_false(json_object_get(result->root, "reliable"));
}

static void warn_unreliable(const struct rp_load_result *result, const char *name,
                            struct rp_buffer *out) {
    const char *why = json_string_value(json_object_get(result->root, "why_not"));
    const json_t *failed = json_object_get(result->root, "failed");
    if (is_unreliable(result))
        rp_buffer_printf(out, "%s is unreliable: %s\n", name, why ? why : "no reason given");
    else if (json_number_value(failed) > 0)
        rp_buffer_printf(out, "%s: %.0f requests failed\n", name, json_number_value(failed));
}

void rp_load_result_warnings(const struct rp_load_result *a, const struct rp_load_result *b,
                             struct rp_buffer *out) {
    static const char *const keys[] = {"model_id",        "num_prompts", "request_rate",
                                       "max_concurrency", "burstiness",  "total_input_tokens"};
    warn_unreliable(a, "A", out);
    warn_unreliable(b, "B", out);
    for (size_t k = 0; k < RP_ARRAY_COUNT(keys); k++) {
        const json_t *left = json_object_get(a->root, keys[k]);
        const json_t *right = json_object_get(b->root, keys[k]);
        bool equal = json_is_number(left) && json_is_number(right)
                         ? json_number_value(left) == json_number_value(right)
                         : json_equal(left, right);
        if (left && right && !equal)
            rp_buffer_printf(out, "A and B differ in %s\n", keys[k]);
    }
}

/* ---- metrics -------------------------------------------------------------------------------- */

/* A parsed metric: p99_ttft_ms is quantity TTFT, q 0.99. */
struct metric {
    enum { MEAN, STD, QUANTILE, MAX } kind;
    double q;
    enum rp_load_quantity quantity;
};

static bool parse_metric(const char *name, struct metric *out) {
    size_t len = strcspn(name, "_");
    const char *rest = name + len;
    char *end;
    bool known = false;
    for (int q = 0; q < RP_LOAD_QUANTITIES; q++) {
        char tail[16];
        snprintf(tail, sizeof tail, "_%s_ms", rp_load_quantity_name((enum rp_load_quantity)q));
        if (strcmp(rest, tail) != 0)
            continue;
        out->quantity = (enum rp_load_quantity)q;
        known = true;
    }
    if (!known)
        return false;
    out->q = 0.5;
    out->kind = QUANTILE;
    if (len == 4 && memcmp(name, "mean", len) == 0) {
        out->kind = MEAN;
    } else if (len == 3 && memcmp(name, "std", len) == 0) {
        out->kind = STD;
    } else if (len == 3 && memcmp(name, "max", len) == 0) {
        out->kind = MAX;
    } else if (name[0] == 'p' && name[1] >= '0' && name[1] <= '9') {
        out->q = strtod(name + 1, &end) / 100;
        return end == rest && out->q <= 1;
    } else {
        return len == 6 && memcmp(name, "median", len) == 0;
    }
    return true;
}

static bool is_rate(const char *metric) {
    static const char *const rates[] = {RATES};
    for (size_t i = 0; i < RP_ARRAY_COUNT(rates); i++)
        if (strcmp(metric, rates[i]) == 0)
            return true;
    return false;
}

/* The value at `rank` of the weighted list; *at and *seen are cursors, so ranks must ascend. */
static double at_rank(const struct sample *samples, const uint32_t *weights, uint64_t rank,
                      uint32_t *at, uint64_t *seen) {
    while (*seen + weights[samples[*at].request] <= rank)
        *seen += weights[samples[(*at)++].request];
    return samples[*at].ms;
}

/* Computes the metric, weighted by how often each request was drawn; negative: none was. */
static double weighted(const struct rp_load_result *result, const struct metric *metric) {
    const struct sample *samples = result->samples[metric->quantity];
    uint32_t count = result->sample_count[metric->quantity], at = 0;
    uint64_t total = 0, seen = 0;
    double sum = 0.0, squares = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t weight = result->weights[samples[i].request];
        total += weight;
        sum += weight * samples[i].ms;
    }
    if (total == 0)
        return -1.0;
    double mean = sum / (double)total;
    if (metric->kind == MEAN)
        return mean;
    if (metric->kind == STD) {
        for (uint32_t i = 0; i < count; i++)
            squares += result->weights[samples[i].request] * (samples[i].ms - mean) *
                       (samples[i].ms - mean);
        return sqrt(squares / (double)total);
    }
    double rank = (metric->kind == MAX ? 1.0 : metric->q) * (double)(total - 1);
    uint64_t below = (uint64_t)rank;
    double low = at_rank(samples, result->weights, below, &at, &seen);
    double high =
        below + 1 < total ? at_rank(samples, result->weights, below + 1, &at, &seen) : low;
    return low + (high - low) * (rank - (double)below);
}

/* The metric of a file: its key, or computed from its details (metric NULL: none); negative: the
 * file lacks it. */
static double value_of(struct rp_load_result *result, const char *name,
                       const struct metric *metric) {
    const json_t *value = json_object_get(result->root, name);
    if (json_is_number(value))
        return json_number_value(value);
    if (!metric || result->count == 0)
        return -1.0;
    for (uint32_t i = 0; i < result->count; i++)
        result->weights[i] = 1;
    return weighted(result, metric);
}

/* ---- bootstrap ------------------------------------------------------------------------------ */

/* splitmix64 */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Draws blocks of neighbors, wrapping around at the end, until `count` requests are drawn. */
static void draw(uint32_t *weights, uint32_t count, uint64_t *state) {
    uint32_t block = RP_CEIL_DIV(count, BLOCKS);
    memset(weights, 0, count * sizeof *weights);
    for (uint32_t drawn = 0; drawn < count;) {
        uint32_t at = (uint32_t)(next_random(state) % count);
        for (uint32_t i = 0; i < block && drawn < count; i++, drawn++)
            weights[(at + i) % count]++;
    }
}

/* Whether both sent the same requests in the same order: as many, and with equal lengths where both
 * are counted. */
static bool same_requests(const struct rp_load_result *a, const struct rp_load_result *b) {
    static const char *const keys[] = {"input_lens", "output_lens"};
    if (a->count != b->count || !json_object_get(a->root, "input_lens"))
        return false;
    for (size_t k = 0; k < RP_ARRAY_COUNT(keys); k++)
        for (uint32_t i = 0; i < a->count; i++) {
            const json_t *left = json_array_get(json_object_get(a->root, keys[k]), i);
            const json_t *right = json_array_get(json_object_get(b->root, keys[k]), i);
            if (a->counted[i] && b->counted[i] &&
                json_number_value(left) != json_number_value(right))
                return false;
        }
    return true;
}

static uint32_t counted_requests(const struct rp_load_result *result) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < result->count; i++)
        count += result->counted[i];
    return count;
}

static int bootstrap(const struct rp_load_result *a, const struct rp_load_result *b,
                     const struct metric *metric, struct rp_comparison *out, struct rp_error *err) {
    double work = (double)a->sample_count[metric->quantity] + b->sample_count[metric->quantity] +
                  a->count + b->count;
    uint32_t resamples =
        (uint32_t)RP_MAX(RP_MIN(RESAMPLE_WORK / work, (double)RESAMPLES_MAX), RESAMPLES_MIN);
    uint32_t got = 0;
    uint64_t state = BOOTSTRAP_SEED;
    double *ratios = rp_calloc(resamples, sizeof *ratios);
    if (!ratios)
        return no_memory(err);
    for (uint32_t i = 0; i < resamples; i++) {
        draw(a->weights, a->count, &state);
        if (out->paired)
            memcpy(b->weights, a->weights, a->count * sizeof *a->weights);
        else
            draw(b->weights, b->count, &state);
        double left = weighted(a, metric), right = weighted(b, metric);
        if (left > 0 && right > 0)
            ratios[got++] = right / left;
    }
    if (got > resamples / 2) {
        rp_load_sort(ratios, got);
        /* With BLOCKS blocks bootstrap quantiles are too narrow, as normal quantiles are for a mean
         * of BLOCKS values. */
        double ratio = out->b / out->a;
        double factor = rp_student_t975(BLOCKS - 1) / 1.959963985 * sqrt(BLOCKS / (BLOCKS - 1.0));
        out->low = ratio * pow(rp_load_quantile(ratios, got, 0.025) / ratio, factor);
        out->high = ratio * pow(rp_load_quantile(ratios, got, 0.975) / ratio, factor);
    }
    rp_free(ratios);
    return RP_OK;
}

int rp_compare_results(struct rp_load_result *a, struct rp_load_result *b, const char *metric,
                       double margin, struct rp_comparison *out, struct rp_error *err) {
    struct rp_load_result *results[] = {a, b};
    struct metric parsed;
    double values[2];
    bool latency = parse_metric(metric, &parsed);
    *out = (struct rp_comparison){.larger_is_better = !latency, .margin = margin};
    snprintf(out->metric, sizeof out->metric, "%s", metric);
    if (!latency && !is_rate(metric))
        return rp_error_set(err, RP_STATUS_INVALID,
                            "%s: unknown metric; use a latency such as p99_ttft_ms, or a rate",
                            metric);
    for (int i = 0; i < 2; i++) {
        values[i] = value_of(results[i], metric, latency ? &parsed : NULL);
        if (!(values[i] > 0) || !isfinite(values[i]))
            return rp_error_set(err, RP_STATUS_NOT_FOUND, "%s: no %s above 0", results[i]->name,
                                metric);
    }
    out->a = values[0];
    out->b = values[1];
    uint32_t requests = RP_MIN(counted_requests(a), counted_requests(b));
    if (latency && parsed.kind != MAX && requests >= REQUESTS_MIN) {
        out->samples = requests;
        out->paired = a != b && same_requests(a, b);
        int status = bootstrap(a, b, &parsed, out, err);
        if (status != RP_OK)
            return status;
    }
    rp_compare_judge(out);
    if (is_unreliable(a) || is_unreliable(b))
        out->verdict = RP_COMPARE_UNRELIABLE;
    return RP_OK;
}
