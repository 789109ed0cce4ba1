/* chat_messages.c - the variables of a chat template from a request: messages, tools, switches. */
#include "server/api/chat_messages.h"

#include "base/hash.h"
#include "base/memory.h"
#include "server/api/chat_values.h"
#include "server/http/json_body.h"

#include <string.h>

enum {
    ARGUMENTS_BYTES = 1 << 20, /* limit on the JSON arguments of a tool call */
    MISTRAL_ID_LEN = 9
};

const json_t *rp_chat_called(const json_t *call) {
    const json_t *function = json_object_get(call, "function");
    return function ? function : json_object_get(call, "custom");
}

const json_t *rp_chat_written_arguments(const json_t *function) {
    const json_t *arguments = json_object_get(function, "arguments");
    arguments = arguments ? arguments : json_object_get(function, "input");
    return json_is_null(arguments) ? NULL : arguments;
}

static void set(struct rp_chat_values *values, struct rp_chat_value *dict, const char *key,
                struct rp_chat_value *item) {
    rp_chat_dict_set(values, dict, key, strlen(key), item);
}

static void set_text(struct rp_chat_values *values, struct rp_chat_value *dict, const char *key,
                     const json_t *text) {
    if (json_is_string(text))
        set(values, dict, key,
            rp_chat_string(values, json_string_value(text), json_string_length(text)));
}

const json_t *rp_chat_part_text(const json_t *part) {
    const json_t *text = json_object_get(part, "text");
    return json_is_string(text) ? text : json_object_get(part, "refusal");
}

/* Joins parts with newlines, as other servers do for templates that expect strings. */
static struct rp_chat_value *join_parts(struct rp_chat_values *values, const json_t *parts) {
    struct rp_buffer text = {.data = NULL};
    size_t i;
    json_t *part;
    json_array_foreach((json_t *)parts, i, part) {
        const json_t *piece = rp_chat_part_text(part);
        if (i)
            rp_buffer_puts(&text, "\n");
        rp_buffer_append(&text, json_string_value(piece), json_string_length(piece));
    }
    struct rp_chat_value *value =
        text.failed ? NULL : rp_chat_string(values, text.len ? text.data : "", text.len);
    rp_buffer_deinit(&text);
    return value;
}

static struct rp_chat_value *list_parts(struct rp_chat_values *values, const json_t *parts) {
    struct rp_chat_value *list = rp_chat_list(values);
    size_t i;
    json_t *part;
    json_array_foreach((json_t *)parts, i, part) {
        struct rp_chat_value *dict = rp_chat_dict(values);
        set(values, dict, "type", rp_chat_string(values, "text", 4));
        set_text(values, dict, "text", rp_chat_part_text(part));
        rp_chat_list_add(values, list, dict);
    }
    return list;
}

static struct rp_chat_value *make_content(struct rp_chat_values *values, json_t *message,
                                          bool as_parts) {
    json_t *content = rp_params_get(message, "content");
    if (!content)
        return rp_chat_none(values);
    if (!json_is_array(content))
        return rp_chat_values_from_json(values, content);
    return as_parts ? list_parts(values, content) : join_parts(values, content);
}

/* As Python's json.dumps writes it. */
static struct rp_chat_value *dump(struct rp_chat_values *values, const json_t *json) {
    size_t len = json_dumpb(json, NULL, 0, 0);
    char *text = rp_alloc(len + 1);
    struct rp_chat_value *value = NULL;
    if (text) {
        json_dumpb(json, text, len, 0);
        value = rp_chat_string(values, text, len);
    }
    rp_free(text);
    return value;
}

/* Most templates access individual arguments; clients send them as a JSON string. What is not JSON
 * stays text: the model wrote it. */
static struct rp_chat_value *make_arguments(struct rp_chat_values *values, const json_t *arguments,
                                            bool as_text) {
    struct rp_http_limits limits;
    struct rp_http_error error;
    if (!arguments || (json_is_string(arguments) && json_string_length(arguments) == 0))
        return as_text ? rp_chat_string(values, "{}", 2) : rp_chat_dict(values);
    if (as_text && !json_is_string(arguments))
        return dump(values, arguments);
    if (as_text || !json_is_string(arguments) || json_string_length(arguments) > ARGUMENTS_BYTES)
        return rp_chat_values_from_json(values, arguments);
    rp_http_limits_init(&limits);
    json_t *tree = rp_json_object_parse(json_string_value(arguments), json_string_length(arguments),
                                        &limits, &error);
    struct rp_chat_value *value = rp_chat_values_from_json(values, tree ? tree : arguments);
    json_decref(tree);
    return value;
}

/* Templates of Mistral's models accept no other ids than 9 letters and digits, so those of other
 * servers are mapped to such ids, equal ones to equal ones. */
static void set_id(struct rp_chat_values *values, struct rp_chat_value *dict, const char *key,
                   const json_t *id, const struct rp_serving *serving) {
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    const char *text = json_string_value(id);
    size_t len = json_string_length(id), plain = 0;
    char mapped[MISTRAL_ID_LEN];
    bool is_mapped = text && len && serving->dialect &&
                     rp_bound_dialect_row(serving->dialect)->id_rule == RP_CALL_ID_MISTRAL;
    while (is_mapped && plain < len && strchr(digits, text[plain]))
        plain++;
    if (!is_mapped || (plain == len && len == MISTRAL_ID_LEN)) {
        set_text(values, dict, key, id);
        return;
    }
    uint64_t hash = rp_hash64(text, len, 0);
    for (int i = 0; i < MISTRAL_ID_LEN; i++, hash /= 62)
        mapped[i] = digits[hash % 62];
    set(values, dict, key, rp_chat_string(values, mapped, sizeof mapped));
}

/* A custom tool is a function with one string: so is a call of it. */
static struct rp_chat_value *make_call_arguments(struct rp_chat_values *values, const json_t *call,
                                                 bool as_text) {
    const json_t *arguments = rp_chat_written_arguments(rp_chat_called(call));
    if (json_object_get(call, "function"))
        return make_arguments(values, arguments, as_text);
    json_t *object = json_pack("{s:O}", RP_CUSTOM_TOOL_PARAMETER, arguments);
    struct rp_chat_value *value = !object   ? rp_chat_dict(values)
                                  : as_text ? dump(values, object)
                                            : rp_chat_values_from_json(values, object);
    json_decref(object);
    return value;
}

static struct rp_chat_value *make_tool_calls(struct rp_chat_values *values, const json_t *calls,
                                             const struct rp_serving *serving) {
    struct rp_chat_value *list = rp_chat_list(values);
    size_t i;
    json_t *call;
    json_array_foreach((json_t *)calls, i, call) {
        struct rp_chat_value *dict = rp_chat_dict(values), *inner = rp_chat_dict(values);
        set_id(values, dict, "id", json_object_get(call, "id"), serving);
        set(values, dict, "type", rp_chat_string(values, "function", 8));
        set_text(values, inner, "name", json_object_get(rp_chat_called(call), "name"));
        set(values, inner, "arguments", make_call_arguments(values, call, serving->text_arguments));
        set(values, dict, "function", inner);
        rp_chat_list_add(values, list, dict);
    }
    return list;
}

/* Each family's template reads the reasoning of earlier answers under one of these names. */
static void set_reasoning(struct rp_chat_values *values, struct rp_chat_value *dict,
                          json_t *message) {
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
    const json_t *text = NULL;
    for (size_t i = 0; i < RP_ARRAY_COUNT(names) && !text; i++)
        text = rp_params_get(message, names[i]);
    for (size_t i = 0; i < RP_ARRAY_COUNT(names) && text; i++)
        set_text(values, dict, names[i], text);
}

static struct rp_chat_value *make_message(struct rp_chat_values *values, json_t *message,
                                          const struct rp_serving *serving) {
    struct rp_chat_value *dict = rp_chat_dict(values);
    bool as_parts = rp_chat_templates_content_parts(serving->templates);
    set_text(values, dict, "role", json_object_get(message, "role"));
    set(values, dict, "content", make_content(values, message, as_parts));
    set_text(values, dict, "name", json_object_get(message, "name"));
    set_id(values, dict, "tool_call_id", json_object_get(message, "tool_call_id"), serving);
    set_reasoning(values, dict, message);
    const json_t *calls = json_object_get(message, "tool_calls");
    if (json_array_size(calls))
        set(values, dict, "tool_calls", make_tool_calls(values, calls, serving));
    return dict;
}

/* reasoning_effort "none" turns thinking off, in templates that have a switch for it. */
static void set_thinking(struct rp_chat_values *values, struct rp_chat_value *variables,
                         const struct rp_completion_params *params) {
    const char *effort = params->reasoning_effort;
    bool off = effort && strcmp(effort, "none") == 0;
    if (effort)
        set(values, variables, "reasoning_effort", rp_chat_string(values, effort, strlen(effort)));
    if (!off && !params->enable_thinking)
        return;
    bool on = params->enable_thinking ? json_is_true(params->enable_thinking) : false;
    set(values, variables, "enable_thinking", rp_chat_bool(values, on));
    set(values, variables, "thinking", rp_chat_bool(values, on));
}

struct rp_chat_value *rp_chat_variables(struct rp_chat_values *values,
                                        const struct rp_completion_params *params,
                                        const struct rp_serving *serving) {
    struct rp_chat_value *variables = rp_chat_dict(values), *messages = rp_chat_list(values);
    const char *name;
    json_t *item;
    size_t i;
    json_array_foreach(params->prompt, i, item)
        rp_chat_list_add(values, messages, make_message(values, item, serving));
    set(values, variables, "messages", messages);
    set(values, variables, "add_generation_prompt",
        rp_chat_bool(values, params->add_generation_prompt));
    set(values, variables, "tools",
        params->tools.list ? rp_chat_values_from_json(values, params->tools.list)
                           : rp_chat_none(values));
    set(values, variables, "documents",
        params->documents ? rp_chat_values_from_json(values, params->documents)
                          : rp_chat_none(values));
    set_thinking(values, variables, params);
    json_object_foreach(params->template_kwargs, name, item)
        set(values, variables, name, rp_chat_values_from_json(values, item));
    return variables;
}
