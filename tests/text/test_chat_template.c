/* Goal: properties beyond the text itself (which tests/oracle/template_oracle.py checks): which
 * bytes count as input, budgets stop hostile templates, errors name their line, and a model
 * directory has the right template. */
#include "base/memory.h"
#include "tests/text/template_fixture.h"
#include "text/template/chat_template.h"

#include <inttypes.h>
#include <pthread.h>
#include <time.h>

static void test_text_of_messages_is_input_and_the_rest_is_template(void **state) {
    struct chat_fixture *f = *state;
    assert_string_equal(chat_spans(f, "<|im_start|>{{ role }}\n{{ content }}<|im_end|>"),
                        "T<|im_start|>;Iuser;T\n;I <|x|>aB ;T<|im_end|>;");
    assert_string_equal(chat_spans(f, "{{ bos_token }}{{ 1 + 1 }}{{ true }}"), "T<s>2True;");
}

static void test_origin_survives_operators_and_slices(void **state) {
    struct chat_fixture *f = *state;
    assert_string_equal(chat_spans(f, "{{ '<' + role + '>' }}"), "T<;Iuser;T>;");
    assert_string_equal(chat_spans(f, "{{ '<' ~ role ~ 1 }}"), "T<;Iuser;T1;");
    assert_string_equal(chat_spans(f, "{{ ('<' + role + '>')[1:-1] }}"), "Iuser;");
    assert_string_equal(chat_spans(f, "{{ ('<' + role + '>')[::-1] }}"), "T>;Iresu;T<;");
    assert_string_equal(chat_spans(f, "{{ ('<' + role)[0] }}{{ role[0] }}"), "T<;Iu;");
    assert_string_equal(chat_spans(f, "{{ role * 2 }}"), "Iuseruser;");
    assert_string_equal(chat_spans(f, "{{ '%s|%s' % (role, 1) }}"), "Iuser;T|1;");
    assert_string_equal(chat_spans(f, "{{ '{0}|{0:>6}'.format(role) }}"), "Iuser;T|  ;Iuser;");
    assert_string_equal(chat_spans(f, "{% for c in role %}{{ c }}.{% endfor %}"),
                        "Iu;T.;Is;T.;Ie;T.;Ir;T.;");
}

static void test_origin_survives_methods_and_filters(void **state) {
    struct chat_fixture *f = *state;
    assert_string_equal(chat_spans(f, "{{ content.strip() }}|{{ content|trim }}"),
                        "I<|x|>aB;T|;I<|x|>aB;");
    assert_string_equal(chat_spans(f, "{{ content|upper }}{{ ('a' + role)|title }}"),
                        "I <|X|>AB ;TA;Iuser;");
    assert_string_equal(chat_spans(f, "{{ role.replace('s', '<|x|>') }}"), "Iu;T<|x|>;Ier;");
    assert_string_equal(chat_spans(f, "{{ 'a-b'.replace('-', role) }}"), "Ta;Iuser;Tb;");
    assert_string_equal(chat_spans(f, "{{ role.split('s')|join('<|x|>') }}"), "Iu;T<|x|>;Ier;");
    assert_string_equal(chat_spans(f, "{{ [role, 'x']|join(', ') }}"), "Iuser;T, x;");
    assert_string_equal(chat_spans(f, "{{ role|indent(2, true) }}"), "T  ;Iuser;");
    assert_string_equal(chat_spans(f, "{{ role|center(6) }}{{ role.zfill(5) }}"),
                        "T ;Iuser;T 0;Iuser;");
    assert_string_equal(chat_spans(f, "{{ '<'|e }}{{ content|e }}"), "T&lt;;I &lt;|x|&gt;aB ;");
    assert_string_equal(chat_spans(f, "{% set t %}<{{ role }}>{% endset %}{{ t|upper }}"),
                        "T<;IUSER;T>;");
    assert_string_equal(chat_spans(f, "{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(role) }}"),
                        "T<;Iuser;T>;");
    assert_string_equal(chat_spans(f, "{% filter upper %}<{{ role }}>{% endfilter %}"),
                        "T<;IUSER;T>;");
}

static void test_json_and_lists_of_input_are_input_to_the_last_bracket(void **state) {
    struct chat_fixture *f = *state;
    assert_string_equal(chat_spans(f, "{{ tool|tojson }}."),
                        "I{\"name\": \"<|x|>\", \"n\": [1, true, null, 0.5]};T.;");
    assert_string_equal(chat_spans(f, "{{ tool }}"),
                        "I{'name': '<|x|>', 'n': [1, True, None, 0.5]};");
    assert_string_equal(chat_spans(f, "{{ {'a': role}|tojson }}"), "T{\"a\": ;I\"user\";T};");
    assert_string_equal(chat_spans(f, "{{ tool.n[0] }}{{ tool.n[0] + 1 }}{{ tool.n|length }}"),
                        "I12;T4;");
    assert_string_equal(chat_spans(f, "{% for k, v in tool.items() %}{{ k }},{% endfor %}"),
                        "Iname;T,;In;T,;");
}

static void test_special_tokens_of_a_user_stay_text(void **state) {
    struct chat_fixture *f = *state;
    struct fixture tok = {.tok = NULL};
    fixture_sentencepiece(&tok, "", "");
    chat_render(f, "<|x|>{{ content }}<|x|>{{ role }}<|x|>");
    /* 300 is <|x|>; the user's text is encoded as bytes. */
    assert_string_equal(fixture_spans(&tok, f->prompt.spans, f->prompt.span_count, 0),
                        "300 35 63 127 123 127 65 260 69 35 300 120 118 104 117 300");
    /* Parts of a token from input and template are not joined. */
    chat_render(f, "<|{{ letter }}|>");
    assert_string_equal(fixture_spans(&tok, f->prompt.spans, f->prompt.span_count, 0),
                        "63 127 123 127 65");
    fixture_reset(&tok);
}

static void expect_fault(struct chat_fixture *f, const char *source, int status, const char *kind,
                         int line, const char *message) {
    assert_int_equal(chat_try(f, source, NULL), status);
    assert_string_equal(f->fault.kind, kind);
    assert_int_equal(f->fault.line, line);
    assert_non_null(strstr(f->fault.message, message));
    assert_null(f->prompt.text);
    assert_int_equal(f->prompt.span_count, 0);
}

static void test_faults_name_line_and_reason(void **state) {
    struct chat_fixture *f = *state;
    expect_fault(f, "a\n{% if x %}", RP_STATUS_FORMAT, "TemplateSyntaxError", 2, "'endif'");
    assert_string_equal(
        f->err.text, "test.jinja line 2: Unexpected end of template. Jinja was looking for the "
                     "following tags: 'elif' or 'else' or 'endif'. The innermost block that needs "
                     "to be closed is 'if'.");
    expect_fault(f, "\n\n{{ raise_exception('no ' + role) }}", RP_STATUS_INVALID, "TemplateError",
                 3, "no user");
    assert_string_equal(f->err.text, "test.jinja line 3: no user");
    expect_fault(f, "\n{{ nope.x }}", RP_STATUS_INVALID, "UndefinedError", 2,
                 "'nope' is undefined");
    expect_fault(f,
                 "{% set n = namespace(a=()) %}{% for i in range(9999) %}{% set n.a = (n.a, n.a) "
                 "%}{% endfor %}"
                 "{{ {n.a: 1} }}",
                 RP_STATUS_INVALID, "TypeError", 1, "unhashable type: 'tuple'");
    expect_fault(f, "{% include 'x' %}", RP_STATUS_UNSUPPORTED, "TemplateSyntaxError", 1,
                 "include");
    expect_fault(f, "{{ 9223372036854775807 + 1 }}", RP_STATUS_INVALID, "OverflowError", 1, "64");
    expect_fault(f, "{{ 99999999999999999999 }}", RP_STATUS_FORMAT, "TemplateSyntaxError", 1, "64");
}

static void test_budgets_end_hostile_templates(void **state) {
    struct chat_fixture *f = *state;
    static const char *const sources[] = {
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% if 'x' in role * 100000 %}{% endif %}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{{ [1] * 10000000000 }}",
        "{{ 'x'.center(10000000000) }}",
        "{{ '%9999999999d' % 1 }}",
        "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% "
        "endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% "
        "endfor %}",
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% macro m(n) %}{% for i in range(9) %}{{ m(n + 1) }}{% endfor %}{% endmacro %}{{ m(0) }}",
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(3000) %}{% set ns.l = [ns.l] %}{% endfor "
        "%}{{ ns.l }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(3000) %}{% set ns.l = [ns.l] %}{% endfor "
        "%}{{ ns.l|tojson }}",
        "{% set n = namespace(a=[], b=[]) %}{% for i in range(3000) %}{% set n.a = [n.a] %}{% set "
        "n.b = [n.b] %}{% endfor %}{{ n.a == n.b }}",
        "{% set n = namespace(a=('a',), b=('a',)) %}{% for i in range(90) %}"
        "{% set n.a = (n.a, n.a) %}{% set n.b = (n.b, n.b) %}{% endfor %}{{ n.a == n.b }}",
        "{% set a = 'a' * 900000 %}{% set b = 'a' * 400000 ~ 'b' %}{{ a.rfind(b) }}{{ a.rsplit(b) "
        "}}",
        "{% for i in [[]] recursive %}{{ loop([i]) }}{% endfor %}",
        "{{ "
        "range(99999)|map('string')|join('"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'"
        " ~ 'b' * 200) }}",
        "{{ 'a'|replace('', 'b' * 9999999)|replace('', 'b' * 9999) }}",
        "{% for i in range(99999) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' * 9 }}{% "
        "endfor %}",
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(sources); i++) {
        assert_int_equal(chat_try(f, sources[i], NULL), RP_STATUS_RANGE);
        assert_string_equal(f->fault.kind, "BudgetError");
    }
}

/* `count` times `part` between head and tail. */
static char *repeated(const char *head, const char *part, size_t count, const char *tail) {
    struct rp_buffer text;
    rp_buffer_init(&text, 0);
    rp_buffer_puts(&text, head);
    for (size_t i = 0; i < count; i++)
        rp_buffer_puts(&text, part);
    rp_buffer_puts(&text, tail);
    rp_buffer_append(&text, "", 1);
    return text.data;
}

static void test_deep_sources_are_refused_and_long_ones_are_not(void **state) {
    struct chat_fixture *f = *state;
    static const struct {
        const char *head, *part, *tail;
        int status;
    } cases[] = {
        {"", "{% if 1 %}", "", RP_STATUS_RANGE},
        {"{{ ", "(", "", RP_STATUS_RANGE},
        {"{{ ", "[", "", RP_STATUS_RANGE},
        {"{{ ", "not ", "1 }}", RP_STATUS_RANGE},
        {"{{ ", "-", "1 }}", RP_STATUS_RANGE},
        {"{{ 1", " + 1", " }}", RP_STATUS_RANGE},
        {"{{ x", ".x", " }}", RP_STATUS_RANGE},
        {"{{ x", "|upper", " }}", RP_STATUS_RANGE},
        {"{{ 1", " if 1 else 1", " }}", RP_STATUS_RANGE},
        {"{{ 1", " ~ 1", " }}", RP_OK},
        {"{% if 0 %}", "{% elif 0 %}", "{% endif %}", RP_OK},
        {"{{ [", "1, ", "] }}", RP_OK},
        {"{{ 1", " < 2 == 2", " }}", RP_OK},
        {"", "{{ role }}", "", RP_OK},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        char *source = repeated(cases[i].head, cases[i].part, 6000, cases[i].tail);
        assert_int_equal(chat_try(f, source, NULL), cases[i].status);
        rp_free(source);
    }
}

static void test_own_limits_are_kept(void **state) {
    struct chat_fixture *f = *state;
    const struct rp_chat_limits steps = {.steps = 50}, output = {.output_bytes = 10};
    const struct rp_chat_limits memory = {.memory_bytes = 20000}, depth = {.depth = 5};
    assert_int_equal(chat_try(f, "{% for i in range(30) %}x{% endfor %}", &steps), RP_STATUS_RANGE);
    assert_int_equal(chat_try(f, "12345678901", &output), RP_STATUS_RANGE);
    assert_int_equal(chat_try(f, "1234567890", &output), RP_OK);
    assert_int_equal(chat_try(f, "{{ 'x' * 30000 }}", &memory), RP_STATUS_RANGE);
    assert_int_equal(chat_try(f, "{{ ((1 + 1) * 2 + 1) * 2 + (((1 + 2) * 3 + 4) * 5) }}", &depth),
                     RP_STATUS_RANGE);
}

static void test_out_of_memory_is_an_error_at_every_allocation(void **state) {
    struct chat_fixture *f = *state;
    static const char source[] =
        "{% macro m(a, b=2) %}{{ a ~ b }}{{ a|tojson }}{% endmacro %}{% for k, v in tool.items() %}"
        "{{ m(k, b=v) }}{{ content.split() }}{{ content|replace('a', role)|upper }}{% set x = [k] "
        "+ [v] %}"
        "{{ x|map('string')|join(',') }}{{ '%s' % v }}{{ '{}'.format(v) }}{% endfor %}{{ 'x' * "
        "5000 }}";
    int status = RP_STATUS_NO_MEMORY;
    for (uint64_t n = 1; status != RP_OK && n < 200; n++) {
        rp_alloc_fail_at(n);
        status = chat_try(f, source, NULL);
        rp_alloc_fail_at(0);
        assert_true(status == RP_OK || status == RP_STATUS_NO_MEMORY || status == RP_STATUS_RANGE);
    }
    assert_int_equal(status, RP_OK);
}

static void test_values_survive_many_keys_and_bad_bytes(void **state) {
    struct chat_fixture *f = *state;
    struct rp_chat_value *dict = rp_chat_dict(f->values);
    char key[24];
    for (int i = 0; i < 50000; i++) {
        int len = snprintf(key, sizeof key, "k%d", i % 40000);
        rp_chat_dict_set(f->values, dict, key, (size_t)len, rp_chat_int(f->values, i));
    }
    rp_chat_dict_set(f->values, f->variables, "many", 4, dict);
    rp_chat_dict_set(f->values, f->variables, "bad", 3,
                     rp_chat_string(f->values, "a\xFF\xC3(\xED\xA0\x80z", 8));
    assert_string_equal(
        chat_spans(f, "{{ many|length }}{{ many.k39999 }}{{ many.k0 }}{{ many.x }}"),
        "T40000;I3999940000;");
    assert_string_equal(chat_spans(f, "{{ bad }}"),
                        "Ia\xEF\xBF\xBD\xEF\xBF\xBD(\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz;");
}

static void test_values_beyond_their_limit_are_refused(void **state) {
    struct chat_fixture *f = *state;
    struct rp_chat_values *small = rp_chat_values_create(4000);
    struct rp_chat_value *list = rp_chat_list(small);
    for (int i = 0; i < 1000; i++)
        rp_chat_list_add(small, list, rp_chat_string(small, "0123456789", 10));
    assert_true(rp_chat_values_failed(small));
    assert_null(rp_chat_none(small));
    rp_chat_dict_set(small, NULL, "a", 1, NULL);
    struct rp_chat_template *tmpl;
    assert_int_equal(rp_chat_template_compile("x", 1, "t", &tmpl, NULL, &f->err), RP_OK);
    assert_int_equal(rp_chat_template_render(tmpl, NULL, small, list, NULL, &f->prompt, NULL, NULL),
                     RP_STATUS_NO_MEMORY);
    rp_chat_template_destroy(tmpl);
    rp_chat_values_destroy(small);
}

struct thread_work {
    const struct rp_chat_template *tmpl;
    bool failed;
};

static void *render_often(void *argument) {
    struct thread_work *work = argument;
    for (int i = 0; i < 200 && !work->failed; i++) {
        struct chat_fixture own = {.values = NULL};
        chat_variables(&own);
        work->failed = rp_chat_template_render(work->tmpl, NULL, own.values, own.variables, NULL,
                                               &own.prompt, NULL, NULL) != RP_OK ||
                       strcmp(own.prompt.text, "USER<|x|>aB{\"name\": \"<|x|>\"") != 0;
        chat_reset(&own);
    }
    return NULL;
}

static void test_threads_render_one_template_at_once(void **state) {
    struct chat_fixture *f = *state;
    static const char source[] = "{{ role|upper }}{{ content.strip() }}{{ (tool|tojson)[:16] }}";
    struct rp_chat_template *tmpl;
    pthread_t threads[4];
    struct thread_work work[4];
    assert_int_equal(rp_chat_template_compile(source, strlen(source), "t", &tmpl, NULL, &f->err),
                     RP_OK);
    for (int i = 0; i < 4; i++) {
        work[i] = (struct thread_work){tmpl, false};
        assert_int_equal(pthread_create(&threads[i], NULL, render_often, &work[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_false(work[i].failed);
    }
    rp_chat_template_destroy(tmpl);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CHAT_TEST(test_text_of_messages_is_input_and_the_rest_is_template),
        CHAT_TEST(test_origin_survives_operators_and_slices),
        CHAT_TEST(test_origin_survives_methods_and_filters),
        CHAT_TEST(test_json_and_lists_of_input_are_input_to_the_last_bracket),
        CHAT_TEST(test_special_tokens_of_a_user_stay_text),
        CHAT_TEST(test_faults_name_line_and_reason),
        CHAT_TEST(test_budgets_end_hostile_templates),
        CHAT_TEST(test_deep_sources_are_refused_and_long_ones_are_not),
        CHAT_TEST(test_own_limits_are_kept),
        CHAT_TEST(test_out_of_memory_is_an_error_at_every_allocation),
        CHAT_TEST(test_values_survive_many_keys_and_bad_bytes),
        CHAT_TEST(test_values_beyond_their_limit_are_refused),
        CHAT_TEST(test_threads_render_one_template_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
