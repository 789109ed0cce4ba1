/* reprise quantize DIR OUT: a checkpoint with 8-bit or 4-bit weights (model/quant_write.h), and
 * the error of each projection. */
#include "backend/cpu/cpu_memory.h"
#include "bench/calibrate.h"
#include "device/cpu_team.h"
#include "engine/weights_on_device.h"
#include "model/quant_write.h"
#include "server/cli/cmd_stack.h"
#include "server/cli/cmd_text.h"
#include "server/cli/commands.h"
#include "server/cli/hub_cache.h"

#include <math.h>
#include <stdio.h>

static const enum rp_quant_scheme schemes[] = {RP_QUANT_FP8, RP_QUANT_INT8, RP_QUANT_INT4,
                                               RP_QUANT_NVFP4, RP_QUANT_MXFP4};
enum { ROUNDING_AUTO, ROUNDING_NEAREST, ROUNDING_GPTQ };

struct quantize_options {
    uint32_t scheme, rounding;
    bool report;
    const char *calibrate;
    uint32_t group, tokens, threads;
};

static enum rp_quant_scheme scheme_of(const struct quantize_options *options) {
    return schemes[options->scheme];
}

/* Whether GPTQ applies: --rounding gptq, or auto with a calibration text. */
static bool is_gptq(const struct quantize_options *options) {
    return options->rounding == ROUNDING_GPTQ ||
           (options->rounding == ROUNDING_AUTO && *options->calibrate != '\0');
}

static const struct rp_flag quantize_flags[] = {
    {"scheme", RP_FLAG_CHOICE, offsetof(struct quantize_options, scheme),
     "fp8|int8|int4|nvfp4|mxfp4", 0, 0, "fp8",
     "fp8, int8: one scale per output channel, activation rows quantized at run time; int4: one "
     "per --group columns, nvfp4: per 16, mxfp4: per 32, activations stay bf16"},
    {"group", RP_FLAG_CHOICE, offsetof(struct quantize_options, group), "128|64|32", 0, 0, "128",
     "int4: columns that share a scale; 4 bits: matrices whose columns are no multiple of their "
     "group stay as they are"},
    {"report", RP_FLAG_SWITCH, offsetof(struct quantize_options, report), NULL, 0, 0, NULL,
     "a line per projection: signal-to-noise ratio of weights (gptq: also of outputs) and the "
     "worst channel"},
    {"calibrate", RP_FLAG_TEXT, offsetof(struct quantize_options, calibrate), "FILE", 0, 0, "",
     "calibration text for gptq; int8: also to balance activations and weights "
     "(docs/quantization.md)"},
    {"rounding", RP_FLAG_CHOICE, offsetof(struct quantize_options, rounding), "auto|nearest|gptq",
     0, 0, "auto",
     "gptq: each column compensates the errors of earlier ones, using the inputs; auto: with "
     "--calibrate"},
    {"calibrate-tokens", RP_FLAG_UINT, offsetof(struct quantize_options, tokens), "N", 1, 1048576,
     "4096", "tokens from the start of the text"},
    {"threads", RP_FLAG_UINT, offsetof(struct quantize_options, threads), "N", 0, 1024, "0",
     "CPU workers for --calibrate; 0: one per core"},
};

static const struct rp_command_spec quantize_spec = {
    .name = "quantize",
    .positionals = "DIR OUT",
    .positional_min = 2,
    .positional_max = 2,
    .summary =
        "Writes the model in DIR to the new folder OUT with 8-bit or 4-bit weights "
        "(compressed-tensors).\n"
        "Embedding, output layer and norms stay as they are; --calibrate FILE rounds weights by "
        "their inputs on a text\n"
        "(GPTQ), and with int8 moves scale factors into norms.",
    .flags = quantize_flags,
    .flag_count = RP_ARRAY_COUNT(quantize_flags),
};

#define GIB 1073741824.0

struct report {
    bool lines;
    uint32_t modules;
    struct rp_quant_loss loss;
    char worst[96];
    double worst_db;
};

static void tell(void *ctx, const struct rp_quant_module *module) {
    struct report *report = ctx;
    if (report->lines) {
        printf("%-48s %6u x %-6u %7.2f dB   channel %6u %7.2f dB", module->name, module->rows,
               module->cols, module->sqnr_db, module->worst_row, module->worst_db);
        if (!isnan(module->output_db))
            printf("   outputs %7.2f dB, nearest %7.2f dB", module->output_db,
                   module->nearest_output_db);
        putchar('\n');
    }
    if (report->modules++ == 0 || module->sqnr_db < report->worst_db) {
        report->worst_db = module->sqnr_db;
        snprintf(report->worst, sizeof report->worst, "%s", module->name);
    }
    report->loss.signal += module->loss.signal;
    report->loss.noise += module->loss.noise;
}

/* ---- calibration ---------------------------------------------------------------------------- */

/* Everything that is open while the calibration text runs. */
struct trial {
    struct rp_model model;
    struct rp_device *device;
    uint32_t prepared;
    struct rp_token_ids ids;
    struct rp_eval_run run;
    struct rp_calibration calibration;
};

static int cut_text(const struct trial *trial, const struct quantize_options *options,
                    struct rp_eval_text *out, struct rp_error *err) {
    int status =
        rp_command_text_windows(&trial->ids, &trial->model.config, options->tokens, out, err);
    if (status != RP_OK)
        return status;
    out->window = RP_MIN(trial->model.rope_positions, 512u);
    if (out->count == 0 || out->window < 2)
        return rp_error_set(err, RP_STATUS_INVALID, "--calibrate: %s contains no text",
                            options->calibrate);
    return RP_OK;
}

static int check_memory(const struct trial *trial, const struct rp_eval_text *text,
                        struct rp_error *err) {
    size_t tokens = rp_calibrate_tokens(text);
    size_t bytes = rp_quant_write_bytes(&trial->model.config, tokens);
    uint64_t room = rp_cpu_memory_room();
    if (bytes <= room)
        return RP_OK;
    rp_error_set(err, RP_STATUS_NO_MEMORY,
                 "--rounding gptq: rows of %zu tokens and a layer's matrices need %.1f GiB, "
                 "available are %.1f",
                 tokens, (double)bytes / GIB, (double)room / GIB);
    rp_error_hint(err, "fewer --calibrate-tokens, or --rounding nearest");
    return RP_STATUS_NO_MEMORY;
}

static int open_trial(struct trial *trial, const char *dir, const struct quantize_options *options,
                      struct rp_eval_text *text, struct rp_error *err) {
    const struct rp_backend *backend = rp_backend_cpu();
    const struct rp_device_config device = {.threads = options->threads};
    int status = rp_command_text(dir, options->calibrate, &trial->ids, err);
    if (status == RP_OK)
        status = rp_model_load(dir, RP_MODEL_DTYPE_AUTO, 0, NULL, NULL, &trial->model, err);
    if (status == RP_OK)
        status = rp_quant_write_check(&trial->model.config, dir, err);
    if (status == RP_OK)
        status = cut_text(trial, options, text, err);
    if (status == RP_OK && is_gptq(options))
        status = check_memory(trial, text, err);
    if (status == RP_OK)
        status = backend->open(&device, &trial->device, err);
    if (status == RP_OK)
        status = rp_weights_prepare(backend, trial->device, &trial->model, &trial->prepared, NULL,
                                    NULL, err);
    return status;
}

static int run_text(struct trial *trial, const char *dir, const struct quantize_options *options,
                    struct rp_error *err) {
    struct rp_eval_text text;
    int status = open_trial(trial, dir, options, &text, err);
    if (status != RP_OK)
        return status;
    const struct rp_eval_run_config config = {
        .backend = rp_backend_cpu(),
        .device = trial->device,
        .model = &trial->model,
        .window = text.window,
        .chunk = rp_eval_run_chunk(trial->model.config.vocab, text.window),
        .kv_dtype = trial->model.dtype,
        .no_fusion = true,
        .guarded = true};
    status = rp_eval_run_open(&config, &trial->run, err);
    return status == RP_OK
               ? rp_calibrate(&trial->run, &text, is_gptq(options), &trial->calibration, err)
               : status;
}

static void print_balance(const struct rp_balance *balance) {
    static const char *const names[RP_BALANCE_SITES] = {"q, k, v", "o", "gate, up", "down"};
    for (int site = 0; site < RP_BALANCE_SITES; site++) {
        uint32_t count = 0;
        double most = 0.0, sum = 0.0;
        for (uint32_t layer = 0; layer < balance->layers; layer++) {
            const struct rp_balance_factors *f =
                rp_balance_at(balance, layer, (enum rp_balance_site)site);
            count += f->values != NULL;
            sum += f->noise_db;
            most = RP_MAX(most, f->noise_db);
        }
        printf("balanced  %-9s in %u of %u layers; noise %.2f dB less on average, %.2f at most\n",
               names[site], count, balance->layers, sum / balance->layers, most);
    }
}

/* Results of a calibration run. */
struct learnt {
    struct rp_balance balance;         /* empty unless INT8 */
    struct rp_calibration calibration; /* inputs for GPTQ */
};

static int learn(const char *dir, const struct quantize_options *options, struct learnt *out,
                 struct rp_error *err) {
    struct trial trial = {.prepared = 0};
    int status = run_text(&trial, dir, options, err);
    if (status == RP_OK && scheme_of(options) == RP_QUANT_INT8)
        status = rp_balance_choose(&trial.model, trial.calibration.samples, &out->balance, err);
    if (status == RP_OK && scheme_of(options) == RP_QUANT_INT8)
        print_balance(&out->balance);
    out->calibration = trial.calibration;
    rp_eval_run_close(&trial.run);
    rp_weights_release(rp_backend_cpu(), trial.device, &trial.model, trial.prepared);
    rp_model_deinit(&trial.model);
    if (trial.device)
        rp_backend_cpu()->close(trial.device);
    rp_token_ids_deinit(&trial.ids);
    return status;
}

/* ---- the command ---------------------------------------------------------------------------- */

static int check_options(const struct quantize_options *options, struct rp_error *err) {
    bool text = *options->calibrate != '\0';
    if (options->rounding == ROUNDING_GPTQ && !text) {
        rp_error_set(err, RP_STATUS_INVALID, "--rounding gptq: requires --calibrate FILE");
        rp_error_hint(err, "use a text similar to the model's intended input");
        return RP_STATUS_INVALID;
    }
    if (options->group != 0 && scheme_of(options) != RP_QUANT_INT4)
        return rp_error_set(err, RP_STATUS_INVALID, "--group: requires --scheme int4");
    if (text && scheme_of(options) != RP_QUANT_INT8 && options->rounding == ROUNDING_NEAREST) {
        rp_error_set(err, RP_STATUS_INVALID,
                     "--calibrate: has no effect with --scheme %s --rounding nearest",
                     rp_quant_scheme_name(scheme_of(options)));
        rp_error_hint(err, "only int8 balances activations and weights");
        return RP_STATUS_INVALID;
    }
    return RP_OK;
}

static int quantize(const char *dir, const char *out, const struct quantize_options *options,
                    struct report *report, struct rp_error *err) {
    struct learnt learnt = {.balance = {0}};
    struct rp_cpu_team *team = NULL;
    int status = *options->calibrate ? learn(dir, options, &learnt, err) : RP_OK;
    if (status == RP_OK && learnt.calibration.inputs)
        status = rp_cpu_team_create(options->threads, &team, err);
    const struct rp_quant_write_options write = {.scheme = scheme_of(options),
                                                 .group = 128u >> options->group,
                                                 .balance =
                                                     learnt.balance.sites ? &learnt.balance : NULL,
                                                 .inputs = learnt.calibration.inputs,
                                                 .team = team,
                                                 .measure_outputs = options->report,
                                                 .told = tell,
                                                 .ctx = report};
    if (status == RP_OK)
        status = rp_quant_write(dir, out, &write, err);
    if (team)
        rp_cpu_team_destroy(team);
    rp_calibration_deinit(&learnt.calibration);
    rp_balance_deinit(&learnt.balance);
    return status;
}

int rp_cmd_quantize(int argc, char **argv) {
    const char *positionals[RP_POSITIONALS_MAX];
    struct quantize_options options = {0};
    struct report report = {0};
    struct rp_error err = {0};
    int status = rp_flags_parse(&quantize_spec, argc, argv, &options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    report.lines = options.report;
    status = rp_model_locate(&positionals[0], &err);
    if (status == RP_OK)
        status = rp_model_dir_check(positionals[0], &err);
    if (status != RP_OK)
        return rp_fail(RP_EXIT_MODEL, &err);
    status = check_options(&options, &err);
    if (status == RP_OK)
        status = quantize(positionals[0], positionals[1], &options, &report, &err);
    if (status != RP_OK)
        return rp_fail(status == RP_STATUS_IO        ? RP_EXIT_FAILURE
                       : status == RP_STATUS_INVALID ? RP_EXIT_USAGE
                                                     : rp_stack_exit_code(status),
                       &err);
    printf("%u projections, %.2f dB over all weights, minimum %.2f dB: %s\n", report.modules,
           rp_quant_sqnr_db(&report.loss), report.worst_db, report.worst);
    printf(
        "written: %s; `reprise eval ppl FILE --model %s --against %s` measures the accuracy cost\n",
        positionals[1], positionals[1], positionals[0]);
    return RP_EXIT_OK;
}
