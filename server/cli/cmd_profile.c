/* reprise profile: where a running server spends the time of its steps; --against a saved profile:
 * what became slower since. */
#include "base/memory.h"
#include "bench/load/load_run.h"
#include "metrics/time_diff.h"
#include "server/cli/commands.h"
#include "server/cli/flags.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

struct profile_options {
    const char *base_url, *api_key, *against;
    uint32_t group, rows;
    double seconds;
    bool json;
};

#define GROUPS "op,bucket|op,bucket,kv|op|layer|node|bucket|phase"
static const char *const groups[] = {"op,bucket", "op,bucket,kv", "op",   "layer",
                                     "node",      "bucket",       "phase"};

#define AT(field) offsetof(struct profile_options, field)
static const struct rp_flag flags[] = {
    {"base-url", RP_FLAG_TEXT, AT(base_url), "URL", 0, 0, NULL,
     "the server, or its admin port (default http://127.0.0.1:8000)"},
    {"api-key", RP_FLAG_TEXT, AT(api_key), "KEY", 0, 0, "", "sent as a bearer token"},
    {"group-by", RP_FLAG_CHOICE, AT(group), GROUPS, 0, 0, "op,bucket",
     "what a row is; with --against it is that of the saved profile"},
    {"rows", RP_FLAG_UINT, AT(rows), "N", 0, 1000000, "30",
     "rows; with --against those without a change; 0: all"},
    {"seconds", RP_FLAG_REAL, AT(seconds), "SECONDS", 0, 86400, "0",
     "only steps of the last so many seconds; 0: all that are kept"},
    {"against", RP_FLAG_TEXT, AT(against), "FILE", 0, 0, NULL,
     "compare with this profile, saved with --json"},
    {"json", RP_FLAG_SWITCH, AT(json), NULL, 0, 0, NULL, "print all rows as JSON, to be saved"},
};
static const struct rp_command_spec spec = {
    .name = "profile",
    .positionals = "[FILE]",
    .positional_max = 1,
    .summary = "Shows where a server (or a profile saved with --json) spends the time of its "
               "steps, and what became slower.",
    .flags = flags,
    .flag_count = RP_ARRAY_COUNT(flags)};

/* --- Profiles --------------------------------------------------------------------------------- */

static int not_a_profile(const char *from, struct rp_error *err) {
    int status = rp_error_set(err, RP_STATUS_FORMAT, "%.300s: not a profile of operators", from);
    rp_error_hint(err, "save one with `reprise profile --json > FILE`");
    return status;
}

/* Rows of requests have nothing that a later profile could be compared with. */
static bool is_profile(const json_t *root) {
    const char *group = json_string_value(json_object_get(root, "group_by"));
    bool known = false;
    for (size_t i = 0; i < RP_ARRAY_COUNT(groups); i++)
        known = known || (group && strcmp(group, groups[i]) == 0);
    return known && json_is_array(json_object_get(root, "rows"));
}

static int read_file(const char *path, json_t **out, struct rp_error *err) {
    FILE *file = fopen(path, "rb");
    if (!file)
        return rp_error_set(err, RP_STATUS_IO, "%.300s: %s", path, strerror(errno));
    *out = json_loadf(file, JSON_DECODE_INT_AS_REAL, NULL);
    fclose(file);
    return is_profile(*out) ? RP_OK : not_a_profile(path, err);
}

static char *ask(const struct profile_options *options, const char *group, const char *format,
                 uint32_t rows, struct rp_error *err) {
    char path[256];
    const struct rp_load_target target = {
        .base_url =
            options->base_url && *options->base_url ? options->base_url : "http://127.0.0.1:8000",
        .api_key = options->api_key && *options->api_key ? options->api_key : NULL};
    int len = snprintf(path, sizeof path, "/debug/profile?group_by=%.32s&format=%s&row_limit=%u",
                       group, format, rows);
    if (options->seconds > 0)
        snprintf(path + len, sizeof path - (size_t)len, "&seconds=%g", options->seconds);
    char *body = rp_load_get(&target, path, err);
    if (!body)
        rp_error_hint(err, "give --base-url of a running `reprise serve`, or of its admin port");
    return body;
}

static int ask_json(const struct profile_options *options, const char *group, json_t **out,
                    struct rp_error *err) {
    char *body = ask(options, group, "json", 0, err);
    if (!body)
        return RP_STATUS_IO;
    *out = json_loads(body, JSON_DECODE_INT_AS_REAL, NULL);
    rp_free(body);
    return is_profile(*out) ? RP_OK : not_a_profile("/debug/profile", err);
}

/* --- Comparing -------------------------------------------------------------------------------- */

static double number(const json_t *row, const char *key) {
    double value = json_number_value(json_object_get(row, key));
    return value > 0 && value < 1e18 ? value : 0.0;
}

/* "attn.qkv @ decode 8/8": the operator, and the size within which it is compared. */
static void add_rows(struct rp_time_diff *diff, enum rp_diff_side side, const json_t *profile) {
    static const char mark[] = " @ ";
    const json_t *rows = json_object_get(profile, "rows");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *name = json_string_value(json_object_get(row, "name"));
        if (!name || strchr(name, '\1'))
            continue;
        const char *size = strstr(name, mark);
        char operator_name[256];
        snprintf(operator_name, sizeof operator_name, "%.*s",
                 (int)RP_MIN(size ? (size_t)(size - name) : strlen(name), 255u), name);
        const struct rp_time_summary summary = {.count = (uint64_t)number(row, "calls"),
                                                .p25 = number(row, "p25_ns"),
                                                .p50 = number(row, "p50_ns"),
                                                .p75 = number(row, "p75_ns")};
        rp_time_diff_add_summary(diff, side, "operators", operator_name,
                                 size ? size + sizeof mark - 1 : "", &summary);
    }
}

static void write_side(const char *side, const char *from, const json_t *profile,
                       struct rp_buffer *out) {
    const json_t *footer = json_object_get(profile, "footer");
    rp_buffer_printf(out, "%s  %s: %.1f s, %.0f stamped steps of %.0f\n", side, from,
                     number(footer, "window_seconds"), number(footer, "steps_stamped"),
                     number(footer, "steps_seen"));
}

static int compare(const struct profile_options *options, const char *file, struct rp_error *err) {
    json_t *before = NULL, *now = NULL;
    struct rp_time_diff diff = {.failed = false};
    struct rp_buffer out = {.data = NULL};
    int status = read_file(options->against, &before, err);
    const char *group = json_string_value(json_object_get(before, "group_by"));
    if (status == RP_OK)
        status = file ? read_file(file, &now, err) : ask_json(options, group, &now, err);
    if (status == RP_OK && strcmp(group, json_string_value(json_object_get(now, "group_by"))) != 0)
        status = rp_error_set(err, RP_STATUS_INVALID, "%.300s is grouped by %.32s, not by %.32s",
                              file ? file : "the server's answer",
                              json_string_value(json_object_get(now, "group_by")), group);
    if (status == RP_OK) {
        write_side("A", options->against, before, &out);
        write_side("B", file ? file : "now", now, &out);
        rp_buffer_puts(&out, "\n");
        add_rows(&diff, RP_DIFF_A, before);
        add_rows(&diff, RP_DIFF_B, now);
        rp_time_diff_finish(&diff);
        rp_time_diff_write(&diff, options->rows, &out);
        if (diff.failed || out.failed)
            status = rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for the comparison");
        else if (fwrite(out.data, 1, out.len, stdout) != out.len)
            status = rp_error_set(err, RP_STATUS_IO, "the comparison could not be written");
    }
    rp_buffer_deinit(&out);
    rp_time_diff_deinit(&diff);
    json_decref(before);
    json_decref(now);
    return status;
}

static int show(const struct profile_options *options, struct rp_error *err) {
    char *body = ask(options, groups[options->group], options->json ? "json" : "text",
                     options->json ? 0 : options->rows, err);
    if (!body)
        return RP_STATUS_IO;
    fputs(body, stdout);
    rp_free(body);
    return RP_OK;
}

int rp_cmd_profile(int argc, char **argv) {
    const char *files[RP_POSITIONALS_MAX] = {NULL};
    struct profile_options options = {.group = 0};
    struct rp_error err = {0};
    int status = rp_flags_parse(&spec, argc, argv, &options, files, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    bool against = options.against && *options.against;
    if (files[0] && !against) {
        status = rp_error_set(&err, RP_STATUS_INVALID, "a saved profile is only compared");
        rp_error_hint(&err, "add --against FILE: the profile from before");
        return rp_fail(RP_EXIT_USAGE, &err);
    }
    status = against ? compare(&options, files[0], &err) : show(&options, &err);
    return status == RP_OK ? RP_EXIT_OK : rp_fail(RP_EXIT_FAILURE, &err);
}
