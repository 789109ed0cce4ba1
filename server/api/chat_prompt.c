#include "server/api/chat_prompt.h"

#include "base/memory.h"
#include "server/api/chat_messages.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    MESSAGES_MAX = 16384,
    DOCUMENTS_MAX = 1024,
    MESSAGE_WORK = 64,        /* cost of a message in addition to its bytes */
    VALUES_BYTES = 256 << 20, /* enough for the values of an 8 MiB body */
    OUTPUT_BYTES = 32 << 20,
    STEPS_BASE = 2000000, /* about 0.1 s */
    STEPS_PER_WORK = 4,
    RENDER_BYTES = 256 << 20,
    KWARG_BYTES_MAX = 256
};

/* --- Checks ---------------------------------------------------------------------------------- */

static bool wrong(struct rp_http_error *error, const char *param, size_t index, const char *what) {
    char name[64];
    snprintf(name, sizeof name, "messages[%zu]%s", index, param);
    return rp_http_error_set(error, 400, name, "invalid_value", "%s %s", name, what);
}

static bool check_role(const json_t *message, size_t index, struct rp_http_error *error) {
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    const char *role = json_string_value(json_object_get(message, "role"));
    for (size_t i = 0; role && i < RP_ARRAY_COUNT(roles); i++)
        if (strcmp(role, roles[i]) == 0)
            return true;
    return wrong(error, ".role", index,
                 "must be system, developer, user, assistant, tool or function");
}

/* A string, or a list of parts of type text (assistant: also refusal); may be absent in a message
 * with tool calls. */
static bool check_content(json_t *message, size_t index, size_t *work,
                          struct rp_http_error *error) {
    json_t *content = rp_params_get(message, "content"), *part;
    size_t i;
    if (json_is_string(content)) {
        *work += json_string_length(content);
        return true;
    }
    if (!content) {
        const char *role = json_string_value(json_object_get(message, "role"));
        return (role && strcmp(role, "assistant") == 0) ||
               wrong(error, ".content", index, "is missing");
    }
    if (!json_is_array(content))
        return wrong(error, ".content", index, "must be a string or a list of parts");
    json_array_foreach(content, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        const char *key = type && strcmp(type, "refusal") == 0 ? "refusal" : "text";
        if (!type || (strcmp(type, "text") != 0 && strcmp(type, "refusal") != 0))
            return wrong(error, ".content", index,
                         "has a part that is not of type text: only text is supported");
        if (!json_is_string(json_object_get(part, key)))
            return wrong(error, ".content", index, "has a part without a text");
        *work += json_string_length(json_object_get(part, key)) + MESSAGE_WORK;
    }
    return true;
}

static bool check_tool_calls(json_t *message, size_t index, size_t *work,
                             struct rp_http_error *error) {
    json_t *calls = rp_params_get(message, "tool_calls"), *call;
    size_t i;
    if (calls && !json_is_array(calls))
        return wrong(error, ".tool_calls", index, "must be a list");
    json_array_foreach(calls, i, call) {
        const json_t *function = rp_chat_called(call);
        const json_t *arguments = rp_chat_written_arguments(function);
        if (!json_is_string(json_object_get(function, "name")) ||
            (arguments && !json_is_string(arguments) && !json_is_object(arguments)))
            return wrong(
                error, ".tool_calls", index,
                "must contain calls, each with a function's name and arguments as a string");
        *work += json_string_length(arguments) + MESSAGE_WORK;
    }
    return true;
}

static bool check_texts(json_t *message, size_t index, size_t *work, struct rp_http_error *error) {
    static const char *const names[] = {"name", "tool_call_id", "reasoning_content", "reasoning",
                                        "thinking"};
    for (size_t i = 0; i < RP_ARRAY_COUNT(names); i++) {
        json_t *value = rp_params_get(message, names[i]);
        if (value && !json_is_string(value))
            return wrong(error, "", index,
                         "has a name, tool_call_id or reasoning that is not a string");
        *work += json_string_length(value);
    }
    return true;
}

static bool check_messages(json_t *messages, size_t *work, struct rp_http_error *error) {
    size_t i;
    json_t *message;
    if (json_array_size(messages) > MESSAGES_MAX)
        return rp_http_error_set(error, 400, "messages", "out_of_range",
                                 "messages accepts up to %d messages", MESSAGES_MAX);
    json_array_foreach(messages, i, message) {
        *work += MESSAGE_WORK;
        if (!json_is_object(message))
            return wrong(error, "", i, "must be an object");
        if (!check_role(message, i, error) || !check_content(message, i, work, error) ||
            !check_tool_calls(message, i, work, error) || !check_texts(message, i, work, error))
            return false;
    }
    return true;
}

static bool check_documents(json_t *documents, size_t *work, struct rp_http_error *error) {
    size_t i;
    json_t *document, *value;
    const char *key;
    if (documents && (!json_is_array(documents) || json_array_size(documents) > DOCUMENTS_MAX))
        return rp_http_error_set(error, 400, "documents", "invalid_type",
                                 "documents must be a list of up to %d objects of strings",
                                 DOCUMENTS_MAX);
    json_array_foreach(documents, i, document) {
        if (!json_is_object(document))
            return rp_http_error_set(error, 400, "documents", "invalid_type",
                                     "documents must contain objects of strings");
        json_object_foreach(document, key, value) {
            if (!json_is_string(value))
                return rp_http_error_set(error, 400, "documents", "invalid_type",
                                         "documents must contain objects of strings");
            *work += json_string_length(value);
        }
    }
    return true;
}

/* Template variables that a client may set. */
enum kwarg_kind { KWARG_BOOL, KWARG_TEXT };
static const struct {
    const char *name;
    enum kwarg_kind kind;
} kwargs[] = {{"enable_thinking", KWARG_BOOL},   {"thinking", KWARG_BOOL},
              {"preserve_thinking", KWARG_BOOL}, {"reasoning_effort", KWARG_TEXT},
              {"date_string", KWARG_TEXT},       {"model_identity", KWARG_TEXT}};

static bool check_kwarg(const char *name, const json_t *value, struct rp_http_error *error) {
    static const char field[] = "chat_template_kwargs";
    for (size_t i = 0; i < RP_ARRAY_COUNT(kwargs); i++) {
        if (strcmp(kwargs[i].name, name) != 0)
            continue;
        if (kwargs[i].kind == KWARG_BOOL
                ? json_is_boolean(value)
                : json_string_length(value) <= KWARG_BYTES_MAX && json_is_string(value))
            return true;
        return rp_http_error_set(error, 400, field, "invalid_type", "%s must be %s", name,
                                 kwargs[i].kind == KWARG_BOOL ? "true or false"
                                                              : "a string of up to 256 bytes");
    }
    return rp_http_error_set(error, 400, field, "unsupported_parameter",
                             "chat_template_kwargs accepts enable_thinking, thinking, "
                             "preserve_thinking, reasoning_effort, date_string and "
                             "model_identity; add_generation_prompt, continue_final_message and "
                             "documents are fields of the request");
}

static bool check_kwargs(json_t *object, struct rp_http_error *error) {
    const char *name;
    json_t *value;
    if (object && !json_is_object(object))
        return rp_http_error_set(error, 400, "chat_template_kwargs", "invalid_type",
                                 "chat_template_kwargs must be an object");
    json_object_foreach(object, name, value) if (!check_kwarg(name, value, error)) return false;
    return true;
}

/* A call that could not be recognized would reach the client as text. */
static bool check_tools(const struct rp_completion_params *params, const struct rp_serving *serving,
                        struct rp_http_error *error) {
    const char *field = params->tools.legacy ? "functions" : "tools";
    if (params->tools.count == 0 || params->tools.choice == RP_TOOLS_NONE)
        return true;
    if (!rp_chat_template_uses(rp_chat_templates_pick(serving->templates, true), "tools"))
        return rp_http_error_set(error, 400, field, "unsupported_parameter",
                                 "this model's chat template does not show tools to the model");
    if (!serving->dialect || rp_bound_dialect_row(serving->dialect)->shape == RP_CALL_NONE)
        return rp_http_error_set(error, 400, field, "unsupported_parameter",
                                 "how this model writes tool calls is not known: start the server "
                                 "with --tool-call-parser");
    return true;
}

bool rp_chat_prompt_check(const struct rp_completion_params *params,
                          const struct rp_serving *serving, size_t *out_work,
                          struct rp_http_error *error) {
    *out_work = params->tools.bytes;
    if (!serving->templates)
        return rp_http_error_set(error, 400, "messages", "no_chat_template",
                                 "this model has no chat template: use /v1/completions, or start "
                                 "the server with --chat-template FILE");
    if (params->reasoning_effort && strlen(params->reasoning_effort) > KWARG_BYTES_MAX)
        return rp_http_error_set(error, 400, "reasoning_effort", "out_of_range",
                                 "reasoning_effort accepts up to %d bytes", KWARG_BYTES_MAX);
    return check_tools(params, serving, error) && check_messages(params->prompt, out_work, error) &&
           check_documents(params->documents, out_work, error) &&
           check_kwargs(params->template_kwargs, error);
}

/* --- Rendering ------------------------------------------------------------------------------- */

static void cut_prompt(struct rp_chat_prompt *prompt, size_t len) {
    prompt->len = len;
    prompt->text[len] = '\0';
    for (size_t i = 0, left = len; i < prompt->span_count; i++) {
        if (prompt->spans[i].len >= left) {
            prompt->spans[i].len = left;
            prompt->span_count = left ? i + 1 : i;
            return;
        }
        left -= prompt->spans[i].len;
    }
}

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* The last occurrence of one text in another, or NULL (*no_memory: because memory is out).
 * Knuth-Morris-Pratt, linear because both texts come from the client. */
static const char *find_last(const char *in, size_t in_len, const char *text, size_t len,
                             bool *no_memory) {
    const char *found = NULL;
    if (len > in_len)
        return NULL;
    uint32_t *fail = rp_calloc(len, sizeof *fail);
    *no_memory = !fail;
    for (size_t i = 1, n = 0; fail && i < len; i++) {
        while (n && text[i] != text[n])
            n = fail[n - 1];
        n += text[i] == text[n];
        fail[i] = (uint32_t)n;
    }
    for (size_t i = 0, n = 0; fail && i < in_len; i++) {
        while (n && (n == len || in[i] != text[n]))
            n = fail[n - 1];
        n += in[i] == text[n];
        if (n == len)
            found = in + i + 1 - len;
    }
    rp_free(fail);
    return found;
}

/* Cuts the rendered text at the end of the last message, so that the model continues it. As in
 * transformers: at the last occurrence of the message's text, stripped of surrounding white space
 * if the template strips it. */
static bool cut_after_message(const struct rp_completion_params *params,
                              struct rp_chat_prompt *prompt, struct rp_http_error *error) {
    json_t *last = json_array_get(params->prompt, json_array_size(params->prompt) - 1);
    const json_t *content = json_object_get(last, "content");
    if (json_is_array(content))
        content = rp_chat_part_text(json_array_get(content, json_array_size(content) - 1));
    const char *text = json_string_value(content), *found = NULL;
    size_t len = json_string_length(content);
    while (len && is_space(*text)) {
        text++;
        len--;
    }
    size_t trailing = 0;
    bool no_memory = false;
    while (len && is_space(text[len - 1])) {
        len--;
        trailing++;
    }
    if (len)
        found = find_last(prompt->text, prompt->len, text, len, &no_memory);
    if (no_memory)
        return rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
    if (!found)
        return rp_http_error_set(
            error, 400, "continue_final_message", "invalid_value",
            "the chat template does not render the last message's text unchanged, "
            "so the message cannot be continued");
    size_t end = (size_t)(found - prompt->text) + len;
    if (end + trailing <= prompt->len && memcmp(prompt->text + end, text + len, trailing) == 0)
        end += trailing;
    cut_prompt(prompt, end);
    return true;
}

static int answer(int status, const struct rp_error *err, struct rp_http_error *error) {
    if (status == RP_STATUS_NO_MEMORY)
        rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
    else
        rp_http_error_set(error, 400, "messages", "chat_template_error",
                          "the chat template rejects these messages: %.300s", err->text);
    return status;
}

int rp_chat_prompt_make(const struct rp_completion_params *params, const struct rp_serving *serving,
                        size_t work, struct rp_chat_prompt *out, struct rp_http_error *error) {
    const struct rp_chat_templates *templates = serving->templates;
    const struct rp_chat_limits limits = {.steps = STEPS_BASE + STEPS_PER_WORK * (uint64_t)work,
                                          .output_bytes = OUTPUT_BYTES,
                                          .memory_bytes = RENDER_BYTES,
                                          .now_s = (int64_t)time(NULL)};
    struct rp_error err = {0};
    memset(out, 0, sizeof *out);
    struct rp_chat_values *values = rp_chat_values_create(VALUES_BYTES);
    if (!values)
        return answer(RP_STATUS_NO_MEMORY, &err, error);
    struct rp_chat_value *variables = rp_chat_variables(values, params, serving);
    int status = rp_chat_template_render(rp_chat_templates_pick(templates, params->tools.count > 0),
                                         templates, values, variables, &limits, out, NULL, &err);
    rp_chat_values_destroy(values);
    if (status != RP_OK)
        return answer(status, &err, error);
    if (params->continue_final_message && !cut_after_message(params, out, error)) {
        rp_chat_prompt_deinit(out);
        memset(out, 0, sizeof *out);
        return RP_STATUS_INVALID;
    }
    return RP_OK;
}
