/* reprise eval ppl FILE: perplexity of a text, and the difference between two models
 * (bench/eval_ppl.h). Works the same for every weight format, to measure the accuracy cost of a
 * faster one. */
#include "base/buffer.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "bench/eval_ppl.h"
#include "engine/weights_on_device.h"
#include "server/cli/cmd_stack.h"
#include "server/cli/cmd_text.h"
#include "server/cli/commands.h"
#include "server/cli/hub_cache.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct eval_options {
    struct rp_engine_options engine;
    const char *model, *against;
    uint64_t tokens;
    uint32_t window, stride;
    bool json;
};

#define AT(field) offsetof(struct eval_options, field)

static const struct rp_flag ppl_flags[] = {
    {"model", RP_FLAG_TEXT, AT(model), "DIR", 0, 0, "models/demo", "model directory"},
    {"against", RP_FLAG_TEXT, AT(against), "DIR|bf16|f32", 0, 0, "",
     "compare with another model, or with the same one's weights unquantized in this type"},
    {"tokens", RP_FLAG_SIZE, AT(tokens), "N", 0, 9007199254740991.0, "0",
     "tokens from the start of the text; 0: all"},
    {"window", RP_FLAG_UINT, AT(window), "N", 0, 16777216, "0",
     "window length in tokens; 0: the model's positions, at most 2048"},
    {"stride", RP_FLAG_UINT, AT(stride), "N", 0, 16777216, "0",
     "tokens between the starts of two windows; 0: windows do not overlap"},
    {"json", RP_FLAG_SWITCH, AT(json), NULL, 0, 0, NULL, "one JSON object"},
    RP_ENGINE_FLAGS(offsetof(struct eval_options, engine)),
};

static const struct rp_command_spec ppl_spec = {
    .name = "eval ppl",
    .positionals = "FILE",
    .positional_min = 1,
    .positional_max = 1,
    .summary =
        "NLL per token and perplexity of the text in FILE; with --against also the differences\n"
        "from another model's logits: KL divergence, top-1 agreement, differences, cosine.",
    .flags = ppl_flags,
    .flag_count = RP_ARRAY_COUNT(ppl_flags),
};

/* A model on the device, and its evaluation steps. */
struct side {
    const char *dir;
    struct rp_model model;
    uint32_t prepared;
    struct rp_eval_run run;
};

struct work {
    const struct eval_options *options;
    struct rp_backend_selection selection;
    struct rp_token_ids ids;
    struct rp_eval_text text;
    struct side model, other;
    struct rp_eval_sums sums;
};

/* ---- the text ------------------------------------------------------------------------------- */

/* Where windows begin, and their first token. */
static int cut_text(struct work *work, const char *path, struct rp_error *err) {
    const struct eval_options *options = work->options;
    const struct rp_model_config *config = &work->model.model.config;
    struct rp_eval_text *text = &work->text;
    uint32_t positions = work->model.model.rope_positions;
    int status = rp_command_text_windows(&work->ids, config, options->tokens, text, err);
    if (status != RP_OK)
        return status;
    bool bos = text->bos >= 0;
    text->window = options->window ? options->window : RP_MIN(positions, 2048u);
    if (text->count + bos < 2)
        return rp_error_set(err, RP_STATUS_INVALID, "%s: no token to predict", path);
    if (text->window < 2 || text->window > positions)
        return rp_error_set(err, RP_STATUS_RANGE,
                            "--window: %u is not between 2 and the model's %u positions",
                            text->window, positions);
    text->stride = options->stride ? options->stride : text->window - bos;
    if (text->stride > text->window - bos)
        return rp_error_set(err, RP_STATUS_RANGE, "--stride: %u skips tokens between windows of %u",
                            text->stride, text->window - bos);
    return RP_OK;
}

/* ---- models --------------------------------------------------------------------------------- */

static int load_side(struct work *work, struct side *side, enum rp_dtype dtype,
                     struct rp_error *err) {
    /* The reference model is not quantized. */
    const struct rp_model_quantization none = {RP_QUANT_NONE, false},
                                       asked = rp_stack_quantization(&work->options->engine);
    int status = rp_model_open(side->dir, dtype, side == &work->model ? &asked : &none,
                               work->options->engine.max_model_len, &side->model, err);
    if (status == RP_OK)
        status = rp_model_shard(&side->model, work->selection.info.ranks, err);
    if (status == RP_OK)
        status = rp_weights_prepare(work->selection.backend, work->selection.device, &side->model,
                                    &side->prepared, NULL, NULL, err);
    return status;
}

static int start_side(struct work *work, struct side *side, struct rp_error *err) {
    const struct rp_engine_options *options = &work->options->engine;
    enum rp_dtype kv_dtype = rp_stack_dtype(options->kv_cache_dtype);
    if (work->text.window > side->model.rope_positions)
        return rp_error_set(err, RP_STATUS_RANGE, "--window: %s has %u positions", side->dir,
                            side->model.rope_positions);
    struct rp_eval_run_config config = {
        .backend = work->selection.backend,
        .device = work->selection.device,
        .model = &side->model,
        .window = work->text.window,
        .chunk = rp_eval_run_chunk(side->model.config.vocab, work->text.window),
        /* The reference uses KV pages of its weights' type. */
        .kv_dtype =
            kv_dtype != RP_MODEL_DTYPE_AUTO && side == &work->model ? kv_dtype : side->model.dtype,
        .no_fusion = options->disable_fusion,
        .eager = options->enforce_eager};
    return rp_eval_run_open(&config, &side->run, err);
}

/* --against is a directory, not a type of the same model's weights, and not absent. */
static bool is_directory(const char *against) {
    return *against && strcmp(against, "bf16") != 0 && strcmp(against, "f32") != 0;
}

static int open_other(struct work *work, struct rp_error *err) {
    const char *against = work->options->against;
    enum rp_dtype dtype = rp_stack_dtype(work->options->engine.dtype);
    bool bf16 = strcmp(against, "bf16") == 0, f32 = strcmp(against, "f32") == 0;
    if (!*against)
        return RP_OK;
    work->other.dir = bf16 || f32 ? work->model.dir : against;
    int status = load_side(work, &work->other,
                           bf16  ? RP_DTYPE_BF16
                           : f32 ? RP_DTYPE_F32
                                 : dtype,
                           err);
    if (status == RP_OK && work->other.model.config.vocab != work->model.model.config.vocab)
        status = rp_error_set(
            err, RP_STATUS_FORMAT, "--against: %s has a vocabulary of %u tokens, %s of %u", against,
            work->other.model.config.vocab, work->model.dir, work->model.model.config.vocab);
    return status == RP_OK ? start_side(work, &work->other, err) : status;
}

static int open_models(struct work *work, const char *path, struct rp_error *err) {
    int status = rp_command_text(work->model.dir, path, &work->ids, err);
    if (status == RP_OK)
        status = load_side(work, &work->model, rp_stack_dtype(work->options->engine.dtype), err);
    if (status == RP_OK)
        status = cut_text(work, path, err);
    if (status == RP_OK)
        status = start_side(work, &work->model, err);
    return status == RP_OK ? open_other(work, err) : status;
}

static void close_side(struct work *work, struct side *side) {
    rp_eval_run_close(&side->run);
    rp_weights_release(work->selection.backend, work->selection.device, &side->model,
                       side->prepared);
    rp_model_deinit(&side->model);
}

/* ---- what is said --------------------------------------------------------------------------- */

struct moments {
    double mean, error; /* standard error of the mean; 0 for one value */
};

static struct moments moments_of(double sum, double squares, uint64_t count) {
    double n = (double)count, mean = sum / n;
    double variance = count > 1 ? RP_MAX(squares - n * mean * mean, 0.0) / (n - 1) : 0.0;
    return (struct moments){mean, sqrt(variance / n)};
}

static void print_text(const struct work *work) {
    const struct rp_eval_sums *sums = &work->sums;
    const struct rp_eval_difference *d = &sums->difference;
    double n = (double)sums->tokens;
    struct moments nll = moments_of(sums->model.sum, sums->model.sum_squares, sums->tokens);
    printf("model             %s (%s, %s)\n", work->model.dir,
           rp_dtype_name(work->model.model.dtype), work->selection.info.name);
    printf("tokens            %llu in windows of %u, %u apart\n", (unsigned long long)sums->tokens,
           work->text.window, work->text.stride);
    printf("NLL per token     %.6f +- %.6f\n", nll.mean, nll.error);
    printf("perplexity        %.6f\n", exp(nll.mean));
    if (!work->other.dir)
        return;
    struct moments other = moments_of(sums->other.sum, sums->other.sum_squares, sums->tokens);
    struct moments change = moments_of(d->nll_sum, d->nll_square_sum, sums->tokens);
    printf("against           %s (%s)\n", work->other.dir, rp_dtype_name(work->other.model.dtype));
    printf("its NLL           %.6f +- %.6f\n", other.mean, other.error);
    printf("NLL difference    %+.6f +- %.6f (paired)\n", change.mean, change.error);
    printf("KL divergence     %.6g mean, %.6g largest\n", d->kl_sum / n, d->kl_max);
    printf("top-1 agreement   %.3f %%\n", 100.0 * (double)d->top1_same / n);
    printf("logit difference  %.6g mean, %.6g largest\n", d->logit_sum / (n * sums->vocab),
           d->logit_max);
    printf("cosine of logits  %.6f mean, %.6f least\n", d->cosine_sum / n, d->cosine_min);
}

static void write_difference(struct rp_json *json, const struct work *work) {
    const struct rp_eval_sums *sums = &work->sums;
    const struct rp_eval_difference *d = &sums->difference;
    double n = (double)sums->tokens;
    struct moments change = moments_of(d->nll_sum, d->nll_square_sum, sums->tokens);
    rp_json_object_begin(json, "against");
    rp_json_string(json, "model", work->other.dir);
    rp_json_string(json, "dtype", rp_dtype_name(work->other.model.dtype));
    rp_json_double(json, "nll", sums->other.sum / n);
    rp_json_double(json, "nll_difference", change.mean);
    rp_json_double(json, "nll_difference_standard_error", change.error);
    rp_json_double(json, "kl_mean", d->kl_sum / n);
    rp_json_double(json, "kl_max", d->kl_max);
    rp_json_double(json, "top1_agreement", (double)d->top1_same / n);
    rp_json_double(json, "logit_difference_mean", d->logit_sum / (n * sums->vocab));
    rp_json_double(json, "logit_difference_max", d->logit_max);
    rp_json_double(json, "cosine_mean", d->cosine_sum / n);
    rp_json_double(json, "cosine_min", d->cosine_min);
    rp_json_object_end(json);
}

static void print_json(const struct work *work) {
    const struct rp_eval_sums *sums = &work->sums;
    struct moments nll = moments_of(sums->model.sum, sums->model.sum_squares, sums->tokens);
    struct rp_buffer out;
    struct rp_json json;
    rp_buffer_init(&out, 0);
    rp_json_init(&json, &out);
    rp_json_object_begin(&json, NULL);
    rp_json_string(&json, "eval", "ppl");
    rp_json_string(&json, "device", work->selection.info.name);
    rp_json_string(&json, "model", work->model.dir);
    rp_json_string(&json, "dtype", rp_dtype_name(work->model.model.dtype));
    rp_json_uint(&json, "tokens", sums->tokens);
    rp_json_uint(&json, "window", work->text.window);
    rp_json_uint(&json, "stride", work->text.stride);
    rp_json_double(&json, "nll", nll.mean);
    rp_json_double(&json, "nll_standard_error", nll.error);
    rp_json_double(&json, "perplexity", exp(nll.mean));
    if (work->other.dir)
        write_difference(&json, work);
    rp_json_object_end(&json);
    printf("%.*s\n", (int)out.len, out.data);
    rp_buffer_deinit(&out);
}

static void show_progress(void *ctx, size_t done, size_t total) {
    (void)ctx;
    fprintf(stderr, "\r\033[K%s%zu of %zu tokens", done < total ? "" : "\r", done, total);
    if (done == total)
        fprintf(stderr, "\r\033[K");
}

static enum rp_exit exit_code(int status) {
    return status == RP_STATUS_IO || status == RP_STATUS_INVALID || status == RP_STATUS_RANGE
               ? RP_EXIT_USAGE
               : rp_stack_exit_code(status);
}

static int eval_ppl(int argc, char **argv) {
    const char *positionals[RP_POSITIONALS_MAX];
    struct eval_options options = {0};
    struct work work = {.options = &options};
    struct rp_error err = {0};
    int status = rp_flags_parse(&ppl_spec, argc, argv, &options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    status = rp_stack_check_options(&options.engine, &err);
    if (status != RP_OK)
        return rp_fail(RP_EXIT_USAGE, &err);
    status = rp_model_locate(&options.model, &err);
    if (status == RP_OK)
        status = rp_model_locate(&options.against, &err);
    work.model.dir = options.model;
    if (status == RP_OK)
        status = rp_model_dir_check(options.model, &err);
    if (status == RP_OK && is_directory(options.against))
        status = rp_model_dir_check(options.against, &err);
    if (status != RP_OK)
        return rp_fail(RP_EXIT_MODEL, &err);
    status = rp_stack_select(&options.engine, &work.selection, &err);
    if (status != RP_OK)
        return rp_fail(RP_EXIT_DEVICE, &err);
    status = open_models(&work, positionals[0], &err);
    if (status == RP_OK)
        status = rp_eval_ppl(&work.model.run, work.other.dir ? &work.other.run : NULL, &work.text,
                             isatty(STDERR_FILENO) ? show_progress : NULL, NULL, &work.sums, &err);
    if (status == RP_STATUS_DEVICE) {
        rp_fail(RP_EXIT_FATAL_DEVICE, &err);
        rp_stack_exit_failed();
    }
    if (status == RP_OK)
        (options.json ? print_json : print_text)(&work);
    close_side(&work, &work.other);
    close_side(&work, &work.model);
    work.selection.backend->close(work.selection.device);
    rp_token_ids_deinit(&work.ids);
    return status == RP_OK ? RP_EXIT_OK : rp_fail(exit_code(status), &err);
}

const struct rp_command rp_eval_commands[RP_EVAL_COMMANDS] = {
    {"ppl", eval_ppl, "NLL and perplexity of a text, and differences between two models", NULL, 0}};

int rp_cmd_eval(int argc, char **argv) {
    return rp_cmd_group("eval", rp_eval_commands, RP_EVAL_COMMANDS, argc, argv);
}
