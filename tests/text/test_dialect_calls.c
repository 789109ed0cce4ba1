/* Goal: for every dialect, what is written as a call is read as that call, however the output is
 * cut, and an output that ends anywhere loses nothing. */
#include "tests/text/dialect_fixture.h"

static const char schema[] =
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":"
    "\"integer\"},\"scale\":{\"type\":\"number\"},\"metric\":{\"type\":\"boolean\"},\"at\":{"
    "\"type\":"
    "[\"string\",\"null\"]},\"tags\":{\"type\":\"array\"},\"where\":{\"$ref\":\"#/$defs/place\"},"
    "\"any\":{},\"unit\":{\"enum\":[\"C\",\"F\"]}},\"$defs\":{\"place\":{\"type\":\"object\"}}}";

/* Every JSON type, nesting, escapes, Unicode, and texts of markers. */
static const char *const arguments[] = {
    "{}",
    "{\"city\": \"Paris\"}",
    "{\"city\": \"\", \"days\": 0, \"metric\": false, \"at\": null}",
    "{\"days\": -12, \"scale\": 2.5, \"metric\": true, \"unit\": \"C\"}",
    "{\"tags\": [], \"where\": {}}",
    "{\"tags\": [1, -2.5, \"a\", [true, [null]], {\"k\": [\"v\"]}], \"city\": \"x\"}",
    "{\"where\": {\"a\": {\"b\": {\"c\": [1, 2, {\"d\": \"e\"}]}}, \"t\": true, \"n\": null}}",
    "{\"city\": \"two\\nlines\\n\\n and \\t tab, \\\"quotes\\\", \\\\ back, it's\"}",
    "{\"city\": \"  spaces around \\n\", \"at\": \"noon\"}",
    "{\"city\": \"caf\\u00e9 \\u4e2d\\u6587 \\ud83d\\ude00 \\u0001\\u001f\"}",
    "{\"city\": \"\\u0001/parameter> a \\u0001/function> b \\u0001/tool_call> \\u0001tool_call>\"}",
    "{\"city\": \"\\u0001/arg_value> x \\u0001/invoke> [TOOL CALLS] }]}'; {\\\"name\\\": 1}\"}",
    "{\"tags\": [\"\\u0001/parameter>\", \"\\u0001|tool_call_end|>\", \"](), \"], \"any\": 5}",
    "{\"any\": {\"x\": [1]}, \"city\": \"{not json\"}",
    "{\"any\": \"a longer text that is no JSON\", \"days\": 123456789012345}"};

/* The arguments of a dialect that takes white space around values off, or that would confuse its
 * own quotes, are not asked of it. */
static bool suits(const struct rp_dialect *row, const json_t *value) {
    const char *city = json_string_value(json_object_get(value, "city"));
    if (row->shape == RP_CALL_LITERAL && city && strstr(city, row->quote))
        return false;
    return true;
}

static const json_t *parameters(void) {
    static json_t *root;
    if (!root)
        root = json_loads(schema, 0, NULL);
    return root;
}

static json_t *load(const char *text) {
    json_t *value = json_loads(text, JSON_ALLOW_NUL, NULL);
    assert_non_null(value);
    return value;
}

/* FAKE is '<' where it is fed, so the arguments that come out have it, too. */
static bool same(struct rp_buffer *got, const json_t *expected) {
    char *text = json_dumps(expected, JSON_ENSURE_ASCII);
    struct rp_buffer real = {.data = NULL};
    for (const char *at = text; *at; at++)
        if (strncmp(at, "\\u0001", 6) == 0) {
            rp_buffer_puts(&real, "<");
            at += 5;
        } else {
            rp_buffer_append(&real, at, 1);
        }
    json_t *want = json_loadb(real.data, real.len, 0, NULL);
    json_t *have = json_loadb(got->len ? got->data : "", got->len, 0, NULL);
    bool equal = want && have && json_equal(want, have);
    json_decref(want);
    json_decref(have);
    rp_buffer_deinit(&real);
    free(text);
    return equal;
}

struct setup {
    const struct rp_dialect *row;
    struct rp_bound_dialect *bound;
    char store[64][64];
    const char *specials[64];
    size_t special_count;
    struct rp_splitter_options options;
};

static const struct rp_dialect_tool *tools(void) {
    static struct rp_dialect_tool list[3];
    list[0] = (struct rp_dialect_tool){"get_weather", parameters()};
    list[1] = (struct rp_dialect_tool){"f", parameters()};
    list[2] = (struct rp_dialect_tool){"no-args_2", NULL};
    return list;
}

static void set_up(struct setup *t, const struct rp_dialect *row, bool with_specials) {
    memset(t, 0, sizeof *t);
    t->row = row;
    t->special_count = with_specials ? row_specials(row, t->store, t->specials) : 0;
    assert_int_equal(rp_dialect_bind(row, NULL, t->specials, t->special_count, &t->bound, NULL),
                     RP_OK);
    t->options = (struct rp_splitter_options){.tools = tools(), .tool_count = 3};
    if (row->shape == RP_CALL_HARMONY)
        t->options.start = RP_START_HEADER;
}

static void feed(struct setup *t, const struct rp_buffer *text, struct feeding feeding,
                 struct events *e) {
    events_init(e);
    feed_text(t->bound, &t->options, t->specials, t->special_count, text->data, text->len, feeding,
              e);
}

/* JSON writes FAKE as an escape; where the dialect writes raw text it is the byte. */
static void unfake(struct rp_buffer *text) {
    size_t to = 0;
    for (size_t i = 0; i < text->len; i++) {
        if (i + 6 <= text->len && memcmp(text->data + i, "\\u0001", 6) == 0) {
            text->data[to++] = FAKE[0];
            i += 5;
        } else {
            text->data[to++] = text->data[i];
        }
    }
    text->len = to;
}

static void render(const struct rp_dialect *row, const char *intro, const char *const *names,
                   json_t *const *values, size_t count, struct rp_buffer *out) {
    struct rp_dialect_call calls[DIALECT_CALLS_MAX];
    char ids[DIALECT_CALLS_MAX][RP_CALL_ID_BYTES];
    const uint64_t random[3] = {12345678901234567u, 9876543210987654321u, 1};
    for (size_t i = 0; i < count; i++) {
        rp_dialect_call_id(row, names[i], (uint32_t)i, random, ids[i]);
        calls[i] = (struct rp_dialect_call){names[i], ids[i], values[i]};
    }
    rp_buffer_puts(out, intro);
    assert_int_equal(rp_dialect_render_calls(row, calls, count, out), RP_OK);
    unfake(out);
}

static void check_call(const struct setup *t, struct events *e, uint32_t at, const char *name,
                       const json_t *value, const struct rp_buffer *text) {
    bool right = at < e->calls && strcmp(e->names[at], name) == 0 && same(&e->arguments[at], value);
    if (!right)
        fail_msg("%s (%zu special tokens): call %u of\n%.*s\nis\n%s", t->row->name,
                 t->special_count, at, (int)text->len, text->data, events_string(&e->log));
}

/* Every row that has calls, with and without special tokens. */
static void each_row(void (*check)(struct setup *t)) {
    for (size_t i = 0; i < rp_dialect_count(); i++) {
        const struct rp_dialect *row = rp_dialect_at(i);
        for (int with = 0; with < 2 && row->shape != RP_CALL_NONE; with++) {
            struct setup t;
            set_up(&t, row, with);
            check(&t);
            rp_bound_dialect_free(t.bound);
        }
    }
}

static void one_call(struct setup *t) {
    for (size_t a = 0; a < RP_ARRAY_COUNT(arguments); a++) {
        const char *name = a % 2 ? "get_weather" : "f";
        json_t *value = load(arguments[a]);
        struct rp_buffer text = {.data = NULL};
        struct events e;
        render(t->row, "", &name, &value, 1, &text);
        feed(t, &text, (struct feeding){0}, &e);
        if (suits(t->row, value)) {
            check_call(t, &e, 0, name, value, &text);
            assert_int_equal(e.calls, 1);
            assert_int_equal(e.complete, 1);
            assert_int_equal(e.misses, 0);
            if (e.text.len || e.reasoning.len)
                fail_msg("%s: text beside the call: %s", t->row->name, events_string(&e.log));
            if (t->row->id_open[0] || t->row->id_rule == RP_CALL_ID_FUNCTIONS)
                assert_true(e.ids[0][0] != '\0');
        }
        events_deinit(&e);
        rp_buffer_deinit(&text);
        json_decref(value);
    }
}

static void every_call_comes_back(void **state) {
    (void)state;
    each_row(one_call);
}

static void three_calls(struct setup *t) {
    static const char *const names[] = {"get_weather", "no-args_2", "f"};
    json_t *values[] = {load(arguments[5]), load("{}"), load(arguments[7])};
    struct rp_buffer text = {.data = NULL};
    struct events e;
    bool common = t->row->bare || t->row->shape == RP_CALL_HARMONY;
    render(t->row, common ? "" : "Let me see.\n\n", names, values, 3, &text);
    feed(t, &text, (struct feeding){0}, &e);
    for (uint32_t i = 0; i < 3; i++)
        check_call(t, &e, i, names[i], values[i], &text);
    assert_int_equal(e.calls, 3);
    assert_int_equal(e.misses, 0);
    assert_string_equal(events_string(&e.text), common ? "" : "Let me see.");
    events_deinit(&e);
    rp_buffer_deinit(&text);
    for (int i = 0; i < 3; i++)
        json_decref(values[i]);
}

static void several_calls_follow_text(void **state) {
    (void)state;
    each_row(three_calls);
}

static void check_same(struct setup *t, const struct rp_buffer *text, const char *expected,
                       struct feeding feeding) {
    struct events e;
    feed(t, text, feeding, &e);
    if (strcmp(events_string(&e.log), expected) != 0)
        fail_msg("%s: cut at %zu, pieces of %zu:\n%s\nwhole:\n%s", t->row->name, feeding.cut_at,
                 feeding.piece, e.log.data, expected);
    events_deinit(&e);
}

static void splits(struct setup *t) {
    static const char *const names[] = {"get_weather", "f"};
    json_t *values[] = {load(arguments[10]), load(arguments[6])};
    struct rp_buffer text = {.data = NULL};
    struct events whole;
    if (t->row->reasoning_open[0])
        rp_buffer_printf(&text, "%sSo <b>so.%s", t->row->reasoning_open, t->row->reasoning_close);
    render(t->row, t->row->bare || t->row->shape == RP_CALL_HARMONY ? "" : "Text <to [say\n", names,
           values, 2, &text);
    feed(t, &text, (struct feeding){0}, &whole);
    for (size_t cut = 1; cut < text.len; cut++)
        check_same(t, &text, events_string(&whole.log), (struct feeding){.cut_at = cut});
    for (size_t n = 1; n <= 7; n++)
        check_same(t, &text, whole.log.data, (struct feeding){.piece = n});
    for (uint32_t seed = 1; seed < 20; seed++)
        check_same(t, &text, whole.log.data, (struct feeding){.piece = 12, .random = seed});
    events_deinit(&whole);
    rp_buffer_deinit(&text);
    for (int i = 0; i < 2; i++)
        json_decref(values[i]);
}

static void cuts_change_nothing(void **state) {
    (void)state;
    each_row(splits);
}

/* The output ends at every byte. Before a call has begun, what came out is what went in. */
static void truncations(struct setup *t) {
    static const char *const names[] = {"get_weather", "f"};
    json_t *values[] = {load(arguments[5]), load(arguments[7])};
    struct rp_buffer text = {.data = NULL};
    struct events whole, e;
    bool is_plain = t->special_count == 0 && t->row->shape != RP_CALL_HARMONY;
    render(t->row, t->row->bare || t->row->shape == RP_CALL_HARMONY ? "" : "Hm\n", names, values, 2,
           &text);
    feed(t, &text, (struct feeding){0}, &whole);
    for (size_t len = 0; len < text.len; len++) {
        struct rp_buffer cut = {.data = text.data, .len = len};
        feed(t, &cut, (struct feeding){0}, &e);
        if (is_plain && e.calls == 0 &&
            (e.text.len != len || memcmp(e.text.data ? e.text.data : "", text.data, len) != 0))
            fail_msg("%s: of %.*s came %s", t->row->name, (int)len, text.data,
                     events_string(&e.log));
        /* A call that has begun is that call. */
        if (e.calls > 0)
            assert_string_equal(e.names[0], names[0]);
        if (e.calls > 1)
            assert_true(same(&e.arguments[0], values[0]));
        if (e.calls > 0 && e.complete < e.calls)
            assert_true(e.misses > 0);
        events_deinit(&e);
    }
    events_deinit(&whole);
    rp_buffer_deinit(&text);
    for (int i = 0; i < 2; i++)
        json_decref(values[i]);
}

static void an_end_anywhere_loses_nothing(void **state) {
    (void)state;
    each_row(truncations);
}

/* Without calls, and with markers that are tokens, their text is text. */
static void spelled_markers(struct setup *t) {
    const char *name = "get_weather";
    json_t *value = load("{\"city\": \"Paris\"}");
    struct rp_buffer text = {.data = NULL};
    struct events e;
    render(t->row, "See: ", &name, &value, 1, &text);
    t->options.start = RP_START_TEXT;
    t->options.calls_off = true;
    size_t count = t->special_count;
    t->special_count = 0; /* feeds the bytes */
    feed(t, &text, (struct feeding){0}, &e);
    assert_int_equal(e.calls, 0);
    if (t->row->shape != RP_CALL_HARMONY || count)
        assert_string_equal(events_string(&e.text), events_string(&text));
    events_deinit(&e);
    t->options.calls_off = false;
    bool is_token = count > 0;
    const char *markers[] = {t->row->section_open, t->row->call_open};
    for (size_t m = 0; m < RP_ARRAY_COUNT(markers); m++) {
        bool found = !markers[m][0];
        for (size_t i = 0; i < count; i++)
            found |= strstr(markers[m], t->specials[i]) != NULL;
        is_token &= found;
    }
    if (is_token) {
        feed(t, &text, (struct feeding){0}, &e);
        assert_int_equal(e.calls, 0);
        assert_string_equal(events_string(&e.text), text.data);
        events_deinit(&e);
    }
    rp_buffer_deinit(&text);
    json_decref(value);
}

static void text_cannot_fake_a_token(void **state) {
    (void)state;
    each_row(spelled_markers);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_comes_back),    cmocka_unit_test(several_calls_follow_text),
        cmocka_unit_test(cuts_change_nothing),      cmocka_unit_test(an_end_anywhere_loses_nothing),
        cmocka_unit_test(text_cannot_fake_a_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
