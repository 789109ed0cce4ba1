/* trace_path_text.c - the report on critical paths, for people. */
#include "base/memory.h"
#include "metrics/time_diff.h"
#include "metrics/trace_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZES_MAX = 64, PERCENT = 100 };

/* --- Requests --------------------------------------------------------------------------------- */

static double share(uint64_t part, uint64_t whole) {
    return whole ? 100.0 * (double)part / (double)whole : 0.0;
}

static void write_one(const struct rp_request_path *path, struct rp_buffer *out) {
    uint64_t whole = path->end_ns - path->begin_ns;
    char time[16];
    rp_buffer_printf(out,
                     "request %llu: %s from its first byte to its end, %u own steps, %u tokens\n",
                     (unsigned long long)path->request, rp_time_text((double)whole, time),
                     path->own_steps, path->tokens);
    rp_buffer_printf(out, "  %-18s  %7s  %8s  %7s\n", "part", "share", "time", "pieces");
    for (int part = 0; part < RP_PART_COUNT; part++) {
        if (path->parts[part] == 0)
            continue;
        rp_buffer_printf(out, "  %-18s  %5.1f %%  %8s  %7u\n", rp_request_parts[part],
                         share(path->parts[part], whole),
                         rp_time_text((double)path->parts[part], time), path->pieces[part]);
        for (int cause = 0; part == RP_PART_HOST && cause < RP_IDLE_CAUSE_COUNT; cause++)
            if (path->gaps[cause])
                rp_buffer_printf(out, "    %-16s  %5.1f %%  %8s\n", rp_idle_causes[cause],
                                 share(path->gaps[cause], whole),
                                 rp_time_text((double)path->gaps[cause], time));
    }
}

static int compare_numbers(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

/* values: sorted. The smallest that at least `percent` of them do not exceed. */
static uint64_t quantile(const uint64_t *values, uint32_t count, uint32_t percent) {
    uint64_t rank = ((uint64_t)count * percent + PERCENT - 1) / PERCENT;
    return values[rank ? rank - 1 : 0];
}

/* Slowest first; equal ones by number. */
static int compare_paths(const void *left, const void *right) {
    const struct rp_request_path *a = left, *b = right;
    uint64_t ns_a = a->end_ns - a->begin_ns, ns_b = b->end_ns - b->begin_ns;
    if (ns_a != ns_b)
        return ns_a > ns_b ? -1 : 1;
    return (a->request > b->request) - (a->request < b->request);
}

/* A line of the table over all requests; value: offset of a time in struct rp_request_path. */
static void write_part(const struct rp_request_path *paths, uint32_t count, const char *name,
                       size_t value, uint64_t whole, uint64_t *scratch, struct rp_buffer *out) {
    char mean[16], p50[16], p99[16], slowest[16];
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        memcpy(&scratch[i], (const char *)&paths[i] + value, sizeof *scratch);
        sum += scratch[i];
    }
    uint64_t first = scratch[0];
    if (sum == 0)
        return;
    qsort(scratch, count, sizeof *scratch, compare_numbers);
    rp_buffer_printf(out, "  %-18s  %5.1f %%  %8s  %8s  %8s  %8s\n", name, share(sum, whole),
                     rp_time_text((double)sum / count, mean),
                     rp_time_text((double)quantile(scratch, count, 50), p50),
                     rp_time_text((double)quantile(scratch, count, 99), p99),
                     rp_time_text((double)first, slowest));
}

static void write_all(struct rp_request_path *paths, uint32_t count, uint32_t seen,
                      uint64_t *scratch, struct rp_buffer *out) {
    uint64_t whole = 0;
    char mean[16], name[32];
    rp_buffer_printf(out, "requests    %u of %u are whole in the trace", count, seen);
    if (count == 0) {
        rp_buffer_puts(out, ": a longer trace has more\n");
        return;
    }
    qsort(paths, count, sizeof *paths, compare_paths);
    for (uint32_t i = 0; i < count; i++)
        whole += paths[i].end_ns - paths[i].begin_ns;
    rp_buffer_printf(out, "; mean %s from the first byte to the end; the slowest is request %llu\n",
                     rp_time_text((double)whole / count, mean),
                     (unsigned long long)paths[0].request);
    rp_buffer_printf(out, "  %-18s  %7s  %8s  %8s  %8s  %8s\n", "part", "share", "mean", "p50",
                     "p99", "slowest");
    for (int part = 0; part < RP_PART_COUNT; part++) {
        write_part(paths, count, rp_request_parts[part],
                   offsetof(struct rp_request_path, parts) + (size_t)part * sizeof(uint64_t), whole,
                   scratch, out);
        for (int cause = 0; part == RP_PART_HOST && cause < RP_IDLE_CAUSE_COUNT; cause++) {
            snprintf(name, sizeof name, "  %s", rp_idle_causes[cause]);
            write_part(paths, count, name,
                       offsetof(struct rp_request_path, gaps) + (size_t)cause * sizeof(uint64_t),
                       whole, scratch, out);
        }
    }
}

static void write_requests(const struct rp_trace_spans *spans, struct rp_buffer *out) {
    uint32_t seen, count = 0;
    const struct rp_trace_span *lives = rp_trace_spans_of(spans, RP_SPAN_REQUEST, &seen);
    struct rp_request_path *paths = rp_calloc((size_t)seen + 1, sizeof *paths);
    uint64_t *scratch = rp_calloc((size_t)seen + 1, sizeof *scratch);
    if (!paths || !scratch)
        out->failed = true;
    for (uint32_t i = 0; i < seen && !out->failed; i++)
        count += rp_trace_request_path(spans, lives[i].number, &paths[count]);
    if (!out->failed)
        write_all(paths, count, seen, scratch, out);
    rp_free(paths);
    rp_free(scratch);
}

/* --- Steps ------------------------------------------------------------------------------------ */

/* Mean of a part; forward and sample are those of stamped steps, and part of `device`. */
static double mean_part(const struct rp_step_path *path, int part) {
    bool split = part == RP_STEP_PART_FORWARD || part == RP_STEP_PART_SAMPLE;
    uint64_t ns = path->parts[part];
    if (part == RP_STEP_PART_DEVICE)
        ns += path->parts[RP_STEP_PART_FORWARD] + path->parts[RP_STEP_PART_SAMPLE];
    uint32_t steps = split ? path->stamped : path->steps;
    return steps ? (double)ns / steps : 0.0;
}

static void write_mean(double ns, int width, struct rp_buffer *out) {
    char text[16] = "-";
    if (ns > 0)
        rp_time_text(ns, text);
    rp_buffer_printf(out, "  %*s", width, text);
}

static void write_steps(const struct rp_trace_spans *spans, struct rp_buffer *out) {
    struct rp_step_path paths[SIZES_MAX];
    bool shown[RP_STEP_PART_COUNT] = {false};
    uint32_t count = rp_trace_step_paths(spans, paths, SIZES_MAX);
    size_t width = 4;
    for (uint32_t i = 0; i < count; i++) {
        width = RP_MAX(width, strlen(paths[i].name));
        for (int part = 0; part < RP_STEP_PART_COUNT; part++)
            shown[part] |= mean_part(&paths[i], part) > 0;
    }
    rp_buffer_printf(out,
                     "\nsteps       by captured size: from the end of the step before to the "
                     "result, means\n  %-*s  %6s  %7s",
                     (int)width, "size", "steps", "stamped");
    for (int part = 0; part < RP_STEP_PART_COUNT; part++)
        if (shown[part])
            rp_buffer_printf(out, "  %*s", (int)RP_MAX(strlen(rp_step_parts[part]), 7u),
                             rp_step_parts[part]);
    rp_buffer_puts(out, "  hidden\n");
    for (uint32_t i = 0; i < count; i++) {
        const struct rp_step_path *path = &paths[i];
        rp_buffer_printf(out, "  %-*s  %6u  %7u", (int)width, path->name, path->steps,
                         path->stamped);
        for (int part = 0; part < RP_STEP_PART_COUNT; part++)
            if (shown[part])
                write_mean(mean_part(path, part), (int)RP_MAX(strlen(rp_step_parts[part]), 7u),
                           out);
        write_mean(path->steps ? (double)path->hidden_ns / path->steps : 0.0, 6, out);
        rp_buffer_puts(out, "\n");
    }
    rp_buffer_puts(out,
                   "forward and sample: of stamped steps; hidden: planning and launching while "
                   "another step ran\n");
}

static void write_copies(const struct rp_trace_spans *spans, struct rp_buffer *out) {
    struct rp_trace_overlap overlap;
    char time[16];
    rp_trace_spans_overlap(spans, &overlap);
    if (overlap.copies == 0) {
        rp_buffer_puts(out,
                       "\ncopies      none between host and device: nothing was swapped, or the "
                       "device has no memory of its own\n");
        return;
    }
    rp_buffer_printf(out,
                     "\ncopies      %u, %s between host and device; steps ran during %.1f %% of "
                     "that time\n",
                     overlap.copies, rp_time_text((double)overlap.copy_ns, time),
                     share(overlap.overlapped_ns, overlap.copy_ns));
}

bool rp_trace_path_write(const struct rp_trace_spans *spans, const uint64_t *request,
                         struct rp_buffer *out) {
    struct rp_request_path path;
    if (!request) {
        write_requests(spans, out);
    } else {
        if (!rp_trace_request_path(spans, *request, &path))
            return false;
        write_one(&path, out);
    }
    write_steps(spans, out);
    write_copies(spans, out);
    return true;
}
