/* profile_text.c - a profile table as text for people, CSV for sheets, and JSON. */
#include "base/json_writer.h"
#include "metrics/profile_table.h"
#include "metrics/time_diff.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NAME_MAX_WIDTH  56
#define SHAPE_MAX_WIDTH 20

static uint32_t shown(const struct rp_profile_table *table, uint32_t row_limit) {
    return row_limit ? RP_MIN(row_limit, table->count) : table->count;
}

/* 1.23G; "-" for none. */
static const char *count_text(double count, char out[16]) {
    static const char prefixes[] = " kMGTPE";
    size_t i = 0;
    if (count <= 0) {
        memcpy(out, "-", 2);
        return out;
    }
    while (count >= 999.5 && i + 2 < sizeof prefixes) {
        count /= 1000.0;
        i++;
    }
    snprintf(out, 16, "%.*f%.*s",
             i == 0 || count >= 99.95 ? 0
             : count >= 9.995         ? 1
                                      : 2,
             count, i > 0, &prefixes[i]);
    return out;
}

static double average_ns(const struct rp_profile_line *line) {
    return line->calls ? (double)line->self_ns / (double)line->calls : 0.0;
}

/* Live rows of a step, and positions in a row's pages: means over the calls. */
static double mean_rows(const struct rp_profile_line *line) {
    return line->calls ? (double)line->rows / (double)line->calls : 0.0;
}

static double mean_kv(const struct rp_profile_line *line) {
    return line->rows ? (double)line->kv_tokens / (double)line->rows : 0.0;
}

static void write_load(const struct rp_profile_line *line, struct rp_buffer *out) {
    rp_buffer_printf(out, "  %7.1f  %7.0f  %7u", mean_rows(line), mean_kv(line), line->kv_max);
}

static void write_line(const struct rp_profile_line *line, int name_width, int shape_width,
                       bool with_load, struct rp_buffer *out) {
    char self[16], total[16], avg[16], p50[16], p99[16], flops[16], bytes[16], intensity[16] = "-",
                                                                               roof[16] = "-";
    if (line->intensity > 0)
        snprintf(intensity, sizeof intensity, line->intensity < 99.95 ? "%.1f" : "%.0f",
                 line->intensity);
    if (line->roof_share > 0)
        snprintf(roof, sizeof roof, "%.1f", RP_MIN(100.0 * line->roof_share, 99999.0));
    size_t len = strlen(line->name);
    if (len > NAME_MAX_WIDTH)
        rp_buffer_printf(out, "%.*s..%s", NAME_MAX_WIDTH / 2 - 2, line->name,
                         line->name + len - NAME_MAX_WIDTH / 2);
    else
        rp_buffer_printf(out, "%-*s", name_width, line->name);
    rp_buffer_printf(out,
                     "  %5.5s  %-*.*s  %8llu  %9s  %6.2f  %9s  %8s  %8s  %8s  %7s  %7s  %7s  %-7s  "
                     "%7s  %8llu",
                     line->layer, shape_width, SHAPE_MAX_WIDTH, line->shape,
                     (unsigned long long)line->calls, rp_time_text((double)line->self_ns, self),
                     100.0 * line->self_share, rp_time_text((double)line->total_ns, total),
                     rp_time_text(average_ns(line), avg), rp_time_text((double)line->p50_ns, p50),
                     rp_time_text((double)line->p99_ns, p99), count_text(line->flops, flops),
                     count_text(line->bytes, bytes), intensity, rp_profile_bounds[line->bound],
                     roof, (unsigned long long)line->tokens);
    if (with_load)
        write_load(line, out);
    rp_buffer_puts(out, "\n");
}

static void write_rule(struct rp_buffer *out, int width) {
    for (int i = 0; i < width; i++)
        rp_buffer_puts(out, "-");
    rp_buffer_puts(out, "\n");
}

static void write_idle(const struct rp_profile_footer *footer, struct rp_buffer *out) {
    const char *comma = "";
    double window = footer->window_seconds * 1e9;
    if (!footer->has_idle || window <= 0)
        return;
    rp_buffer_printf(out, "device      busy %.1f %%; idle: ", 100.0 * footer->busy_share);
    for (int cause = 0; cause < RP_IDLE_CAUSE_COUNT; cause++) {
        if (footer->idle_ns[cause] == 0)
            continue;
        rp_buffer_printf(out, "%s%s %.1f %%", comma, rp_idle_causes[cause],
                         100.0 * (double)footer->idle_ns[cause] / window);
        comma = ", ";
    }
    rp_buffer_puts(out, *comma ? "\n" : "none\n");
}

/* How many steps replayed the graphs of their size, and why others did not. */
static void write_misses(const struct rp_profile_footer *footer, struct rp_buffer *out) {
    const char *comma = ":";
    if (!footer->has_idle)
        return;
    rp_buffer_printf(out, "graphs      %llu of %llu steps replayed those of their size",
                     (unsigned long long)footer->misses[RP_MISS_NONE],
                     (unsigned long long)footer->steps_seen);
    for (int i = RP_MISS_NONE + 1; i < RP_MISS_COUNT; i++) {
        if (footer->misses[i] == 0)
            continue;
        rp_buffer_printf(out, "%s %s %llu", comma, rp_replay_misses[i],
                         (unsigned long long)footer->misses[i]);
        comma = ",";
    }
    rp_buffer_puts(out, "\n");
}

static void write_footer(const struct rp_profile_table *table, uint32_t row_limit,
                         struct rp_buffer *out) {
    const struct rp_profile_footer *footer = &table->footer;
    char replay[16], lost[16], bytes[16], flops[16];
    double share = footer->replay_ns ? 100.0 / (double)footer->replay_ns : 0.0;
    if (shown(table, row_limit) < table->count)
        rp_buffer_printf(out, "rows        %u of %u\n", shown(table, row_limit), table->count);
    rp_buffer_printf(out, "window      %.1f s, ", footer->window_seconds);
    if (footer->steps_seen)
        rp_buffer_printf(out, "%llu steps, ", (unsigned long long)footer->steps_seen);
    rp_buffer_printf(out, "%llu of them stamped", (unsigned long long)footer->steps_stamped);
    if (footer->every)
        rp_buffer_printf(out, " (one in %u of each bucket, and what was asked for)", footer->every);
    rp_buffer_printf(out, "%s\n", footer->whole ? "" : "; older ones are overwritten");
    rp_buffer_printf(
        out, "replays     %s on the device, %.2f %% of it in the rows, %s (%.2f %%) not\n",
        rp_time_text((double)footer->replay_ns, replay), share * (double)table->self_ns,
        rp_time_text((double)footer->unattributed_ns, lost),
        share * (double)footer->unattributed_ns);
    write_misses(footer, out);
    write_idle(footer, out);
    if (footer->perturbation_steps)
        rp_buffer_printf(
            out,
            "stamping    %+.2f %% of a step's time, +- %.2f (%llu stamped steps beside unstamped "
            "ones)\n",
            100.0 * footer->perturbation, 100.0 * footer->perturbation_spread,
            (unsigned long long)footer->perturbation_steps);
    else
        rp_buffer_puts(
            out, "stamping    its cost is not known: no bucket has stamped and unstamped steps\n");
    if (footer->dropped)
        rp_buffer_printf(out, "dropped     %llu launches without times\n",
                         (unsigned long long)footer->dropped);
    if (footer->peak_bytes > 0 || footer->peak_flops > 0)
        rp_buffer_printf(out, "peaks       %sB/s read, %sFLOP/s, measured at start\n",
                         count_text(footer->peak_bytes, bytes),
                         count_text(footer->peak_flops, flops));
    else
        rp_buffer_puts(out, "peaks       not measured: no bounds\n");
}

void rp_profile_write_text(const struct rp_profile_table *table, uint32_t row_limit,
                           struct rp_buffer *out) {
    size_t name_width = 4, shape_width = 5;
    for (uint32_t i = 0; i < shown(table, row_limit); i++) {
        name_width = RP_MAX(name_width, strlen(table->lines[i].name));
        shape_width = RP_MAX(shape_width, strlen(table->lines[i].shape));
    }
    int name = (int)RP_MIN(name_width, (size_t)NAME_MAX_WIDTH);
    int shape = (int)RP_MIN(shape_width, (size_t)SHAPE_MAX_WIDTH);
    int width = name + shape + (table->with_load ? 168 : 141);
    rp_buffer_printf(
        out,
        "%-*s  %5s  %-*s  %8s  %9s  %6s  %9s  %8s  %8s  %8s  %7s  %7s  %7s  %-7s  %7s  "
        "%8s%s\n",
        name, "name", "layer", shape, "shape", "calls", "self", "self %", "total", "avg", "p50",
        "p99", "FLOP", "bytes", "FLOP/B", "bound", "% roof", "tokens",
        table->with_load ? "    batch       kv   kv max" : "");
    write_rule(out, width);
    for (uint32_t i = 0; i < shown(table, row_limit); i++)
        write_line(&table->lines[i], name, shape, table->with_load, out);
    write_rule(out, width);
    write_footer(table, row_limit, out);
}

/* ---- CSV (RFC 4180) ------------------------------------------------------------------------- */

static void write_field(const char *text, struct rp_buffer *out) {
    bool quoted = strpbrk(text, ",\"\r\n") != NULL;
    if (quoted)
        rp_buffer_puts(out, "\"");
    for (; *text; text++)
        rp_buffer_printf(out, *text == '"' ? "%c\"" : "%c", *text);
    rp_buffer_puts(out, quoted ? "\"," : ",");
}

void rp_profile_write_csv(const struct rp_profile_table *table, uint32_t row_limit,
                          struct rp_buffer *out) {
    rp_buffer_puts(out,
                   "name,layer,shape,calls,self_ns,self_share,total_ns,avg_ns,p50_ns,p99_ns,max_ns,"
                   "flops,bytes,intensity,bound,roof_share,tokens,p25_ns,p75_ns,batch,kv_tokens,"
                   "kv_tokens_max\r\n");
    for (uint32_t i = 0; i < shown(table, row_limit); i++) {
        const struct rp_profile_line *line = &table->lines[i];
        write_field(line->name, out);
        write_field(line->layer, out);
        write_field(line->shape, out);
        rp_buffer_printf(
            out, "%llu,%llu,%.6f,%llu,%.1f,%llu,%llu,%llu,%.0f,%.0f,%.4f,%s,%.6f,%llu,",
            (unsigned long long)line->calls, (unsigned long long)line->self_ns, line->self_share,
            (unsigned long long)line->total_ns, average_ns(line), (unsigned long long)line->p50_ns,
            (unsigned long long)line->p99_ns, (unsigned long long)line->max_ns, line->flops,
            line->bytes, line->intensity,
            line->bound == RP_BOUND_UNKNOWN ? "" : rp_profile_bounds[line->bound], line->roof_share,
            (unsigned long long)line->tokens);
        rp_buffer_printf(out, "%llu,%llu,%.2f,%.1f,%u\r\n", (unsigned long long)line->p25_ns,
                         (unsigned long long)line->p75_ns, mean_rows(line), mean_kv(line),
                         line->kv_max);
    }
}

/* ---- JSON
 *
 --------------------------------------------------------------------------------------------- */

static void write_json_row(const struct rp_profile_line *line, struct rp_json *json) {
    rp_json_object_begin(json, NULL);
    rp_json_string(json, "name", line->name);
    rp_json_string(json, "layer", line->layer);
    rp_json_string(json, "shape", line->shape);
    rp_json_uint(json, "calls", line->calls);
    rp_json_uint(json, "self_ns", line->self_ns);
    rp_json_double(json, "self_share", line->self_share);
    rp_json_uint(json, "total_ns", line->total_ns);
    rp_json_double(json, "avg_ns", average_ns(line));
    rp_json_uint(json, "p25_ns", line->p25_ns);
    rp_json_uint(json, "p50_ns", line->p50_ns);
    rp_json_uint(json, "p75_ns", line->p75_ns);
    rp_json_uint(json, "p99_ns", line->p99_ns);
    rp_json_uint(json, "max_ns", line->max_ns);
    rp_json_double(json, "flops", line->flops);
    rp_json_double(json, "bytes", line->bytes);
    rp_json_double(json, "intensity", line->intensity);
    if (line->bound == RP_BOUND_UNKNOWN)
        rp_json_null(json, "bound");
    else
        rp_json_string(json, "bound", rp_profile_bounds[line->bound]);
    rp_json_double(json, "roof_share", line->roof_share);
    rp_json_uint(json, "tokens", line->tokens);
    rp_json_double(json, "batch", mean_rows(line));
    rp_json_double(json, "kv_tokens", mean_kv(line));
    rp_json_uint(json, "kv_tokens_max", line->kv_max);
    rp_json_object_end(json);
}

static void write_json_footer(const struct rp_profile_table *table, struct rp_json *json) {
    const struct rp_profile_footer *footer = &table->footer;
    rp_json_object_begin(json, "footer");
    rp_json_uint(json, "row_count", table->count);
    rp_json_double(json, "window_seconds", footer->window_seconds);
    rp_json_uint(json, "steps_seen", footer->steps_seen);
    rp_json_uint(json, "steps_stamped", footer->steps_stamped);
    rp_json_uint(json, "stamped_one_in", footer->every);
    rp_json_bool(json, "whole", footer->whole);
    rp_json_uint(json, "replay_ns", footer->replay_ns);
    rp_json_uint(json, "self_ns", table->self_ns);
    rp_json_uint(json, "unattributed_ns", footer->unattributed_ns);
    rp_json_uint(json, "launches_without_times", footer->dropped);
    if (footer->has_idle) {
        rp_json_double(json, "busy_share", footer->busy_share);
        rp_json_object_begin(json, "idle_ns");
        for (int cause = 0; cause < RP_IDLE_CAUSE_COUNT; cause++)
            rp_json_uint(json, rp_idle_causes[cause], footer->idle_ns[cause]);
        rp_json_object_end(json);
        rp_json_object_begin(json, "steps_by_replay");
        for (int i = 0; i < RP_MISS_COUNT; i++)
            rp_json_uint(json, rp_replay_misses[i], footer->misses[i]);
        rp_json_object_end(json);
    }
    rp_json_object_begin(json, "perturbation");
    rp_json_uint(json, "steps", footer->perturbation_steps);
    if (footer->perturbation_steps)
        rp_json_double(json, "ratio", footer->perturbation);
    else
        rp_json_null(json, "ratio");
    rp_json_double(json, "spread", footer->perturbation_spread);
    rp_json_object_end(json);
    rp_json_object_begin(json, "peaks");
    rp_json_double(json, "read_bytes_per_second", footer->peak_bytes);
    rp_json_double(json, "flops_per_second", footer->peak_flops);
    rp_json_object_end(json);
    rp_json_object_end(json);
}

void rp_profile_write_json(const struct rp_profile_table *table, uint32_t row_limit,
                           struct rp_json *json) {
    rp_json_array_begin(json, "rows");
    for (uint32_t i = 0; i < shown(table, row_limit); i++)
        write_json_row(&table->lines[i], json);
    rp_json_array_end(json);
    write_json_footer(table, json);
}
