/* Goal: what real chat templates write for an assistant's calls is read as those calls, by the row
 * that the template's text selects. */
#include "tests/support/data.h"
#include "tests/text/dialect_fixture.h"
#include "text/template/chat_template.h"

static char *read_text(const char *path, size_t *out_len) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = rp_alloc(1 << 20);
    *out_len = fread(text, 1, (1 << 20) - 1, file);
    text[*out_len] = '\0';
    fclose(file);
    return text;
}

static struct rp_chat_value *string(struct rp_chat_values *v, const char *text) {
    return rp_chat_string(v, text, strlen(text));
}

static void set(struct rp_chat_values *v, struct rp_chat_value *dict, const char *key,
                struct rp_chat_value *item) {
    rp_chat_dict_set(v, dict, key, strlen(key), item);
}

static struct rp_chat_value *message(struct rp_chat_values *v, const char *role,
                                     const char *content) {
    struct rp_chat_value *dict = rp_chat_dict(v);
    set(v, dict, "role", string(v, role));
    set(v, dict, "content", string(v, content));
    return dict;
}

/* get_weather(city="Paris", days=2), with the types a template may print in its own way. */
static struct rp_chat_value *call(struct rp_chat_values *v) {
    struct rp_chat_value *dict = rp_chat_dict(v), *function = rp_chat_dict(v),
                         *arguments = rp_chat_dict(v);
    set(v, arguments, "city", string(v, "Paris \"\xC3\xA9\""));
    set(v, arguments, "days", rp_chat_int(v, 2));
    set(v, function, "name", string(v, "get_weather"));
    set(v, function, "arguments", arguments);
    set(v, dict, "id", string(v, "abcdefghi"));
    set(v, dict, "type", string(v, "function"));
    set(v, dict, "function", function);
    return dict;
}

static struct rp_chat_value *tools(struct rp_chat_values *v) {
    struct rp_chat_value *list = rp_chat_list(v), *tool = rp_chat_dict(v),
                         *function = rp_chat_dict(v), *parameters = rp_chat_dict(v);
    set(v, parameters, "type", string(v, "object"));
    set(v, parameters, "properties", rp_chat_dict(v));
    set(v, function, "name", string(v, "get_weather"));
    set(v, function, "description", string(v, "Weather"));
    set(v, function, "parameters", parameters);
    set(v, tool, "type", string(v, "function"));
    set(v, tool, "function", function);
    rp_chat_list_add(v, list, tool);
    return list;
}

static char *render(const struct rp_chat_template *tmpl, bool with_answer, size_t calls) {
    struct rp_chat_values *v = rp_chat_values_create(0);
    struct rp_chat_value *variables = rp_chat_dict(v), *messages = rp_chat_list(v);
    struct rp_chat_prompt prompt;
    struct rp_error err;
    rp_chat_list_add(v, messages, message(v, "user", "Weather?"));
    if (with_answer) {
        struct rp_chat_value *answer = message(v, "assistant", ""), *list = rp_chat_list(v);
        for (size_t i = 0; i < calls; i++)
            rp_chat_list_add(v, list, call(v));
        set(v, answer, "tool_calls", list);
        rp_chat_list_add(v, messages, answer);
    }
    set(v, variables, "messages", messages);
    set(v, variables, "tools", tools(v));
    set(v, variables, "bos_token", string(v, "<s>"));
    set(v, variables, "eos_token", string(v, "</s>"));
    set(v, variables, "add_generation_prompt", rp_chat_bool(v, !with_answer));
    if (rp_chat_template_render(tmpl, NULL, v, variables, NULL, &prompt, NULL, &err) != RP_OK)
        fail_msg("%s", err.text);
    char *text = rp_strdup(prompt.text);
    rp_chat_prompt_deinit(&prompt);
    rp_chat_values_destroy(v);
    return text;
}

static void check_template(const char *name, const char *row_name, size_t calls) {
    static const char *const ends[] = {"<|im_end|>", "<|eot_id|>", "</s>"};
    static const char *const specials[] = {"[TOOL_CALLS]", "<|python_tag|>"};
    char relative[128], path[1024];
    size_t len;
    struct rp_chat_template *tmpl;
    struct rp_bound_dialect *bound;
    struct events e;
    snprintf(relative, sizeof relative, "templates/%s", name);
    if (!rp_test_data(relative, path, sizeof path))
        skip();
    char *source = read_text(path, &len);
    assert_int_equal(rp_chat_template_compile(source, len, name, &tmpl, NULL, NULL), RP_OK);
    const struct rp_dialect *row = rp_dialect_detect(NULL, source, specials, 2);
    assert_non_null(row);
    assert_string_equal(row->name, row_name);
    char *before = render(tmpl, false, 0), *whole = render(tmpl, true, calls);
    size_t at = 0;
    while (before[at] && before[at] == whole[at])
        at++;
    char *answer = whole + at, *end = NULL;
    for (size_t i = 0; i < RP_ARRAY_COUNT(ends) && !end; i++)
        end = strstr(answer, ends[i]);
    assert_non_null(end);
    assert_int_equal(rp_dialect_bind(row, NULL, specials, 2, &bound, NULL), RP_OK);
    const struct rp_dialect_tool tool = {"get_weather", NULL};
    const struct rp_splitter_options options = {.tools = &tool, .tool_count = 1};
    events_init(&e);
    feed_text(bound, &options, specials, 2, answer, (size_t)(end - answer), (struct feeding){0},
              &e);
    if (e.calls != calls || e.complete != calls || e.misses || e.text.len)
        fail_msg("%s: %.*s\nis %s", name, (int)(end - answer), answer, events_string(&e.log));
    json_t *want = json_loads("{\"city\": \"Paris \\\"\\u00e9\\\"\", \"days\": 2}", 0, NULL);
    for (size_t i = 0; i < calls; i++) {
        json_t *have = json_loads(events_string(&e.arguments[i]), 0, NULL);
        assert_string_equal(e.names[i], "get_weather");
        assert_true(json_equal(want, have));
        json_decref(have);
    }
    json_decref(want);
    events_deinit(&e);
    rp_bound_dialect_free(bound);
    rp_chat_template_destroy(tmpl);
    rp_free(source);
    rp_free(before);
    rp_free(whole);
}

static void qwen(void **state) {
    (void)state;
    check_template("Qwen-Qwen2.5-7B-Instruct.jinja", "hermes", 2);
    check_template("Qwen-Qwen3-0.6B.jinja", "hermes", 2);
}

static void llama(void **state) {
    (void)state;
    check_template("meta-llama-Llama-3.1-8B-Instruct.jinja", "llama3_json", 1);
    check_template("meta-llama-Llama-3.2-3B-Instruct.jinja", "llama3_json", 1);
}

static void mistral(void **state) {
    (void)state;
    check_template("mistralai-Mistral-Nemo-Instruct-2407.jinja", "mistral", 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(qwen), cmocka_unit_test(llama),
                                       cmocka_unit_test(mistral)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
