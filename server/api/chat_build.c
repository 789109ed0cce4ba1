#include "server/api/chat_build.h"

#include <stdio.h>
#include <string.h>

void rp_chat_build_begin(struct rp_chat_build *build, bool late_system, bool merge_users) {
    *build = (struct rp_chat_build){.root = json_object(),
                                    .messages = json_array(),
                                    .late_system = late_system,
                                    .merge_users = merge_users};
    build->failed = !build->root || !build->messages;
}

void rp_chat_build_drop(struct rp_chat_build *build) {
    json_decref(build->root);
    json_decref(build->messages);
    json_decref(build->tools);
    json_decref(build->held);
    rp_buffer_deinit(&build->reasoning);
    memset(build, 0, sizeof *build);
}

void rp_chat_build_set_new(struct rp_chat_build *build, const char *name, json_t *value) {
    build->failed |= json_object_set_new(build->root, name, value) != 0;
}

void rp_chat_build_set(struct rp_chat_build *build, const char *name, json_t *value) {
    rp_chat_build_set_new(build, name, json_incref(value));
}

static void put(struct rp_chat_build *build, json_t *object, const char *key, json_t *value) {
    if (value)
        build->failed |= json_object_set(object, key, value) != 0;
}

static void put_new(struct rp_chat_build *build, json_t *object, const char *key, json_t *value) {
    build->failed |= json_object_set_new(object, key, value) != 0;
}

/* --- Messages -------------------------------------------------------------------------------- */

static bool is_role(const json_t *message, const char *role) {
    const char *text = json_string_value(json_object_get(message, "role"));
    return text && strcmp(text, role) == 0;
}

/* Appends a part to the message's content: one text is a string, several are a list. */
static void add_text(struct rp_chat_build *build, json_t *message, json_t *text) {
    json_t *content = json_object_get(message, "content");
    if (!content || (json_is_string(content) && json_string_length(content) == 0)) {
        put(build, message, "content", text);
        return;
    }
    if (json_is_string(content)) {
        json_t *list = json_pack("[{s:s,s:O}]", "type", "text", "text", content);
        put_new(build, message, "content", list);
        content = json_object_get(message, "content");
    }
    build->failed |=
        json_array_append_new(content, json_pack("{s:s,s:O}", "type", "text", "text", text)) != 0;
}

static void add_held(struct rp_chat_build *build, json_t *message) {
    size_t i;
    json_t *text, *held = build->held;
    build->held = NULL;
    json_array_foreach(held, i, text) add_text(build, message, text);
    json_decref(held);
}

/* The message of the assistant is complete. Its reasoning is joined once: many pieces take time in
 * proportion to their bytes. */
static void end_reasoning(struct rp_chat_build *build) {
    struct rp_buffer *text = &build->reasoning;
    json_t *message = json_array_get(build->messages, json_array_size(build->messages) - 1);
    if (text->len)
        put_new(build, message, "reasoning_content", json_stringn(text->data, text->len));
    build->failed |= text->failed;
    rp_buffer_clear(text);
}

static json_t *open_message(struct rp_chat_build *build, const char *role) {
    bool is_user = strcmp(role, "user") == 0;
    if (build->held && !is_user && strcmp(role, "tool") != 0) {
        add_held(build, open_message(build, "user"));
        build->last = NULL;
    }
    if (build->last && is_role(build->last, role))
        return build->last;
    end_reasoning(build);
    json_t *message = json_pack("{s:s,s:s}", "role", role, "content", "");
    build->failed |= json_array_append_new(build->messages, message) != 0;
    build->last = message;
    if (message && is_user && build->held)
        add_held(build, message);
    return message;
}

static bool only_system(const struct rp_chat_build *build) {
    size_t count = json_array_size(build->messages);
    return count == 0 || (count == 1 && is_role(json_array_get(build->messages, 0), "system"));
}

/* A system message that the template would refuse or drop where it is. */
static void add_late_system(struct rp_chat_build *build, json_t *text) {
    json_t *last = json_array_get(build->messages, json_array_size(build->messages) - 1);
    if (last && is_role(last, "user")) {
        add_text(build, last, text);
        return;
    }
    if (!build->held)
        build->held = json_array();
    build->failed |= json_array_append(build->held, text) != 0;
}

void rp_chat_build_close(struct rp_chat_build *build) {
    bool keep = build->last && (is_role(build->last, "assistant") ||
                                (build->merge_users && is_role(build->last, "user")) ||
                                (!build->late_system && is_role(build->last, "system")));
    if (!keep)
        build->last = NULL;
}

void rp_chat_build_text(struct rp_chat_build *build, const char *role, json_t *text) {
    bool is_system = strcmp(role, "system") == 0;
    if (build->failed)
        return;
    if (json_string_length(text) == 0) {
        if (strcmp(role, "user") == 0)
            open_message(build, role);
        return;
    }
    if (is_system && !build->late_system && !only_system(build))
        add_late_system(build, text);
    else
        add_text(build, open_message(build, role), text);
}

void rp_chat_build_reasoning(struct rp_chat_build *build, json_t *text) {
    if (build->failed || json_string_length(text) == 0)
        return;
    open_message(build, "assistant");
    if (build->reasoning.len)
        rp_buffer_puts(&build->reasoning, "\n");
    rp_buffer_append(&build->reasoning, json_string_value(text), json_string_length(text));
}

static void add_call(struct rp_chat_build *build, json_t *id, json_t *call) {
    json_t *message = open_message(build, "assistant");
    json_t *calls = json_object_get(message, "tool_calls");
    if (!calls) {
        put_new(build, message, "tool_calls", json_array());
        calls = json_object_get(message, "tool_calls");
    }
    put(build, call, "id", id);
    build->failed |= json_array_append_new(calls, call) != 0;
}

void rp_chat_build_call(struct rp_chat_build *build, json_t *id, json_t *name, json_t *arguments) {
    if (!build->failed)
        add_call(build, id,
                 json_pack("{s:s,s:{s:O,s:O}}", "type", "function", "function", "name", name,
                           "arguments", arguments));
}

void rp_chat_build_custom_call(struct rp_chat_build *build, json_t *id, json_t *name,
                               json_t *input) {
    if (!build->failed)
        add_call(build, id,
                 json_pack("{s:s,s:{s:O,s:O}}", "type", "custom", "custom", "name", name, "input",
                           input));
}

void rp_chat_build_result(struct rp_chat_build *build, json_t *id, json_t *content) {
    if (build->failed)
        return;
    build->last = NULL;
    json_t *message = open_message(build, "tool");
    put(build, message, "tool_call_id", id);
    put(build, message, "content", content);
    build->last = NULL;
}

/* --- Tools ----------------------------------------------------------------------------------- */

static void add_tool(struct rp_chat_build *build, const char *type, json_t *definition) {
    if (!build->tools)
        build->tools = json_array();
    json_t *tool = json_pack("{s:s,s:o}", "type", type, type, definition);
    build->failed |= json_array_append_new(build->tools, tool) != 0;
}

void rp_chat_build_function(struct rp_chat_build *build, json_t *name, json_t *description,
                            json_t *parameters, json_t *strict) {
    json_t *function = json_object();
    put(build, function, "name", name);
    put(build, function, "description", json_is_string(description) ? description : NULL);
    put(build, function, "parameters", json_is_null(parameters) ? NULL : parameters);
    put(build, function, "strict", json_is_null(strict) ? NULL : strict);
    add_tool(build, "function", function);
}

void rp_chat_build_custom(struct rp_chat_build *build, json_t *name, json_t *description,
                          json_t *format) {
    json_t *custom = json_object();
    put(build, custom, "name", name);
    put(build, custom, "description", json_is_string(description) ? description : NULL);
    put(build, custom, "format", format);
    add_tool(build, "custom", custom);
}

/* --- End and errors -------------------------------------------------------------------------- */

json_t *rp_chat_build_end(struct rp_chat_build *build, struct rp_http_error *error) {
    if (build->held && !build->failed)
        open_message(build, "user");
    end_reasoning(build);
    rp_chat_build_set(build, "messages", build->messages);
    if (build->tools)
        rp_chat_build_set(build, "tools", build->tools);
    json_t *root = build->failed ? NULL : json_incref(build->root);
    rp_chat_build_drop(build);
    if (!root)
        rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
    return root;
}

bool rp_chat_build_wrong(struct rp_http_error *error, const char *prefix, size_t index,
                         const char *suffix, const char *what) {
    char name[sizeof error->param];
    snprintf(name, sizeof name, "%s[%zu]%s", prefix, index, suffix);
    return rp_http_error_set(error, 400, name, "invalid_value", "%s %s", name, what);
}

bool rp_chat_build_expect(const json_t *value, unsigned types, const char *name, const char *what,
                          struct rp_http_error *error) {
    if (!value || json_is_null(value) || (types & 1u << json_typeof(value)))
        return true;
    return rp_http_error_set(error, 400, name, "invalid_type", "%s must be %s", name, what);
}
