#include "server/cli/trace_file.h"

#include "base/buffer.h"
#include "base/memory.h"
#include "metrics/crash_dump.h"
#include "metrics/crash_format.h"
#include "metrics/trace_model.h"
#include "metrics/trace_take.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define LINE_BYTES  65536
#define PIECE_BYTES 1048576u
/* Beyond this a time is no time of a trace: 12 days. */
#define TIME_MAX_US 1e12

/* --- Events ----------------------------------------------------------------------------------- */

static uint64_t time_of(const json_t *event, const char *key) {
    double us = json_number_value(json_object_get(event, key));
    return us > 0 && us < TIME_MAX_US ? (uint64_t)llround(us * 1000.0) : 0;
}

static uint64_t arg_of(const json_t *event, const char *key) {
    json_int_t value = json_integer_value(json_object_get(json_object_get(event, "args"), key));
    return value > 0 ? (uint64_t)value : 0;
}

/* A slice of the host's and the device's tracks. */
static void add_slice(struct rp_trace_reader *reader, const json_t *event, const char *name) {
    json_int_t group = json_integer_value(json_object_get(event, "pid")) - 1;
    json_int_t lane = json_integer_value(json_object_get(event, "tid")) / 1000;
    struct rp_trace_span span = {.begin_ns = time_of(event, "ts"),
                                 .number = arg_of(event, "step"),
                                 .name = name,
                                 .cut =
                                     arg_of(event, "began_earlier") || arg_of(event, "unfinished")};
    span.end_ns = span.begin_ns + time_of(event, "dur");
    static const struct {
        enum rp_trace_group group;
        enum rp_trace_lane lane;
        enum rp_trace_span_kind kind;
    } kinds[] = {{RP_GROUP_HOST, RP_LANE_SCHEDULER, RP_SPAN_HOST},
                 {RP_GROUP_DEVICE, RP_LANE_REPLAYS, RP_SPAN_STEP},
                 {RP_GROUP_DEVICE, RP_LANE_NODES, RP_SPAN_NODE},
                 {RP_GROUP_DEVICE, RP_LANE_IDLE, RP_SPAN_IDLE},
                 {RP_GROUP_DEVICE, RP_LANE_COPIES, RP_SPAN_COPY}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(kinds); i++)
        if (group == (json_int_t)kinds[i].group && lane == (json_int_t)kinds[i].lane) {
            span.kind = (uint8_t)kinds[i].kind;
            rp_trace_spans_add(reader->spans, &span);
        }
}

static enum rp_trace_span_kind kind_of(const char *name, bool instant) {
    if (instant)
        return strcmp(name, "token") == 0     ? RP_SPAN_TOKEN
               : strcmp(name, "written") == 0 ? RP_SPAN_WRITTEN
                                              : RP_SPAN_KIND_COUNT;
    return strncmp(name, "request ", 8) == 0    ? RP_SPAN_REQUEST
           : strcmp(name, "prefill chunk") == 0 ? RP_SPAN_CHUNK
                                                : RP_SPAN_PHASE;
}

/* An event of a request's track: those of one request come together, and their slices nest. */
static void add_async(struct rp_trace_reader *reader, const json_t *event, const char *name,
                      char phase) {
    const char *id = json_string_value(json_object_get(json_object_get(event, "id2"), "local"));
    uint64_t request = id ? strtoull(id, NULL, 16) : 0;
    struct rp_trace_spans *spans = reader->spans;
    if (request != reader->request)
        reader->depth = 0;
    reader->request = request;
    if (phase == 'e') {
        if (reader->depth > 0) {
            struct rp_trace_span *open = &spans->spans[reader->open[--reader->depth]];
            open->end_ns = RP_MAX(open->begin_ns, time_of(event, "ts"));
            spans->end_ns = RP_MAX(spans->end_ns, open->end_ns);
        }
        return;
    }
    enum rp_trace_span_kind kind = kind_of(name, phase == 'n');
    struct rp_trace_span span = {.begin_ns = time_of(event, "ts"),
                                 .number = request,
                                 .step = arg_of(event, "step"),
                                 .name = name,
                                 .kind = (uint8_t)kind,
                                 .cut =
                                     arg_of(event, "began_earlier") || arg_of(event, "unfinished")};
    if (kind == RP_SPAN_KIND_COUNT)
        return;
    span.end_ns = span.begin_ns;
    if (kind == RP_SPAN_REQUEST)
        span.name = "request";
    rp_trace_spans_add(spans, &span);
    if (phase == 'b' && reader->depth < RP_ARRAY_COUNT(reader->open) && !spans->failed)
        reader->open[reader->depth++] = spans->count - 1;
}

bool rp_trace_reader_line(struct rp_trace_reader *reader, const char *line, size_t len) {
    while (len > 0 && strchr(", \r\n", line[len - 1]))
        len--;
    if (len < 6 || strncmp(line, "{\"ph\"", 5) != 0)
        return true;
    json_t *event = json_loadb(line, len, 0, NULL);
    const char *name = json_string_value(json_object_get(event, "name"));
    const char *phase = json_string_value(json_object_get(event, "ph"));
    const char *category = json_string_value(json_object_get(event, "cat"));
    reader->events += event != NULL;
    if (name && phase && phase[0] == 'X')
        add_slice(reader, event, name);
    else if (name && phase && phase[0] && strchr("ben", phase[0]) && category &&
             strcmp(category, "request") == 0)
        add_async(reader, event, name, phase[0]);
    json_decref(event);
    return event != NULL;
}

/* --- Files ------------------------------------------------------------------------------------ */

static int malformed(const char *path, const char *what, struct rp_error *err) {
    int status = rp_error_set(err, RP_STATUS_FORMAT, "%s: %s", path, what);
    rp_error_hint(err, "take it with curl -s 'HOST:PORT/debug/trace?seconds=5' (format=json)");
    return status;
}

static int check(const struct rp_trace_reader *reader, const char *path, struct rp_error *err) {
    if (reader->spans->failed)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: no memory for its spans", path);
    if (reader->events == 0)
        return malformed(path, "no events of a trace in it, one in each line", err);
    return RP_OK;
}

static int read_json(gzFile file, const char *path, struct rp_trace_spans *out,
                     struct rp_error *err) {
    struct rp_trace_reader reader = {.spans = out};
    char *line = rp_alloc(LINE_BYTES);
    bool ok = line != NULL;
    int code = Z_OK;
    while (ok && !out->failed && gzgets(file, line, LINE_BYTES))
        ok = rp_trace_reader_line(&reader, line, strlen(line));
    rp_free(line);
    (void)gzerror(file, &code);
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
        return malformed(path, "its gzip data is damaged", err);
    return ok ? check(&reader, path, err) : malformed(path, "a line is not JSON", err);
}

/* What a crash left, by way of the same JSON. */
static int read_crash(const char *path, struct rp_trace_spans *out, struct rp_error *err) {
    struct rp_trace_reader reader = {.spans = out};
    struct rp_crash_file file;
    struct rp_trace_take take;
    struct rp_buffer text = {.data = NULL};
    int status = rp_crash_read(path, &file, err);
    if (status != RP_OK)
        return status;
    struct rp_trace_order order = {.window_ns = file.end_ns - RP_MIN(file.end_ns, file.start_ns),
                                   .max_bytes = (uint64_t)1 << 30,
                                   .format = RP_TRACE_JSON,
                                   .version = file.version,
                                   .names = rp_crash_names(&file)};
    status = rp_trace_take_from(&take, &order, &file.recording, file.end_ns, file.unix_ns);
    while (status == RP_OK && !take.done)
        status = rp_trace_take_next(&take, &text, PIECE_BYTES);
    rp_trace_take_end(&take);
    rp_crash_file_deinit(&file);
    for (size_t at = 0; status == RP_OK && at < text.len;) {
        const char *line = text.data + at, *end = memchr(line, '\n', text.len - at);
        size_t len = end ? (size_t)(end - line) : text.len - at;
        (void)rp_trace_reader_line(&reader, line, len);
        at += len + 1;
    }
    rp_buffer_deinit(&text);
    if (status != RP_OK)
        return rp_error_set(err, (enum rp_status)status, "%s: %s", path, rp_status_text(status));
    return check(&reader, path, err);
}

int rp_trace_file_read(const char *path, struct rp_trace_spans *out, struct rp_error *err) {
    unsigned char magic[8] = {0};
    memset(out, 0, sizeof *out);
    gzFile file = gzopen(path, "rb");
    if (!file)
        return rp_error_set(err, RP_STATUS_IO, "%s: %s", path, strerror(errno));
    int got = gzread(file, magic, sizeof magic), status;
    if (got == (int)sizeof magic && memcmp(magic, RP_CRASH_MAGIC, sizeof magic) == 0)
        status = read_crash(path, out, err);
    else if (got > 0 && magic[0] != '{')
        status =
            malformed(path, "not the JSON of /debug/trace; Perfetto's format is not read", err);
    else
        status = gzrewind(file) == 0 ? read_json(file, path, out, err)
                                     : malformed(path, "it cannot be read", err);
    gzclose(file);
    rp_trace_spans_finish(out);
    return status;
}
