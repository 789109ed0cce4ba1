/* Goal: no template and no conversation crashes, hangs or uses unbounded memory.
 * Method: seeded mutations of templates that use everything, and of real ones if the test data
 * exists; each is compiled and, if it compiles, rendered within small budgets, under the
 * sanitizers. Also prints the time to render 20 turns. */
#include "base/clock.h"
#include "base/memory.h"
#include "tests/support/data.h"
#include "tests/text/template_fixture.h"

#include <dirent.h>

#define MUTATIONS 6000

static const char everything[] =
    "{% macro m(a, b=2) %}{{ a ~ b }}{% endmacro %}{%- macro n(a, b=[1]) -%}{{ a }}{{ varargs }}"
    "{{ kwargs }}{{ caller(1) if caller }}{%- endmacro %}\n  {% set ns = namespace(x=1, y='z') %}"
    "{% for k, v in tool|dictsort if k != 'x' recursive %}{{ loop.index0 }}{{ loop.nextitem }}"
    "{{ loop.cycle(1, 2) }}{{ loop.changed(k) }}{{ v|tojson(indent=2) }}{% set ns.x = ns.x + 1 %}"
    "{% if loop.last %}{% break %}{% elif not k %}{% continue %}{% endif %}{% else %}none{% endfor "
    "%}"
    "{{ content.split('|', 1)[-1].strip('<>')[::-1] }}{{ '%5.2f|%s' % (1.5, role) }}{{ n(1, 2, 3, "
    "q=4) }}"
    "{% call(x) n(role) %}{{ x }}{% endcall %}{% filter upper|replace('A', role) %}{{ content }}{% "
    "endfilter %}"
    "{% set t | trim %} {{ [1, 2, 3]|map('string')|join(role) }} {% endset %}{{ t|title|center(40) "
    "}}"
    "{{ [tool, tool]|selectattr('name', 'equalto', '<|x|>')|list|length }}{{ content|indent(4, "
    "true) }}"
    "{{ ['b', 'a']|sort(reverse=true)|unique|first }}{{ (1, 2) in [(1, 2)] }}{{ 1 < 2 <= 3 != 4 }}"
    "{{ {'a': 1, 2: none}|tojson(sort_keys=false) }}{{ '{:>8}{}'.format(role, 1.25) }}{{ -7 // 2 "
    "** 2 % 5 }}"
    "{# note #}{% raw %}{{ x }}{% endraw %}{{ strftime_now('%d %b %Y') }}{{ range(1, 9, "
    "2)|batch(2, 0)|list }}"
    "{% with q = role %}{{ q[1:-1] }}{{ q.title() }}{% endwith %}{% generation %}{{ bos_token }}{% "
    "endgeneration %}"
    "{{ raise_exception('x' ~ role) if nope is defined else '' }}{{ "
    "content|urlencode|length|string|int }}"
    "{{ 'a\\u00e9\\n' 'b'|e }}{{ role is string and role is not mapping or x }}{{ [[], {}, "
    "()]|string }}";

static const char *const tokens[] = {"{%",
                                     "%}",
                                     "{{",
                                     "}}",
                                     "{#",
                                     "#}",
                                     "-",
                                     "+",
                                     "|",
                                     "(",
                                     ")",
                                     "[",
                                     "]",
                                     "{",
                                     "}",
                                     ".",
                                     ",",
                                     ":",
                                     "~",
                                     "**",
                                     "for",
                                     "endfor",
                                     "if",
                                     "else",
                                     "elif",
                                     "endif",
                                     "set",
                                     "endset",
                                     "macro",
                                     "endmacro",
                                     "in",
                                     "is",
                                     "not",
                                     "and",
                                     "loop",
                                     "role",
                                     "content",
                                     "tool",
                                     "ns.x",
                                     "range(9)",
                                     "'%s'",
                                     "'",
                                     "\"",
                                     "\\",
                                     "\n",
                                     " ",
                                     "\xC3\xA9",
                                     "0",
                                     "-1",
                                     "99999",
                                     "1e308",
                                     "none",
                                     "recursive",
                                     "|tojson",
                                     "|list",
                                     "|join('x')",
                                     "|map('upper')",
                                     "|sort",
                                     ".split()",
                                     "*",
                                     "%",
                                     "/",
                                     "//",
                                     "==",
                                     "<",
                                     "|reverse",
                                     "|groupby('a')",
                                     "|string",
                                     "|length",
                                     ".format(role)",
                                     "raw",
                                     "endraw",
                                     "caller()",
                                     "loop(tool)",
                                     "|indent(3)",
                                     "|batch(2)",
                                     ".x",
                                     "[::-1]",
                                     "|first"};

static uint64_t next_random(uint64_t *state) { /* xorshift64* */
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545F4914F6CDD1Du;
}

/* Bytes deleted, copied or replaced, tokens inserted. */
static void mutate(uint64_t *random, const char *from, size_t len, struct rp_buffer *out) {
    size_t changes = 1 + next_random(random) % 4;
    rp_buffer_clear(out);
    rp_buffer_append(out, from, len);
    for (size_t i = 0; i < changes && out->len > 0; i++) {
        size_t at = next_random(random) % out->len, count = 1 + next_random(random) % 30;
        const char *token = tokens[next_random(random) % RP_ARRAY_COUNT(tokens)];
        size_t size = strlen(token), what = next_random(random) % 4;
        count = RP_MIN(count, out->len - at);
        if (what == 0) {
            memmove(out->data + at, out->data + at + count, out->len - at - count);
            out->len -= count;
        } else if (what == 1 && rp_buffer_reserve(out, count)) {
            memmove(out->data + at + count, out->data + at, out->len - at);
            out->len += count;
        } else if (rp_buffer_reserve(out, size)) {
            if (what == 3)
                memmove(out->data + at + size, out->data + at, out->len - at);
            out->len = what == 3 ? out->len + size : RP_MAX(out->len, at + size);
            memcpy(out->data + at, token, size);
        }
    }
}

static void render_bytes(struct chat_fixture *f, const char *source, size_t len, size_t counts[3]) {
    const struct rp_chat_limits limits = {
        .steps = 100000, .output_bytes = 1 << 20, .memory_bytes = 8 << 20};
    struct rp_chat_template *tmpl;
    int status = rp_chat_template_compile(source, len, "t", &tmpl, &f->fault, &f->err);
    counts[0]++;
    if (status != RP_OK)
        return;
    counts[1]++;
    status = rp_chat_template_render(tmpl, NULL, f->values, f->variables, &limits, &f->prompt,
                                     &f->fault, &f->err);
    counts[2] += status == RP_OK;
    for (size_t i = 0, at = 0; status == RP_OK && i < f->prompt.span_count; i++) {
        assert_ptr_equal(f->prompt.spans[i].text, f->prompt.text + at);
        at += f->prompt.spans[i].len;
        assert_true(i + 1 < f->prompt.span_count || at == f->prompt.len);
    }
    rp_chat_prompt_deinit(&f->prompt);
    rp_chat_template_destroy(tmpl);
}

static void add_messages(struct chat_fixture *f, int turns) {
    struct rp_chat_value *messages = rp_chat_list(f->values), *tools = rp_chat_list(f->values);
    for (int i = 0; i < turns; i++) {
        struct rp_chat_value *message = rp_chat_dict(f->values);
        chat_put(f, message, "role", chat_text(f, i % 2 ? "assistant" : "user"));
        chat_put(f, message, "content",
                 chat_text(f, "The quick brown fox jumps over the lazy dog. Gr\xC3\xBC\xC3\x9F"
                              "e! <|im_end|> And another sentence, so that it is a message."));
        rp_chat_list_add(f->values, messages, message);
    }
    chat_put(f, f->variables, "messages", messages);
    rp_chat_list_add(f->values, tools, rp_chat_dict(f->values));
    chat_put(f, f->variables, "eos_token", rp_chat_trusted_string(f->values, "</s>", 4));
    chat_put(f, f->variables, "add_generation_prompt", rp_chat_bool(f->values, true));
}

static void fuzz(struct chat_fixture *f, const char *name, const char *source, size_t len,
                 size_t mutations) {
    uint64_t random = 0x9E3779B97F4A7C15u;
    struct rp_buffer text;
    size_t counts[3] = {0, 0, 0};
    rp_buffer_init(&text, 0);
    for (size_t i = 0; i < mutations; i++) {
        mutate(&random, source, len, &text);
        render_bytes(f, text.data, text.len, counts);
    }
    rp_buffer_deinit(&text);
    printf("%s: %zu mutations, %zu compile, %zu render\n", name, counts[0], counts[1], counts[2]);
    assert_true(counts[1] > 0);
}

static void test_mutations_of_a_template_with_everything_do_no_harm(void **state) {
    struct chat_fixture *f = *state;
    add_messages(f, 3);
    fuzz(f, "own", everything, sizeof everything - 1, MUTATIONS);
}

static char *read_whole(const char *path, size_t *len) {
    FILE *file = fopen(path, "rb");
    char *text = file ? calloc(1, 65536) : NULL;
    *len = text ? fread(text, 1, 65535, file) : 0;
    if (file)
        fclose(file);
    return text;
}

/* One line for each real template: the time to render 20 turns. */
static void time_rendering(struct chat_fixture *f, const char *name, const char *source,
                           size_t len) {
    struct rp_chat_template *tmpl;
    int runs = 0, status = RP_OK;
    assert_int_equal(rp_chat_template_compile(source, len, name, &tmpl, NULL, &f->err), RP_OK);
    uint64_t begin = rp_clock_ns(), end = begin;
    for (; runs < 200 && end - begin < 50000000 && status == RP_OK; runs++) {
        status = rp_chat_template_render(tmpl, NULL, f->values, f->variables, NULL, &f->prompt,
                                         NULL, &f->err);
        rp_chat_prompt_deinit(&f->prompt);
        end = rp_clock_ns();
    }
    rp_chat_template_destroy(tmpl);
    printf("%s: 20 turns in %.1f us\n", name, (double)(end - begin) / 1000.0 / runs);
    assert_int_equal(status, RP_OK);
}

static void test_mutations_of_real_templates_do_no_harm(void **state) {
    struct chat_fixture *f = *state;
    char folder[4096], path[8192];
    if (!rp_test_data("templates", folder, sizeof folder))
        skip();
    DIR *dir = opendir(folder);
    add_messages(f, 21);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        size_t len;
        if (!strstr(entry->d_name, ".jinja"))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        char *text = read_whole(path, &len);
        assert_non_null(text);
        time_rendering(f, entry->d_name, text, len);
        fuzz(f, entry->d_name, text, len, MUTATIONS / 20);
        free(text);
    }
    if (dir)
        closedir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CHAT_TEST(test_mutations_of_a_template_with_everything_do_no_harm),
        CHAT_TEST(test_mutations_of_real_templates_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
