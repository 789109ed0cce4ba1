/* Goal: the template and special tokens of a model directory are those that transformers uses, and
 * errors name the file and key. */
#include "tests/support/model_files.h"
#include "tests/text/template_fixture.h"

#include <sys/stat.h>

struct load_fixture {
    struct rp_test_dir dir;
    struct rp_chat_templates *set;
    struct chat_fixture chat;
    struct rp_error err;
};

static int load_setup(void **state) {
    struct load_fixture *f = calloc(1, sizeof *f);
    *state = f;
    if (!f)
        return -1;
    rp_test_dir_create(&f->dir);
    f->chat.values = rp_chat_values_create(0);
    f->chat.variables = rp_chat_dict(f->chat.values);
    return 0;
}

static int load_teardown(void **state) {
    struct load_fixture *f = *state;
    rp_chat_templates_close(f->set);
    rp_test_dir_remove(&f->dir);
    chat_reset(&f->chat);
    free(f);
    return 0;
}

static int open_set(struct load_fixture *f, const char *override) {
    rp_chat_templates_close(f->set);
    return rp_chat_templates_open(f->dir.path, override, &f->set, &f->err);
}

static const char *rendered(struct load_fixture *f, const struct rp_chat_template *tmpl) {
    rp_chat_prompt_deinit(&f->chat.prompt);
    if (rp_chat_template_render(tmpl, f->set, f->chat.values, f->chat.variables, NULL,
                                &f->chat.prompt, NULL, &f->err) != RP_OK)
        fail_msg("%s", f->err.text);
    return f->chat.prompt.text;
}

static void must_open(struct load_fixture *f, const char *override) {
    if (open_set(f, override) != RP_OK)
        fail_msg("%s", f->err.text);
}

static void test_file_goes_before_tokenizer_config(void **state) {
    struct load_fixture *f = *state;
    rp_test_file_text(&f->dir, "tokenizer_config.json",
                      "{\"chat_template\": \"config {{ bos_token }}\", \"bos_token\": \"<s>\"}");
    must_open(f, NULL);
    assert_string_equal(rendered(f, rp_chat_templates_pick(f->set, false)), "config <s>");
    assert_string_equal(rp_chat_templates_source(f->set), "tokenizer_config.json");
    rp_test_file_text(&f->dir, "chat_template.jinja", "file {{ bos_token }}\n");
    must_open(f, NULL);
    assert_string_equal(rendered(f, rp_chat_templates_pick(f->set, true)), "file <s>");
    assert_string_equal(rp_chat_templates_source(f->set), "chat_template.jinja");
}

static void test_named_templates_are_chosen_by_tools(void **state) {
    struct load_fixture *f = *state;
    rp_test_file_text(&f->dir, "tokenizer_config.json",
                      "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"tools\"},"
                      "{\"name\": \"rag\", \"template\": \"rag\"},"
                      "{\"name\": \"default\", \"template\": \"plain\"}]}");
    must_open(f, NULL);
    assert_string_equal(rendered(f, rp_chat_templates_pick(f->set, false)), "plain");
    assert_string_equal(rendered(f, rp_chat_templates_pick(f->set, true)), "tools");
    assert_string_equal(rendered(f, rp_chat_templates_find(f->set, "rag")), "rag");
    assert_null(rp_chat_templates_find(f->set, "other"));
}

static void test_additional_templates_stand_beside_the_default(void **state) {
    struct load_fixture *f = *state;
    char path[320];
    snprintf(path, sizeof path, "%s/additional_chat_templates", f->dir.path);
    assert_int_equal(mkdir(path, 0700), 0);
    rp_test_file_text(&f->dir, "chat_template.jinja", "plain");
    rp_test_file_text(&f->dir, "additional_chat_templates/tool_use.jinja", "tools");
    must_open(f, NULL);
    assert_string_equal(rendered(f, rp_chat_templates_pick(f->set, true)), "tools");
    assert_string_equal(rendered(f, rp_chat_templates_pick(f->set, false)), "plain");
    rp_test_file_delete(&f->dir, "additional_chat_templates/tool_use.jinja");
    assert_int_equal(rmdir(path), 0);
}

static void test_special_tokens_may_be_objects_and_are_the_templates_own(void **state) {
    struct load_fixture *f = *state;
    rp_test_file_text(&f->dir, "chat_template.jinja",
                      "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}{{ unk_token }}"
                      "{{ additional_special_tokens }}{{ image_token }}");
    rp_test_file_text(
        &f->dir, "tokenizer_config.json",
        "{\"bos_token\": {\"content\": \"<b>\", \"lstrip\": false}, \"eos_token\": \"<e>\","
        "\"pad_token\": null, \"add_bos_token\": true, \"image_token\": \"<i>\","
        "\"additional_special_tokens\": [\"<x>\", {\"content\": \"<y>\"}]}");
    rp_test_file_text(&f->dir, "special_tokens_map.json",
                      "{\"bos_token\": \"<other>\", \"unk_token\": {\"content\": \"<u>\"}}");
    must_open(f, NULL);
    assert_string_equal(rendered(f, rp_chat_templates_pick(f->set, false)),
                        "<b><e>False<u>['<x>', '<y>']<i>");
    assert_int_equal(f->chat.prompt.span_count, 1);
    assert_true(f->chat.prompt.spans[0].allow_special);
    /* A variable of the caller overrides the model's. */
    chat_put(&f->chat, f->chat.variables, "bos_token", chat_text(&f->chat, "<mine>"));
    assert_memory_equal(rendered(f, rp_chat_templates_pick(f->set, false)), "<mine><e>", 9);
    assert_false(f->chat.prompt.spans[0].allow_special);
}

static void test_override_is_a_file_or_a_text(void **state) {
    struct load_fixture *f = *state;
    char path[320];
    rp_test_file_text(&f->dir, "chat_template.jinja", "model's");
    rp_test_file_text(&f->dir, "mine.txt", "mine {{ eos_token }}");
    rp_test_file_text(&f->dir, "tokenizer_config.json", "{\"eos_token\": \"<e>\"}");
    snprintf(path, sizeof path, "%s/mine.txt", f->dir.path);
    must_open(f, path);
    assert_string_equal(rendered(f, rp_chat_templates_pick(f->set, true)), "mine <e>");
    must_open(f, "text {{ eos_token }}");
    assert_string_equal(rendered(f, rp_chat_templates_pick(f->set, true)), "text <e>");
    assert_int_equal(open_set(f, "/nowhere/at/all"), RP_STATUS_NOT_FOUND);
    assert_non_null(strstr(f->err.text, "nowhere"));
}

static void test_what_is_wrong_is_said_by_name(void **state) {
    struct load_fixture *f = *state;
    assert_int_equal(open_set(f, NULL), RP_STATUS_NOT_FOUND);
    assert_non_null(strstr(f->err.text, "no chat template"));
    rp_test_file_text(&f->dir, "tokenizer_config.json", "{\"chat_template\": 5}");
    assert_int_equal(open_set(f, NULL), RP_STATUS_FORMAT);
    assert_non_null(strstr(f->err.text, "tokenizer_config.json"));
    rp_test_file_text(&f->dir, "tokenizer_config.json", "{\"chat_template\": [{\"name\": \"x\"}]}");
    assert_int_equal(open_set(f, NULL), RP_STATUS_FORMAT);
    rp_test_file_text(&f->dir, "tokenizer_config.json", "{\"chat_template\": null}");
    assert_int_equal(open_set(f, NULL), RP_STATUS_NOT_FOUND);
    rp_test_file_text(&f->dir, "chat_template.jinja", "a\n{% for %}");
    assert_int_equal(open_set(f, NULL), RP_STATUS_FORMAT);
    assert_non_null(strstr(f->err.text, "chat_template.jinja line 2: "));
    rp_test_file_write(&f->dir, "chat_template.jinja", "a\xFF", 2);
    assert_int_equal(open_set(f, NULL), RP_STATUS_FORMAT);
    rp_test_file_text(&f->dir, "chat_template.jinja", "");
    rp_test_file_truncate(&f->dir, "chat_template.jinja", RP_CHAT_TEMPLATE_BYTES_MAX + 1);
    assert_int_equal(open_set(f, NULL), RP_STATUS_RANGE);
}

static void test_templates_that_take_content_as_parts_are_known(void **state) {
    struct load_fixture *f = *state;
    must_open(f, "{% for m in messages %}{{ m.content }}{% endfor %}");
    assert_false(rp_chat_templates_content_parts(f->set));
    must_open(
        f,
        "{% for m in messages %}{% for p in m['content'] %}{{ p.text }}{% endfor %}{% endfor %}");
    assert_true(rp_chat_templates_content_parts(f->set));
    must_open(f, "{% macro c(content) %}{% for p in content %}{% endfor %}{% endmacro %}");
    assert_true(rp_chat_templates_content_parts(f->set));
    must_open(f, "{% if enable_thinking is defined %}{% endif %}");
    assert_true(rp_chat_template_uses(rp_chat_templates_pick(f->set, false), "enable_thinking"));
    assert_false(rp_chat_template_uses(rp_chat_templates_pick(f->set, false), "tools"));
}

#define LOAD_TEST(name) cmocka_unit_test_setup_teardown(name, load_setup, load_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        LOAD_TEST(test_file_goes_before_tokenizer_config),
        LOAD_TEST(test_named_templates_are_chosen_by_tools),
        LOAD_TEST(test_additional_templates_stand_beside_the_default),
        LOAD_TEST(test_special_tokens_may_be_objects_and_are_the_templates_own),
        LOAD_TEST(test_override_is_a_file_or_a_text),
        LOAD_TEST(test_what_is_wrong_is_said_by_name),
        LOAD_TEST(test_templates_that_take_content_as_parts_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
