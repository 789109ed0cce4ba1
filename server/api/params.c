#include "server/api/params.h"

#include "base/log.h"
#include "base/memory.h"
#include "server/server_internal.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

/* --- Numbers and switches -------------------------------------------------------------------- */

enum kind { KIND_BOOL, KIND_INT, KIND_REAL };

struct field {
    const char *name;
    enum kind kind;
    size_t offset;
    double low, high;
    bool low_open; /* the minimum itself is excluded */
    unsigned apis; /* enum rp_api */
};

#define FIELD(member) offsetof(struct rp_completion_params, member)
#define ANY_INT       -9223372036854775808.0, 9223372036854775807.0

#define BOTH      (RP_API_COMPLETIONS | RP_API_CHAT)
#define TEXT      RP_API_COMPLETIONS
#define CHAT      RP_API_CHAT
#define ANY_COUNT 2147483647

static const struct field fields[] = {
    {"stream", KIND_BOOL, FIELD(stream), 0, 0, false, BOTH},
    {"add_special_tokens", KIND_BOOL, FIELD(add_special_tokens), 0, 0, false, BOTH},
    {"skip_special_tokens", KIND_BOOL, FIELD(skip_special_tokens), 0, 0, false, BOTH},
    {"profile", KIND_BOOL, FIELD(profile), 0, 0, false, BOTH},
    {"ignore_eos", KIND_BOOL, FIELD(ignore_eos), 0, 0, false, BOTH},
    {"include_stop_str_in_output", KIND_BOOL, FIELD(include_stop), 0, 0, false, BOTH},
    {"include_timing", KIND_BOOL, FIELD(include_timing), 0, 0, false, BOTH},
    {"return_tokens_as_token_ids", KIND_BOOL, FIELD(as_token_ids), 0, 0, false, BOTH},
    {"return_token_ids", KIND_BOOL, FIELD(return_token_ids), 0, 0, false, BOTH},
    {"priority", KIND_INT, FIELD(priority), -2147483648.0, 2147483647, false, BOTH},
    {"timeout", KIND_REAL, FIELD(timeout), 0, 86400, true, BOTH},
    {"echo", KIND_BOOL, FIELD(echo), 0, 0, false, TEXT},
    {"add_generation_prompt", KIND_BOOL, FIELD(add_generation_prompt), 0, 0, false, CHAT},
    {"continue_final_message", KIND_BOOL, FIELD(continue_final_message), 0, 0, false, CHAT},
    {"include_reasoning", KIND_BOOL, FIELD(include_reasoning), 0, 0, false, CHAT},
    {"parallel_tool_calls", KIND_BOOL, FIELD(parallel_tool_calls), 0, 0, false, CHAT},
    /* vLLM's name, llama.cpp's and Alibaba's */
    {"thinking_token_budget", KIND_INT, FIELD(reasoning_tokens), -1, ANY_COUNT, false, CHAT},
    {"thinking_budget_tokens", KIND_INT, FIELD(reasoning_tokens), -1, ANY_COUNT, false, CHAT},
    {"thinking_budget", KIND_INT, FIELD(reasoning_tokens), -1, ANY_COUNT, false, CHAT},
    {"max_tokens", KIND_INT, FIELD(max_tokens), 0, ANY_COUNT, false, TEXT},
    {"max_tokens", KIND_INT, FIELD(max_tokens), 1, ANY_COUNT, false, CHAT},
    {"max_completion_tokens", KIND_INT, FIELD(max_completion_tokens), 1, ANY_COUNT, false, CHAT},
    {"min_tokens", KIND_INT, FIELD(min_tokens), 0, ANY_COUNT, false, BOTH},
    {"n", KIND_INT, FIELD(n), 1, RP_CHOICES_MAX, false, BOTH},
    {"best_of", KIND_INT, FIELD(best_of), 1, RP_CHOICES_MAX, false, TEXT},
    {"top_k", KIND_INT, FIELD(top_k), -1, ANY_COUNT, false, BOTH},
    {"seed", KIND_INT, FIELD(seed), ANY_INT, false, BOTH},
    {"logprobs", KIND_INT, FIELD(logprobs), 0, RP_LOGPROBS_MAX, false, TEXT},
    {"logprobs", KIND_BOOL, FIELD(chat_logprobs), 0, 0, false, CHAT},
    {"top_logprobs", KIND_INT, FIELD(top_logprobs), 0, RP_LOGPROBS_MAX, false, CHAT},
    {"prompt_logprobs", KIND_INT, FIELD(prompt_logprobs), 0, RP_LOGPROBS_MAX, false, BOTH},
    /* OpenAI's range ends at 2; benchmarks use higher values. */
    {"temperature", KIND_REAL, FIELD(temperature), 0, 100, false, BOTH},
    {"top_p", KIND_REAL, FIELD(top_p), 0, 1, true, BOTH},
    {"min_p", KIND_REAL, FIELD(min_p), 0, 1, false, BOTH},
    {"presence_penalty", KIND_REAL, FIELD(presence_penalty), -2, 2, false, BOTH},
    {"frequency_penalty", KIND_REAL, FIELD(frequency_penalty), -2, 2, false, BOTH},
    {"repetition_penalty", KIND_REAL, FIELD(repetition_penalty), 0, 100, true, BOTH},
};

static bool read_field(const struct field *field, const json_t *value,
                       struct rp_completion_params *out, struct rp_http_error *error) {
    char *to = (char *)out + field->offset;
    if (field->kind == KIND_BOOL) {
        if (!json_is_boolean(value))
            return rp_http_error_set(error, 400, field->name, "invalid_type",
                                     "%s must be true or false", field->name);
        *(bool *)to = json_is_true(value);
        return true;
    }
    if (field->kind == KIND_INT ? !json_is_integer(value) : !json_is_number(value))
        return rp_http_error_set(error, 400, field->name, "invalid_type", "%s must be %s",
                                 field->name, field->kind == KIND_INT ? "an integer" : "a number");
    double number = json_number_value(value);
    if (!(number >= field->low && number <= field->high) ||
        (field->low_open && number <= field->low))
        return rp_http_error_set(error, 400, field->name, "out_of_range",
                                 field->low_open ? "%s must be above %.15g and at most %.15g"
                                                 : "%s must be from %.15g to %.15g",
                                 field->name, field->low, field->high);
    if (field->kind == KIND_INT)
        *(int64_t *)to = json_integer_value(value);
    else
        *(double *)to = number;
    return true;
}

/* --- Fields that are not supported yet ------------------------------------------------------- */

/* Values of unsupported fields that are accepted because they have no effect. OFF_CHOICE: "none",
 * or "auto" when no tools are given. */
enum off_value { OFF_ONE, OFF_FALSE, OFF_EMPTY, OFF_TEXT_ONLY, OFF_CHOICE, OFF_NEVER };

struct unsupported {
    const char *name;
    enum off_value off;
    unsigned apis;
    const char *instead; /* advice in the error; NULL: leave the field out */
};

static const struct unsupported unsupported[] = {
    {"length_penalty", OFF_ONE, BOTH, NULL},
    {"use_beam_search", OFF_FALSE, BOTH, NULL},
    {"suffix", OFF_EMPTY, TEXT, NULL},
    {"truncate_prompt_tokens", OFF_NEVER, BOTH, NULL},
    {"tools", OFF_EMPTY, TEXT, "tools are for /v1/chat/completions"},
    {"tool_choice", OFF_CHOICE, TEXT, "tools are for /v1/chat/completions"},
    {"functions", OFF_EMPTY, TEXT, "tools are for /v1/chat/completions"},
    {"function_call", OFF_CHOICE, TEXT, "tools are for /v1/chat/completions"},
    {"prompt_embeds", OFF_NEVER, BOTH, NULL},
    {"logits_processors", OFF_EMPTY, BOTH, NULL},
    {"messages", OFF_NEVER, TEXT, "/v1/completions requires a prompt"},
    {"prompt", OFF_NEVER, CHAT, "/v1/chat/completions requires messages"},
    {"echo", OFF_FALSE, CHAT, NULL},
    {"best_of", OFF_ONE, CHAT, NULL},
    {"modalities", OFF_TEXT_ONLY, CHAT, "only text is supported"},
    {"audio", OFF_NEVER, CHAT, NULL},
    {"prediction", OFF_NEVER, CHAT, NULL},
    {"web_search_options", OFF_NEVER, CHAT, NULL},
    {"mm_processor_kwargs", OFF_EMPTY, CHAT, NULL},
    {"chat_template", OFF_NEVER, CHAT, "templates are set by the operator (--chat-template)"},
};

static bool is_off(const struct unsupported *field, const json_t *value) {
    const char *text = json_string_value(value);
    switch (field->off) {
    case OFF_ONE:
        return json_number_value(value) == 1;
    case OFF_FALSE:
        return json_is_false(value);
    case OFF_EMPTY:
        return (json_is_string(value) && json_string_length(value) == 0) ||
               (json_is_array(value) && json_array_size(value) == 0) ||
               (json_is_object(value) && json_object_size(value) == 0);
    case OFF_TEXT_ONLY:
        text = json_string_value(json_array_get(value, 0));
        return json_array_size(value) == 1 && text && strcmp(text, "text") == 0;
    case OFF_CHOICE:
        return text && (strcmp(text, "none") == 0 || strcmp(text, "auto") == 0);
    case OFF_NEVER:
        break;
    }
    return false;
}

static bool check_unsupported(const struct unsupported *field, const json_t *value,
                              struct rp_http_error *error) {
    if (is_off(field, value))
        return true;
    return rp_http_error_set(error, 400, field->name, "unsupported_parameter",
                             "%s is not supported yet%s%s", field->name,
                             field->instead ? ": " : ", leave it out",
                             field->instead ? field->instead : "");
}

/* --- All fields ------------------------------------------------------------------------------ */

/* Fields that are read elsewhere or have no effect here. */
static const struct {
    const char *name;
    unsigned apis;
} known[] = {
    {"model", BOTH},
    {"prompt", TEXT},
    {"messages", CHAT},
    {"stop", BOTH},
    {"stop_token_ids", BOTH},
    {"logit_bias", BOTH},
    {"allowed_token_ids", BOTH},
    {"bad_words", BOTH},
    {"attention_mask", BOTH},
    {"response_format", BOTH},
    {"structured_outputs", BOTH},
    {"guided_json", BOTH},
    {"guided_json_object", BOTH},
    {"guided_regex", BOTH},
    {"guided_choice", BOTH},
    {"guided_grammar", BOTH},
    {"structural_tag", BOTH},
    {"json_schema", BOTH},
    {"regex", BOTH},
    {"ebnf", BOTH},
    {"grammar", BOTH},
    {"stream_options", BOTH},
    {"cache_salt", BOTH},
    {"documents", CHAT},
    {"chat_template_kwargs", CHAT},
    {"reasoning_effort", CHAT},
    {"user", BOTH},
    {"metadata", BOTH},
    {"store", BOTH},
    {"request_id", BOTH},
    {"spaces_between_special_tokens", BOTH},
    {"tools", CHAT},
    {"tool_choice", CHAT},
    {"functions", CHAT},
    {"function_call", CHAT},
    {"enable_thinking", CHAT},
    {"service_tier", CHAT},
    {"safety_identifier", CHAT},
    {"prompt_cache_key", CHAT},
};

static const struct field *find_field(const char *name, enum rp_api api) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(fields); i++)
        if ((fields[i].apis & api) && strcmp(fields[i].name, name) == 0)
            return &fields[i];
    return NULL;
}

static const struct unsupported *find_unsupported(const char *name, enum rp_api api) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(unsupported); i++)
        if ((unsupported[i].apis & api) && strcmp(unsupported[i].name, name) == 0)
            return &unsupported[i];
    return NULL;
}

static bool is_known(const char *name, enum rp_api api) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(known); i++)
        if ((known[i].apis & api) && strcmp(known[i].name, name) == 0)
            return true;
    return false;
}

static void set_defaults(struct rp_completion_params *out, enum rp_api api,
                         const struct rp_serving *serving) {
    memset(out, 0, sizeof *out);
    out->api = api;
    /* A chat template writes the special tokens itself. */
    out->add_special_tokens = api == RP_API_COMPLETIONS;
    out->skip_special_tokens = true;
    out->add_generation_prompt = true;
    out->include_reasoning = out->parallel_tool_calls = true;
    out->reasoning_tokens = -1;
    out->max_tokens = api == RP_API_COMPLETIONS ? 16 : -1;
    out->max_completion_tokens = out->top_logprobs = -1;
    out->logprobs = out->prompt_logprobs = -1;
    out->n = out->repetition_penalty = 1;
    out->temperature = isnan(serving->default_temperature) ? 1 : serving->default_temperature;
    out->top_p = isnan(serving->default_top_p) ? 1 : serving->default_top_p;
    out->top_k = serving->default_top_k;
}

/* Resolves fields that have other names in chats. */
static bool settle_chat(struct rp_completion_params *out, struct rp_http_error *error) {
    if (out->max_completion_tokens >= 0)
        out->max_tokens = out->max_completion_tokens;
    if (out->top_logprobs >= 0 && !out->chat_logprobs)
        return rp_http_error_set(error, 400, "top_logprobs", "invalid_value",
                                 "top_logprobs requires logprobs: true");
    if (out->chat_logprobs)
        out->logprobs = RP_MAX(out->top_logprobs, 0);
    if (out->tools.legacy) /* a message has room for one function_call */
        out->parallel_tool_calls = false;
    if (out->add_generation_prompt && out->continue_final_message)
        return rp_http_error_set(error, 400, "continue_final_message", "invalid_value",
                                 "continue_final_message requires add_generation_prompt: false");
    return true;
}

static bool settle_counts(struct rp_completion_params *out, struct rp_http_error *error) {
    if (out->max_tokens == 0 && !out->echo && out->prompt_logprobs < 0)
        return rp_http_error_set(error, 400, "max_tokens", "out_of_range",
                                 "max_tokens must be at least 1, or 0 with echo or "
                                 "prompt_logprobs");
    if (out->max_tokens >= 0 && out->min_tokens > out->max_tokens)
        return rp_http_error_set(error, 400, "min_tokens", "out_of_range",
                                 "min_tokens must not be above max_tokens");
    if (out->best_of == 0)
        out->best_of = out->n;
    if (out->best_of < out->n)
        return rp_http_error_set(error, 400, "best_of", "out_of_range",
                                 "best_of must not be below n");
    if (out->best_of > out->n && out->stream)
        return rp_http_error_set(error, 400, "best_of", "invalid_value",
                                 "best_of above n cannot be streamed");
    if (out->prompt_logprobs >= 0 && out->stream)
        return rp_http_error_set(error, 400, "prompt_logprobs", "invalid_value",
                                 "prompt_logprobs cannot be combined with stream: true");
    return true;
}

/* Checks combinations of fields and converts values for the engine. */
static bool settle(json_t *root, const struct rp_serving *serving, struct rp_completion_params *out,
                   struct rp_http_error *error) {
    if (out->api == RP_API_CHAT && !settle_chat(out, error))
        return false;
    if (!settle_counts(out, error))
        return false;
    out->has_seed = rp_params_get(root, "seed") != NULL;
    if (out->top_k < 0)
        out->top_k = 0;
    for (uint32_t i = 0; i < serving->stop_id_count && !out->ignore_eos; i++)
        out->stop_ids[out->stop_id_count++] = serving->stop_ids[i];
    return true;
}

bool rp_params_read(json_t *root, enum rp_api api, const struct rp_serving *serving,
                    void (*unknown)(void *ctx, const char *name), void *ctx,
                    struct rp_completion_params *out, struct rp_http_error *error) {
    const char *name;
    json_t *value;
    set_defaults(out, api, serving);
    json_object_foreach(root, name, value) {
        const struct field *field = find_field(name, api);
        const struct unsupported *off = field ? NULL : find_unsupported(name, api);
        if (!field && !off && !is_known(name, api) && unknown)
            unknown(ctx, name);
        if (json_is_null(value))
            continue;
        if ((field && !read_field(field, value, out, error)) ||
            (off && !check_unsupported(off, value, error)))
            return false;
    }
    return rp_params_read_special(root, serving, out, error) &&
           rp_params_read_grammar(root, out, error) && settle(root, serving, out, error);
}

void rp_params_deinit(struct rp_completion_params *params) {
    rp_stop_set_deinit(&params->stop);
    rp_free(params->biases);
    rp_free(params->allowed);
    rp_free(params->bad_tokens);
    rp_free(params->grammar.source);
    rp_tools_deinit(&params->tools);
    params->biases = NULL;
    params->allowed = NULL;
    params->bad_tokens = NULL;
    params->grammar.source = NULL;
}

json_t *rp_params_get(json_t *root, const char *name) {
    json_t *value = json_object_get(root, name);
    return json_is_null(value) ? NULL : value;
}

/* list: --model-alias; "*" is any name. */
static bool is_alias(const char *list, const char *name, size_t len) {
    for (const char *at = list; at && *at; at += strcspn(at, ",")) {
        at += strspn(at, ", ");
        size_t size = strcspn(at, ",");
        if ((size == len && memcmp(at, name, len) == 0) || (size == 1 && *at == '*'))
            return true;
    }
    return false;
}

bool rp_params_check_model(json_t *root, const struct rp_serving *serving,
                           struct rp_http_error *error) {
    json_t *model = json_object_get(root, "model");
    if (!model || json_is_null(model))
        return true;
    if (!json_is_string(model))
        return rp_http_error_set(error, 400, "model", "invalid_type", "model must be a string");
    if (strcmp(json_string_value(model), serving->model_name) == 0 ||
        is_alias(serving->model_aliases, json_string_value(model), json_string_length(model)))
        return true;
    return rp_http_error_set(error, 404, "model", "model_not_found",
                             "this server serves %.200s, not the requested model",
                             serving->model_name);
}

bool rp_params_bool(json_t *root, const char *name, bool *out, struct rp_http_error *error) {
    json_t *value = json_object_get(root, name);
    if (!value || json_is_null(value))
        return true;
    if (!json_is_boolean(value))
        return rp_http_error_set(error, 400, name, "invalid_type", "%s must be true or false",
                                 name);
    *out = json_is_true(value);
    return true;
}

void rp_params_log_unknown(void *ctx, const char *name) {
    struct rp_server *server = ctx;
    char shown[sizeof server->unknown_fields[0]];
    size_t len = 0;
    for (; name[len] && len + 1 < sizeof shown; len++)
        shown[len] =
            isalnum((unsigned char)name[len]) || strchr("_-.", name[len]) ? name[len] : '?';
    shown[len] = '\0';
    for (uint32_t i = 0; i < server->unknown_field_count; i++)
        if (strcmp(server->unknown_fields[i], shown) == 0)
            return;
    if (server->unknown_field_count == RP_ARRAY_COUNT(server->unknown_fields))
        return;
    memcpy(server->unknown_fields[server->unknown_field_count++], shown, len + 1);
    rp_log(RP_LOG_WARN, "http: a request has the unknown field \"%s\"; it is ignored", shown);
}
