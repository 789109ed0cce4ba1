/* reprise trace diff, reprise trace critical-path: reports on trace files. */
#include "metrics/trace_diff.h"
#include "metrics/trace_path.h"
#include "server/cli/commands.h"
#include "server/cli/flags.h"
#include "server/cli/trace_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int print(struct rp_buffer *out, struct rp_error *err) {
    int status = RP_OK;
    if (out->failed)
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the report");
    else if (fwrite(out->data, 1, out->len, stdout) != out->len || fflush(stdout) != 0)
        status = rp_error_set(err, RP_STATUS_IO, "the report could not be written");
    rp_buffer_deinit(out);
    return status;
}

static uint32_t count_of(const struct rp_trace_spans *spans, enum rp_trace_span_kind kind) {
    uint32_t count;
    (void)rp_trace_spans_of(spans, kind, &count);
    return count;
}

/* --- diff ------------------------------------------------------------------------------------- */

struct diff_options {
    uint32_t rows;
};

static const struct rp_flag diff_flags[] = {
    {"rows", RP_FLAG_UINT, offsetof(struct diff_options, rows), "N", 0, 1000000, "10",
     "rows without a change that are shown in each group; 0: all"},
};
static const struct rp_command_spec diff_spec = {
    .name = "trace diff",
    .positionals = "A B",
    .positional_min = 2,
    .positional_max = 2,
    .summary = "Compares two traces (A before, B after): what became slower, by operator and by "
               "phase of requests.",
    .flags = diff_flags,
    .flag_count = RP_ARRAY_COUNT(diff_flags)};

static int add_file(struct rp_time_diff *diff, enum rp_diff_side side, const char *path,
                    struct rp_buffer *out, struct rp_error *err) {
    struct rp_trace_spans spans;
    int status = rp_trace_file_read(path, &spans, err);
    if (status == RP_OK) {
        rp_trace_diff_add(diff, side, &spans);
        rp_buffer_printf(out, "%s  %s: %.3f s, %u steps, %u requests\n",
                         side == RP_DIFF_A ? "A" : "B", path, (double)spans.end_ns * 1e-9,
                         count_of(&spans, RP_SPAN_STEP), count_of(&spans, RP_SPAN_REQUEST));
    }
    rp_trace_spans_deinit(&spans);
    return status;
}

int rp_cmd_trace_diff(int argc, char **argv) {
    const char *files[RP_POSITIONALS_MAX];
    struct diff_options options = {.rows = 0};
    struct rp_time_diff diff = {.failed = false};
    struct rp_buffer out = {.data = NULL};
    struct rp_error err = {0};
    int status = rp_flags_parse(&diff_spec, argc, argv, &options, files, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    status = add_file(&diff, RP_DIFF_A, files[0], &out, &err);
    if (status == RP_OK)
        status = add_file(&diff, RP_DIFF_B, files[1], &out, &err);
    if (status == RP_OK) {
        rp_time_diff_finish(&diff);
        rp_buffer_puts(&out, "\n");
        rp_time_diff_write(&diff, options.rows, &out);
        out.failed |= diff.failed;
        status = print(&out, &err);
    }
    rp_buffer_deinit(&out);
    rp_time_diff_deinit(&diff);
    return status == RP_OK ? RP_EXIT_OK : rp_fail(RP_EXIT_FAILURE, &err);
}

/* --- critical-path ---------------------------------------------------------------------------- */

struct path_options {
    const char *request;
};

static const struct rp_flag path_flags[] = {
    {"request", RP_FLAG_TEXT, offsetof(struct path_options, request), "NUMBER", 0, 0, NULL,
     "only this request, as the trace numbers it; default: all"},
};
static const struct rp_command_spec path_spec = {
    .name = "trace critical-path",
    .positionals = "FILE",
    .positional_min = 1,
    .positional_max = 1,
    .summary = "Shows what requests and steps waited for, part by part.",
    .flags = path_flags,
    .flag_count = RP_ARRAY_COUNT(path_flags)};

static int read_number(const char *text, uint64_t *out, struct rp_error *err) {
    char *end = NULL;
    *out = strtoull(text, &end, 10);
    if (*text >= '0' && *text <= '9' && *end == '\0')
        return RP_OK;
    int status = rp_error_set(err, RP_STATUS_INVALID, "--request %.40s: not a number", text);
    rp_error_hint(err, "tracks of requests are called \"request NUMBER\" in the trace");
    return status;
}

int rp_cmd_trace_path(int argc, char **argv) {
    const char *files[RP_POSITIONALS_MAX];
    struct path_options options = {.request = NULL};
    struct rp_trace_spans spans;
    struct rp_buffer out = {.data = NULL};
    struct rp_error err = {0};
    uint64_t request = 0;
    int status = rp_flags_parse(&path_spec, argc, argv, &options, files, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    bool one = options.request && *options.request;
    if (one && read_number(options.request, &request, &err) != RP_OK)
        return rp_fail(RP_EXIT_USAGE, &err);
    status = rp_trace_file_read(files[0], &spans, &err);
    if (status == RP_OK) {
        rp_buffer_printf(&out, "trace       %s: %.3f s, %u steps\n", files[0],
                         (double)spans.end_ns * 1e-9, count_of(&spans, RP_SPAN_STEP));
        if (rp_trace_path_write(&spans, one ? &request : NULL, &out))
            status = print(&out, &err);
        else
            status = rp_error_set(&err, RP_STATUS_NOT_FOUND,
                                  "%s: request %llu is not in it from its first byte to its end",
                                  files[0], (unsigned long long)request);
    }
    rp_buffer_deinit(&out);
    rp_trace_spans_deinit(&spans);
    return status == RP_OK ? RP_EXIT_OK : rp_fail(RP_EXIT_FAILURE, &err);
}
