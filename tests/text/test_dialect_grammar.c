/* Goal: whatever the grammar of an answer lets a model write, the splitter reads as text and as
 * calls that satisfy their tools' schemas. Random walks, some of them along markers. */
#include "tests/text/dialect_fixture.h"
#include "text/grammar/grammar.h"

static const char schema[] =
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":"
    "\"integer\",\"minimum\":-5,\"maximum\":300},\"metric\":{\"type\":\"boolean\"},\"unit\":{"
    "\"enum\":[\"C\",\"F\"]},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"enum\":["
    "\"x\","
    "\"yz\"]},\"maxItems\":3},\"where\":{\"$ref\":\"#/$defs/place\"}},\"required\":[\"city\","
    "\"days\"],\"additionalProperties\":false,\"$defs\":{\"place\":{\"type\":\"object\","
    "\"properties\":{\"lat\":{\"type\":\"integer\"},\"name\":{\"type\":\"string\"}},\"required\":["
    "\"lat\"],\"additionalProperties\":false}}}";
static const char small[] = "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"null\"}},"
                            "\"additionalProperties\":false}";

/* Strings whose form matters, also where they are not quoted. */
static const char bounded[] =
    "{\"type\":\"object\",\"properties\":{\"code\":{\"type\":\"string\",\"pattern\":\""
    "^[A-Z<]{2,3}[0-9]?$\"},\"note\":{\"type\":\"string\",\"minLength\":2,\"maxLength\""
    ":6},\"day\":{\"type\":\"string\",\"format\":\"date\"},\"patch\":{\"type\":\"strin"
    "g\",\"\\u0001lark\":\"start: \\\"+\\\" line (\\\"\\\\n\\\" line)*\\nline: /[a-z\\"
    "\\\\\\\\\"]+/\"}},\"required\":[\"code\"],\"additionalProperties\":false}";

enum { TOOLS = 3 };
static struct rp_dialect_tool tools[TOOLS];
static struct rp_matcher *checkers[TOOLS];

enum { FIRST_SPECIAL = 257, WIDTH = 384 };

static uint32_t seed = 7, failures;
static uint32_t roll(uint32_t below) {
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % below;
}

struct walk {
    const struct rp_dialect *row;
    struct rp_bound_dialect *bound;
    char store[64][64];
    const char *specials[64];
    size_t special_count;
    struct rp_token_trie *trie;
    struct rp_matcher *matcher;
    struct rp_buffer text; /* special tokens as their text */
    uint32_t state;
};

static struct rp_token_trie *make_trie(const struct walk *w) {
    static char bytes[256];
    struct rp_trie_token tokens[FIRST_SPECIAL + 64];
    const uint32_t end = 0;
    struct rp_token_trie *trie;
    memset(tokens, 0, sizeof tokens);
    tokens[0].bytes = "";
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        tokens[1 + i] = (struct rp_trie_token){.bytes = &bytes[i], .len = 1};
    }
    for (size_t i = 0; i < w->special_count; i++)
        tokens[FIRST_SPECIAL + i] = (struct rp_trie_token){
            .bytes = w->specials[i], .len = (uint32_t)strlen(w->specials[i]), .special = true};
    assert_int_equal(rp_token_trie_make(tokens, FIRST_SPECIAL + (uint32_t)w->special_count, WIDTH,
                                        &end, 1, &trie, NULL),
                     RP_OK);
    return trie;
}

static struct rp_matcher *make_matcher(const struct rp_token_trie *trie, const char *source,
                                       size_t len, bool tag) {
    const struct rp_grammar_limits limits = {.trie = trie};
    struct rp_grammar *grammar = NULL;
    struct rp_matcher *matcher;
    struct rp_error err;
    int rc = tag ? rp_grammar_compile_structural_tag(source, len, &limits, &grammar, &err)
                 : rp_grammar_compile_json_schema(source, len, &limits, &grammar, &err);
    if (rc != RP_OK)
        fail_msg("%s\n%.*s", err.text, (int)len, source);
    assert_int_equal(rp_matcher_make(grammar, trie, 0, &matcher), RP_OK);
    return matcher;
}

static bool take(struct walk *w, uint32_t token) {
    uint32_t next;
    if (rp_matcher_advance(w->matcher, w->state, token, &next) != RP_OK)
        return false;
    w->state = next;
    if (token >= FIRST_SPECIAL) {
        rp_buffer_puts(&w->text, w->specials[token - FIRST_SPECIAL]);
    } else {
        char byte = (char)(token - 1);
        rp_buffer_append(&w->text, &byte, 1);
    }
    return true;
}

/* As far along the text as the grammar goes. */
static void follow(struct walk *w, const char *text) {
    while (*text) {
        uint32_t token = 1 + (unsigned char)*text;
        size_t len = 1;
        for (size_t i = 0; i < w->special_count; i++)
            if (strncmp(text, w->specials[i], strlen(w->specials[i])) == 0) {
                token = FIRST_SPECIAL + (uint32_t)i;
                len = strlen(w->specials[i]);
            }
        if (!take(w, token))
            return;
        text += len;
    }
}

static void any_token(struct walk *w) {
    uint32_t bits[WIDTH / 32], allowed[WIDTH], count = 0;
    assert_int_equal(rp_matcher_mask(w->matcher, w->state, bits, RP_MASK_FUEL), RP_OK);
    for (uint32_t i = 1; i < WIDTH; i++)
        if (bits[i / 32] >> i % 32 & 1)
            allowed[count++] = i;
    if (count > 0)
        assert_true(take(w, allowed[roll(count)]));
}

/* Whether the walk ended where the answer may end. */
static bool wander(struct walk *w) {
    const struct rp_dialect *row = w->row;
    const char *moves[] = {row->reasoning_open,
                           row->reasoning_close,
                           row->section_open,
                           row->section_close,
                           row->call_open,
                           row->call_close,
                           row->separator,
                           row->name_close,
                           row->key_open,
                           row->key_close,
                           row->value_close,
                           row->quote,
                           "\"",
                           "}",
                           "get_weather",
                           "no_args",
                           "bounded",
                           "AB",
                           "2024-02-29",
                           "+a\nb",
                           "city",
                           "12",
                           "</",
                           "<",
                           "[",
                           "{\"name\": \"get_weather",
                           "\n",
                           "</parameter>\n<parameter=",
                           "<|channel|>analysis<|message|>",
                           "<|end|><|start|>assistant",
                           "<|channel|>final<|message|>",
                           "<|channel|>commentary to=functions.get_weather <|constrain|>json"};
    w->state = rp_matcher_start(w->matcher);
    rp_buffer_clear(&w->text);
    for (int step = 0; step < 700; step++) {
        char forced[64];
        size_t count = rp_matcher_forced(w->matcher, w->state, forced, sizeof forced);
        for (size_t i = 0; i < count; i++)
            assert_true(take(w, 1 + (unsigned char)forced[i]));
        if (rp_matcher_is_accepting(w->matcher, w->state) && roll(12) == 0)
            return true;
        uint32_t move = roll(RP_ARRAY_COUNT(moves) + 12);
        if (move < RP_ARRAY_COUNT(moves))
            follow(w, moves[move]);
        else
            any_token(w);
    }
    return rp_matcher_is_accepting(w->matcher, w->state);
}

static bool satisfies(const struct events *e, uint32_t call) {
    int tool = TOOLS - 1;
    uint32_t state;
    while (tool >= 0 && strcmp(e->names[call], tools[tool].name) != 0)
        tool--;
    if (tool < 0)
        return false;
    return rp_matcher_advance_bytes(checkers[tool], rp_matcher_start(checkers[tool]),
                                    e->arguments[call].data, e->arguments[call].len,
                                    &state) == RP_OK &&
           rp_matcher_is_accepting(checkers[tool], state);
}

static uint32_t check_walk(struct walk *w, const struct rp_answer_spec *spec) {
    struct rp_splitter_options options = {.tools = tools,
                                          .tool_count = TOOLS,
                                          .start = spec->start,
                                          .calls_off = spec->choice == RP_TOOLS_NONE};
    struct events e;
    events_init(&e);
    feed_text(w->bound, &options, w->specials, w->special_count, w->text.data ? w->text.data : "",
              w->text.len, (struct feeding){0}, &e);
    bool right = e.misses == 0 && e.complete == e.calls;
    for (uint32_t i = 0; i < RP_MIN(e.calls, (uint32_t)DIALECT_CALLS_MAX - 1); i++)
        right &= satisfies(&e, i); /* the fixture keeps all later calls in its last place */
    right &= spec->choice != RP_TOOLS_REQUIRED || (e.calls > 0 && e.text.len == 0);
    right &= spec->parallel || e.calls <= 1;
    uint32_t calls = e.calls;
    failures += !right;
    if (!right && failures < 12)
        print_message("%s (%zu special tokens), choice %d, start %d, parallel %d: %u misses:\n%s\n"
                      "of\n%s\n",
                      w->row->name, w->special_count, (int)spec->choice, (int)spec->start,
                      spec->parallel, e.misses, events_string(&e.log), w->text.data);
    events_deinit(&e);
    return calls;
}

static void walk_spec(struct walk *w, const struct rp_answer_spec *spec) {
    struct rp_buffer source = {.data = NULL};
    struct rp_error err;
    uint32_t ended = 0, calls = 0;
    if (rp_dialect_answer_grammar(w->bound, spec, &source, &err) != RP_OK)
        fail_msg("%s: %s", w->row->name, err.text);
    w->matcher = make_matcher(w->trie, source.data, source.len, true);
    for (int i = 0; i < 12; i++)
        if (wander(w)) {
            ended++;
            rp_buffer_append(&w->text, "", 1); /* for messages */
            w->text.len--;
            calls += check_walk(w, spec);
        }
    bool right = ended > 0 && (spec->choice != RP_TOOLS_REQUIRED || calls > 0);
    failures += !right;
    if (!right)
        print_message("%s, choice %d: %u walks ended, with %u calls; the last one: %.*s\n",
                      w->row->name, (int)spec->choice, ended, calls, (int)w->text.len,
                      w->text.data);
    rp_matcher_free(w->matcher);
    rp_buffer_deinit(&source);
}

static void walk_row(const struct rp_dialect *row, bool with_specials) {
    struct walk w = {.row = row};
    w.special_count = with_specials ? row_specials(row, w.store, w.specials) : 0;
    assert_int_equal(rp_dialect_bind(row, NULL, w.specials, w.special_count, &w.bound, NULL),
                     RP_OK);
    w.trie = make_trie(&w);
    for (int choice = RP_TOOLS_NONE; choice <= RP_TOOLS_REQUIRED; choice++)
        for (int variant = 0; variant < 3; variant++) {
            struct rp_answer_spec spec = {.tools = tools,
                                          .tool_count = TOOLS,
                                          .choice = (enum rp_tool_choice)choice,
                                          .parallel = variant != 1,
                                          .reasoning_off = variant == 1};
            if (row->shape == RP_CALL_HARMONY)
                spec.start = RP_START_HEADER;
            else if (variant == 2 && row->reasoning_open[0])
                spec.start = RP_START_REASONING;
            walk_spec(&w, &spec);
        }
    rp_token_trie_free(w.trie);
    rp_bound_dialect_free(w.bound);
    rp_buffer_deinit(&w.text);
}

static void what_is_allowed_is_read(void **state) {
    (void)state;
    for (size_t i = 0; i < rp_dialect_count(); i++)
        for (int with = 0; with < 2 && rp_dialect_at(i)->shape != RP_CALL_NONE; with++)
            if (with || rp_dialect_at(i)->shape != RP_CALL_HARMONY) /* always special tokens */
                walk_row(rp_dialect_at(i), with);
    assert_int_equal(failures, 0);
}

static int set_up(void **state) {
    static struct rp_token_trie *bytes;
    const struct walk none = {.special_count = 0};
    *state = &bytes;
    bytes = make_trie(&none);
    tools[0] = (struct rp_dialect_tool){"get_weather", json_loads(schema, 0, NULL)};
    tools[1] = (struct rp_dialect_tool){"no_args", json_loads(small, 0, NULL)};
    tools[2] = (struct rp_dialect_tool){"bounded", json_loads(bounded, 0, NULL)};
    checkers[2] = make_matcher(bytes, bounded, strlen(bounded), false);
    checkers[0] = make_matcher(bytes, schema, strlen(schema), false);
    checkers[1] = make_matcher(bytes, small, strlen(small), false);
    return 0;
}

static int tear_down(void **state) {
    for (int i = 0; i < TOOLS; i++) {
        json_decref((json_t *)tools[i].parameters);
        rp_matcher_free(checkers[i]);
    }
    rp_token_trie_free(*(struct rp_token_trie **)*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_allowed_is_read)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
