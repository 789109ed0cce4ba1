/* fuzz_params.c - any bytes as the body of a request: the first byte chooses the route, the rest is
 * JSON. Parameters that are accepted are within the ranges that the engine relies on; what is
 * refused has a 4xx and a message; a chat that is accepted renders to spans that cover its text. */
#include "base/utf8.h"
#include "server/api/chat_prompt.h"
#include "server/api/params.h"
#include "server/http/json_body.h"
#include "tests/fuzz/fuzz_input.h"

#include <math.h>
#include <string.h>

enum { VOCAB = 100 };

static struct rp_http_limits limits;
static struct rp_serving serving = {.model_name = "m",
                                    .vocab_size = VOCAB,
                                    .stop_ids = {7, 9},
                                    .stop_id_count = 2,
                                    .default_temperature = NAN,
                                    .default_top_p = NAN};
static struct rp_chat_templates *templates;

static void start(void) {
    struct rp_error err;
    static bool started;
    if (started)
        return;
    started = true;
    rp_http_limits_init(&limits);
    rp_json_body_init();
    RP_ASSERT(rp_chat_templates_open("models/demo", NULL, &templates, &err) == RP_OK);
    serving.templates = templates;
}

static void check_error(const struct rp_http_error *error) {
    struct rp_buffer out = {.data = NULL};
    RP_ASSERT(error->status >= 400 && error->status < 500);
    RP_ASSERT(error->message[0] && error->code);
    rp_http_error_write(error, &out);
    RP_ASSERT(rp_utf8_valid(out.data, out.len));
    json_t *written = json_loadb(out.data, out.len, 0, NULL);
    RP_ASSERT(json_is_string(json_object_get(json_object_get(written, "error"), "message")));
    json_decref(written);
    rp_buffer_deinit(&out);
}

static bool is_between(double value, double low, double high) {
    return value >= low && value <= high;
}

static void check_numbers(const struct rp_completion_params *p) {
    RP_ASSERT(p->n >= 1 && p->n <= RP_CHOICES_MAX);
    RP_ASSERT(p->best_of >= p->n && p->best_of <= RP_CHOICES_MAX);
    RP_ASSERT(p->max_tokens >= -1 && p->max_tokens <= INT32_MAX);
    RP_ASSERT(p->min_tokens >= 0 && (p->max_tokens < 0 || p->min_tokens <= p->max_tokens));
    RP_ASSERT(p->top_k >= 0 && p->top_k <= INT32_MAX);
    RP_ASSERT(p->logprobs >= -1 && p->logprobs <= RP_LOGPROBS_MAX);
    RP_ASSERT(p->prompt_logprobs >= -1 && p->prompt_logprobs <= RP_LOGPROBS_MAX);
    RP_ASSERT(is_between(p->temperature, 0, 100) && is_between(p->min_p, 0, 1));
    RP_ASSERT(p->top_p > 0 && p->top_p <= 1);
    RP_ASSERT(p->repetition_penalty > 0 && p->repetition_penalty <= 100);
    RP_ASSERT(is_between(p->presence_penalty, -2, 2) && is_between(p->frequency_penalty, -2, 2));
}

static void check_lists(const struct rp_completion_params *p) {
    RP_ASSERT(p->stop.count <= RP_STOP_STRINGS_MAX && p->stop_id_count <= RP_STOP_IDS_MAX);
    for (uint32_t i = 0; i < p->stop.count; i++)
        RP_ASSERT(p->stop.strings[i].len > 0 && p->stop.strings[i].len <= RP_STOP_BYTES_MAX);
    for (uint32_t i = 0; i < p->stop_id_count; i++)
        RP_ASSERT(p->stop_ids[i] >= 0 && p->stop_ids[i] < VOCAB);
    RP_ASSERT(p->bias_count <= RP_LOGIT_BIAS_MAX);
    for (uint32_t i = 0; i < p->bias_count; i++)
        RP_ASSERT(p->biases[i].token >= 0 && p->biases[i].token < VOCAB &&
                  is_between(p->biases[i].value, -100, 100));
    for (uint32_t id = VOCAB; p->allowed && id < RP_CEIL_DIV(VOCAB, 32) * 32; id++)
        RP_ASSERT(!(p->allowed[id / 32] >> id % 32 & 1));
}

static void check_chat(const struct rp_completion_params *params) {
    struct rp_chat_prompt prompt;
    struct rp_http_error error = {0};
    size_t work = 0, covered = 0;
    if (!rp_chat_prompt_check(params, &serving, &work, &error)) {
        check_error(&error);
        return;
    }
    if (rp_chat_prompt_make(params, &serving, work, &prompt, &error) != RP_OK) {
        check_error(&error);
        return;
    }
    for (size_t i = 0; i < prompt.span_count; covered += prompt.spans[i++].len)
        RP_ASSERT(prompt.spans[i].text == prompt.text + covered);
    RP_ASSERT(covered == prompt.len && rp_utf8_valid(prompt.text, prompt.len));
    rp_chat_prompt_deinit(&prompt);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    struct fuzz_input input = fuzz_begin(bytes, len);
    enum rp_api api = fuzz_byte(&input) & 1 ? RP_API_CHAT : RP_API_COMPLETIONS;
    struct rp_completion_params params;
    struct rp_http_error error = {0};
    start();
    json_t *root = rp_json_body_parse(input.bytes, input.len, &limits, &error);
    if (!root) {
        check_error(&error);
        RP_ASSERT(rp_json_body_live_bytes() == 0);
        return 0;
    }
    if (!rp_params_check_model(root, &serving, &error)) {
        RP_ASSERT(error.status == 400 || error.status == 404);
    } else {
        if (!rp_params_read(root, api, &serving, NULL, NULL, &params, &error)) {
            check_error(&error);
        } else {
            check_numbers(&params);
            check_lists(&params);
            if (api == RP_API_CHAT)
                check_chat(&params);
        }
        rp_params_deinit(&params);
    }
    json_decref(root);
    RP_ASSERT(rp_json_body_live_bytes() == 0);
    return 0;
}
