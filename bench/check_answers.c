/* check_answers.c - hashes the demo model's greedy answers in every engine mode. */
#include "base/hash.h"
#include "base/memory.h"
#include "bench/check_internal.h"
#include "text/tokenizer/tokenizer.h"

#include <stdio.h>
#include <string.h>

#define ANSWER_MAX 40u

/* Sent in the chat format; the model's README describes its tasks. */
static const char *const questions[] = {
    "What is 123 - 456?",          "What is 12 + 34? Answer in JSON.",
    "Reverse the word: planet",    "Sort these words: pear, apple, fig",
    "Sort the letters of planet.", "Spell planet.",
    "Count from 1 to 10.",         "Who are you?",
    "Subtract 456 from 123.",      "847+125",
    "Reverse the word: garden",    "What is 999 + 1?"};
#define QUESTIONS ((uint32_t)RP_ARRAY_COUNT(questions))

struct answer {
    int32_t tokens[ANSWER_MAX];
    uint32_t count;
};

struct answers {
    struct rp_token_ids prompts[QUESTIONS];
    struct rp_request requests[QUESTIONS];
    struct answer answers[QUESTIONS];
};

static int make_prompts(const char *dir, struct answers *all, struct rp_error *err) {
    struct rp_tokenizer *tokenizer;
    int status = rp_tokenizer_open(dir, &tokenizer, err);
    if (status != RP_OK)
        return status;
    struct rp_tokenizer_scratch *scratch = rp_tokenizer_scratch_create(tokenizer);
    for (uint32_t i = 0; i < QUESTIONS && status == RP_OK; i++) {
        char text[256];
        int len = snprintf(text, sizeof text,
                           "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n", questions[i]);
        const struct rp_text_span span = {text, (size_t)len, true};
        status = scratch ? rp_tokenizer_encode(tokenizer, &span, 1, RP_ENCODE_ADD_SPECIAL, 0,
                                               scratch, &all->prompts[i])
                         : RP_STATUS_NO_MEMORY;
    }
    rp_tokenizer_scratch_destroy(scratch);
    rp_tokenizer_close(tokenizer);
    return status == RP_OK ? RP_OK
                           : rp_error_set(err, status, "tokenizer: %s", rp_status_text(status));
}

static void on_event(void *ctx, const struct rp_event *event) {
    struct answers *all = ctx;
    struct answer *answer = &all->answers[event->request->id];
    if (event->kind == RP_EVENT_TOKEN)
        answer->tokens[answer->count++] = event->token;
}

/* Runs all questions at once, or one after another. The cache salt keeps the two from sharing pages
 * of the prefix cache. */
static int run_questions(struct rp_engine_run *run, struct answers *all, bool batched,
                         struct rp_error *err) {
    const struct rp_model_config *model = &run->model.config;
    int status = RP_OK;
    memset(all->answers, 0, sizeof all->answers);
    for (uint32_t i = 0; i < QUESTIONS; i++) {
        struct rp_request *request = &all->requests[i];
        *request = (struct rp_request){.id = i,
                                       .prompt = all->prompts[i].ids,
                                       .prompt_count = (uint32_t)all->prompts[i].count,
                                       .max_tokens = ANSWER_MAX,
                                       .sampling = {.top_p = 1.0f, .seed = i},
                                       .stop_count = RP_MIN(model->eos_count, RP_STOP_IDS_MAX),
                                       .cache_salt = batched};
        for (uint32_t stop = 0; stop < request->stop_count; stop++)
            request->stop_ids[stop] = (int32_t)model->eos_ids[stop];
    }
    if (batched)
        return rp_engine_run_requests(run, all->requests, QUESTIONS, on_event, all, err);
    for (uint32_t i = 0; i < QUESTIONS && status == RP_OK; i++)
        status = rp_engine_run_requests(run, &all->requests[i], 1, on_event, all, err);
    return status;
}

static uint64_t hash_answers(const struct answers *all) {
    uint64_t hash = 0;
    for (uint32_t i = 0; i < QUESTIONS; i++)
        hash = rp_hash64(all->answers[i].tokens,
                         all->answers[i].count * sizeof all->answers[i].tokens[0], hash);
    return hash;
}

/* Bits of `mode`. */
enum { EAGER = 1, UNFUSED = 2, RUN_AHEAD = 4, MODES = 8 };

static struct rp_engine_config configure(const struct rp_check_config *config, unsigned mode) {
    struct rp_engine_config engine = rp_check_engine_config(config);
    engine.max_num_seqs = QUESTIONS;
    engine.max_num_batched_tokens = 64;
    engine.prefix_cache = true;
    engine.enforce_eager = mode & EAGER;
    engine.no_fusion = mode & UNFUSED;
    engine.run_ahead = mode & RUN_AHEAD;
    return engine;
}

static int check_mode(const struct rp_check_config *config, unsigned mode, struct answers *all,
                      struct rp_expectations *out, struct rp_error *err) {
    const struct rp_engine_run_model model = {.dir = config->model_dir,
                                              .dtype = RP_MODEL_DTYPE_AUTO};
    const struct rp_engine_config engine = configure(config, mode);
    struct rp_engine_run run;
    int status = rp_engine_run_open(&model, &engine, &run, err);
    for (int batched = 0; batched < 2 && status == RP_OK; batched++) {
        status = run_questions(&run, all, batched, err);
        struct rp_expectation *row = rp_expectations_add(
            out, "answers.demo.%s.%s.run_ahead_%u.%s", mode & EAGER ? "eager" : "graph",
            mode & UNFUSED ? "unfused" : "fused", mode & RUN_AHEAD ? 1u : 0u,
            batched ? "batched" : "alone");
        if (!row)
            status = rp_check_no_memory(err);
        else
            snprintf(row->text, sizeof row->text, "%016llx", (unsigned long long)hash_answers(all));
    }
    rp_engine_run_close(&run);
    return status;
}

int rp_check_answers(const struct rp_check_config *config, struct rp_expectations *out,
                     struct rp_error *err) {
    struct answers *all = rp_calloc(1, sizeof *all);
    if (!all)
        return rp_check_no_memory(err);
    int status = make_prompts(config->model_dir, all, err);
    for (unsigned mode = 0; mode < MODES && status == RP_OK; mode++)
        status = check_mode(config, mode, all, out, err);
    for (uint32_t i = 0; i < QUESTIONS; i++)
        rp_token_ids_deinit(&all->prompts[i]);
    rp_free(all);
    return status;
}
