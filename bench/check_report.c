#include "bench/check_report.h"

#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const verdicts[] = {"holds",       "better than its baseline",
                                       "FAILS",       "FAILS: no longer measured",
                                       "no baseline", "skipped"};

void rp_check_output_begin(struct rp_check_output *output, bool as_json) {
    memset(output, 0, sizeof *output);
    output->as_json = as_json;
    if (!as_json)
        return;
    rp_buffer_init(&output->buffer, 0);
    rp_json_init(&output->json, &output->buffer);
    rp_json_object_begin(&output->json, NULL);
    rp_json_array_begin(&output->json, "metrics");
}

static void format_value(const struct rp_expectation *row, char out[48]) {
    if (!row)
        snprintf(out, 48, "-");
    else if (row->text[0])
        snprintf(out, 48, "%s", row->text);
    else
        snprintf(out, 48, "%.6g", row->value);
}

static void put_value(struct rp_json *json, const char *key, const struct rp_expectation *row) {
    if (!row)
        rp_json_null(json, key);
    else if (row->text[0])
        rp_json_string(json, key, row->text);
    else
        rp_json_double(json, key, row->value);
}

static void report_row(struct rp_check_output *output, const struct rp_expectation *baseline,
                       const struct rp_expectation *measured) {
    enum rp_expect_verdict verdict = rp_expectation_judge(baseline, measured);
    bool fails = verdict == RP_EXPECT_FAILS || verdict == RP_EXPECT_MISSING ||
                 (verdict == RP_EXPECT_NEW && !measured->optional);
    const char *metric = (measured ? measured : baseline)->metric;
    output->held += verdict == RP_EXPECT_HOLDS;
    output->better += verdict == RP_EXPECT_BETTER;
    output->skipped += verdict == RP_EXPECT_SKIPPED;
    output->new_metrics += verdict == RP_EXPECT_NEW;
    output->failed += fails;
    if (output->as_json) {
        struct rp_json *json = &output->json;
        rp_json_object_begin(json, NULL);
        rp_json_string(json, "metric", metric);
        rp_json_string(json, "verdict", verdicts[verdict]);
        rp_json_bool(json, "fails", fails);
        put_value(json, "baseline", baseline);
        put_value(json, "measured", measured && measured->skipped[0] ? NULL : measured);
        if (measured && measured->skipped[0])
            rp_json_string(json, "skipped", measured->skipped);
        rp_json_object_end(json);
    } else if (verdict == RP_EXPECT_SKIPPED) {
        printf("%s: skipped, %s\n", metric, measured->skipped);
    } else if (verdict != RP_EXPECT_HOLDS) {
        char before[48], now[48];
        format_value(baseline, before);
        format_value(measured, now);
        printf("%s: %s: %s, baseline %s", metric, verdicts[verdict], now, before);
        if (baseline && baseline->commit[0])
            printf(" (from %s)", baseline->commit);
        printf("\n");
    }
}

void rp_check_report(struct rp_check_output *output, const struct rp_expectations *baselines,
                     const struct rp_expectations *measured) {
    for (uint32_t i = 0; i < measured->count; i++)
        report_row(output, rp_expectations_find(baselines, measured->rows[i].metric),
                   &measured->rows[i]);
    for (uint32_t i = 0; i < baselines->count; i++) {
        const struct rp_expectation *row = &baselines->rows[i];
        if (!rp_expectations_find(measured, row->metric) &&
            rp_expectations_has_group(measured, row->metric))
            report_row(output, row, NULL);
    }
}

void rp_check_no_baseline(struct rp_check_output *output, const char *hardware) {
    if (!output->as_json)
        printf("no baseline for %s\n", hardware);
}

void rp_check_output_end(struct rp_check_output *output) {
    if (!output->as_json) {
        printf("%u hold, %u fail, %u better, %u skipped, %u without a baseline\n", output->held,
               output->failed, output->better, output->skipped, output->new_metrics);
        return;
    }
    rp_json_array_end(&output->json);
    rp_json_uint(&output->json, "held", output->held);
    rp_json_uint(&output->json, "failed", output->failed);
    rp_json_uint(&output->json, "better", output->better);
    rp_json_uint(&output->json, "skipped", output->skipped);
    rp_json_object_end(&output->json);
    printf("%.*s\n", (int)output->buffer.len, output->buffer.data);
    rp_buffer_deinit(&output->buffer);
}

static void read_commit(char out[48]) {
    FILE *git = popen("git describe --always --dirty --abbrev=10 --exclude='*' 2>/dev/null", "r");
    bool found = git && fgets(out, 48, git);
    if (git)
        pclose(git);
    if (found)
        out[strcspn(out, "\n")] = '\0';
    if (!found || !out[0])
        snprintf(out, 48, "unknown");
}

int rp_check_write(const char *path, struct rp_expectations *baselines,
                   const struct rp_expectations *measured, const char *command,
                   const char *known_commit, struct rp_error *err) {
    char commit[48];
    if (known_commit && *known_commit)
        snprintf(commit, sizeof commit, "%s", known_commit);
    else
        read_commit(commit);
    if (!rp_expectations_update(baselines, measured, commit, command))
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", path);
    return rp_expectations_save(path, baselines, err);
}
