#include "server/api/ollama_request.h"

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

static json_t *get(const json_t *object, const char *name) {
    json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static bool wrong(struct convert *c, size_t index, const char *member, const char *what) {
    return rp_chat_build_wrong(c->error, "messages", index, member, what);
}

/* --- Fields ---------------------------------------------------------------------------------- */

static const struct {
    const char *name, *chat_name;
    unsigned types;
    const char *what;
} options[] = {
    {"temperature", "temperature", NUMBER, "a number"},
    {"top_k", "top_k", TYPE(INTEGER), "an integer"},
    {"top_p", "top_p", NUMBER, "a number"},
    {"min_p", "min_p", NUMBER, "a number"},
    {"repeat_penalty", "repetition_penalty", NUMBER, "a number"},
    {"presence_penalty", "presence_penalty", NUMBER, "a number"},
    {"frequency_penalty", "frequency_penalty", NUMBER, "a number"},
    {"seed", "seed", TYPE(INTEGER), "an integer"},
    {"stop", "stop", TYPE(STRING) | TYPE(ARRAY), "a string or a list of strings"},
};

static bool read_options(struct convert *c, const json_t *given) {
    char name[sizeof c->error->param];
    json_t *most = get(given, "num_predict");
    if (!rp_chat_build_expect(given, TYPE(OBJECT), "options", "an object", c->error) ||
        !rp_chat_build_expect(most, TYPE(INTEGER), "options.num_predict", "an integer", c->error))
        return false;
    for (size_t i = 0; i < RP_ARRAY_COUNT(options); i++) {
        json_t *value = get(given, options[i].name);
        snprintf(name, sizeof name, "options.%s", options[i].name);
        if (!rp_chat_build_expect(value, options[i].types, name, options[i].what, c->error))
            return false;
        if (value && !(json_is_array(value) && json_array_size(value) == 0))
            rp_chat_build_set(&c->build, options[i].chat_name, value);
    }
    /* Without one, or with a negative one, an answer is as long as the context allows. */
    if (most && json_integer_value(most) > 0)
        rp_chat_build_set(&c->build, "max_tokens", most);
    else
        rp_chat_build_set_new(&c->build, "max_tokens", json_integer(INT32_MAX));
    return true;
}

static bool read_format(struct convert *c, json_t *format) {
    const char *text = json_string_value(format);
    if (!format || (text && !*text))
        return true;
    if (text && strcmp(text, "json") == 0)
        rp_chat_build_set_new(&c->build, "response_format",
                              json_pack("{s:s}", "type", "json_object"));
    else if (json_is_object(format))
        rp_chat_build_set(&c->build, "json_schema", format);
    else
        return rp_http_error_set(c->error, 400, "format", "invalid_value",
                                 "format must be json or a JSON Schema");
    return true;
}

/* true, false, or an effort. */
static bool read_think(struct convert *c, json_t *think) {
    if (!rp_chat_build_expect(think, BOOLEAN | TYPE(STRING), "think",
                              "true, false, or low, medium or high", c->error))
        return false;
    if (!think)
        return true;
    bool on = !json_is_false(think);
    rp_chat_build_set_new(&c->build, "chat_template_kwargs",
                          json_pack("{s:b,s:b}", "enable_thinking", on, "thinking", on));
    if (json_is_string(think))
        rp_chat_build_set(&c->build, "reasoning_effort", think);
    return true;
}

static bool read_common(struct convert *c, const json_t *request, bool raw) {
    json_t *stream = get(request, "stream");
    if (!rp_chat_build_expect(stream, BOOLEAN, "stream", "true or false", c->error))
        return false;
    rp_chat_build_set_new(&c->build, "stream", json_boolean(!json_is_false(stream)));
    return read_options(c, get(request, "options")) && read_format(c, get(request, "format")) &&
           (raw || read_think(c, get(request, "think")));
}

/* --- /api/chat ------------------------------------------------------------------------------- */

static bool read_calls(struct convert *c, json_t *calls, size_t index) {
    size_t i;
    json_t *call;
    if (calls && !json_is_array(calls))
        return wrong(c, index, ".tool_calls", "must be a list");
    json_array_foreach(calls, i, call) {
        const json_t *function = get(call, "function");
        json_t *name = get(function, "name"), *arguments = get(function, "arguments");
        if (!json_is_string(name) || !json_is_object(arguments))
            return wrong(c, index, ".tool_calls",
                         "must contain functions, each with a name and arguments as an object");
        rp_chat_build_call(&c->build, get(call, "id"), name, arguments);
    }
    return true;
}

static bool read_message(struct convert *c, const json_t *message, size_t index) {
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    const char *role = json_string_value(get(message, "role"));
    json_t *content = get(message, "content"), *id = get(message, "tool_call_id");
    size_t i = 0;
    while (role && i < RP_ARRAY_COUNT(roles) && strcmp(role, roles[i]) != 0)
        i++;
    if (!role || i == RP_ARRAY_COUNT(roles))
        return wrong(c, index, ".role", "must be system, user, assistant or tool");
    if (json_array_size(get(message, "images")))
        return wrong(c, index, ".images", "is not supported: only text is");
    if (!json_is_string(content) && !(i == 2 && !content))
        return wrong(c, index, ".content", "must be a string");
    if (i == 3) {
        rp_chat_build_result(&c->build, id ? id : get(message, "tool_name"), content);
        return true;
    }
    if (i == 2)
        rp_chat_build_reasoning(&c->build, get(message, "thinking"));
    if (content)
        rp_chat_build_text(&c->build, role, content);
    if (i == 2 && !read_calls(c, get(message, "tool_calls"), index))
        return false;
    rp_chat_build_close(&c->build);
    return true;
}

static bool read_chat(struct convert *c, const json_t *request) {
    size_t i;
    json_t *message, *messages = get(request, "messages");
    if (!rp_chat_build_expect(messages, TYPE(ARRAY), "messages", "a list", c->error))
        return false;
    json_array_foreach(messages, i, message) if (!read_message(c, message, i)) return false;
    if (get(request, "tools"))
        rp_chat_build_set(&c->build, "tools", get(request, "tools"));
    return true;
}

bool rp_ollama_chat(json_t *request, bool late_system, json_t **out, struct rp_http_error *error) {
    struct convert c = {.error = error};
    rp_chat_build_begin(&c.build, late_system, false);
    if (!read_common(&c, request, false) || !read_chat(&c, request)) {
        rp_chat_build_drop(&c.build);
        return false;
    }
    *out = rp_chat_build_end(&c.build, error);
    return *out != NULL;
}

/* --- /api/generate --------------------------------------------------------------------------- */

static bool check_generate(const json_t *request, struct rp_http_error *error) {
    static const char *const texts[] = {"prompt", "system", "suffix", "template"};
    for (size_t i = 0; i < RP_ARRAY_COUNT(texts); i++) {
        const json_t *value = get(request, texts[i]);
        if (!rp_chat_build_expect(value, TYPE(STRING), texts[i], "a string", error))
            return false;
        if (i >= 2 && json_string_length(value))
            return rp_http_error_set(error, 400, texts[i], "unsupported_parameter",
                                     "%s is not supported, leave it out", texts[i]);
    }
    if (json_array_size(get(request, "images")))
        return rp_http_error_set(error, 400, "images", "unsupported_parameter",
                                 "images is not supported: only text is");
    return rp_chat_build_expect(get(request, "raw"), BOOLEAN, "raw", "true or false", error);
}

bool rp_ollama_generate(json_t *request, bool late_system, json_t **out, bool *out_raw,
                        struct rp_http_error *error) {
    struct convert c = {.error = error};
    *out_raw = json_is_true(get(request, "raw"));
    rp_chat_build_begin(&c.build, late_system, false);
    if (!check_generate(request, error) || !read_common(&c, request, *out_raw)) {
        rp_chat_build_drop(&c.build);
        return false;
    }
    if (*out_raw) {
        rp_chat_build_set(&c.build, "prompt", get(request, "prompt"));
    } else {
        if (get(request, "system"))
            rp_chat_build_text(&c.build, "system", get(request, "system"));
        rp_chat_build_text(&c.build, "user", get(request, "prompt"));
    }
    *out = rp_chat_build_end(&c.build, error);
    if (*out && *out_raw)
        json_object_del(*out, "messages");
    return *out != NULL;
}

bool rp_ollama_is_empty(json_t *request, bool generate) {
    const json_t *messages = get(request, "messages"), *prompt = get(request, "prompt");
    return generate ? !prompt || (json_is_string(prompt) && json_string_length(prompt) == 0)
                    : !messages || (json_is_array(messages) && json_array_size(messages) == 0);
}
