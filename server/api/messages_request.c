#include "server/api/messages_request.h"

#include "server/api/chat_build.h"

#include <stdio.h>
#include <string.h>

#define TYPE(name) (1u << JSON_##name)
#define BOOLEAN    (TYPE(TRUE) | TYPE(FALSE))
#define NUMBER     (TYPE(INTEGER) | TYPE(REAL))

struct convert {
    struct rp_chat_build build;
    struct rp_http_error *error;
};

static bool is(const json_t *value, const char *text) {
    const char *own = json_string_value(value);
    return own && strcmp(own, text) == 0;
}

static json_t *get(const json_t *object, const char *name) {
    json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static bool wrong(struct convert *c, size_t message, const char *member, const char *what) {
    return rp_chat_build_wrong(c->error, "messages", message, member, what);
}

static bool wrong_block(struct convert *c, size_t message, size_t block, const char *what) {
    char member[40];
    snprintf(member, sizeof member, ".content[%zu]", block);
    return wrong(c, message, member, what);
}

/* --- System ---------------------------------------------------------------------------------- */

/* Claude Code begins its system prompt with a line that is different in each request: with it no
 * request would share a prefix with the one before. */
static void add_system(struct convert *c, json_t *text) {
    static const char billing[] = "x-anthropic-billing-header:";
    const char *own = json_string_value(text);
    size_t len = json_string_length(text);
    if (len < sizeof billing - 1 || memcmp(own, billing, sizeof billing - 1) != 0) {
        rp_chat_build_text(&c->build, "system", text);
        return;
    }
    const char *line_end = memchr(own, '\n', len);
    if (!line_end)
        return;
    json_t *rest = json_stringn(line_end + 1, len - (size_t)(line_end + 1 - own));
    c->build.failed |= !rest;
    rp_chat_build_text(&c->build, "system", rest);
    json_decref(rest);
}

static bool read_system(struct convert *c, json_t *system) {
    size_t i;
    json_t *block;
    if (json_is_string(system))
        add_system(c, system);
    else if (system && !json_is_array(system))
        return rp_http_error_set(c->error, 400, "system", "invalid_type",
                                 "system must be a string or a list of text blocks");
    json_array_foreach(system, i, block) {
        json_t *text = get(block, "text");
        if (!is(get(block, "type"), "text") || !json_is_string(text))
            return rp_chat_build_wrong(c->error, "system", i, "", "must be a text block");
        add_system(c, text);
    }
    return true;
}

/* --- Blocks ---------------------------------------------------------------------------------- */

struct place {
    const char *role;
    size_t message, block;
};

static bool read_text(struct convert *c, const json_t *block, const struct place *at) {
    json_t *text = get(block, "text");
    if (!json_is_string(text))
        return wrong_block(c, at->message, at->block, "has no text");
    if (strcmp(at->role, "system") == 0)
        add_system(c, text);
    else
        rp_chat_build_text(&c->build, at->role, text);
    return true;
}

static bool read_thinking(struct convert *c, const json_t *block, const struct place *at) {
    (void)at;
    rp_chat_build_reasoning(&c->build, get(block, "thinking"));
    return true;
}

static bool read_tool_use(struct convert *c, const json_t *block, const struct place *at) {
    json_t *id = get(block, "id"), *name = get(block, "name"), *input = get(block, "input");
    if (!json_is_string(id) || !json_is_string(name) || !json_is_object(input))
        return wrong_block(c, at->message, at->block,
                           "must have an id, a name, and an input that is an object");
    rp_chat_build_call(&c->build, id, name, input);
    return true;
}

static bool read_tool_result(struct convert *c, const json_t *block, const struct place *at) {
    json_t *id = get(block, "tool_use_id"), *content = get(block, "content"), *inner;
    size_t i;
    if (!json_is_string(id))
        return wrong_block(c, at->message, at->block, "has no tool_use_id");
    if (json_is_string(content)) {
        rp_chat_build_result(&c->build, id, content);
        return true;
    }
    if (content && !json_is_array(content))
        return wrong_block(c, at->message, at->block,
                           "has a content that is neither a string nor a list");
    json_t *parts = json_array();
    bool good = true;
    json_array_foreach(content, i, inner) {
        json_t *text = get(inner, "text");
        if (is(get(inner, "type"), "tool_reference"))
            continue;
        good = good && is(get(inner, "type"), "text") && json_is_string(text);
        if (good)
            c->build.failed |=
                json_array_append_new(parts, json_pack("{s:s,s:O}", "type", "text", "text", text));
    }
    if (good && json_array_size(parts) == 0) {
        json_t *empty = json_string("");
        rp_chat_build_result(&c->build, id, empty);
        json_decref(empty);
    } else if (good) {
        rp_chat_build_result(&c->build, id, parts);
    }
    json_decref(parts);
    return good || wrong_block(c, at->message, at->block,
                               "has a content that is not a text: only text is supported");
}

/* What a server that runs tools itself or hides its reasoning has left in a conversation. */
static bool skip_block(struct convert *c, const json_t *block, const struct place *at) {
    (void)c;
    (void)block;
    (void)at;
    return true;
}

enum { IN_USER = 1, IN_ASSISTANT = 2, IN_SYSTEM = 4 };

static const struct {
    const char *type;
    unsigned roles;
    bool (*read)(struct convert *c, const json_t *block, const struct place *at);
} block_types[] = {
    {"text", IN_USER | IN_ASSISTANT | IN_SYSTEM, read_text},
    {"tool_result", IN_USER, read_tool_result},
    {"tool_use", IN_ASSISTANT, read_tool_use},
    {"thinking", IN_ASSISTANT, read_thinking},
    {"redacted_thinking", IN_ASSISTANT, skip_block},
    {"tool_reference", IN_USER | IN_SYSTEM, skip_block},
    {"server_tool_use", IN_ASSISTANT, skip_block},
    {"web_search_tool_result", IN_ASSISTANT, skip_block},
    {"web_fetch_tool_result", IN_ASSISTANT, skip_block},
    {"code_execution_tool_result", IN_ASSISTANT, skip_block},
    {"tool_search_tool_result", IN_ASSISTANT, skip_block},
};

static bool read_block(struct convert *c, const json_t *block, const struct place *at) {
    unsigned role = strcmp(at->role, "user") == 0        ? IN_USER
                    : strcmp(at->role, "assistant") == 0 ? IN_ASSISTANT
                                                         : IN_SYSTEM;
    const json_t *type = get(block, "type");
    for (size_t i = 0; i < RP_ARRAY_COUNT(block_types); i++)
        if (is(type, block_types[i].type))
            return block_types[i].roles & role
                       ? block_types[i].read(c, block, at)
                       : wrong_block(c, at->message, at->block,
                                     "is of a type that this role cannot have");
    return wrong_block(c, at->message, at->block,
                       "is of a type that is not supported: this server reads text, tool_use, "
                       "tool_result and thinking");
}

static bool read_message(struct convert *c, const json_t *message, size_t index) {
    const json_t *role = get(message, "role");
    json_t *content = get(message, "content"), *block;
    struct place at = {.role = json_string_value(role), .message = index};
    if (!is(role, "user") && !is(role, "assistant") && !is(role, "system"))
        return wrong(c, index, ".role", "must be user, assistant or system");
    if (json_is_string(content)) {
        if (is(role, "system"))
            add_system(c, content);
        else
            rp_chat_build_text(&c->build, at.role, content);
    } else if (!json_is_array(content)) {
        return wrong(c, index, ".content", "must be a string or a list of blocks");
    }
    json_array_foreach(content, at.block, block) if (!read_block(c, block, &at)) return false;
    rp_chat_build_close(&c->build);
    return true;
}

/* A conversation that ends with a text of the assistant is continued there. */
static void continue_last(struct convert *c) {
    json_t *list = c->build.messages, *last = json_array_get(list, json_array_size(list) - 1);
    if (!is(get(last, "role"), "assistant") || get(last, "tool_calls") ||
        (json_is_string(get(last, "content")) && json_string_length(get(last, "content")) == 0))
        return;
    rp_chat_build_set_new(&c->build, "add_generation_prompt", json_false());
    rp_chat_build_set_new(&c->build, "continue_final_message", json_true());
}

static bool read_messages(struct convert *c, json_t *messages) {
    size_t i;
    json_t *message;
    if (json_array_size(messages) == 0)
        return rp_http_error_set(c->error, 400, "messages", messages ? "invalid_type" : "missing",
                                 "messages must be a list of messages, and not empty");
    json_array_foreach(messages, i, message) {
        if (!json_is_object(message))
            return wrong(c, i, "", "must be an object");
        if (!read_message(c, message, i))
            return false;
    }
    continue_last(c);
    return true;
}

/* --- Tools ----------------------------------------------------------------------------------- */

static bool read_tools(struct convert *c, json_t *tools) {
    size_t i;
    json_t *tool;
    if (!rp_chat_build_expect(tools, TYPE(ARRAY), "tools", "a list", c->error))
        return false;
    json_array_foreach(tools, i, tool) {
        json_t *type = get(tool, "type"), *name = get(tool, "name");
        if (type && !is(type, "custom"))
            continue; /* tools that a server would run: this one has none */
        if (!json_is_string(name))
            return rp_chat_build_wrong(c->error, "tools", i, ".name", "must be a string");
        if (!json_is_object(get(tool, "input_schema")))
            return rp_chat_build_wrong(c->error, "tools", i, ".input_schema",
                                       "must be a JSON Schema, which is an object");
        rp_chat_build_function(&c->build, name, get(tool, "description"), get(tool, "input_schema"),
                               get(tool, "strict"));
    }
    return true;
}

static bool read_tool_choice(struct convert *c, const json_t *choice) {
    const json_t *type = get(choice, "type");
    if (!choice || !c->build.tools)
        return true;
    if (is(type, "auto") || is(type, "none"))
        rp_chat_build_set(&c->build, "tool_choice", get(choice, "type"));
    else if (is(type, "any"))
        rp_chat_build_set_new(&c->build, "tool_choice", json_string("required"));
    else if (is(type, "tool") && json_is_string(get(choice, "name")))
        rp_chat_build_set_new(&c->build, "tool_choice",
                              json_pack("{s:s,s:{s:O}}", "type", "function", "function", "name",
                                        get(choice, "name")));
    else
        return rp_http_error_set(c->error, 400, "tool_choice", "invalid_value",
                                 "tool_choice.type must be auto, any, none, or tool with a name");
    if (json_is_true(get(choice, "disable_parallel_tool_use")))
        rp_chat_build_set_new(&c->build, "parallel_tool_calls", json_false());
    return true;
}

/* --- Other fields ---------------------------------------------------------------------------- */

/* Without the field there is no thinking, where the template has a switch for it. */
static bool read_thinking_fields(struct convert *c, const json_t *thinking) {
    const json_t *type = get(thinking, "type");
    json_t *budget = get(thinking, "budget_tokens");
    bool on = is(type, "enabled") || is(type, "adaptive");
    if (thinking && !on && !is(type, "disabled"))
        return rp_http_error_set(c->error, 400, "thinking.type", "invalid_value",
                                 "thinking.type must be enabled, adaptive or disabled");
    if (!rp_chat_build_expect(budget, TYPE(INTEGER), "thinking.budget_tokens", "an integer",
                              c->error))
        return false;
    rp_chat_build_set_new(&c->build, "chat_template_kwargs",
                          json_pack("{s:b,s:b}", "enable_thinking", on, "thinking", on));
    if (on && budget)
        rp_chat_build_set(&c->build, "thinking_token_budget", budget);
    return true;
}

static bool read_format(struct convert *c, json_t *format, const char *field) {
    if (!format)
        return true;
    if (!is(get(format, "type"), "json_schema") || !json_is_object(get(format, "schema")))
        return rp_http_error_set(c->error, 400, field, "unsupported_parameter",
                                 "%s must be of type json_schema and have a schema", field);
    rp_chat_build_set_new(&c->build, "response_format",
                          json_pack("{s:s,s:{s:s,s:O}}", "type", "json_schema", "json_schema",
                                    "name", "answer", "schema", get(format, "schema")));
    return true;
}

static bool read_output(struct convert *c, const json_t *request) {
    json_t *config = get(request, "output_config"), *effort = get(config, "effort");
    if (!rp_chat_build_expect(config, TYPE(OBJECT), "output_config", "an object", c->error) ||
        !rp_chat_build_expect(effort, TYPE(STRING), "output_config.effort", "a string", c->error))
        return false;
    if (effort)
        rp_chat_build_set(&c->build, "reasoning_effort", effort);
    json_t *format = get(config, "format");
    return read_format(c, format ? format : get(request, "output_format"),
                       format ? "output_config.format" : "output_format");
}

static const struct {
    const char *name, *chat_name;
    unsigned types;
    const char *what;
} copied[] = {
    {"max_tokens", "max_tokens", TYPE(INTEGER), "an integer"},
    {"stream", "stream", BOOLEAN, "true or false"},
    {"temperature", "temperature", NUMBER, "a number"},
    {"top_p", "top_p", NUMBER, "a number"},
    {"top_k", "top_k", TYPE(INTEGER), "an integer"},
    {"seed", "seed", TYPE(INTEGER), "an integer"},
    {"cache_salt", "cache_salt", TYPE(STRING), "a string"},
    {"timeout", "timeout", NUMBER, "a number"},
    {"priority", "priority", TYPE(INTEGER), "an integer"},
};

static bool read_fields(struct convert *c, const json_t *request, bool counting) {
    json_t *stop = get(request, "stop_sequences");
    for (size_t i = 0; i < RP_ARRAY_COUNT(copied); i++) {
        json_t *value = get(request, copied[i].name);
        if (!rp_chat_build_expect(value, copied[i].types, copied[i].name, copied[i].what, c->error))
            return false;
        if (value)
            rp_chat_build_set(&c->build, copied[i].chat_name, value);
    }
    if (!counting && !get(request, "max_tokens"))
        return rp_http_error_set(c->error, 400, "max_tokens", "missing", "max_tokens is required");
    if (!rp_chat_build_expect(stop, TYPE(ARRAY), "stop_sequences", "a list of strings", c->error))
        return false;
    if (json_array_size(stop))
        rp_chat_build_set(&c->build, "stop", stop);
    return read_thinking_fields(c, get(request, "thinking")) && read_output(c, request);
}

bool rp_messages_to_chat(json_t *request, bool late_system, bool counting, json_t **out_chat,
                         struct rp_http_error *error) {
    struct convert c = {.error = error};
    rp_chat_build_begin(&c.build, late_system, true);
    bool good =
        read_system(&c, get(request, "system")) && read_messages(&c, get(request, "messages")) &&
        read_tools(&c, get(request, "tools")) &&
        read_tool_choice(&c, get(request, "tool_choice")) && read_fields(&c, request, counting);
    if (!good) {
        rp_chat_build_drop(&c.build);
        return false;
    }
    *out_chat = rp_chat_build_end(&c.build, error);
    return *out_chat != NULL;
}
