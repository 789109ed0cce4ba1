#include "server/api/responses_request.h"

#include "base/hash.h"
#include "base/memory.h"
#include "server/api/chat_build.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#define TYPE(name) (1u << JSON_##name)
#define BOOLEAN    (TYPE(TRUE) | TYPE(FALSE))
#define NUMBER     (TYPE(INTEGER) | TYPE(REAL))

struct convert {
    struct rp_chat_build build;
    json_t *names; /* as in the header */
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

/* --- Reasoning ------------------------------------------------------------------------------- */

static const char packed_mark[] = "rp1.";

json_t *rp_responses_pack_reasoning(const char *text, size_t len) {
    size_t mark = sizeof packed_mark - 1;
    char *out = rp_alloc(mark + (len + 2) / 3 * 4 + 1);
    if (!out)
        return NULL;
    memcpy(out, packed_mark, mark);
    int n = EVP_EncodeBlock((unsigned char *)out + mark, (const unsigned char *)text, (int)len);
    json_t *packed = json_stringn(out, mark + (size_t)n);
    rp_free(out);
    return packed;
}

json_t *rp_responses_unpack_reasoning(const json_t *packed) {
    const char *text = json_string_value(packed);
    size_t mark = sizeof packed_mark - 1, len = json_string_length(packed);
    if (!text || len < mark || memcmp(text, packed_mark, mark) != 0 || (len - mark) % 4)
        return NULL;
    unsigned char *out = rp_alloc(len - mark + 1);
    int n = out ? EVP_DecodeBlock(out, (const unsigned char *)text + mark, (int)(len - mark)) : -1;
    for (size_t i = len; n > 0 && i > mark && text[i - 1] == '='; i--)
        n--;
    json_t *plain = n > 0 ? json_stringn((char *)out, (size_t)n) : NULL; /* NULL: not UTF-8 */
    rp_free(out);
    return plain;
}

static void add_parts(struct convert *c, const json_t *parts) {
    size_t i;
    json_t *part;
    json_array_foreach((json_t *)(uintptr_t)parts, i, part)
        rp_chat_build_reasoning(&c->build, json_object_get(part, "text"));
}

static bool read_reasoning(struct convert *c, const json_t *item, size_t index) {
    (void)index;
    json_t *content = get(item, "content");
    json_t *plain = rp_responses_unpack_reasoning(get(item, "encrypted_content"));
    if (json_array_size(content))
        add_parts(c, content);
    else if (plain)
        rp_chat_build_reasoning(&c->build, plain);
    else
        add_parts(c, get(item, "summary"));
    json_decref(plain);
    return true;
}

/* --- Items ----------------------------------------------------------------------------------- */

static json_t *part_text(const json_t *part) {
    static const char *const types[] = {"input_text", "output_text", "text", "refusal"};
    const json_t *type = get(part, "type");
    for (size_t i = 0; i < RP_ARRAY_COUNT(types); i++)
        if (is(type, types[i]))
            return json_object_get(part, i == 3 ? "refusal" : "text");
    return NULL;
}

static bool wrong(struct convert *c, size_t index, const char *member, const char *what) {
    return rp_chat_build_wrong(c->error, "input", index, member, what);
}

static bool read_message(struct convert *c, const json_t *item, size_t index) {
    const json_t *role = get(item, "role");
    json_t *content = get(item, "content"), *part;
    size_t i;
    const char *name = is(role, "assistant")                         ? "assistant"
                       : is(role, "user")                            ? "user"
                       : is(role, "system") || is(role, "developer") ? "system"
                                                                     : NULL;
    if (!name)
        return wrong(c, index, ".role", "must be system, developer, user or assistant");
    if (json_is_string(content)) {
        rp_chat_build_text(&c->build, name, content);
    } else if (json_is_array(content)) {
        json_array_foreach(content, i, part) {
            json_t *text = part_text(part);
            if (!json_is_string(text))
                return wrong(c, index, ".content",
                             "has a part that is not a text: only text is supported");
            rp_chat_build_text(&c->build, name, text);
        }
    } else {
        return wrong(c, index, ".content", "must be a string or a list of parts");
    }
    rp_chat_build_close(&c->build);
    return true;
}

/* The name of a namespace's tool in the chat, of at most 64 characters, as names of tools are. */
static json_t *flat_name(struct convert *c, json_t *space, json_t *name) {
    char flat[65];
    const char *a = json_string_value(space), *b = json_string_value(name);
    size_t len = json_string_length(space);
    if (!a || len == 0)
        return json_incref(name);
    bool joined = len > 2 && memcmp(a + len - 2, "__", 2) == 0;
    int n = snprintf(flat, sizeof flat, "%s%s%s", a, joined ? "" : "__", b);
    if (n >= (int)sizeof flat) {
        uint64_t hash = rp_hash64(b, strlen(b), rp_hash64(a, len, 0));
        snprintf(flat + 47, sizeof flat - 47, "_%016llx", (unsigned long long)hash);
    }
    json_t *known = json_object_get(c->names, flat);
    if (!known)
        c->build.failed |=
            json_object_set_new(c->names, flat,
                                json_pack("{s:O,s:O}", "namespace", space, "name", name)) != 0;
    json_t *result = json_string(flat);
    c->build.failed |= !result;
    return result;
}

static bool read_call(struct convert *c, const json_t *item, size_t index) {
    bool custom = is(get(item, "type"), "custom_tool_call");
    json_t *name = get(item, "name"), *input = get(item, custom ? "input" : "arguments");
    if (!json_is_string(get(item, "call_id")) || !json_is_string(name))
        return wrong(c, index, "", "must have a call_id and a name, which are strings");
    if (!json_is_string(input))
        return wrong(c, index, custom ? ".input" : ".arguments", "must be a string");
    json_t *flat = flat_name(c, get(item, "namespace"), name);
    if (custom)
        rp_chat_build_custom_call(&c->build, get(item, "call_id"), flat, input);
    else
        rp_chat_build_call(&c->build, get(item, "call_id"), flat, input);
    json_decref(flat);
    return true;
}

static bool read_output(struct convert *c, const json_t *item, size_t index) {
    json_t *id = get(item, "call_id"), *output = get(item, "output"), *part;
    size_t i;
    if (!json_is_string(id))
        return wrong(c, index, ".call_id", "must be a string");
    if (json_is_string(output)) {
        rp_chat_build_result(&c->build, id, output);
        return true;
    }
    if (!json_is_array(output))
        return wrong(c, index, ".output", "must be a string or a list of parts");
    json_t *parts = json_array();
    json_array_foreach(output, i, part) {
        json_t *text = part_text(part);
        if (!json_is_string(text)) {
            json_decref(parts);
            return wrong(c, index, ".output",
                         "has a part that is not a text: only text is supported");
        }
        c->build.failed |=
            json_array_append_new(parts, json_pack("{s:s,s:O}", "type", "text", "text", text)) != 0;
    }
    rp_chat_build_result(&c->build, id, parts);
    json_decref(parts);
    return true;
}

/* What tools of other servers and clients for their own use have left in a conversation. */
static bool skip_item(struct convert *c, const json_t *item, size_t index) {
    (void)c;
    (void)item;
    (void)index;
    return true;
}

static const struct {
    const char *type;
    bool (*read)(struct convert *c, const json_t *item, size_t index);
} item_types[] = {
    {"message", read_message},
    {"reasoning", read_reasoning},
    {"function_call", read_call},
    {"custom_tool_call", read_call},
    {"function_call_output", read_output},
    {"custom_tool_call_output", read_output},
    {"web_search_call", skip_item},
    {"file_search_call", skip_item},
    {"image_generation_call", skip_item},
    {"code_interpreter_call", skip_item},
    {"computer_call", skip_item},
    {"computer_call_output", skip_item},
    {"local_shell_call", skip_item},
    {"local_shell_call_output", skip_item},
    {"mcp_list_tools", skip_item},
    {"mcp_call", skip_item},
    {"mcp_approval_request", skip_item},
    {"mcp_approval_response", skip_item},
    {"ghost_snapshot", skip_item},
    {"compaction", skip_item},
};

static bool read_items(struct convert *c, json_t *items) {
    size_t i;
    json_t *item;
    json_array_foreach(items, i, item) {
        const json_t *type = get(item, "type");
        size_t k = 0;
        if (!json_is_object(item))
            return wrong(c, i, "", "must be an object");
        while (type && k < RP_ARRAY_COUNT(item_types) && !is(type, item_types[k].type))
            k++;
        if (k == RP_ARRAY_COUNT(item_types))
            return wrong(c, i, ".type", "is not a type of items that this server reads");
        if (!item_types[k].read(c, item, i))
            return false;
    }
    return true;
}

json_t *rp_responses_items(json_t *request, json_t *before, struct rp_http_error *error) {
    json_t *input = get(request, "input"), *items = json_array();
    int failed = items ? 0 : -1;
    if (before && !failed)
        failed = json_array_extend(items, before);
    if (json_is_string(input)) {
        if (!failed)
            failed = json_array_append_new(items, json_pack("{s:s,s:s,s:[{s:s,s:O}]}", "type",
                                                            "message", "role", "user", "content",
                                                            "type", "input_text", "text", input));
    } else if (json_is_array(input)) {
        if (!failed)
            failed = json_array_extend(items, input);
    } else if (input || !before) {
        rp_http_error_set(error, 400, "input", input ? "invalid_type" : "missing",
                          "input must be a string or a list of items");
        json_decref(items);
        return NULL;
    }
    if (failed) {
        rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
        json_decref(items);
        return NULL;
    }
    return items;
}

/* --- Tools ----------------------------------------------------------------------------------- */

static bool read_tool(struct convert *c, const json_t *tool, json_t *space, size_t index) {
    json_t *type = get(tool, "type"), *name = get(tool, "name");
    bool custom = is(type, "custom");
    if (!custom && !is(type, "function"))
        return true; /* tools that a server would run: this one has none */
    if (!json_is_string(name))
        return rp_chat_build_wrong(c->error, "tools", index, ".name", "must be a string");
    json_t *flat = flat_name(c, space, name);
    if (custom)
        rp_chat_build_custom(&c->build, flat, get(tool, "description"), get(tool, "format"));
    else
        rp_chat_build_function(&c->build, flat, get(tool, "description"), get(tool, "parameters"),
                               get(tool, "strict"));
    json_decref(flat);
    return true;
}

static bool read_tools(struct convert *c, json_t *tools) {
    size_t i, k;
    json_t *tool, *inner;
    if (!rp_chat_build_expect(tools, TYPE(ARRAY), "tools", "a list", c->error))
        return false;
    json_array_foreach(tools, i, tool) {
        json_t *space = get(tool, "name");
        if (!is(get(tool, "type"), "namespace")) {
            if (!read_tool(c, tool, NULL, i))
                return false;
            continue;
        }
        if (!json_is_string(space))
            return rp_chat_build_wrong(c->error, "tools", i, ".name", "must be a string");
        json_array_foreach(get(tool, "tools"), k,
                           inner) if (!read_tool(c, inner, space, i)) return false;
    }
    return true;
}

/* {type, name} to {type, type: {name}}. */
static json_t *named_tool(struct convert *c, const json_t *choice) {
    json_t *name = get(choice, "name");
    const char *type = is(get(choice, "type"), "custom") ? "custom" : "function";
    if (!json_is_string(name) ||
        (!is(get(choice, "type"), "custom") && !is(get(choice, "type"), "function"))) {
        rp_http_error_set(c->error, 400, "tool_choice", "unsupported_parameter",
                          "tool_choice must be none, auto, required, or name a tool of type "
                          "function or custom");
        return NULL;
    }
    json_t *flat = flat_name(c, get(choice, "namespace"), name);
    return json_pack("{s:s,s:{s:o}}", "type", type, type, "name", flat);
}

static bool read_tool_choice(struct convert *c, json_t *choice) {
    size_t i;
    json_t *tool;
    if (!choice || (!c->build.tools && (is(choice, "auto") || is(choice, "none"))))
        return true;
    if (json_is_string(choice)) {
        rp_chat_build_set(&c->build, "tool_choice", choice);
        return true;
    }
    if (!is(get(choice, "type"), "allowed_tools")) {
        json_t *named = named_tool(c, choice);
        if (named)
            rp_chat_build_set_new(&c->build, "tool_choice", named);
        return named != NULL;
    }
    json_t *allowed = json_array();
    json_array_foreach(get(choice, "tools"), i, tool) {
        json_t *named = named_tool(c, tool);
        if (!named) {
            json_decref(allowed);
            return false;
        }
        c->build.failed |= json_array_append_new(allowed, named) != 0;
    }
    json_t *mode = get(choice, "mode");
    rp_chat_build_set_new(&c->build, "tool_choice",
                          json_pack("{s:s,s:{s:O*,s:o}}", "type", "allowed_tools", "allowed_tools",
                                    "mode", mode, "tools", allowed));
    return true;
}

/* --- Other fields ---------------------------------------------------------------------------- */

static bool read_format(struct convert *c, const json_t *text) {
    json_t *format = get(text, "format");
    if (!rp_chat_build_expect(text, TYPE(OBJECT), "text", "an object", c->error) ||
        !rp_chat_build_expect(format, TYPE(OBJECT), "text.format", "an object", c->error))
        return false;
    if (!format || is(get(format, "type"), "text"))
        return true;
    if (!is(get(format, "type"), "json_schema")) {
        if (!is(get(format, "type"), "json_object"))
            return rp_http_error_set(c->error, 400, "text.format.type", "unsupported_parameter",
                                     "text.format.type must be text, json_object or json_schema");
        rp_chat_build_set(&c->build, "response_format", format);
        return true;
    }
    if (!json_is_object(get(format, "schema")))
        return rp_http_error_set(c->error, 400, "text.format.schema", "invalid_type",
                                 "text.format.schema must be a JSON Schema, which is an object");
    rp_chat_build_set_new(&c->build, "response_format",
                          json_pack("{s:s,s:{s:O*,s:O,s:O*}}", "type", "json_schema", "json_schema",
                                    "name", get(format, "name"), "schema", get(format, "schema"),
                                    "strict", get(format, "strict")));
    return true;
}

static bool read_reasoning_fields(struct convert *c, const json_t *reasoning) {
    json_t *effort = get(reasoning, "effort");
    if (!rp_chat_build_expect(reasoning, TYPE(OBJECT), "reasoning", "an object", c->error) ||
        !rp_chat_build_expect(effort, TYPE(STRING), "reasoning.effort", "a string", c->error))
        return false;
    if (effort)
        rp_chat_build_set(&c->build, "reasoning_effort", effort);
    return true;
}

static bool read_include(struct convert *c, const json_t *request) {
    json_t *include = get(request, "include"), *name, *top = get(request, "top_logprobs");
    size_t i;
    bool logprobs = json_integer_value(top) > 0;
    if (!rp_chat_build_expect(include, TYPE(ARRAY), "include", "a list", c->error))
        return false;
    json_array_foreach(include, i, name) logprobs |= is(name, "message.output_text.logprobs");
    if (logprobs)
        rp_chat_build_set_new(&c->build, "logprobs", json_true());
    if (logprobs && top)
        rp_chat_build_set(&c->build, "top_logprobs", top);
    return true;
}

/* Copied under a name; refused if not one of the types. */
static const struct {
    const char *name, *chat_name;
    unsigned types;
    const char *what;
} copied[] = {
    {"stream", "stream", BOOLEAN, "true or false"},
    {"temperature", "temperature", NUMBER, "a number"},
    {"top_p", "top_p", NUMBER, "a number"},
    {"max_output_tokens", "max_completion_tokens", TYPE(INTEGER), "an integer"},
    {"parallel_tool_calls", "parallel_tool_calls", BOOLEAN, "true or false"},
};

/* Extensions of this server, which a chat checks. */
static const char *const extensions[] = {
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "attention_mask",
    "cache_salt",
    "priority",
    "timeout",
    "chat_template_kwargs",
    "thinking_token_budget",
    "structured_outputs",
};

static bool read_fields(struct convert *c, json_t *request) {
    for (size_t i = 0; i < RP_ARRAY_COUNT(copied); i++) {
        json_t *value = get(request, copied[i].name);
        if (!rp_chat_build_expect(value, copied[i].types, copied[i].name, copied[i].what, c->error))
            return false;
        if (value)
            rp_chat_build_set(&c->build, copied[i].chat_name, value);
    }
    for (size_t i = 0; i < RP_ARRAY_COUNT(extensions); i++)
        if (get(request, extensions[i]))
            rp_chat_build_set(&c->build, extensions[i], get(request, extensions[i]));
    json_t *most = get(request, "max_output_tokens");
    if (most && json_integer_value(most) < 1)
        return rp_http_error_set(c->error, 400, "max_output_tokens", "out_of_range",
                                 "max_output_tokens must be at least 1");
    return read_include(c, request) && read_format(c, get(request, "text")) &&
           read_reasoning_fields(c, get(request, "reasoning"));
}

static bool is_off(const json_t *value) { return !value || json_is_false(value); }

static bool check_unsupported(const json_t *request, struct rp_http_error *error) {
    static const char *const never[] = {"background", "conversation", "prompt"};
    for (size_t i = 0; i < RP_ARRAY_COUNT(never); i++)
        if (!is_off(get(request, never[i])))
            return rp_http_error_set(error, 400, never[i], "unsupported_parameter",
                                     "%s is not supported, leave it out", never[i]);
    if (!rp_chat_build_expect(get(request, "metadata"), TYPE(OBJECT), "metadata",
                              "an object of strings", error))
        return false;
    const json_t *truncation = get(request, "truncation");
    if (truncation && !is(truncation, "disabled"))
        return rp_http_error_set(error, 400, "truncation", "unsupported_parameter",
                                 "truncation must be disabled: input is never dropped");
    return true;
}

bool rp_responses_to_chat(json_t *request, json_t *items, bool late_system, json_t **out_chat,
                          json_t **out_names, struct rp_http_error *error) {
    struct convert c = {.names = json_object(), .error = error};
    json_t *instructions = get(request, "instructions");
    rp_chat_build_begin(&c.build, late_system, false);
    c.build.failed |= !c.names;
    bool good = check_unsupported(request, error) &&
                rp_chat_build_expect(instructions, TYPE(STRING), "instructions", "a string", error);
    if (good && instructions) {
        rp_chat_build_text(&c.build, "system", instructions);
        rp_chat_build_close(&c.build);
    }
    good = good && read_items(&c, items) && read_tools(&c, get(request, "tools")) &&
           read_tool_choice(&c, get(request, "tool_choice")) && read_fields(&c, request);
    json_t *chat = good ? rp_chat_build_end(&c.build, error) : NULL;
    if (!good)
        rp_chat_build_drop(&c.build);
    if (!chat) {
        json_decref(c.names);
        return false;
    }
    *out_chat = chat;
    *out_names = c.names;
    return true;
}
