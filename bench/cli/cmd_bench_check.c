/* reprise bench check: measures the metrics that have baselines in bench/expectations_*.json, and
 * compares. */
#include "base/memory.h"
#include "bench/bench_check.h"
#include "bench/check_report.h"
#include "server/cli/cmd_stack.h"
#include "server/cli/commands.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct check_options {
    struct rp_engine_options engine; /* --device and --debug-plant */
    const char *expectations, *only, *model, *commit, *timed_shape;
    uint32_t repeats, timed_context, counted_load, counted_rows, counted_every;
    bool counted_demo, counted_bare;
    bool update, json;
};

#define AT(field) offsetof(struct check_options, field)

static const struct rp_flag check_flags[] = {
    {"expectations", RP_FLAG_TEXT, AT(expectations), "FILE", 0, 0, "bench/expectations_counts.json",
     "baselines of counts; those of a machine's timings are in the same directory, in "
     "expectations_HARDWARE.json"},
    {"update-expectations", RP_FLAG_SWITCH, AT(update), NULL, 0, 0, NULL,
     "update the files with the measurements; values that hold are not changed"},
    {"only", RP_FLAG_TEXT, AT(only), "GROUP,...", 0, 0, "",
     "programs, steps, answers, instructions, precision, timings; default: all, but timings only "
     "on hardware that has a baseline, or with --update-expectations"},
    {"model", RP_FLAG_TEXT, AT(model), "DIR", 0, 0, "models/demo", "the demo model"},
    {"device", RP_FLAG_CHOICE, AT(engine.device), "auto|cpu|cuda", 0, 0, "auto",
     "device to time; counts are always of the CPU backend, a GPU's programs belong to its "
     "timings"},
    {"repeats", RP_FLAG_UINT, AT(repeats), "N", 0, RP_CHECK_REPEATS_MAX, "0",
     "runs of the timings, whose median counts; a new baseline gets their range as its spread; "
     "0: 1, or 5 with --update-expectations"},
    {"commit", RP_FLAG_TEXT, AT(commit), "HASH", 0, 0, "",
     "commit written to the file; default: that of the working directory"},
    {"timed-shape", RP_FLAG_TEXT, AT(timed_shape), "NAME", 0, 0, "",
     "model shape of the timings; default: llama-3.1-8b on a GPU, demo elsewhere"},
    {"timed-context", RP_FLAG_UINT, AT(timed_context), "N", 1, 65536, "512",
     "prompt tokens of each sequence of the timings"},
    {"json", RP_FLAG_SWITCH, AT(json), NULL, 0, 0, NULL, "print one JSON object"},
    {"debug-plant", RP_FLAG_TEXT, AT(engine.debug_plant), "node|allocation|slow:SHARE", 0, 0, NULL,
     NULL},
    /* The load run under callgrind, by this command and by tools/cost_of_measuring.py. */
    {"counted-load", RP_FLAG_UINT, AT(counted_load), "TOKENS", 0, 480, "0", NULL},
    {"counted-rows", RP_FLAG_UINT, AT(counted_rows), "N", 1, RP_COUNTED_ROWS_MAX, "1", NULL},
    {"counted-every", RP_FLAG_UINT, AT(counted_every), "N", 0, 1000, "0", NULL},
    {"counted-demo", RP_FLAG_SWITCH, AT(counted_demo), NULL, 0, 0, NULL, NULL},
    {"counted-bare", RP_FLAG_SWITCH, AT(counted_bare), NULL, 0, 0, NULL, NULL},
};

static const struct rp_command_spec check_spec = {
    .name = "bench check",
    .positionals = "",
    .summary =
        "Measures all metrics that have baselines and compares: nodes and fingerprints of\n"
        "captured programs, allocations, packet bytes and events per token, greedy answers,\n"
        "instructions and, on hardware that has a baseline, timings. Exit code 1: a metric fails.",
    .flags = check_flags,
    .flag_count = RP_ARRAY_COUNT(check_flags),
};

enum { PROGRAMS, STEPS, ANSWERS, INSTRUCTIONS, PRECISION, TIMINGS, GROUPS };
static const char *const group_names[GROUPS] = {"programs",     "steps",     "answers",
                                                "instructions", "precision", "timings"};

/* Parses --only to bits of groups. */
static int parse_groups(const char *text, unsigned *out, struct rp_error *err) {
    *out = 0;
    while (*text) {
        size_t len = strcspn(text, ","), i = 0;
        while (i < GROUPS &&
               (strlen(group_names[i]) != len || strncmp(text, group_names[i], len) != 0))
            i++;
        if (i == GROUPS)
            return rp_error_set(err, RP_STATUS_INVALID,
                                "--only: \"%.*s\" is not one of programs, steps, answers, "
                                "instructions, precision, timings",
                                (int)len, text);
        *out |= 1u << i;
        text += len + (text[len] == ',');
    }
    return RP_OK;
}

/* The path of the hardware's file, in the same directory as that of the counts. */
static void hardware_path(const char *counts, const char *hardware, char *out, size_t size) {
    const char *slash = strrchr(counts, '/');
    int folder = slash ? (int)(slash - counts) + 1 : 0;
    snprintf(out, size, "%.*sexpectations_%s.json", folder, counts, hardware);
}

struct check {
    const struct check_options *options;
    struct rp_check_config config;
    unsigned groups;
    bool all; /* no --only */
    struct rp_check_output output;
};

static int measure_counts(struct check *check, struct rp_expectations *out, struct rp_error *err) {
    static int (*const measures[])(const struct rp_check_config *config,
                                   struct rp_expectations *out,
                                   struct rp_error *err) = {[STEPS] = rp_check_steps,
                                                            [ANSWERS] = rp_check_answers,
                                                            [INSTRUCTIONS] = rp_check_instructions};
    int status = RP_OK;
    if (check->groups & 1u << PROGRAMS)
        status = rp_check_programs(&check->config, NULL, out, err);
    for (unsigned i = STEPS; i <= INSTRUCTIONS && status == RP_OK; i++)
        if (check->groups & 1u << i)
            status = measures[i](&check->config, out, err);
    if (status == RP_OK && check->groups & 1u << PRECISION)
        status = rp_check_precision(&check->config, NULL, out, err);
    return status;
}

static int check_file(struct check *check, const char *path, struct rp_expectations *baselines,
                      const struct rp_expectations *measured, struct rp_error *err) {
    rp_check_report(&check->output, baselines, measured);
    if (!check->options->update)
        return RP_OK;
    char command[128];
    snprintf(command, sizeof command, "reprise bench check%s%s", check->all ? "" : " --only ",
             check->options->only);
    return rp_check_write(path, baselines, measured, command, check->options->commit, err);
}

static int check_counts(struct check *check, struct rp_error *err) {
    const char *path = check->options->expectations;
    struct rp_expectations baselines, measured = {.count = 0};
    int status = rp_expectations_load(path, &baselines, err);
    if (status == RP_STATUS_NOT_FOUND && check->options->update)
        status = RP_OK;
    else if (status == RP_STATUS_NOT_FOUND)
        rp_error_hint(err, "run it in the root of the source tree, give --expectations, or "
                           "create the file with --update-expectations");
    if (status == RP_OK)
        status = measure_counts(check, &measured, err);
    snprintf(baselines.hardware, sizeof baselines.hardware, "counts");
    if (status == RP_OK)
        status = check_file(check, path, &baselines, &measured, err);
    rp_expectations_deinit(&baselines);
    rp_expectations_deinit(&measured);
    return status;
}

static int measure_hardware(struct check *check, struct rp_backend_selection *selection,
                            struct rp_expectations *out, struct rp_error *err) {
    struct rp_device *device = selection->device;
    int status = RP_OK;
    selection->device = NULL;
    if (selection->info.separate_memory) { /* has its own programs, whose engines open the device */
        selection->backend->close(device);
        device = NULL;
        status = rp_check_programs(&check->config, selection->backend, out, err);
        if (status == RP_OK)
            status = rp_check_precision(&check->config, selection->backend, out, err);
        const struct rp_device_config config = {.cache_dir = rp_stack_cache_dir()};
        if (status == RP_OK)
            status = selection->backend->open(&config, &device, err);
    }
    return status == RP_OK ? rp_check_timings(&check->config, selection->backend, device, out, err)
                           : status;
}

static int check_hardware(struct check *check, struct rp_error *err) {
    struct rp_backend_selection selection = {.device = NULL};
    struct rp_expectations baselines = {.count = 0}, measured = {.count = 0};
    char hardware[64], path[1024];
    int status = rp_stack_select(&check->options->engine, &selection, err);
    if (status != RP_OK)
        return status;
    rp_hardware_name(selection.info.name, selection.info.separate_memory, hardware);
    hardware_path(check->options->expectations, hardware, path, sizeof path);
    status = rp_expectations_load(path, &baselines, err);
    if (status == RP_STATUS_NOT_FOUND) {
        status = RP_OK;
        if (!check->options->update)
            rp_check_no_baseline(&check->output, hardware);
    }
    if (status == RP_OK && (baselines.count || check->options->update || !check->all))
        status = measure_hardware(check, &selection, &measured, err);
    if (selection.device)
        selection.backend->close(selection.device);
    snprintf(baselines.hardware, sizeof baselines.hardware, "%s", hardware);
    if (status == RP_OK && measured.count)
        status = check_file(check, path, &baselines, &measured, err);
    rp_expectations_deinit(&baselines);
    rp_expectations_deinit(&measured);
    return status;
}

static int run_check(struct check *check, struct rp_error *err) {
    int status = RP_OK;
    if (check->groups & ~(1u << TIMINGS))
        status = check_counts(check, err);
    if (status == RP_OK && check->groups & 1u << TIMINGS)
        status = check_hardware(check, err);
    return status;
}

int rp_cmd_bench_check(int argc, char **argv) {
    const char *positionals[RP_POSITIONALS_MAX];
    struct check_options options = {.counted_load = 0};
    struct rp_error err = {0};
    char program[1024] = "";
    int status = rp_flags_parse(&check_spec, argc, argv, &options, positionals, &err);
    if (status == RP_STATUS_CANCELLED)
        return RP_EXIT_OK;
    struct check check = {.options = &options, .all = !*options.only};
    if (status == RP_OK)
        status = parse_groups(options.only, &check.groups, &err);
    if (status == RP_OK)
        status = rp_stack_check_options(&options.engine, &err);
    if (status == RP_OK && options.engine.tensor_parallel_size > 1)
        status = rp_error_set(&err, RP_STATUS_UNSUPPORTED,
                              "--tensor-parallel-size: bench check measures one device");
    if (status != RP_OK)
        return rp_fail(RP_EXIT_USAGE, &err);
    if (options.counted_load) {
        const struct rp_counted_load load = {.model_dir =
                                                 options.counted_demo ? options.model : NULL,
                                             .rows = options.counted_rows,
                                             .tokens = options.counted_load,
                                             .profile_every = options.counted_every,
                                             .no_recording = options.counted_bare};
        status = rp_check_counted_load(&load, &err);
        return status == RP_OK ? RP_EXIT_OK : rp_fail(RP_EXIT_FAILURE, &err);
    }
    const struct rp_backend_selection none = {.device = NULL};
    const struct rp_engine_config planted =
        rp_stack_engine_config(&options.engine, &none, RP_DTYPE_BF16);
    ssize_t len = readlink("/proc/self/exe", program, sizeof program - 1);
    program[RP_MAX(len, 0)] = '\0';
    check.config = (struct rp_check_config){.model_dir = options.model,
                                            .program = program,
                                            .plant_node = planted.plant_node,
                                            .plant_allocation = planted.plant_allocation,
                                            .slow_share = planted.device.slow_share,
                                            .timed_shape = options.timed_shape,
                                            .timed_context = options.timed_context,
                                            .cache_dir = rp_stack_cache_dir(),
                                            .repeats = options.repeats  ? options.repeats
                                                       : options.update ? 5
                                                                        : 1};
    if (check.all)
        check.groups = (1u << GROUPS) - 1;
    rp_check_output_begin(&check.output, options.json);
    status = run_check(&check, &err);
    rp_check_output_end(&check.output);
    if (status != RP_OK)
        return rp_fail(RP_EXIT_FAILURE, &err);
    return check.output.failed && !options.update ? RP_EXIT_FAILURE : RP_EXIT_OK;
}
