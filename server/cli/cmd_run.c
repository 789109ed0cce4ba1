/* reprise run DIR [PROMPT]: completes one prompt and streams the text to standard output. The text
 * is the same as from /v1/completions; a newline is added only on a terminal. */
#include "base/buffer.h"
#include "base/hash.h"
#include "base/memory.h"
#include "server/api/stop_match.h"
#include "server/cli/cmd_stack.h"
#include "server/cli/commands.h"
#include "server/cli/hub_cache.h"
#include "text/tokenizer/detokenizer.h"

#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct run_options {
    struct rp_engine_options engine;
    uint32_t max_tokens, min_tokens, top_k;
    double temperature, top_p, min_p;
    uint64_t seed;
    const char *stop;
    bool ignore_eos;
};

#define AT(field) offsetof(struct run_options, field)

static const struct rp_flag run_flags[] = {
    {"max-tokens", RP_FLAG_UINT, AT(max_tokens), "N", 0, 16777216, "0",
     "tokens of the answer; 0: as many as fit in the context"},
    {"min-tokens", RP_FLAG_UINT, AT(min_tokens), "N", 0, 16777216, "0",
     "minimum tokens of the answer"},
    {"temperature", RP_FLAG_REAL, AT(temperature), "T", -1, 100, "-1",
     "0 is greedy; -1: the model's generation_config.json, else 1"},
    {"top-p", RP_FLAG_REAL, AT(top_p), "P", -1, 1, "-1",
     "most likely tokens with this cumulative probability; -1: the model's, else 1"},
    {"top-k", RP_FLAG_UINT, AT(top_k), "K", 0, 16777216, "0",
     "number of most likely tokens; 0: the model's, else all"},
    {"min-p", RP_FLAG_REAL, AT(min_p), "P", 0, 1, "0",
     "minimum probability relative to the most likely token"},
    {"seed", RP_FLAG_SIZE, AT(seed), "N", 0, 9007199254740991.0, "0",
     "the same seed gives the same text; 0: random"},
    {"stop", RP_FLAG_TEXT, AT(stop), "TEXT", 0, 0, NULL, "end the answer before this text"},
    {"ignore-eos", RP_FLAG_SWITCH, AT(ignore_eos), NULL, 0, 0, NULL,
     "continue after the model's end token"},
    RP_MASK_FLAGS(offsetof(struct run_options, engine)),
    RP_ENGINE_FLAGS(offsetof(struct run_options, engine)),
};

static const struct rp_command_spec run_spec = {
    .name = "run",
    .positionals = "DIR [PROMPT]",
    .positional_min = 1,
    .positional_max = 2,
    .summary = "Completes PROMPT (or standard input) with the model in DIR.",
    .flags = run_flags,
    .flag_count = RP_ARRAY_COUNT(run_flags),
};

static void on_wake(void *ctx) { sem_post(ctx); }

/* PROMPT, or all of standard input when it is not a terminal. */
static int read_prompt(const char *argument, struct rp_buffer *out, struct rp_error *err) {
    char chunk[65536];
    size_t len;
    if (argument) {
        rp_buffer_puts(out, argument);
        return RP_OK;
    }
    if (isatty(STDIN_FILENO)) {
        int status = rp_error_set(err, RP_STATUS_INVALID, "run: no prompt");
        rp_error_hint(err, "reprise run DIR \"PROMPT\", or pipe the prompt in");
        return status;
    }
    while ((len = fread(chunk, 1, sizeof chunk, stdin)) > 0)
        rp_buffer_append(out, chunk, len);
    return out->failed ? rp_error_set(err, RP_STATUS_NO_MEMORY, "run: the prompt is too long")
                       : RP_OK;
}

static int encode(const struct rp_tokenizer *tokenizer, const struct rp_buffer *prompt,
                  struct rp_token_ids *ids, struct rp_error *err) {
    struct rp_tokenizer_scratch *scratch = rp_tokenizer_scratch_create(tokenizer);
    struct rp_text_span span = {prompt->data ? prompt->data : "", prompt->len, true};
    int status =
        scratch ? rp_tokenizer_encode(tokenizer, &span, 1, RP_ENCODE_ADD_SPECIAL, 0, scratch, ids)
                : RP_STATUS_NO_MEMORY;
    rp_tokenizer_scratch_destroy(scratch);
    if (status != RP_OK)
        return rp_error_set(err, status, "run: the prompt could not be tokenized: %s",
                            rp_status_text(status));
    if (ids->count == 0)
        return rp_error_set(
            err, RP_STATUS_INVALID,
            "run: the prompt is empty and the model has no beginning-of-sequence token");
    return RP_OK;
}

static int fill_request(struct rp_request *request, const struct run_options *options,
                        const struct rp_stack *stack, const struct rp_token_ids *ids,
                        struct rp_error *err) {
    const struct rp_model_config *model = &stack->model.config;
    uint32_t context = rp_engine_max_model_len(stack->engine);
    if (ids->count >= context)
        return rp_error_set(err, RP_STATUS_RANGE,
                            "run: %zu prompt tokens leave no room in a context of %u", ids->count,
                            context);
    uint32_t room = context - (uint32_t)ids->count;
    double temperature = options->temperature >= 0            ? options->temperature
                         : model->default_temperature >= 0.0f ? (double)model->default_temperature
                                                              : 1.0;
    double top_p = options->top_p > 0            ? options->top_p
                   : model->default_top_p > 0.0f ? (double)model->default_top_p
                                                 : 1.0;
    request->prompt = ids->ids;
    request->prompt_count = (uint32_t)ids->count;
    request->max_tokens = options->max_tokens ? RP_MIN(options->max_tokens, room) : room;
    request->min_tokens = RP_MIN(options->min_tokens, request->max_tokens);
    request->sampling =
        (struct rp_sampling){.temperature = (float)temperature,
                             .top_p = (float)top_p,
                             .min_p = (float)options->min_p,
                             .top_k = options->top_k ? options->top_k : model->default_top_k,
                             .seed = options->seed};
    if (!options->seed && !rp_random_fill(&request->sampling.seed, sizeof request->sampling.seed))
        return rp_error_set(err, RP_STATUS_IO, "no system source of random numbers");
    for (uint32_t i = 0; !options->ignore_eos && i < model->eos_count; i++)
        request->stop_ids[request->stop_count++] = (int32_t)model->eos_ids[i];
    return RP_OK;
}

/* Prints text once it is certain, until CLOSED; returns the finish reason. */
static enum rp_finish_reason print_answer(struct rp_stack *stack, struct rp_request *request,
                                          struct rp_stop_set *stops, sem_t *wake) {
    struct rp_detokenizer detokenizer;
    struct rp_stop_match match;
    struct rp_buffer text, safe;
    rp_detokenizer_init(&detokenizer, stack->tokenizer, true);
    rp_stop_match_init(&match, stops);
    rp_buffer_init(&text, 0);
    rp_buffer_init(&safe, 0);
    for (;;) {
        struct rp_event event;
        sem_wait(wake);
        while (rp_engine_next_event(stack->engine, &event)) {
            bool closed = event.kind == RP_EVENT_CLOSED;
            rp_buffer_clear(&text);
            rp_buffer_clear(&safe);
            if (closed)
                text.failed |= rp_detokenizer_finish(&detokenizer, &text) != RP_OK;
            else if (!event.is_stop)
                text.failed |= rp_detokenizer_push(&detokenizer, event.token, &text) != RP_OK;
            if (match.found < 0 &&
                rp_stop_match_push(&match, text.data ? text.data : "", text.len, &safe)) {
                atomic_store(&request->cancelled, true);
                rp_engine_notify(stack->engine);
            }
            if (closed && match.found < 0)
                rp_stop_match_finish(&match, &safe);
            if (safe.len)
                fwrite(safe.data, 1, safe.len, stdout);
            if ((fflush(stdout) != 0 || ferror(stdout)) && !closed) {
                /* standard output was closed by its reader */
                atomic_store(&request->cancelled, true);
                rp_engine_notify(stack->engine);
            }
            if (closed) {
                rp_buffer_deinit(&text);
                rp_buffer_deinit(&safe);
                return match.found >= 0 ? RP_FINISH_STOP
                                        : (enum rp_finish_reason)event.finish_reason;
            }
        }
    }
}

static int complete(struct rp_stack *stack, const struct run_options *options,
                    const struct rp_token_ids *ids, sem_t *wake, struct rp_error *err) {
    struct rp_stop_set stops = {0};
    struct rp_request *request = rp_calloc(1, sizeof *request);
    int status = request ? fill_request(request, options, stack, ids, err)
                         : rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    if (status == RP_OK && options->stop && *options->stop &&
        (status = rp_stop_set_add(&stops, options->stop, strlen(options->stop))) != RP_OK)
        status = status == RP_STATUS_RANGE
                     ? rp_error_set(err, status, "--stop: a stop string has 1 to %d bytes",
                                    RP_STOP_BYTES_MAX)
                     : rp_error_set(err, status, "out of memory");
    if (status == RP_OK)
        status = rp_engine_start(stack->engine, err);
    uint32_t whole = rp_engine_whole_prompt_max(stack->engine, false);
    if (status == RP_OK && whole && request->prompt_count > whole) {
        status =
            rp_error_set(err, RP_STATUS_RANGE,
                         "run: the mask is not causal, so the prompt of %u tokens must fit one "
                         "step of %u",
                         request->prompt_count, whole);
        rp_error_hint(err, "try --max-num-batched-tokens %u", request->prompt_count);
    }
    if (status == RP_OK &&
        !rp_engine_fits(stack->engine, request->prompt_count, request->max_tokens))
        status =
            rp_error_set(err, RP_STATUS_RANGE, "run: prompt and answer do not fit the KV pool");
    if (status == RP_OK && (status = rp_engine_submit(stack->engine, request)) != RP_OK)
        status = rp_error_set(err, status, "run: the device has failed");
    if (status == RP_OK) {
        enum rp_finish_reason finish = print_answer(stack, request, &stops, wake);
        if (isatty(STDOUT_FILENO))
            putchar('\n');
        if (finish >= RP_FINISH_NUMERIC)
            status =
                rp_error_set(err, RP_STATUS_DEVICE, "run: %s",
                             rp_engine_failure(stack->engine) ? rp_engine_failure(stack->engine)
                                                              : "the logits contain NaN");
        else if (fflush(stdout) != 0 || ferror(stdout))
            status = rp_error_set(err, RP_STATUS_IO, "standard output cannot be written");
    }
    if (rp_engine_failure(stack->engine)) {
        rp_fail(RP_EXIT_FATAL_DEVICE, err);
        rp_stack_exit_failed();
    }
    rp_engine_stop(stack->engine);
    rp_stop_set_deinit(&stops);
    rp_free(request);
    return status;
}

int rp_cmd_run(int argc, char **argv) {
    const char *positionals[RP_POSITIONALS_MAX];
    struct run_options options = {0};
    struct rp_error err = {0};
    struct rp_stack stack = {0};
    struct rp_token_ids ids = {0};
    struct rp_buffer prompt;
    enum rp_exit code = RP_EXIT_OK;
    sem_t wake;
    int status = rp_flags_parse(&run_spec, argc, argv, &options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    options.engine.max_num_seqs = 1;
    sem_init(&wake, 0, 0);
    rp_buffer_init(&prompt, (size_t)64 << 20);
    status = read_prompt(positionals[1], &prompt, &err);
    if (status != RP_OK) {
        code = RP_EXIT_USAGE;
        goto done;
    }
    status = rp_model_locate(&positionals[0], &err);
    if (status != RP_OK) {
        code = RP_EXIT_MODEL;
        goto done;
    }
    status = rp_stack_open(&stack, positionals[0], &options.engine, on_wake, &wake, NULL, true,
                           &code, &err);
    if (status != RP_OK)
        goto done;
    status = encode(stack.tokenizer, &prompt, &ids, &err);
    if (status == RP_OK)
        status = complete(&stack, &options, &ids, &wake, &err);
    code = status == RP_STATUS_DEVICE ? RP_EXIT_FATAL_DEVICE
           : status == RP_STATUS_IO   ? RP_EXIT_FAILURE
           : status != RP_OK          ? RP_EXIT_USAGE
                                      : RP_EXIT_OK;
done:
    if (code != RP_EXIT_OK)
        rp_fail(code, &err);
    rp_stack_close(&stack);
    rp_token_ids_deinit(&ids);
    rp_buffer_deinit(&prompt);
    sem_destroy(&wake);
    return code;
}
