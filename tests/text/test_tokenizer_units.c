/* Goal: the search over units has the result of merging for every vocabulary and text, at linear
 * cost.
 * Method: seeded random vocabularies, with rules in the order of training and shuffled, several
 * rules for one token, unknown characters; texts of few letters, so that nearly everything can
 * merge. Each text is encoded by units and, with the units removed, by merging. */
#include "base/utf8.h"
#include "tests/text/tokenizer_fixture.h"
#include "text/tokenizer/tokenizer_internal.h"

#define TOKENS_MAX 120
#define RULES_MAX  160
#define TEXT_MAX   600

struct vocabulary {
    char tokens[TOKENS_MAX][48]; /* of letters a to d and the marker */
    uint32_t count;
    uint32_t rules[RULES_MAX][2];
    uint32_t rule_count;
};

static uint32_t next_random(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u; /* Numerical Recipes */
    return *seed >> 8;
}

static uint32_t find_token(const struct vocabulary *v, const char *text) {
    uint32_t i = 0;
    while (i < v->count && strcmp(v->tokens[i], text) != 0)
        i++;
    return i;
}

/* Rules join random existing tokens; a token may have several rules. */
static void make_vocabulary(struct vocabulary *v, uint32_t *seed, bool byte_level, bool shuffled) {
    static const char *const letters[] = {"a", "b", "c", "d", RP_TOK_MARKER};
    uint32_t letter_count = byte_level ? 4 : 5;
    uint32_t rules = 2 + next_random(seed) % (next_random(seed) % 4 ? 30 : RULES_MAX - 2);
    memset(v, 0, sizeof *v);
    for (uint32_t i = 0; i < letter_count; i++)
        snprintf(v->tokens[v->count++], sizeof v->tokens[0], "%s", letters[i]);
    for (uint32_t tries = 0; v->rule_count < rules && tries < 1000; tries++) {
        char text[128];
        uint32_t left = next_random(seed) % v->count, right = next_random(seed) % v->count;
        snprintf(text, sizeof text, "%s%s", v->tokens[left], v->tokens[right]);
        bool listed = strlen(text) > 40;
        for (uint32_t i = 0; i < v->rule_count; i++)
            listed = listed || (v->rules[i][0] == left && v->rules[i][1] == right);
        uint32_t id = find_token(v, text);
        if (listed || id == TOKENS_MAX)
            continue;
        if (id == v->count)
            memcpy(v->tokens[v->count++], text, strlen(text) + 1); /* at most 41 bytes */
        v->rules[v->rule_count][0] = left;
        v->rules[v->rule_count++][1] = right;
    }
    for (uint32_t i = v->rule_count; shuffled && i > 1; i--) {
        uint32_t other = next_random(seed) % i, swap[2];
        memcpy(swap, v->rules[i - 1], sizeof swap);
        memcpy(v->rules[i - 1], v->rules[other], sizeof swap);
        memcpy(v->rules[other], swap, sizeof swap);
    }
}

static void load_vocabulary(struct fixture *f, const struct vocabulary *v, bool byte_level) {
    struct rp_buffer json;
    rp_buffer_init(&json, 0);
    if (byte_level)
        rp_buffer_puts(&json, "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "
                              "false, \"use_regex\": false}, \"model\": {\"type\": \"BPE\", ");
    else
        rp_buffer_puts(&json, "{\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"fuse_unk\": "
                              "true, \"byte_fallback\": true, ");
    rp_buffer_puts(&json, "\"vocab\": {\"?\": 999");
    for (uint32_t b = 0; b < 256; b++) {
        char utf8[5] = "";
        int n = rp_utf8_encode(rp_tok_byte_to_char((unsigned char)b), utf8);
        if (!byte_level)
            rp_buffer_printf(&json, ", \"<0x%02X>\": %u", b, b + 1000);
        else if (b != '?' && (b < 'a' || b > 'd'))
            rp_buffer_printf(&json, ", \"%s%.*s\": %u", b == '"' || b == '\\' ? "\\" : "", n, utf8,
                             b + 1000);
    }
    for (uint32_t i = 0; i < v->count; i++)
        rp_buffer_printf(&json, ", \"%s\": %u", v->tokens[i], i);
    rp_buffer_puts(&json, "}, \"merges\": [");
    for (uint32_t i = 0; i < v->rule_count; i++)
        rp_buffer_printf(&json, "%s[\"%s\", \"%s\"]", i ? ", " : "", v->tokens[v->rules[i][0]],
                         v->tokens[v->rules[i][1]]);
    rp_buffer_puts(&json, "]}}");
    rp_buffer_append(&json, "", 1);
    fixture_must_load(f, json.data);
    rp_buffer_deinit(&json);
}

static size_t random_text(uint32_t *seed, char *out, size_t most, bool byte_level) {
    static const char *const parts[] = {"a", "b", "c", "d", RP_TOK_MARKER, "\xC3\xA9", "\n"};
    size_t len = 0, count = 1 + next_random(seed) % (next_random(seed) % 8 ? 30 : most / 3 - 4);
    uint32_t kinds = next_random(seed) % 3 ? (byte_level ? 4 : 5) : 7;
    kinds = next_random(seed) % 8 ? kinds : 1 + next_random(seed) % 2;
    while (count-- > 0) {
        const char *part = parts[next_random(seed) % kinds];
        size_t times = next_random(seed) % 12 ? 1 : 1 + next_random(seed) % 20;
        for (; times > 0 && len + strlen(part) < most; times--) {
            memcpy(out + len, part, strlen(part));
            len += strlen(part);
        }
    }
    return len;
}

static void encode_piece(struct rp_tokenizer_scratch *s, struct rp_token_ids *ids, const char *text,
                         size_t len) {
    ids->count = 0;
    s->out = ids;
    s->out_max = 0;
    s->status = RP_OK;
    rp_tok_bpe_merge(s, text, len);
    assert_int_equal(s->status, RP_OK);
}

static void compare_texts(struct fixture *f, uint32_t *seed, bool byte_level, int texts) {
    struct rp_token_ids merged = {0};
    struct rp_tok_unit *units = f->tok->units.all;
    bool same = true;
    for (int i = 0; i < texts && same; i++) {
        char text[TEXT_MAX];
        size_t len = random_text(seed, text, sizeof text, byte_level);
        encode_piece(f->scratch, &f->ids, text, len);
        f->tok->units.all = NULL;
        encode_piece(f->scratch, &merged, text, len);
        f->tok->units.all = units;
        same = merged.count == f->ids.count &&
               memcmp(merged.ids, f->ids.ids, merged.count * sizeof *merged.ids) == 0;
        if (!same)
            print_message("text %.*s\n", (int)len, text);
    }
    rp_token_ids_deinit(&merged);
    assert_true(same);
}

static bool has_irregular(const struct rp_tokenizer *tok) {
    for (uint32_t id = 0; id < tok->id_limit; id++)
        if (tok->units.all[id].irregular)
            return true;
    return false;
}

static void test_units_give_what_merging_gives(void **state) {
    struct fixture *f = *state;
    struct vocabulary *v = malloc(sizeof *v);
    uint32_t seed = 1, regular = 0, irregular = 0, refused = 0;
    assert_non_null(v);
    for (int round = 0; round < 600; round++) {
        bool byte_level = round % 2, shuffled = round % 4 < 2;
        make_vocabulary(v, &seed, byte_level, shuffled);
        load_vocabulary(f, v, byte_level);
        if (!f->tok->units.all) {
            refused++;
            continue;
        }
        has_irregular(f->tok) ? irregular++ : regular++;
        compare_texts(f, &seed, byte_level, 150);
    }
    free(v);
    print_message("%u regular, %u irregular, %u merged\n", regular, irregular, refused);
    assert_true(regular > 100 && irregular > 50);
}

/* "▁▁" has the last rank, but longer tokens are built from it, as with the spaces of Llama 2. */
static void test_rule_before_its_parts_is_irregular(void **state) {
    struct fixture *f = *state;
    struct vocabulary v = {.tokens = {"a", RP_TOK_MARKER, RP_TOK_MARKER "a",
                                      RP_TOK_MARKER RP_TOK_MARKER,
                                      RP_TOK_MARKER RP_TOK_MARKER RP_TOK_MARKER},
                           .count = 5,
                           .rules = {{3, 1}, {1, 0}, {1, 1}},
                           .rule_count = 3};
    uint32_t seed = 5;
    load_vocabulary(f, &v, false);
    assert_non_null(f->tok->units.all);
    assert_true(f->tok->units.all[4].irregular);
    assert_false(f->tok->units.all[2].irregular);
    compare_texts(f, &seed, false, 2000);
}

static uint64_t work_of(struct fixture *f, const char *text, size_t len) {
    uint64_t before = f->scratch->work;
    encode_piece(f->scratch, &f->ids, text, len);
    return f->scratch->work - before;
}

/* Runs of letters of all lengths have units of all lengths: the search has its largest width. */
static void test_work_is_linear_in_the_text(void **state) {
    struct fixture *f = *state;
    struct vocabulary v = {.tokens = {"a", "b", "c", "d"}, .count = 4};
    enum { LEN = 1 << 16 };
    char *text = malloc(LEN);
    assert_non_null(text);
    for (uint32_t i = 2; i <= 32; i++) {
        memset(v.tokens[v.count++], 'a', i);
        v.rules[v.rule_count][0] = i == 2 ? 0 : v.count - 2;
        v.rules[v.rule_count++][1] = 0;
    }
    load_vocabulary(f, &v, true);
    assert_non_null(f->tok->units.all);
    for (int kind = 0; kind < 3; kind++) {
        for (uint32_t i = 0; i < LEN; i++)
            text[i] = kind == 0 ? 'a' : kind == 1 && i + 1 == LEN ? 'b' : i % 61 ? 'a' : 'b';
        uint64_t small = work_of(f, text, LEN / 16), large = work_of(f, text, LEN);
        assert_true(small > 0 && large <= small * 20);
    }
    free(text);
}

/* The remainder of a run after its repetitions is found for each length. */
static void test_runs_of_one_letter_of_every_length(void **state) {
    struct fixture *f = *state;
    struct vocabulary *v = calloc(1, sizeof *v);
    struct rp_token_ids merged = {0};
    static char text[9000];
    uint32_t seed = 3;
    bool same = true;
    assert_non_null(v);
    memset(text, 'a', sizeof text);
    for (int round = 0; round < 12 && same; round++) {
        make_vocabulary(v, &seed, true, round % 2);
        load_vocabulary(f, v, true);
        struct rp_tok_unit *units = f->tok->units.all;
        for (size_t len = sizeof text - 40; len < sizeof text && same; len++) {
            encode_piece(f->scratch, &f->ids, text, len);
            f->tok->units.all = NULL;
            encode_piece(f->scratch, &merged, text, len);
            f->tok->units.all = units;
            same = merged.count == f->ids.count &&
                   memcmp(merged.ids, f->ids.ids, merged.count * sizeof *merged.ids) == 0;
        }
    }
    rp_token_ids_deinit(&merged);
    free(v);
    assert_true(same);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FIXTURE_TEST(test_units_give_what_merging_gives),
        FIXTURE_TEST(test_rule_before_its_parts_is_irregular),
        FIXTURE_TEST(test_work_is_linear_in_the_text),
        FIXTURE_TEST(test_runs_of_one_letter_of_every_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
