#include "server/api/chat_probe.h"

#include <string.h>

static void add(struct rp_chat_values *values, struct rp_chat_value *messages, const char *role,
                const char *text) {
    struct rp_chat_value *message = rp_chat_dict(values);
    rp_chat_dict_set(values, message, "role", 4, rp_chat_string(values, role, strlen(role)));
    rp_chat_dict_set(values, message, "content", 7, rp_chat_string(values, text, strlen(text)));
    rp_chat_list_add(values, messages, message);
}

bool rp_chat_probe_late_system(const struct rp_chat_templates *templates) {
    struct rp_chat_prompt prompt = {.text = NULL};
    struct rp_error err;
    struct rp_chat_values *values = templates ? rp_chat_values_create(0) : NULL;
    if (!values)
        return false;
    struct rp_chat_value *messages = rp_chat_list(values), *variables = rp_chat_dict(values);
    add(values, messages, "system", "first");
    add(values, messages, "user", "question one");
    add(values, messages, "assistant", "answer");
    add(values, messages, "user", "question two");
    add(values, messages, "system", "reminder");
    rp_chat_dict_set(values, variables, "messages", 8, messages);
    rp_chat_dict_set(values, variables, "add_generation_prompt", 21, rp_chat_bool(values, true));
    bool renders = rp_chat_template_render(rp_chat_templates_pick(templates, false), templates,
                                           values, variables, NULL, &prompt, NULL, &err) == RP_OK;
    const char *question = renders ? strstr(prompt.text, "question two") : NULL;
    bool found = question && strstr(question, "reminder");
    rp_chat_prompt_deinit(&prompt);
    rp_chat_values_destroy(values);
    return found;
}
