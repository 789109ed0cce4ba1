#include "metrics/trace_take.h"

#include "base/clock.h"
#include "base/memory.h"
#include "metrics/tick.h"

#include <string.h>
#include <time.h>
#include <zlib.h>

/* Events before the window say what was going on when it began: who was running, in which phase. */
#define LOOK_BACK_NS UINT64_C(10000000000)
/* Upper bound of bytes per event, measured on servers under load, flows included. */
enum { JSON_EVENT_BYTES = 400, PERFETTO_EVENT_BYTES = 128 };

const char *rp_trace_suffix(enum rp_trace_format format, bool gzip) {
    if (format == RP_TRACE_JSON)
        return gzip ? "json.gz" : "json";
    return gzip ? "pftrace.gz" : "pftrace";
}

/* --- gzip ------------------------------------------------------------------------------------ */

static void *zip_alloc(void *ctx, unsigned count, unsigned size) {
    (void)ctx;
    return rp_calloc(count, size);
}

static void zip_free(void *ctx, void *bytes) {
    (void)ctx;
    rp_free(bytes);
}

static bool begin_zip(struct rp_trace_take *take) {
    z_stream *zip = rp_calloc(1, sizeof *zip);
    if (!zip)
        return false;
    zip->zalloc = zip_alloc;
    zip->zfree = zip_free;
    /* 31: the largest window, in a gzip wrapper. */
    if (deflateInit2(zip, 1, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
        rp_free(zip);
        return false;
    }
    take->zip = zip;
    return true;
}

static bool zip_piece(struct rp_trace_take *take, struct rp_buffer *out, bool last) {
    z_stream *zip = take->zip;
    zip->next_in = (unsigned char *)take->plain.data;
    zip->avail_in = (unsigned)take->plain.len;
    do {
        if (!rp_buffer_reserve(out, 16384))
            return false;
        zip->next_out = (unsigned char *)out->data + out->len;
        zip->avail_out = 16384;
        int status = deflate(zip, last ? Z_FINISH : Z_NO_FLUSH);
        RP_ASSERT(status != Z_STREAM_ERROR);
        out->len += 16384 - zip->avail_out;
    } while (zip->avail_out == 0);
    rp_buffer_clear(&take->plain);
    return true;
}

/* --- What is in it --------------------------------------------------------------------------- */

/* The moment from which on everything is there, given what rings lost. */
static uint64_t known_since(const struct rp_recording *recording) {
    uint64_t since = 0;
    for (uint32_t i = 0; i < recording->ring_count; i++) {
        const struct rp_recording_ring *ring = &recording->rings[i];
        uint64_t first = recording->taken_ns;
        if (ring->whole)
            continue;
        /* About in order of their ends: the oldest of the first few. */
        for (uint64_t k = 0; k < RP_MIN(ring->count, (uint64_t)RP_TRACE_RING_OLD); k++)
            first = RP_MIN(first, recording->events[ring->first + k].ns);
        since = RP_MAX(since, first);
    }
    return since;
}

static int build(struct rp_trace_take *take, uint64_t end_ns, uint64_t unix_ns) {
    const struct rp_trace_order *order = &take->order;
    struct rp_recording *recording = &take->recording;
    uint64_t begin = end_ns - RP_MIN(end_ns, order->window_ns), asked = begin;
    uint64_t each = order->format == RP_TRACE_JSON ? JSON_EVENT_BYTES : PERFETTO_EVENT_BYTES;
    uint64_t most = order->max_bytes / each;
    begin = RP_MAX(begin, known_since(recording));
    const struct rp_trace_event *events = recording->events;
    uint64_t count = recording->event_count;
    rp_trace_sort(recording->events, count);
    /* Those before the window take no room in the file, and say what was going on when it began. */
    if (count > most)
        begin = RP_MAX(begin, most ? events[count - most].ns : end_ns);
    begin = RP_MIN(begin, end_ns);
    if (count > INT32_MAX) {
        events += count - INT32_MAX;
        count = INT32_MAX;
    }
    struct rp_trace_info info = {.begin_ns = begin,
                                 .end_ns = end_ns,
                                 .wanted_ns = order->window_ns,
                                 .whole = begin == asked,
                                 .unix_ns = unix_ns,
                                 .version = order->version,
                                 .model = order->model,
                                 .reason = order->reason,
                                 .names = order->names};
    int status = rp_trace_model_build(&take->model, &info, events, count);
    if (status == RP_OK && order->gzip && !begin_zip(take))
        status = RP_STATUS_NO_MEMORY;
    take->json.model = &take->model;
    rp_trace_pb_init(&take->pb, &take->model);
    return status;
}

int rp_trace_take_from(struct rp_trace_take *take, const struct rp_trace_order *order,
                       struct rp_recording *recording, uint64_t end_ns, uint64_t unix_ns) {
    memset(take, 0, sizeof *take);
    take->order = *order;
    take->recording = *recording;
    memset(recording, 0, sizeof *recording);
    return build(take, end_ns, unix_ns);
}

int rp_trace_take_begin(struct rp_trace_take *take, const struct rp_trace_order *order,
                        const struct rp_recorder *recorder) {
    struct rp_recording recording;
    struct rp_trace_order kept = *order;
    uint64_t now = rp_tick_ns(), unix_ns = rp_unix_ns();
    /* A process younger than the window has all of its life. */
    kept.window_ns = RP_MIN(order->window_ns, now - RP_MIN(now, recorder->start_ns));
    uint64_t back = kept.window_ns + LOOK_BACK_NS;
    memset(take, 0, sizeof *take);
    if (!rp_recorder_copy(recorder, now - RP_MIN(now, back), &recording))
        return RP_STATUS_NO_MEMORY;
    int status = rp_trace_take_from(take, &kept, &recording, now, unix_ns);
    take->model.info.wanted_ns = order->window_ns;
    return status;
}

/* --- Pieces ---------------------------------------------------------------------------------- */

int rp_trace_take_next(struct rp_trace_take *take, struct rp_buffer *out, size_t bytes) {
    struct rp_buffer *to = take->order.gzip ? &take->plain : out;
    size_t before = out->len, plain_before = to->len;
    bool more = take->order.format == RP_TRACE_JSON ? rp_trace_json_next(&take->json, to, bytes)
                                                    : rp_trace_pb_next(&take->pb, to, bytes);
    take->plain_bytes += to->len - plain_before;
    if (to->failed || (take->order.gzip && !zip_piece(take, out, !more)))
        return RP_STATUS_NO_MEMORY;
    take->bytes += out->len - before;
    take->done = !more;
    return RP_OK;
}

void rp_trace_take_end(struct rp_trace_take *take) {
    if (take->zip)
        deflateEnd(take->zip);
    rp_free(take->zip);
    rp_buffer_deinit(&take->plain);
    rp_trace_pb_deinit(&take->pb);
    rp_trace_model_deinit(&take->model);
    rp_recording_deinit(&take->recording);
    memset(take, 0, sizeof *take);
}
