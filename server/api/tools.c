#include "server/api/tools.h"

#include "base/memory.h"
#include "server/api/params.h"
#include "text/grammar/grammar.h"

#include <stdio.h>
#include <string.h>

/* place: "tools[3]" or "functions[3]", with or without a member. */
static bool wrong(struct rp_http_error *error, const char *place, const char *member,
                  const char *what) {
    char name[96];
    snprintf(name, sizeof name, "%s%s", place, member);
    return rp_http_error_set(error, 400, name, "invalid_value", "%s %s", name, what);
}

static bool wrong_choice(const struct rp_tools *tools, struct rp_http_error *error,
                         const char *what) {
    const char *field = tools->legacy ? "function_call" : "tool_choice";
    return rp_http_error_set(error, 400, field, "invalid_value", "%s %s", field, what);
}

static bool no_memory(struct rp_http_error *error) {
    return rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
}

static bool is_type(const json_t *object, const char *type) {
    const char *text = json_string_value(json_object_get(object, "type"));
    return text && strcmp(text, type) == 0;
}

/* --- One tool -------------------------------------------------------------------------------- */

static bool is_lark(const json_t *grammar) {
    const char *syntax = json_string_value(json_object_get(grammar, "syntax"));
    return syntax && strcmp(syntax, "lark") == 0;
}

static bool check_name(const json_t *name, const char *place, const char *member,
                       struct rp_http_error *error) {
    const char *text = json_string_value(name);
    size_t len = json_string_length(name);
    bool ok = text && len > 0 && len <= RP_TOOL_NAME_MAX;
    for (size_t i = 0; ok && i < len; i++)
        ok = (text[i] >= 'a' && text[i] <= 'z') || (text[i] >= 'A' && text[i] <= 'Z') ||
             (text[i] >= '0' && text[i] <= '9') || strchr("_-.:/", text[i]);
    return ok ||
           wrong(error, place, member, "must be 1 to 128 letters, digits or characters of _-.:/");
}

static bool check_function(const json_t *function, const char *place, struct rp_http_error *error) {
    const json_t *parameters = json_object_get(function, "parameters");
    const json_t *strict = json_object_get(function, "strict");
    const json_t *description = json_object_get(function, "description");
    if (!json_is_object(function))
        return wrong(error, place, "", "must be an object");
    if (!check_name(json_object_get(function, "name"), place, ".name", error))
        return false;
    if (description && !json_is_null(description) && !json_is_string(description))
        return wrong(error, place, ".description", "must be a string");
    if (strict && !json_is_null(strict) && !json_is_boolean(strict))
        return wrong(error, place, ".strict", "must be true or false");
    if (parameters && !json_is_null(parameters) && !json_is_object(parameters))
        return wrong(error, place, ".parameters", "must be a JSON Schema, an object");
    if (json_is_object(parameters) &&
        json_dumpb(parameters, NULL, 0, JSON_COMPACT) > RP_TOOL_SCHEMA_MAX)
        return wrong(error, place, ".parameters", "accepts up to 256 KiB");
    return true;
}

/* {"type": "grammar", "grammar": {"syntax", "definition"}}, or with both beside the type. *out is
 * NULL when the format has no grammar. */
static bool read_grammar(const json_t *format, const char *place, const json_t **out,
                         struct rp_http_error *error) {
    const json_t *grammar = json_object_get(format, "grammar");
    *out = NULL;
    if (!is_type(format, "grammar"))
        return true;
    grammar = grammar ? grammar : format;
    const char *syntax = json_string_value(json_object_get(grammar, "syntax"));
    const json_t *definition = json_object_get(grammar, "definition");
    if (!syntax || (strcmp(syntax, "lark") != 0 && strcmp(syntax, "regex") != 0))
        return wrong(error, place, ".custom.format.grammar.syntax", "must be lark or regex");
    if (!json_is_string(definition) || json_string_length(definition) > RP_TOOL_GRAMMAR_MAX)
        return wrong(error, place, ".custom.format.grammar.definition",
                     "must be a string of up to 64 KiB");
    *out = grammar;
    return true;
}

/* A regular expression becomes the pattern of the string; a Lark grammar is shown as text, and
 * enforced through `own`. */
static json_t *custom_input(const json_t *grammar) {
    const char *definition = json_string_value(json_object_get(grammar, "definition"));
    json_t *input = json_pack("{s:s}", "type", "string");
    if (is_lark(grammar))
        json_object_set_new(input, "description",
                            json_sprintf("Text that this lark grammar accepts:\n%s", definition));
    else if (definition)
        json_object_set_new(input, "pattern", json_sprintf("^(?:%s)$", definition));
    return input;
}

static json_t *input_parameters(json_t *input) {
    return json_pack("{s:s, s:{s:o}, s:[s], s:b}", "type", "object", "properties",
                     RP_CUSTOM_TOOL_PARAMETER, input, "required", RP_CUSTOM_TOOL_PARAMETER,
                     "additionalProperties", 0);
}

/* The function that stands in for a custom tool; *out_own: other parameters for the grammar, or
 * NULL. NULL with *error. */
static json_t *convert_custom(json_t *tool, const char *place, json_t **out_own,
                              struct rp_http_error *error) {
    const json_t *grammar;
    json_t *custom = json_object_get(tool, "custom");
    json_t *description = json_object_get(custom, "description");
    json_t *format = json_object_get(custom, "format");
    if (!json_is_object(custom)) {
        wrong(error, place, ".custom", "must be an object");
        return NULL;
    }
    if (!check_name(json_object_get(custom, "name"), place, ".custom.name", error))
        return NULL;
    if (format && !json_is_null(format) && !is_type(format, "text") &&
        !is_type(format, "grammar")) {
        wrong(error, place, ".custom.format", "must have the type text or grammar");
        return NULL;
    }
    if (!read_grammar(format, place, &grammar, error))
        return NULL;
    json_t *function =
        json_pack("{s:s, s:{s:O, s:s*, s:o}}", "type", "function", "function", "name",
                  json_object_get(custom, "name"), "description", json_string_value(description),
                  "parameters", input_parameters(custom_input(grammar)));
    if (is_lark(grammar))
        *out_own = input_parameters(json_pack("{s:s, s:O}", "type", "string", RP_SCHEMA_LARK,
                                              json_object_get(grammar, "definition")));
    if (!function || (is_lark(grammar) && !*out_own)) {
        json_decref(function);
        no_memory(error);
        return NULL;
    }
    return function;
}

/* The tool as the template gets it, always a function; *out_own as convert_custom(). NULL with
 * *error. */
static json_t *show_tool(json_t *tool, bool legacy, const char *place, json_t **out_own,
                         struct rp_http_error *error) {
    char member[48];
    snprintf(member, sizeof member, "%s.function", place);
    if (legacy) {
        if (!check_function(tool, place, error))
            return NULL;
        json_t *shown = json_pack("{s:s,s:O}", "type", "function", "function", tool);
        if (!shown)
            no_memory(error);
        return shown;
    }
    if (!json_is_object(tool)) {
        wrong(error, place, "", "must be an object");
        return NULL;
    }
    if (is_type(tool, "custom"))
        return convert_custom(tool, place, out_own, error);
    if (!is_type(tool, "function")) {
        wrong(error, place, ".type", "must be function or custom");
        return NULL;
    }
    return check_function(json_object_get(tool, "function"), member, error) ? json_incref(tool)
                                                                            : NULL;
}

/* Appends the tool to out->list. */
static bool add_tool(struct rp_tools *out, json_t *tool, size_t index,
                     struct rp_http_error *error) {
    char place[32];
    snprintf(place, sizeof place, "%s[%zu]", out->legacy ? "functions" : "tools", index);
    bool custom = !out->legacy && is_type(tool, "custom");
    json_t *own = NULL, *shown = show_tool(tool, out->legacy, place, &own, error);
    if (!shown)
        return false;
    if (json_array_append_new(out->list, shown) != 0) {
        json_decref(own);
        return no_memory(error);
    }
    if (own && json_array_append_new(out->own, own) != 0)
        return no_memory(error);
    const json_t *function = json_object_get(shown, "function");
    const json_t *parameters = own ? own : json_object_get(function, "parameters");
    const char *name = json_string_value(json_object_get(function, "name"));
    for (uint32_t i = 0; i < out->count; i++)
        if (strcmp(out->tools[i].name, name) == 0)
            return wrong(error, place, "", "has the name of an earlier tool");
    out->tools[out->count] = (struct rp_dialect_tool){
        .name = name, .parameters = json_is_object(parameters) ? parameters : NULL};
    out->custom[out->count] = custom;
    out->strict = out->strict || json_is_true(json_object_get(function, "strict"));
    out->count++;
    return true;
}

static bool read_list(json_t *value, struct rp_tools *out, struct rp_http_error *error) {
    const char *field = out->legacy ? "functions" : "tools";
    size_t i;
    json_t *tool;
    if (!json_is_array(value))
        return rp_http_error_set(error, 400, field, "invalid_type", "%s must be a list", field);
    if (json_array_size(value) == 0)
        return true;
    if (json_array_size(value) > RP_TOOLS_MAX)
        return rp_http_error_set(error, 400, field, "out_of_range", "%s accepts up to %d tools",
                                 field, RP_TOOLS_MAX);
    out->bytes = json_dumpb(value, NULL, 0, JSON_COMPACT);
    if (out->bytes > RP_TOOLS_BYTES_MAX)
        return rp_http_error_set(error, 400, field, "out_of_range",
                                 "%s accepts up to 2 MiB of JSON", field);
    out->list = json_array();
    out->own = json_array();
    out->tools = rp_calloc(json_array_size(value), sizeof *out->tools);
    out->custom = rp_calloc(json_array_size(value), sizeof *out->custom);
    if (!out->list || !out->own || !out->tools || !out->custom)
        return no_memory(error);
    json_array_foreach(value, i, tool) if (!add_tool(out, tool, i, error)) return false;
    out->callable = out->count;
    out->choice = RP_TOOLS_AUTO;
    return true;
}

/* --- The choice ------------------------------------------------------------------------------ */

/* The name in {"type": "function", "function": {"name"}}, the same with "custom", or a flat
 * {"type", "name"}. */
static const char *named_tool(const json_t *value) {
    const json_t *inner = json_object_get(value, is_type(value, "custom") ? "custom" : "function");
    const char *name = json_string_value(json_object_get(inner, "name"));
    return name ? name : json_string_value(json_object_get(value, "name"));
}

/* Makes the tool one of those that may be called: they come first. */
static bool allow(struct rp_tools *out, const char *name, struct rp_http_error *error) {
    for (uint32_t i = 0; name && i < out->count; i++) {
        if (strcmp(out->tools[i].name, name) != 0)
            continue;
        if (i < out->callable)
            return true;
        struct rp_dialect_tool tool = out->tools[i];
        bool custom = out->custom[i];
        out->tools[i] = out->tools[out->callable];
        out->custom[i] = out->custom[out->callable];
        out->tools[out->callable] = tool;
        out->custom[out->callable++] = custom;
        return true;
    }
    return wrong_choice(out, error,
                        out->legacy ? "names a function that is not in functions"
                                    : "names a tool that is not in tools");
}

static bool read_allowed(const json_t *value, struct rp_tools *out, struct rp_http_error *error) {
    const json_t *allowed = json_object_get(value, "allowed_tools");
    const json_t *from = json_is_object(allowed) ? allowed : value;
    const char *mode = json_string_value(json_object_get(from, "mode"));
    const json_t *list = json_object_get(from, "tools");
    size_t i;
    json_t *item;
    bool required = mode && strcmp(mode, "required") == 0;
    if (!required && (!mode || strcmp(mode, "auto") != 0))
        return wrong_choice(out, error, "must have allowed_tools with the mode auto or required");
    if (json_array_size(list) == 0 || json_array_size(list) > RP_TOOLS_MAX)
        return wrong_choice(out, error, "must have allowed_tools with a list of up to 512 tools");
    out->callable = 0;
    out->choice = required ? RP_TOOLS_REQUIRED : RP_TOOLS_AUTO;
    json_array_foreach(list, i, item) if (!allow(out, named_tool(item), error)) return false;
    return true;
}

static bool read_word(const char *word, struct rp_tools *out, struct rp_http_error *error) {
    static const char *const words[] = {"none", "auto", "required"};
    static const enum rp_tool_choice choices[] = {RP_TOOLS_NONE, RP_TOOLS_AUTO, RP_TOOLS_REQUIRED};
    for (size_t i = 0; i < RP_ARRAY_COUNT(words); i++) {
        if (strcmp(word, words[i]) != 0)
            continue;
        if (choices[i] == RP_TOOLS_REQUIRED && out->count == 0)
            return wrong_choice(out, error, "requires tools");
        if (out->count)
            out->choice = choices[i];
        return true;
    }
    return wrong_choice(out, error, "must be none, auto, required, or an object that names a tool");
}

static bool read_named(const char *name, struct rp_tools *out, struct rp_http_error *error) {
    out->callable = 0;
    out->choice = RP_TOOLS_REQUIRED;
    out->named = true;
    return allow(out, name, error);
}

static bool read_choice(const json_t *value, struct rp_tools *out, struct rp_http_error *error) {
    if (json_is_string(value))
        return read_word(json_string_value(value), out, error);
    if (out->count == 0)
        return wrong_choice(out, error, "requires tools");
    if (is_type(value, "allowed_tools"))
        return read_allowed(value, out, error);
    if (!is_type(value, "function") && !is_type(value, "custom"))
        return wrong_choice(out, error,
                            "must be none, auto, required, or an object of the type function, "
                            "custom or allowed_tools");
    return read_named(named_tool(value), out, error);
}

/* The older function_call: none, auto, or {"name"}. */
static bool read_function_call(const json_t *value, struct rp_tools *out,
                               struct rp_http_error *error) {
    const char *word = json_string_value(value);
    if (word && strcmp(word, "none") != 0 && strcmp(word, "auto") != 0)
        return wrong_choice(out, error, "must be none, auto, or an object with a function's name");
    if (word)
        return read_word(word, out, error);
    if (out->count == 0)
        return wrong_choice(out, error, "requires functions");
    return read_named(named_tool(value), out, error);
}

/* An empty list is the same as none. */
static bool is_given(const json_t *list) {
    return list && !(json_is_array(list) && json_array_size(list) == 0);
}

bool rp_tools_read(json_t *root, struct rp_tools *out, struct rp_http_error *error) {
    json_t *list = rp_params_get(root, "tools"), *choice = rp_params_get(root, "tool_choice");
    json_t *functions = rp_params_get(root, "functions");
    json_t *called = rp_params_get(root, "function_call");
    memset(out, 0, sizeof *out);
    out->legacy = is_given(functions) || (called && !is_given(list));
    if (!out->legacy)
        return (!list || read_list(list, out, error)) &&
               (!choice || read_choice(choice, out, error));
    if (is_given(list))
        return rp_http_error_set(error, 400, "functions", "invalid_value",
                                 "functions and tools cannot be combined: send tools alone");
    return (!functions || read_list(functions, out, error)) &&
           (!called || read_function_call(called, out, error));
}

void rp_tools_deinit(struct rp_tools *tools) {
    rp_free(tools->tools);
    rp_free(tools->custom);
    json_decref(tools->list);
    json_decref(tools->own);
    memset(tools, 0, sizeof *tools);
}

bool rp_tools_is_custom(const struct rp_tools *tools, const char *name) {
    for (uint32_t i = 0; i < tools->count; i++)
        if (strcmp(tools->tools[i].name, name) == 0)
            return tools->custom[i];
    return false;
}
