/* api_debug_history.c - GET /debug/history: the past five minutes, a sample a second. */
#include "base/json_writer.h"
#include "engine/engine.h"
#include "metrics/tick.h"
#include "server/http/api_reply.h"
#include "server/http/http_conn.h"
#include "server/http/http_query.h"
#include "server/http/router.h"

static double seconds(uint64_t ns) { return (double)ns / 1e9; } /* shortest as text */

static void write_percentiles(struct rp_json *json, const struct rp_history_sample *sample) {
    for (int i = 0; i < RP_HISTORY_SERIES_COUNT; i++) {
        const struct rp_latency_stats *stats = &sample->latency[i];
        rp_json_object_begin(json, rp_latency_series[rp_history_series[i]].name);
        rp_json_uint(json, "count", stats->count);
        if (stats->count) { /* whole nanoseconds: shorter numbers, and none is more exact */
            rp_json_double(json, "p50", seconds((uint64_t)stats->p50));
            rp_json_double(json, "p99", seconds((uint64_t)stats->p99));
        }
        rp_json_object_end(json);
    }
}

static void write_sample(struct rp_json *json, const struct rp_history_sample *sample) {
    const struct rp_history_counts *counts = &sample->counts;
    rp_json_object_begin(json, NULL);
    rp_json_uint(json, "sequence", sample->sequence);
    rp_json_double(json, "end_seconds", seconds(sample->end_ns));
    rp_json_double(json, "seconds", seconds(sample->end_ns - sample->begin_ns));
    rp_json_object_begin(json, "requests");
    rp_json_int(json, "running", sample->running);
    rp_json_int(json, "waiting", sample->waiting);
    rp_json_int(json, "swapped", sample->swapped);
    rp_json_uint(json, "preemptions", counts->preemptions);
    rp_json_object_end(json);
    rp_json_object_begin(json, "tokens");
    rp_json_uint(json, "prompt", counts->prompt);
    rp_json_uint(json, "generated", counts->generated);
    rp_json_uint(json, "cached", counts->cached);
    rp_json_uint(json, "padded", counts->padded);
    rp_json_object_end(json);
    rp_json_object_begin(json, "steps");
    rp_json_uint(json, "decode", counts->decode);
    rp_json_uint(json, "mixed", counts->mixed);
    rp_json_object_end(json);
    rp_json_object_begin(json, "pages");
    rp_json_int(json, "free", sample->free);
    rp_json_int(json, "held", sample->held);
    rp_json_int(json, "cached", sample->cached_pages);
    rp_json_object_end(json);
    rp_json_object_begin(json, "device_seconds");
    rp_json_double(json, "busy", seconds(counts->busy_ns));
    rp_json_object_begin(json, "idle");
    for (int cause = 0; cause < RP_IDLE_CAUSE_COUNT; cause++)
        if (counts->idle_ns[cause])
            rp_json_double(json, rp_idle_causes[cause], seconds(counts->idle_ns[cause]));
    rp_json_object_end(json);
    rp_json_object_end(json);
    write_percentiles(json, sample);
    rp_json_object_end(json);
}

void rp_api_debug_history(struct rp_conn *conn) {
    const struct rp_status_history *history = &conn->server->history;
    uint64_t since = 0, now_ns = rp_tick_ns();
    const struct rp_query_param params[] = {
        {.name = "since", .type = RP_QUERY_UINT, .max = 1e15, .value = &since}};
    if (!rp_query_read_conn(conn, params, RP_ARRAY_COUNT(params)))
        return;
    struct rp_buffer body = {.data = NULL};
    struct rp_json json;
    rp_json_init(&json, &body);
    rp_json_object_begin(&json, NULL);
    rp_json_double(&json, "now_seconds", seconds(now_ns));
    rp_json_uint(&json, "capacity", RP_HISTORY_SECONDS);
    rp_json_uint(&json, "bytes", sizeof *history);
    rp_json_uint(&json, "sequence", history->sequence);
    rp_json_array_begin(&json, "samples");
    const struct rp_history_sample *sample = rp_status_history_next(history, since, now_ns);
    for (; sample; sample = rp_status_history_next(history, sample->sequence, now_ns))
        write_sample(&json, sample);
    rp_json_array_end(&json);
    rp_json_object_end(&json);
    rp_api_reply_json(conn, 200, &body);
}
