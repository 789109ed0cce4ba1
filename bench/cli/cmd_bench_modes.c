/* reprise bench modes: speed and error of the ways to run one model, side by side
 * (bench/bench_modes.h). */
#include "backend/module.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "bench/bench_modes.h"
#include "bench/target_logits.h"
#include "engine/memory_plan.h"
#include "server/cli/cmd_stack.h"
#include "server/cli/cmd_text.h"
#include "server/cli/commands.h"
#include "text/tokenizer/tokenizer.h"

#include <stdio.h>
#include <string.h>

#define TOKENS_MAX 256u

/* The text whose logits are compared, unless --text names another. */
static const char fixed_text[] =
    "The harbour was quiet when the first boats came in. A girl in a yellow coat counted them: "
    "three, then seven, then twelve. \"Twelve,\" she said, \"and yesterday there were only nine.\" "
    "Her brother wrote the number into a small book, below the others, and drew a line under it. "
    "12 + 9 = 21, 21 + 7 = 28. The wind had turned to the north during the night, so the nets were "
    "full, and the men who carried the baskets up the hill did not talk much. At the top stood an "
    "old house with a green door. Every basket was weighed there, every weight was called out, and "
    "nobody had ever found a mistake in the sums.";

struct modes_options {
    const char *shape, *model, *modes, *text, *batches;
    uint32_t dtype, device, threads, context, tokens, rounds, warm_up;
    bool json;
};

#define AT(field) offsetof(struct modes_options, field)

static const struct rp_flag modes_flags[] = {
    {"shape", RP_FLAG_TEXT, AT(shape), "NAME", 0, 0, "llama-3.2-1b",
     "model shape with random weights; its logits are those of random tokens"},
    {"model", RP_FLAG_TEXT, AT(model), "DIR", 0, 0, "", "model directory, instead of a shape"},
    {"dtype", RP_FLAG_CHOICE, AT(dtype), "bfloat16|float32", 0, 0, "bfloat16",
     "type of weights and KV pages that are not quantized"},
    {"device", RP_FLAG_CHOICE, AT(device), "auto|cpu|cuda", 0, 0, "auto",
     "where to run; auto: a GPU when there is one"},
    {"threads", RP_FLAG_UINT, AT(threads), "N", 0, 1024, "0", "CPU workers; 0: one per core"},
    {"modes", RP_FLAG_TEXT, AT(modes), "NAME,...", 0, 0, "",
     "eager, graphs, fast, int8, fp8, int8-w8a16, pages-int8, pages-fp8, int8+pages; default: all. "
     "eager is the reference and always runs"},
    {"text", RP_FLAG_TEXT, AT(text), "FILE", 0, 0, "",
     "text whose logits are compared, at most 256 tokens; default: a fixed paragraph"},
    {"batch", RP_FLAG_TEXT, AT(batches), "N,N,...", 0, 0, "1,8",
     "sequences that decode together; at most four numbers"},
    {"context", RP_FLAG_UINT, AT(context), "N", 1, 1048576, "256",
     "prompt tokens of each sequence"},
    {"tokens", RP_FLAG_UINT, AT(tokens), "N", 2, 1048576, "64",
     "output tokens of each sequence per round"},
    {"rounds", RP_FLAG_UINT, AT(rounds), "N", 1, RP_BENCH_ROUNDS_MAX, "3", "rounds"},
    {"warm-up", RP_FLAG_UINT, AT(warm_up), "N", 0, 1048576, "4",
     "steps at the start of a round that do not count"},
    {"json", RP_FLAG_SWITCH, AT(json), NULL, 0, 0, NULL, "print one JSON array"},
};

static const struct rp_command_spec modes_spec = {
    .name = "bench modes",
    .positionals = "",
    .summary =
        "Speed and error of the ways to run one model, in one table: eager, graphs, fast "
        "numerics,\n"
        "8-bit weights, 8-bit KV pages. Errors are differences of logits from those of eager\n"
        "steps with unquantized weights and pages, on a fixed text.",
    .flags = modes_flags,
    .flag_count = RP_ARRAY_COUNT(modes_flags),
};

/* --- the text -------------------------------------------------------------------------------- */

/* Tokenizes the fixed text as `rp_command_text` does a file. */
static int fixed_ids(const char *dir, struct rp_token_ids *out, struct rp_error *err) {
    struct rp_tokenizer *tokenizer;
    const struct rp_text_span span = {fixed_text, sizeof fixed_text - 1, false};
    int status = rp_tokenizer_open(dir, &tokenizer, err);
    if (status != RP_OK)
        return status;
    struct rp_tokenizer_scratch *scratch = rp_tokenizer_scratch_create(tokenizer);
    status = scratch
                 ? rp_tokenizer_encode(tokenizer, &span, 1, RP_ENCODE_ADD_SPECIAL, 0, scratch, out)
                 : RP_STATUS_NO_MEMORY;
    if (status != RP_OK)
        status = rp_error_set(err, status, "tokenizer: %s", rp_status_text(status));
    rp_tokenizer_scratch_destroy(scratch);
    rp_tokenizer_close(tokenizer);
    return status;
}

/* ids: room for TOKENS_MAX + 1. The last is only a target. */
static int read_ids(const struct modes_options *options, const struct rp_model_config *model,
                    int32_t *ids, uint32_t *out_count, struct rp_error *err) {
    struct rp_token_ids text = {NULL, 0, 0};
    uint32_t most = RP_MIN(TOKENS_MAX, RP_MAX(model->max_position, 2u) - 1);
    int status = RP_OK;
    *out_count = most;
    if (!*options->model) {
        rp_target_random_ids(model->vocab, ids, most + 1);
        return RP_OK;
    }
    status = *options->text ? rp_command_text(options->model, options->text, &text, err)
                            : fixed_ids(options->model, &text, err);
    if (status == RP_OK && text.count < 2)
        status = rp_error_set(err, RP_STATUS_INVALID, "--text: fewer than two tokens");
    if (status == RP_OK) {
        *out_count = (uint32_t)RP_MIN((size_t)most, text.count - 1);
        memcpy(ids, text.ids, (*out_count + 1) * sizeof *ids);
    }
    for (uint32_t i = 0; i <= *out_count && status == RP_OK; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= model->vocab)
            status = rp_error_set(err, RP_STATUS_FORMAT,
                                  "the tokenizer gives id %d, but the model has %u tokens", ids[i],
                                  model->vocab);
    rp_token_ids_deinit(&text);
    return status;
}

static int parse_modes(const char *text, unsigned *out, struct rp_error *err) {
    *out = *text ? 0 : ~0u;
    while (*text) {
        size_t len = strcspn(text, ",");
        uint32_t i = 0;
        while (i < RP_BENCH_MODES && (strlen(rp_bench_mode_name(i)) != len ||
                                      strncmp(text, rp_bench_mode_name(i), len) != 0))
            i++;
        if (i == RP_BENCH_MODES) {
            int status =
                rp_error_set(err, RP_STATUS_INVALID, "--modes: no mode \"%.*s\"", (int)len, text);
            rp_error_hint(err, "`reprise bench modes --help` lists them");
            return status;
        }
        *out |= 1u << i;
        text += len + (text[len] == ',');
    }
    return RP_OK;
}

/* --- output ---------------------------------------------------------------------------------- */

struct output {
    const struct modes_options *options;
    const struct rp_bench_modes_config *config;
    uint32_t rows;
};

static void print_head(const struct output *output, const struct rp_bench_mode_result *result) {
    const struct rp_bench_modes_config *config = output->config;
    const struct modes_options *options = output->options;
    printf("%s, %s, %s; context %u; errors on %u tokens against %s\n", result->device,
           *options->model ? options->model : options->shape,
           options->dtype ? "float32" : "bfloat16", config->context, config->count, result->name);
    printf("%-11s", "mode");
    for (uint32_t i = 0; i < config->batch_count; i++)
        printf("  ms/step @%-3u tokens/s", config->batches[i]);
    printf(" %10s %10s %11s %9s %9s %8s\n", "prompt t/s", "weights", "max |diff|", "mean KL",
           "max KL", "same top");
}

static void print_mode(struct output *output, const struct rp_bench_mode_result *result) {
    const struct rp_bench_modes_config *config = output->config;
    char bytes[16];
    if (output->rows++ == 0)
        print_head(output, result);
    printf("%-11s", result->name);
    if (*result->left_out) {
        printf("  left out: %s\n", result->left_out);
        return;
    }
    for (uint32_t i = 0; i < config->batch_count; i++) {
        const struct rp_bench_decode_result *decode = &result->decode[i];
        if (decode->skipped)
            printf("  %21s", "no room for pages");
        else
            printf("  %9.3f %11.1f", decode->ms_p50, decode->tokens_per_second);
    }
    rp_format_bytes(result->weight_bytes, bytes);
    printf(" %10.0f %10s %11.4g %9.2g %9.2g %7.1f%%\n",
           result->decode[config->batch_count - 1].prefill_tokens_per_second, bytes,
           result->logit_max, result->kl_mean, result->kl_max, 100 * result->top1_share);
}

static void print_json(struct output *output, const struct rp_bench_mode_result *result) {
    const struct modes_options *options = output->options;
    struct rp_buffer out;
    struct rp_json json;
    rp_buffer_init(&out, 0);
    rp_json_init(&json, &out);
    rp_json_object_begin(&json, NULL);
    rp_json_string(&json, "bench", "modes");
    rp_json_string(&json, "mode", result->name);
    rp_json_string(&json, *options->model ? "model" : "shape",
                   *options->model ? options->model : options->shape);
    if (*result->left_out) {
        rp_json_string(&json, "left_out", result->left_out);
    } else {
        rp_json_string(&json, "device", result->device);
        rp_json_uint(&json, "context", output->config->context);
        rp_json_array_begin(&json, "decode");
        for (uint32_t i = 0; i < output->config->batch_count; i++) {
            const struct rp_bench_decode_result *decode = &result->decode[i];
            rp_json_object_begin(&json, NULL);
            rp_json_uint(&json, "batch", decode->batch);
            rp_json_bool(&json, "left_out", decode->skipped);
            rp_json_bool(&json, "reliable", decode->reliable);
            rp_json_double(&json, "ms_per_step_p50", decode->ms_p50);
            rp_json_double(&json, "tokens_per_second", decode->tokens_per_second);
            rp_json_double(&json, "prompt_tokens_per_second", decode->prefill_tokens_per_second);
            rp_json_object_end(&json);
        }
        rp_json_array_end(&json);
        rp_json_double(&json, "weight_bytes", result->weight_bytes);
        rp_json_object_begin(&json, "error");
        rp_json_uint(&json, "tokens", result->tokens);
        rp_json_double(&json, "logit_max", result->logit_max);
        rp_json_double(&json, "kl_mean", result->kl_mean);
        rp_json_double(&json, "kl_max", result->kl_max);
        rp_json_double(&json, "cosine_min", result->cosine_min);
        rp_json_double(&json, "top1_agreement", result->top1_share);
        rp_json_object_end(&json);
    }
    rp_json_object_end(&json);
    printf("%s%.*s", output->rows++ ? ",\n" : "[", (int)out.len, out.data);
    rp_buffer_deinit(&out);
}

static void report(void *ctx, const struct rp_bench_mode_result *result) {
    struct output *output = ctx;
    (output->options->json ? print_json : print_mode)(output, result);
    fflush(stdout);
}

/* --- the command ----------------------------------------------------------------------------- */

static int run_modes(const struct modes_options *options, struct rp_bench_modes_config *config,
                     struct rp_error *err) {
    enum rp_dtype dtype = options->dtype ? RP_DTYPE_F32 : RP_DTYPE_BF16;
    struct output output = {.options = options, .config = config};
    struct rp_backend_selection selection;
    struct rp_model_config model;
    int32_t ids[TOKENS_MAX + 1];
    config->target = (struct rp_bench_target){.device = {.threads = options->threads,
                                                         .short_steps_here = true,
                                                         .cache_dir = rp_stack_cache_dir()},
                                              .shape = options->shape,
                                              .dir = *options->model ? options->model : NULL,
                                              .dtype = dtype,
                                              .kv_dtype = dtype,
                                              .run_ahead = true};
    int status = rp_bench_model_config(&config->target, &model, err);
    if (status == RP_OK)
        status = read_ids(options, &model, ids, &config->count, err);
    if (status == RP_OK)
        status = rp_backend_select((enum rp_device_choice)options->device, &config->target.device,
                                   &selection, err);
    if (status != RP_OK)
        return status;
    selection.backend->close(selection.device); /* each mode opens its own */
    config->target.backend = selection.backend;
    config->ids = ids;
    config->report = report;
    config->report_ctx = &output;
    status = rp_bench_modes(config, err);
    if (options->json && output.rows)
        printf("]\n");
    return status;
}

int rp_cmd_bench_modes(int argc, char **argv) {
    const char *positionals[RP_POSITIONALS_MAX];
    struct modes_options options = {.tokens = 0};
    uint32_t batches[RP_BENCH_MODES_BATCHES];
    struct rp_error err = {0};
    int status = rp_flags_parse(&modes_spec, argc, argv, &options, positionals, &err);
    if (status == RP_STATUS_CANCELLED)
        return RP_EXIT_OK;
    struct rp_bench_modes_config config = {.batches = batches,
                                           .context = options.context,
                                           .tokens = options.tokens,
                                           .rounds = options.rounds,
                                           .warm_up = options.warm_up};
    if (status == RP_OK)
        status = parse_modes(options.modes, &config.modes, &err);
    if (status == RP_OK)
        status = rp_flag_list("batch", options.batches, 1, 4096, batches, RP_BENCH_MODES_BATCHES,
                              &config.batch_count, &err);
    if (status != RP_OK)
        return rp_fail(RP_EXIT_USAGE, &err);
    status = run_modes(&options, &config, &err);
    if (status == RP_OK)
        return RP_EXIT_OK;
    fflush(stdout);
    return rp_fail(status == RP_STATUS_NOT_FOUND && !*options.model ? RP_EXIT_USAGE
                                                                    : rp_stack_exit_code(status),
                   &err);
}
