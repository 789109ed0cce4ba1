/* reprise bench compare A.json B.json: compares two load test results
 * (bench/load/load_compare.h). */
#include "base/json_writer.h"
#include "bench/load/load_compare.h"
#include "server/cli/commands.h"
#include "server/cli/flags.h"

#include <stdio.h>
#include <string.h>

#define METRICS_MAX 32u
#define METRIC_MAX  48u

struct compare_options {
    const char *metrics;
    double margin;
    bool json;
};

#define AT(field) offsetof(struct compare_options, field)

static const struct rp_flag compare_flags[] = {
    {"metric", RP_FLAG_TEXT, AT(metrics), "NAME,...", 0, 0, "",
     "metrics to compare: p95_ttft_ms, output_throughput, ...; default: rates, means, medians and "
     "p99"},
    {"margin", RP_FLAG_REAL, AT(margin), "PERCENT", 0, 100, "2",
     "an interval entirely within 1 +- PERCENT is no difference"},
    {"json", RP_FLAG_SWITCH, AT(json), NULL, 0, 0, NULL, "print one JSON object"},
};

static const struct rp_command_spec compare_spec = {
    .name = "bench compare",
    .positionals = "A.json B.json",
    .positional_min = 2,
    .positional_max = 2,
    .summary = "Compares two result files of `reprise bench serve` or `vllm bench serve`: the "
               "ratio B / A,\n"
               "with a 95 % interval if the files contain details (--save-detailed).",
    .flags = compare_flags,
    .flag_count = RP_ARRAY_COUNT(compare_flags),
};

struct compare_result {
    struct rp_load_result *files[2];
    struct rp_comparison rows[METRICS_MAX];
    uint32_t count;
    struct rp_buffer warnings;
};

/* Compares the metrics of --metric; a missing one is an error. */
static int compare_named(const char *names, double margin, struct compare_result *result,
                         struct rp_error *err) {
    while (*names) {
        char name[METRIC_MAX];
        size_t len = strcspn(names, ",");
        if (len == 0 || len >= sizeof name || result->count == METRICS_MAX)
            return rp_error_set(err, RP_STATUS_INVALID, "--metric: '%.64s': not a list of metrics",
                                names);
        memcpy(name, names, len);
        name[len] = '\0';
        int status = rp_compare_results(result->files[0], result->files[1], name, margin,
                                        &result->rows[result->count++], err);
        if (status != RP_OK)
            return status;
        names += len + (names[len] == ',');
    }
    return RP_OK;
}

static int compare_default(double margin, struct compare_result *result, struct rp_error *err) {
    for (const char *const *name = rp_compare_metrics; *name; name++) {
        int status = rp_compare_results(result->files[0], result->files[1], *name, margin,
                                        &result->rows[result->count], err);
        if (status == RP_OK)
            result->count++;
        else if (status != RP_STATUS_NOT_FOUND)
            return status;
    }
    return result->count ? RP_OK : rp_error_set(err, RP_STATUS_FORMAT, "the files share no metric");
}

static void print_table(const struct compare_result *result) {
    bool paired = false, intervals = false;
    printf("%-24s %12s %12s %8s  %s\n", "metric", "A", "B", "B / A", "verdict");
    for (uint32_t i = 0; i < result->count; i++) {
        const struct rp_comparison *row = &result->rows[i];
        char text[128];
        rp_compare_text(row, text, sizeof text);
        printf("%-24s %12.3f %12.3f %8.3f  %s\n", row->metric, row->a, row->b, row->ratio, text);
        paired |= row->paired;
        intervals |= row->high > 0;
    }
    if (intervals)
        printf("Intervals account for the variance of requests within each run%s, not for changes\n"
               "of the machine between the runs.\n",
               paired ? " (paired: the same requests in both)" : "");
    if (result->warnings.len)
        printf("%.*s", (int)result->warnings.len, result->warnings.data);
}

static void print_json(const struct compare_result *result, const char *const paths[]) {
    static const char *const verdicts[] = {[RP_COMPARE_NO_INTERVAL] = "no interval",
                                           [RP_COMPARE_SAME] = "no difference",
                                           [RP_COMPARE_FASTER] = "faster",
                                           [RP_COMPARE_SLOWER] = "slower",
                                           [RP_COMPARE_UNRELIABLE] = "unreliable"};
    struct rp_buffer out;
    struct rp_json json;
    rp_buffer_init(&out, 0);
    rp_json_init(&json, &out);
    rp_json_object_begin(&json, NULL);
    rp_json_string(&json, "bench", "compare");
    rp_json_string(&json, "a", paths[0]);
    rp_json_string(&json, "b", paths[1]);
    rp_json_string_len(&json, "warnings", result->warnings.data ? result->warnings.data : "",
                       result->warnings.len);
    rp_json_array_begin(&json, "metrics");
    for (uint32_t i = 0; i < result->count; i++) {
        const struct rp_comparison *row = &result->rows[i];
        char text[128];
        rp_compare_text(row, text, sizeof text);
        rp_json_object_begin(&json, NULL);
        rp_json_string(&json, "metric", row->metric);
        rp_json_double(&json, "a", row->a);
        rp_json_double(&json, "b", row->b);
        rp_json_double(&json, "ratio", row->ratio);
        if (row->high == 0) {
            rp_json_null(&json, "low");
            rp_json_null(&json, "high");
        } else {
            rp_json_double(&json, "low", row->low);
            rp_json_double(&json, "high", row->high);
        }
        rp_json_double(&json, "margin", row->margin);
        rp_json_uint(&json, "requests", row->samples);
        rp_json_bool(&json, "paired", row->paired);
        rp_json_string(&json, "verdict", verdicts[row->verdict]);
        rp_json_string(&json, "text", text);
        rp_json_object_end(&json);
    }
    rp_json_array_end(&json);
    rp_json_object_end(&json);
    printf("%.*s\n", (int)out.len, out.data);
    rp_buffer_deinit(&out);
}

int rp_cmd_bench_compare(int argc, char **argv) {
    const char *positionals[RP_POSITIONALS_MAX];
    struct compare_options options = {.metrics = ""};
    struct compare_result result = {.count = 0};
    struct rp_error err = {0};
    int status = rp_flags_parse(&compare_spec, argc, argv, &options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    rp_buffer_init(&result.warnings, 0);
    for (int i = 0; i < 2 && status == RP_OK; i++)
        status = rp_load_result_read(positionals[i], &result.files[i], &err);
    if (status == RP_OK) {
        double margin = options.margin / 100;
        status = options.metrics[0] ? compare_named(options.metrics, margin, &result, &err)
                                    : compare_default(margin, &result, &err);
    }
    if (status == RP_OK) {
        rp_load_result_warnings(result.files[0], result.files[1], &result.warnings);
        if (options.json)
            print_json(&result, positionals);
        else
            print_table(&result);
    }
    for (int i = 0; i < 2; i++)
        rp_load_result_free(result.files[i]);
    rp_buffer_deinit(&result.warnings);
    if (status == RP_OK)
        return RP_EXIT_OK;
    return rp_fail(status == RP_STATUS_INVALID ? RP_EXIT_USAGE : RP_EXIT_FAILURE, &err);
}
