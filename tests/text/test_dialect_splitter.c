/* Goal: outputs as models really write them, broken ones too, become the events that a reader
 * would expect; nothing is thrown away. */
#include "tests/text/dialect_fixture.h"

static json_t *parameters;
static struct rp_dialect_tool tools[2];

struct expectation {
    const char *row, *specials; /* separated by spaces */
    enum rp_split_start start;
    const char *output, *log;
    uint32_t misses;
};

static void check(const struct expectation *x) {
    char store[512];
    const char *specials[16];
    size_t count = 0;
    struct rp_bound_dialect *bound;
    snprintf(store, sizeof store, "%s", x->specials);
    for (char *at = store; *at; count++) {
        specials[count] = at;
        at += strcspn(at, " ");
        if (*at)
            *at++ = '\0';
    }
    const struct rp_dialect *row = rp_dialect_find(x->row);
    assert_non_null(row);
    assert_int_equal(rp_dialect_bind(row, NULL, specials, count, &bound, NULL), RP_OK);
    struct rp_splitter_options options = {.tools = tools, .tool_count = 2, .start = x->start};
    for (size_t piece = 0; piece < 6; piece++) {
        struct events e;
        events_init(&e);
        feed_text(bound, &options, specials, count, x->output, strlen(x->output),
                  (struct feeding){.piece = piece}, &e);
        if (strcmp(events_string(&e.log), x->log) != 0 || e.misses != x->misses)
            fail_msg("%s: pieces of %zu: %u misses:\n%s\nis\n%s\nnot\n%s", x->row, piece, e.misses,
                     x->output, e.log.data, x->log);
        events_deinit(&e);
    }
    rp_bound_dialect_free(bound);
}

#define TEXT      RP_START_TEXT
#define REASONING RP_START_REASONING
#define HEADER    RP_START_HEADER
#define CALL      "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>"
#define HARMONY   "<|start|> <|channel|> <|constrain|> <|message|> <|end|> <|call|> <|return|>"

static const struct expectation text_and_reasoning[] = {
    {"hermes", "", TEXT, "", "", 0},
    {"hermes", "", TEXT, " plain < text <tool \n", "T( plain < text <tool \n)", 0},
    {"hermes", "", TEXT, "<think>\nI think.\n</think>\n\nText", "R(I think.)T(Text)", 0},
    {"hermes", "", REASONING, "I think.</think>Text", "R(I think.)T(Text)", 0},
    {"hermes", "", REASONING, "<think>twice</think></think>\nText", "R(twice)T(Text)", 0},
    {"hermes", "", REASONING, "never ends\n", "R(never ends\n)", 0},
    {"hermes", "", REASONING, "</think>at once", "T(at once)", 0},
    {"hermes", "", TEXT, "about <think> and </think> tags", "T(about <think> and </think> tags)",
     0},
    {"hermes", "<think> </think>", TEXT, "a<think>b</think>c</think>d", "T(a)R(b)T(cd)", 0},
    {"hermes", "", REASONING,
     "call <tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", "R(call)B(f)A({})E",
     0},
    {"hermes", "", REASONING, "no <tool_call> is meant</think>x", "R(no <tool_call> is meant)T(x)",
     1},
    {"granite", "", TEXT, "Here is my thought process: hm.\n\nHere is my response: yes",
     "R(hm.)T(yes)", 0},
    {"think", "", REASONING, "a</think>" CALL, "R(a)T(" CALL ")", 0},
};

static const struct expectation hermes[] = {
    {"hermes", "", TEXT, "I will.\n" CALL "\n" CALL "\nDone.",
     "T(I will.)B(f)A({\"x\": 1})EB(f)A({\"x\": 1})ET(Done.)", 0},
    {"hermes", "", TEXT,
     "<tool_call><tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call></tool_call>",
     "B(f)A({})E", 0},
    {"hermes", "", TEXT, "<tool_call>{\"arguments\": {\"x\": [1]}, \"name\": \"f\"}</tool_call>",
     "B(f)A({\"x\": [1]})E", 0},
    {"hermes", "", TEXT,
     "<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {}}}",
     "B(f)A({})E", 0},
    {"hermes", "", TEXT,
     "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"x\\\": \\\"\\\\n\\\"}\"}",
     "B(f)A({\"x\": \"\\n\"})E", 0},
    {"hermes", "", TEXT, "<tool_call>{\"name\": \"f\"}</tool_call>", "B(f)A({})E", 0},
    {"hermes", "", TEXT, "<tool_call>{\"id\": \"a1\", \"name\": \"unknown\", \"parameters\": {}}x",
     "B(unknown a1)A({})ET(x)", 0},
    {"hermes", "", TEXT, "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1</tool_call>yes",
     "B(f)A({\"x\": 1)E!T(yes)", 1},
    {"hermes", "", TEXT, "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"a",
     "B(f)A({\"x\": \"a)E!", 1},
    {"hermes", "", TEXT, "<tool_call>\n{\"city\": \"Paris\"}\n</tool_call>",
     "T(<tool_call>\n{\"city\": \"Paris\"}\n</tool_call>)", 1},
    {"hermes", "", TEXT, "<tool_call>\nnot json <tool_call>{\"name\":\"f\",\"arguments\":{}}",
     "T(<tool_call>\nnot json)B(f)A({})E", 1},
    {"hermes", "", TEXT, "<tool_call>{\"name\": 5}", "T(<tool_call>{\"name\": 5})", 1},
    {"hermes", "<tool_call> </tool_call>", TEXT, CALL "x", "B(f)A({\"x\": 1})ET(x)", 0},
    {"hermes", "", TEXT, CALL "}\n", "B(f)A({\"x\": 1})ET(}\n)", 0},
};

static const struct expectation families[] = {
    {"llama3_json", "", TEXT,
     "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}",
     "B(f)A({})EB(g)A({})E", 0},
    {"llama3_json", "<|python_tag|>", TEXT, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}",
     "B(f)A({})E", 0},
    {"llama3_json", "", TEXT, "{\"name\": \"Ann\", \"parameters\": 3}",
     "T({\"name\": \"Ann\", \"parameters\": 3})", 0},
    {"llama3_json", "", TEXT, "Say {\"name\": \"f\", \"parameters\": {}}",
     "T(Say {\"name\": \"f\", \"parameters\": {}})", 0},
    {"xlam", "", TEXT, "[1, 2]", "T([1, 2])", 0},
    {"pythonic", "", TEXT, "[f(s='it\\'s', n=None, l=(1, 'b',), d={'k': True}), g()]",
     "B(f)A({\"s\": \"it's\", \"n\": null, \"l\": [1, \"b\"], \"d\": {\"k\": true}})EB(g)A({})E",
     0},
    {"pythonic", "", TEXT, "[see(1)]", "T([see(1)])", 0},
    {"qwen3_coder", "", TEXT,
     "<function=f>\n<parameter=s>\na\n\nb\n</parameter>\n</function>\n</tool_call>",
     "B(f)A({\"s\": \"a\\n\\nb\"})E", 0},
    {"qwen3_coder", "", TEXT, "<function=name> is a tag", "T(<function=name> is a tag)", 1},
    {"qwen3_coder", "", TEXT,
     "<tool_call>\n<function=f>\n<parameter=n>\n42\n</parameter>\n<parameter=b>\nTrue\n</"
     "parameter>\n"
     "<parameter=s>\n42\n</parameter>\n<parameter=u>\nNone\n</parameter>\n</function>\n</"
     "tool_call>",
     "B(f)A({\"n\": 42, \"b\": true, \"s\": \"42\", \"u\": null})E", 0},
    {"qwen3_coder", "", TEXT,
     "<tool_call>\n<function=f>\n<parameter=s>\nx\n</function>\n</tool_call>ok",
     "B(f)A({\"s\": \"x\"})ET(ok)", 1},
    {"qwen3_coder", "", TEXT, "<tool_call>\n<function=f>\n<parameter=s>\nhalf",
     "B(f)A({\"s\": \"half)E!", 1},
    {"glm45", "", TEXT,
     "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value> v </arg_value>\n</tool_call>",
     "B(f)A({\"s\": \" v \"})E", 0},
    {"glm45", "", TEXT,
     "<tool_call>f<arg_key>n</arg_key><arg_value>123456789012345678901</arg_value></tool_call>",
     "B(f)A({\"n\": 123456789012345678901})E", 0},
    {"glm45", "", TEXT, "<tool_call>g</tool_call>", "B(g)A({})E", 0},
    {"kimi_k2", "", TEXT,
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{}"
     "<|tool_call_end|><|tool_calls_section_end|>",
     "B(f functions.f:3)A({})E", 0},
    {"mistral", "[TOOL_CALLS]", TEXT,
     "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}, \"id\": \"abcdefghi\"}]", "B(f)A({})E", 0},
    {"gemma4", "", TEXT, "<|tool_call>call:f{s:<|\"|>a \"b\"<|\"|>,n:1,o:{k:[true]}}<tool_call|>",
     "B(f)A({\"s\": \"a \\\"b\\\"\", \"n\": 1, \"o\": {\"k\": [true]}})E", 0},
    {"openai", HARMONY, HEADER,
     "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.f "
     "<|constrain|>json<|message|>{\"x\":1}<|call|>",
     "R(Hm.)B(f)A({\"x\":1})E", 0},
    {"openai", HARMONY, HEADER,
     " to=functions.f<|channel|>commentary "
     "json<|message|>{}<|call|><|start|>assistant<|channel|>final"
     "<|message|>Bye<|return|>",
     "B(f)A({})ET(Bye)", 0},
    {"openai", HARMONY, HEADER, "no channel at all", "T(no channel at all)", 0},
    {"openai", HARMONY, HEADER,
     "<|channel|>commentary to=functions.f<|message|>{\"x\":", "B(f)A({\"x\":)E!", 1},
};

static void text_and_reasoning_part(void **state) {
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(text_and_reasoning); i++)
        check(&text_and_reasoning[i]);
}
static void calls_of_hermes(void **state) {
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(hermes); i++)
        check(&hermes[i]);
}
static void calls_of_other_families(void **state) {
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(families); i++)
        check(&families[i]);
}

/* --- Rows ------------------------------------------------------------------------------------ */

static void names_find_rows(void **state) {
    (void)state;
    static const char *const parsers[] = {
        "hermes",      "llama3_json", "mistral",     "openai",     "kimi_k2",
        "qwen3_coder", "glm45",       "deepseek_v3", "minimax_m2", "phi4_mini_json",
        "granite",     "xlam",        "olmo3",       "lfm2"};
    for (size_t i = 0; i < RP_ARRAY_COUNT(parsers); i++)
        assert_non_null(rp_dialect_find(parsers[i]));
    assert_null(rp_dialect_find("herme"));
    assert_null(rp_dialect_find(""));
    assert_string_equal(rp_dialect_find_reasoning("deepseek_r1")->reasoning_open, "<think>\n");
    assert_null(rp_dialect_find_reasoning("pythonic"));
    for (size_t i = 0; i < rp_dialect_count(); i++)
        assert_ptr_equal(rp_dialect_find(rp_dialect_at(i)->name), rp_dialect_at(i));
}

static void a_template_tells_the_row(void **state) {
    (void)state;
    assert_string_equal(rp_dialect_detect("mistral", "x [TOOL_CALLS] [ARGS]", NULL, 0)->name,
                        "mistral_v13");
    assert_string_equal(rp_dialect_detect("mistral", "nothing", NULL, 0)->name, "mistral");
    assert_string_equal(
        rp_dialect_detect(NULL, "<tool_call>\\n<function=x>\\n<parameter=y>", NULL, 0)->name,
        "qwen3_coder");
    assert_null(rp_dialect_detect(NULL, "{{ messages }}", NULL, 0));
    assert_string_equal(rp_dialect_detect_reasoning("a <think> b")->name, "think");
    assert_null(rp_dialect_detect_reasoning("plain"));
}

static enum rp_split_start start_of(const char *row, const char *a, bool a_trusted, const char *b,
                                    bool b_trusted) {
    struct rp_bound_dialect *bound;
    const struct rp_text_span spans[] = {{a, strlen(a), a_trusted}, {b, strlen(b), b_trusted}};
    assert_int_equal(rp_dialect_bind(rp_dialect_find(row), NULL, NULL, 0, &bound, NULL), RP_OK);
    enum rp_split_start start = rp_dialect_start(bound, spans, 2);
    rp_bound_dialect_free(bound);
    return start;
}

static void the_prompt_tells_the_start(void **state) {
    (void)state;
    assert_int_equal(start_of("hermes", "x", false, "<|im_start|>assistant\n<think>\n", true),
                     REASONING);
    assert_int_equal(start_of("hermes", "x", true, "<think>\n\n</think>\n\n", true), TEXT);
    assert_int_equal(start_of("hermes", "<think>", true, "go on", false), REASONING);
    assert_int_equal(start_of("hermes", "assistant\n", true, "<think>\n", false), TEXT);
    assert_int_equal(start_of("openai", "", true, "<|start|>assistant", true), HEADER);
}

static void ids_follow_the_family(void **state) {
    (void)state;
    const uint64_t random[3] = {1, 2, 3}, others[3] = {2, 2, 3};
    char id[RP_CALL_ID_BYTES], other[RP_CALL_ID_BYTES];
    rp_dialect_call_id(rp_dialect_find("hermes"), "f", 0, random, id);
    assert_int_equal(strlen(id), 29);
    assert_memory_equal(id, "call_", 5);
    rp_dialect_call_id(rp_dialect_find("hermes"), "f", 0, others, other);
    assert_string_not_equal(id, other);
    rp_dialect_call_id(rp_dialect_find("mistral"), "f", 0, random, id);
    assert_int_equal(strlen(id), 9);
    rp_dialect_call_id(rp_dialect_find("kimi_k2"), "get", 4294967295u, random, id);
    assert_string_equal(id, "functions.get:4294967295");
}

static int compare_numbers(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Numbers that differ give ids that differ, the short ones of Mistral included. */
static void numbers_of_calls_never_repeat(void **state) {
    enum { COUNT = 20000 };
    static uint64_t numbers[COUNT];
    const uint64_t key[2] = {7, 8}, other_key[2] = {7, 9};
    char id[RP_CALL_ID_BYTES], last[RP_CALL_ID_BYTES];
    (void)state;
    assert_int_not_equal(rp_dialect_call_number(key, 1), rp_dialect_call_number(other_key, 1));
    for (uint64_t i = 0; i < COUNT; i++)
        numbers[i] = rp_dialect_call_number(key, i);
    qsort(numbers, COUNT, sizeof numbers[0], compare_numbers);
    assert_true(numbers[COUNT - 1] < 1ull << 52);
    for (size_t i = 1; i < COUNT; i++)
        assert_true(numbers[i - 1] < numbers[i]);
    for (uint64_t shift = 0; shift < 52; shift++) {
        const uint64_t random[3] = {1ull << shift, 2, 3};
        rp_dialect_call_id(rp_dialect_find("mistral"), "f", 0, random, id);
        if (shift > 0)
            assert_string_not_equal(id, last);
        memcpy(last, id, sizeof id);
    }
}

/* --- Rows of a file -------------------------------------------------------------------------- */

static void refused_file(const char *text, const char *message) {
    struct rp_dialect_file *file;
    struct rp_error err;
    assert_int_not_equal(rp_dialect_file_load(text, strlen(text), &file, &err), RP_OK);
    assert_null(file);
    if (!strstr(err.text, message))
        fail_msg("\"%s\" is not in \"%s\"", message, err.text);
}

static void a_file_adds_rows(void **state) {
    (void)state;
    static const char text[] =
        "{\"dialects\": [{\"name\": \"mine\", \"shape\": \"json\", \"call_open\": \"<c>\", "
        "\"call_close\": \"</c>\"}, {\"name\": \"yours\", \"base\": \"hermes\", \"call_open\": "
        "\"<<\", \"bare\": true}]}";
    struct rp_dialect_file *file;
    assert_int_equal(rp_dialect_file_load(text, strlen(text), &file, NULL), RP_OK);
    const struct rp_dialect *mine = rp_dialect_file_find(file, "mine");
    const struct rp_dialect *yours = rp_dialect_file_find(file, "yours");
    assert_int_equal(mine->shape, RP_CALL_JSON);
    assert_string_equal(mine->call_close, "</c>");
    assert_string_equal(mine->arguments_key, "arguments");
    assert_string_equal(mine->quote, "");
    assert_string_equal(yours->call_open, "<<");
    assert_string_equal(yours->call_close, "\n</tool_call>");
    assert_true(yours->bare);
    assert_null(rp_dialect_file_find(file, "hermes"));
    rp_dialect_file_free(file);
    refused_file("[]", "dialects");
    refused_file("{\"dialects\": [{\"shape\": \"json\"}]}", "name");
    refused_file("{\"dialects\": [{\"name\": \"a\", \"shape\": \"xml\"}]}", "shape");
    refused_file("{\"dialects\": [{\"name\": \"a\", \"call_opn\": \"x\"}]}", "call_opn");
    refused_file("{\"dialects\": [{\"name\": \"a\", \"call_open\": 1}]}", "call_open");
    refused_file("{\"dialects\": [{\"name\": \"a\", \"base\": \"zz\"}]}", "base");
    refused_file(
        "{\"dialects\": [{\"name\": \"a\", \"shape\": \"tagged\", \"call_open\": \"<f\"}]}",
        "key_open");
}

static int set_up(void **state) {
    (void)state;
    parameters = json_loads("{\"properties\": {\"s\": {\"type\": \"string\"}, \"n\": {\"type\": "
                            "\"integer\"}, \"b\": {\"type\": \"boolean\"}, \"u\": {\"anyOf\": "
                            "[{\"type\": \"string\"}, {\"type\": \"null\"}]}}}",
                            0, NULL);
    tools[0] = (struct rp_dialect_tool){"f", parameters};
    tools[1] = (struct rp_dialect_tool){"g", NULL};
    return 0;
}
static int tear_down(void **state) {
    (void)state;
    json_decref(parameters);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_and_reasoning_part),  cmocka_unit_test(calls_of_hermes),
        cmocka_unit_test(calls_of_other_families),  cmocka_unit_test(names_find_rows),
        cmocka_unit_test(a_template_tells_the_row), cmocka_unit_test(the_prompt_tells_the_start),
        cmocka_unit_test(ids_follow_the_family),    cmocka_unit_test(numbers_of_calls_never_repeat),
        cmocka_unit_test(a_file_adds_rows),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
