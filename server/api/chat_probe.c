#include "server/api/chat_probe.h"

#include <string.h>

#define ARGUMENT  "probed_argument"
#define AS_JSON   "{\"" ARGUMENT "\": 1}"
#define AS_PYTHON "'" ARGUMENT "'"

static void set(struct rp_chat_values *values, struct rp_chat_value *dict, const char *key,
                struct rp_chat_value *item) {
    rp_chat_dict_set(values, dict, key, strlen(key), item);
}

static struct rp_chat_value *text(struct rp_chat_values *values, const char *bytes) {
    return rp_chat_string(values, bytes, strlen(bytes));
}

static struct rp_chat_value *message(struct rp_chat_values *values, const char *role,
                                     const char *content) {
    struct rp_chat_value *dict = rp_chat_dict(values);
    set(values, dict, "role", text(values, role));
    set(values, dict, "content", text(values, content));
    return dict;
}

/* A call whose id suits Mistral's templates, too, and its result. */
static struct rp_chat_value *conversation(struct rp_chat_values *values,
                                          struct rp_chat_value *arguments) {
    struct rp_chat_value *variables = rp_chat_dict(values), *messages = rp_chat_list(values);
    struct rp_chat_value *calls = rp_chat_list(values), *call = rp_chat_dict(values);
    struct rp_chat_value *function = rp_chat_dict(values);
    struct rp_chat_value *asked = message(values, "assistant", "");
    struct rp_chat_value *result = message(values, "tool", "1");
    set(values, function, "name", text(values, "probed"));
    set(values, function, "arguments", arguments);
    set(values, call, "id", text(values, "call00001"));
    set(values, call, "type", text(values, "function"));
    set(values, call, "function", function);
    rp_chat_list_add(values, calls, call);
    set(values, asked, "tool_calls", calls);
    set(values, result, "tool_call_id", text(values, "call00001"));
    set(values, result, "name", text(values, "probed"));
    rp_chat_list_add(values, messages, message(values, "user", "?"));
    rp_chat_list_add(values, messages, asked);
    rp_chat_list_add(values, messages, result);
    set(values, variables, "messages", messages);
    set(values, variables, "tools", rp_chat_none(values));
    set(values, variables, "add_generation_prompt", rp_chat_bool(values, true));
    return variables;
}

/* Whether the prompt has `wanted` and not `refused` (NULL: nothing). */
static bool shows(const struct rp_chat_templates *templates, bool as_text, const char *wanted,
                  const char *refused) {
    struct rp_chat_values *values = rp_chat_values_create(0);
    struct rp_chat_prompt prompt;
    struct rp_error err;
    if (!values)
        return false;
    struct rp_chat_value *object = rp_chat_dict(values);
    set(values, object, ARGUMENT, rp_chat_int(values, 1));
    struct rp_chat_value *variables =
        conversation(values, as_text ? text(values, AS_JSON) : object);
    int status = rp_chat_template_render(rp_chat_templates_pick(templates, true), templates, values,
                                         variables, NULL, &prompt, NULL, &err);
    rp_chat_values_destroy(values);
    if (status != RP_OK)
        return false;
    bool found =
        strstr(prompt.text, wanted) != NULL && !(refused && strstr(prompt.text, refused) != NULL);
    rp_chat_prompt_deinit(&prompt);
    return found;
}

bool rp_chat_probe_text_arguments(const struct rp_chat_templates *templates) {
    return !shows(templates, false, ARGUMENT, AS_PYTHON) && shows(templates, true, AS_JSON, NULL);
}

bool rp_chat_probe_late_system(const struct rp_chat_templates *templates) {
    struct rp_chat_prompt prompt;
    struct rp_error err;
    struct rp_chat_values *values = templates ? rp_chat_values_create(0) : NULL;
    if (!values)
        return false;
    struct rp_chat_value *messages = rp_chat_list(values), *variables = rp_chat_dict(values);
    rp_chat_list_add(values, messages, message(values, "system", "first"));
    rp_chat_list_add(values, messages, message(values, "user", "question one"));
    rp_chat_list_add(values, messages, message(values, "assistant", "answer"));
    rp_chat_list_add(values, messages, message(values, "user", "question two"));
    rp_chat_list_add(values, messages, message(values, "system", "reminder"));
    set(values, variables, "messages", messages);
    set(values, variables, "tools", rp_chat_none(values));
    set(values, variables, "add_generation_prompt", rp_chat_bool(values, true));
    int status = rp_chat_template_render(rp_chat_templates_pick(templates, false), templates,
                                         values, variables, NULL, &prompt, NULL, &err);
    rp_chat_values_destroy(values);
    if (status != RP_OK)
        return false;
    const char *question = strstr(prompt.text, "question two");
    bool found = question && strstr(question, "reminder");
    rp_chat_prompt_deinit(&prompt);
    return found;
}
