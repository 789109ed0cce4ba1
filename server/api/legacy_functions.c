#include "server/api/legacy_functions.h"

#include <stdio.h>
#include <string.h>

static bool wrong(struct rp_http_error *error, size_t index, const char *member, const char *what) {
    char name[64];
    snprintf(name, sizeof name, "messages[%zu]%s", index, member);
    return rp_http_error_set(error, 400, name, "invalid_value", "%s %s", name, what);
}

static bool no_memory(struct rp_http_error *error) {
    return rp_http_error_set(error, 503, NULL, "overloaded", "out of memory");
}

static bool is_role(const json_t *message, const char *role) {
    const char *text = json_string_value(json_object_get(message, "role"));
    return text && strcmp(text, role) == 0;
}

/* The older form has no ids. A call and its result have the function's name in common. */
static json_t *make_id(const json_t *name) {
    return json_sprintf("call_%s", json_string_value(name));
}

static bool convert_call(json_t *message, size_t index, struct rp_http_error *error) {
    json_t *call = json_object_get(message, "function_call");
    const json_t *name = json_object_get(call, "name");
    if (!call || json_is_null(call))
        return true;
    if (!json_is_string(name))
        return wrong(error, index, ".function_call",
                     "must be an object with a function's name and arguments");
    if (json_array_size(json_object_get(message, "tool_calls")))
        return wrong(error, index, ".function_call", "cannot be combined with tool_calls");
    json_t *calls =
        json_pack("[{s:o,s:s,s:O}]", "id", make_id(name), "type", "function", "function", call);
    if (!calls || json_object_set_new(message, "tool_calls", calls) != 0)
        return no_memory(error);
    json_object_del(message, "function_call");
    return true;
}

/* One without the name of its function belongs to no call: the template gets it as it is. */
static bool convert_result(json_t *message, struct rp_http_error *error) {
    const json_t *name = json_object_get(message, "name");
    if (!json_is_string(name))
        return true;
    return (json_object_set_new(message, "tool_call_id", make_id(name)) == 0 &&
            json_object_set_new(message, "role", json_string("tool")) == 0) ||
           no_memory(error);
}

bool rp_legacy_functions_convert(json_t *messages, struct rp_http_error *error) {
    size_t i;
    json_t *message;
    json_array_foreach(messages, i, message) {
        if (is_role(message, "assistant") && !convert_call(message, i, error))
            return false;
        if (is_role(message, "function") && !convert_result(message, error))
            return false;
    }
    return true;
}
