#include "bench/load/load_metrics.h"

#include "base/memory.h"
#include "bench/load/load_warmup.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const outcome_names[RP_LOAD_OUTCOMES] = {
    [RP_LOAD_OK] = "ok",
    [RP_LOAD_NOT_SENT] = "not_sent",
    [RP_LOAD_CONNECT] = "connect",
    [RP_LOAD_RESET] = "reset",
    [RP_LOAD_STATUS] = "status",
    [RP_LOAD_BAD_ANSWER] = "bad_answer",
    [RP_LOAD_SERVER_ERROR] = "server_error",
    [RP_LOAD_SHORT] = "short",
    [RP_LOAD_TIMEOUT] = "timeout",
};
static const char *const quantity_names[RP_LOAD_QUANTITIES] = {
    [RP_LOAD_TTFT] = "ttft",
    [RP_LOAD_TPOT] = "tpot",
    [RP_LOAD_ITL] = "itl",
    [RP_LOAD_E2EL] = "e2el",
};

const char *rp_load_outcome_name(enum rp_load_outcome outcome) {
    return (unsigned)outcome < RP_LOAD_OUTCOMES ? outcome_names[outcome] : "?";
}

const char *rp_load_quantity_name(enum rp_load_quantity quantity) {
    return (unsigned)quantity < RP_LOAD_QUANTITIES ? quantity_names[quantity] : "?";
}

uint32_t rp_load_failed(const struct rp_load_summary *summary) {
    uint32_t failed = 0;
    for (uint32_t i = 0; i < RP_LOAD_OUTCOMES; i++)
        if (i != RP_LOAD_OK && i != RP_LOAD_NOT_SENT)
            failed += summary->outcomes[i];
    return failed;
}

/* ---- statistics ----------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

void rp_load_sort(double *values, uint64_t count) {
    if (count)
        qsort(values, count, sizeof *values, compare_doubles);
}

double rp_load_quantile(const double *sorted, uint64_t count, double q) {
    if (count == 0)
        return 0.0;
    double rank = q * (double)(count - 1), below = floor(rank);
    uint64_t i = RP_MIN((uint64_t)below, count - 1);
    if (i + 1 >= count)
        return sorted[count - 1];
    return sorted[i] + (sorted[i + 1] - sorted[i]) * (rank - below);
}

void rp_load_stat_compute(double *values, uint64_t count, struct rp_load_stat *out) {
    double sum = 0.0, squares = 0.0;
    memset(out, 0, sizeof *out);
    if (count == 0)
        return;
    rp_load_sort(values, count);
    for (uint64_t i = 0; i < count; i++)
        sum += values[i];
    out->count = count;
    out->mean = sum / (double)count;
    for (uint64_t i = 0; i < count; i++)
        squares += (values[i] - out->mean) * (values[i] - out->mean);
    out->std = sqrt(squares / (double)count);
    out->p50 = rp_load_quantile(values, count, 0.5);
    out->p90 = rp_load_quantile(values, count, 0.9);
    out->p95 = rp_load_quantile(values, count, 0.95);
    out->p99 = rp_load_quantile(values, count, 0.99);
    out->max = values[count - 1];
}

/* ---- goodput -------------------------------------------------------------------------------- */

/* Parses one bound, e.g. "ttft:500", of `len` bytes. */
static int parse_bound(const char *text, size_t len, struct rp_load_goodput *out,
                       struct rp_error *err) {
    size_t name_len = strcspn(text, ":=");
    char *end;
    for (uint32_t i = 0; name_len < len && i < RP_LOAD_QUANTITIES; i++) {
        const char *name = quantity_names[i];
        if (i == RP_LOAD_ITL || strlen(name) != name_len || memcmp(name, text, name_len) != 0)
            continue;
        const char *number = text + name_len + 1;
        bool plain = (*number >= '0' && *number <= '9') || *number == '.';
        double ms = plain ? strtod(number, &end) : 0.0;
        if (!plain || end != text + len || !(ms > 0) || !isfinite(ms))
            return rp_error_set(err, RP_STATUS_INVALID,
                                "goodput: '%.*s': expected a number of milliseconds above 0",
                                (int)RP_MIN(len, (size_t)64), text);
        if (out->ms[i] > 0)
            return rp_error_set(err, RP_STATUS_INVALID, "goodput: %s is given twice", name);
        out->ms[i] = ms;
        return RP_OK;
    }
    return rp_error_set(err, RP_STATUS_INVALID,
                        "goodput: '%.*s': expected ttft:MS, tpot:MS or e2el:MS",
                        (int)RP_MIN(len, (size_t)64), text);
}

int rp_load_goodput_parse(const char *text, struct rp_load_goodput *out, struct rp_error *err) {
    memset(out, 0, sizeof *out);
    if (text[strspn(text, " ")] == '\0')
        return RP_OK;
    for (;;) {
        text += strspn(text, " ");
        size_t len = strcspn(text, ", ");
        int status = parse_bound(text, len, out, err);
        if (status != RP_OK)
            return status;
        text += len;
        text += strspn(text, " ");
        if (*text == '\0')
            return RP_OK;
        text += *text == ',';
    }
}

/* ---- a run ---------------------------------------------------------------------------------- */

static double ms_between(uint64_t begin_ns, uint64_t end_ns) {
    return end_ns > begin_ns ? (double)(end_ns - begin_ns) * 1e-6 : 0.0;
}

double rp_load_latency_ms(const struct rp_load_record *record, uint64_t start_ns,
                          enum rp_load_quantity quantity) {
    if (record->outcome != RP_LOAD_OK)
        return -1.0;
    switch (quantity) {
    case RP_LOAD_TTFT:
        return record->first_ns ? ms_between(start_ns, record->first_ns) : -1.0;
    case RP_LOAD_TPOT:
        return record->first_ns && record->output_tokens > 1
                   ? ms_between(record->first_ns, record->last_ns) / (record->output_tokens - 1)
                   : -1.0;
    case RP_LOAD_E2EL:
        return ms_between(start_ns, record->first_ns ? record->last_ns : record->end_ns);
    default:
        return -1.0;
    }
}

struct work {
    const struct rp_load_records *records;
    uint64_t begin_ns; /* requests that began earlier are warm-up */
    double *values;    /* room for one quantity */
};

static bool counts(const struct work *work, const struct rp_load_record *record) {
    return record->outcome == RP_LOAD_OK && record->intended_ns >= work->begin_ns;
}

static void summarize_requests(const struct work *work, bool from_send,
                               enum rp_load_quantity quantity, struct rp_load_stat *out) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < work->records->count; i++) {
        const struct rp_load_record *record = &work->records->records[i];
        double ms = counts(work, record)
                        ? rp_load_latency_ms(
                              record, from_send ? record->sent_ns : record->intended_ns, quantity)
                        : -1.0;
        if (ms >= 0)
            work->values[count++] = ms;
    }
    rp_load_stat_compute(work->values, count, out);
}

static const uint64_t *chunks_of(const struct rp_load_records *records,
                                 const struct rp_load_record *record) {
    RP_ASSERT(record->chunks <= records->chunk_total &&
              record->chunk_count <= records->chunk_total - record->chunks);
    return records->chunk_ns + record->chunks;
}

static void summarize_gaps(const struct work *work, struct rp_load_stat *out) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < work->records->count; i++) {
        const struct rp_load_record *record = &work->records->records[i];
        if (!counts(work, record) || record->chunk_count < 2)
            continue;
        const uint64_t *chunks = chunks_of(work->records, record);
        for (uint32_t c = 1; c < record->chunk_count; c++)
            work->values[count++] = ms_between(chunks[c - 1], chunks[c]);
    }
    rp_load_stat_compute(work->values, count, out);
}

/* Counts what arrived since work->begin_ns. A request's tokens are distributed evenly over its
 * chunks. */
static void count_arrivals(const struct work *work, struct rp_load_summary *out) {
    double output_tokens = 0.0;
    for (uint32_t i = 0; i < work->records->count; i++) {
        const struct rp_load_record *record = &work->records->records[i];
        if (record->outcome != RP_LOAD_OK)
            continue;
        out->completed += record->end_ns >= work->begin_ns;
        out->warm_up += !counts(work, record);
        bool begins = (record->first_ns ? record->first_ns : record->end_ns) >= work->begin_ns;
        out->input_tokens += begins ? record->input_tokens : 0;
        if (begins || record->chunk_count == 0) {
            output_tokens += record->end_ns >= work->begin_ns ? record->output_tokens : 0;
            continue;
        }
        const uint64_t *chunks = chunks_of(work->records, record);
        uint32_t before = 0;
        while (before < record->chunk_count && chunks[before] < work->begin_ns)
            before++;
        output_tokens +=
            (double)record->output_tokens * (record->chunk_count - before) / record->chunk_count;
    }
    out->output_tokens = (uint64_t)(output_tokens + 0.5);
    if (out->seconds > 0) {
        out->request_rate = out->completed / out->seconds;
        out->output_rate = (double)out->output_tokens / out->seconds;
        out->total_rate = (double)(out->input_tokens + out->output_tokens) / out->seconds;
    }
}

static void count_good(const struct work *work, const struct rp_load_goodput *bounds,
                       struct rp_load_summary *out) {
    uint32_t counted = 0;
    bool bounded = false;
    for (uint32_t q = 0; q < RP_LOAD_QUANTITIES; q++)
        bounded |= bounds->ms[q] > 0;
    for (uint32_t i = 0; i < work->records->count; i++) {
        const struct rp_load_record *record = &work->records->records[i];
        bool good = true;
        if (!counts(work, record))
            continue;
        counted++;
        for (uint32_t q = 0; q < RP_LOAD_QUANTITIES; q++)
            good &= bounds->ms[q] <= 0 ||
                    rp_load_latency_ms(record, record->intended_ns, (enum rp_load_quantity)q) <=
                        bounds->ms[q];
        out->good += good;
    }
    if (bounded && counted)
        out->goodput = out->request_rate * out->good / counted;
    if (!bounded)
        out->good = 0;
}

static void count_cached(const struct rp_load_plan *plan, const struct rp_load_records *records,
                         struct rp_load_summary *out) {
    for (uint32_t i = 0; i < records->count; i++) {
        const struct rp_load_record *record = &records->records[i];
        if (record->outcome != RP_LOAD_OK)
            continue;
        out->prompt_tokens += record->input_tokens;
        if (record->cached_tokens != UINT32_MAX) {
            out->cached_reported = true;
            out->cached_tokens += record->cached_tokens;
        }
        if (plan && record->request < plan->count)
            out->expected_cached_tokens += plan->requests[record->request].cached_tokens;
    }
}

/* Adds a reason why the result is unreliable. */
static void RP_PRINTF(2, 3) add_reason(struct rp_load_summary *out, const char *format, ...) {
    va_list args;
    size_t len = strlen(out->why_not);
    if (len)
        len += (size_t)snprintf(out->why_not + len, sizeof out->why_not - len, "; ");
    if (len >= sizeof out->why_not)
        return;
    va_start(args, format);
    vsnprintf(out->why_not + len, sizeof out->why_not - len, format, args);
    va_end(args);
}

static void judge(const struct rp_load_warm_up *warm_up, struct rp_load_summary *out) {
    uint64_t samples = out->latency[RP_LOAD_E2EL].count;
    uint32_t failed = rp_load_failed(out), sent = failed + out->outcomes[RP_LOAD_OK];
    if (!warm_up->settled)
        add_reason(out, "not settled: %s", warm_up->why_not);
    if (samples < RP_LOAD_SAMPLES_MIN)
        add_reason(out, "%llu samples, fewer than %u", (unsigned long long)samples,
                   RP_LOAD_SAMPLES_MIN);
    if (failed > RP_LOAD_FAILED_MAX * sent)
        add_reason(out, "%u of %u requests failed", failed, sent);
    if (out->lag.p99 > RP_LOAD_LAG_MAX_MS)
        add_reason(out, "the client's lag was %.1f ms at p99 and is included in the latencies",
                   out->lag.p99);
    out->reliable = out->why_not[0] == '\0';
}

static double offered_rate(const struct rp_load_plan *plan) {
    if (!plan || plan->count < 2)
        return 0.0;
    uint64_t first = plan->requests[0].at_ns, last = plan->requests[plan->count - 1].at_ns;
    return last > first ? (plan->count - 1) / ((double)(last - first) * 1e-9) : 0.0;
}

int rp_load_summarize(const struct rp_load_plan *plan, const struct rp_load_records *records,
                      const struct rp_load_rules *rules, struct rp_load_summary *out,
                      struct rp_error *err) {
    struct work work = {.records = records, .begin_ns = records->begin_ns};
    struct rp_load_warm_up warm_up;
    uint64_t most = RP_MAX(records->chunk_total, (uint64_t)records->count);
    memset(out, 0, sizeof *out);
    work.values = rp_calloc(RP_MAX(most, records->lag_count) + 1, sizeof *work.values);
    if (!work.values)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < records->count; i++)
        out->outcomes[records->records[i].outcome]++;
    out->planned = plan ? plan->count : records->count;
    out->skipped = plan ? plan->skipped : 0;
    out->offered_rate = rules->closed ? 0.0 : offered_rate(plan);
    out->max_in_flight = records->max_in_flight;
    out->connections = records->connections;
    rp_load_warm_up_find(records, &warm_up);
    if (rules->exclude_warm_up && warm_up.settled &&
        out->outcomes[RP_LOAD_OK] >= RP_LOAD_SAMPLES_MIN)
        work.begin_ns = warm_up.end_ns;
    out->counted_ns = work.begin_ns;
    out->warm_up_seconds = ms_between(records->begin_ns, work.begin_ns) * 1e-3;
    out->seconds = ms_between(work.begin_ns, records->end_ns) * 1e-3;
    for (int q = 0; q < RP_LOAD_QUANTITIES; q++) {
        if (q == RP_LOAD_ITL)
            continue;
        summarize_requests(&work, false, (enum rp_load_quantity)q, &out->latency[q]);
        summarize_requests(&work, true, (enum rp_load_quantity)q, &out->service[q]);
    }
    summarize_gaps(&work, &out->latency[RP_LOAD_ITL]);
    out->service[RP_LOAD_ITL] = out->latency[RP_LOAD_ITL];
    count_arrivals(&work, out);
    count_good(&work, &rules->goodput, out);
    count_cached(plan, records, out);
    for (uint64_t i = 0; i < records->lag_count; i++)
        work.values[i] = (double)records->lag_ns[i] * 1e-6;
    rp_load_stat_compute(work.values, records->lag_count, &out->lag);
    rp_free(work.values);
    judge(&warm_up, out);
    return RP_OK;
}
