/* reprise bench record: the cost of recording in nanoseconds. */
#include "base/json_writer.h"
#include "bench/bench_record.h"
#include "metrics/tick.h"
#include "server/cli/commands.h"
#include "server/cli/flags.h"

#include <stdio.h>

struct record_options {
    uint32_t count;
    bool json;
};

static const struct rp_flag record_flags[] = {
    {"count", RP_FLAG_UINT, offsetof(struct record_options, count), "N", 1000, 1000000000,
     "2000000", "operations of each kind per pass; there are nine passes"},
    {"json", RP_FLAG_SWITCH, offsetof(struct record_options, json), NULL, 0, 0, NULL,
     "print one JSON object"},
};

static const struct rp_command_spec record_spec = {
    .name = "bench record",
    .positionals = "",
    .summary = "Cost of recording for the engine and loop threads: ns per operation, one thread.",
    .flags = record_flags,
    .flag_count = RP_ARRAY_COUNT(record_flags),
};

static void print_json(const struct rp_bench_record_result *results) {
    struct rp_buffer out;
    struct rp_json json;
    rp_buffer_init(&out, 0);
    rp_json_init(&json, &out);
    rp_json_object_begin(&json, NULL);
    rp_json_double(&json, "counter_hertz", rp_tick_hertz());
    rp_json_object_begin(&json, "ns");
    for (uint32_t i = 0; i < RP_BENCH_RECORD_RESULTS; i++)
        rp_json_double(&json, results[i].name, results[i].ns);
    rp_json_object_end(&json);
    rp_json_object_end(&json);
    printf("%.*s\n", (int)out.len, out.data);
    rp_buffer_deinit(&out);
}

int rp_cmd_bench_record(int argc, char **argv) {
    struct rp_bench_record_result results[RP_BENCH_RECORD_RESULTS];
    struct record_options options = {.json = false};
    const char *positionals[RP_POSITIONALS_MAX];
    struct rp_error err = {0};
    int status = rp_flags_parse(&record_spec, argc, argv, &options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    if (rp_bench_record(options.count, results, &err) != RP_OK)
        return rp_fail(RP_EXIT_FAILURE, &err);
    if (options.json) {
        print_json(results);
        return RP_EXIT_OK;
    }
    if (rp_tick_hertz() > 0.0)
        printf("clock: the time stamp counter at %.3f GHz\n", rp_tick_hertz() * 1e-9);
    else
        printf("clock: CLOCK_MONOTONIC (no usable time stamp counter)\n");
    for (uint32_t i = 0; i < RP_BENCH_RECORD_RESULTS; i++)
        printf("%8.2f ns  %s\n", results[i].ns, results[i].name);
    return RP_EXIT_OK;
}
