/* Goal: the text ends exactly where a stop string begins, for any pieces, and nothing else is lost.
 * Method: named cases, then random texts over two letters against a search of the whole text. */
#include "server/api/stop_match.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

struct fixture {
    struct rp_stop_set set;
    struct rp_stop_match match;
    struct rp_buffer out;
};

static int setup(void **state) {
    static struct fixture f;
    memset(&f, 0, sizeof f);
    *state = &f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    rp_stop_set_deinit(&f->set);
    rp_buffer_deinit(&f->out);
    return 0;
}

static void add(struct fixture *f, const char *text) {
    assert_int_equal(rp_stop_set_add(&f->set, text, strlen(text)), RP_OK);
}

/* Feeds the text in pieces of this size; true if it was stopped. */
static bool feed(struct fixture *f, const char *text, size_t len, size_t piece) {
    bool stopped = false;
    rp_buffer_clear(&f->out);
    rp_stop_match_init(&f->match, &f->set);
    for (size_t i = 0; i < len && !stopped; i += piece)
        stopped = rp_stop_match_push(&f->match, text + i, RP_MIN(piece, len - i), &f->out);
    if (!stopped)
        rp_stop_match_finish(&f->match, &f->out);
    return stopped;
}

static void expect(struct fixture *f, const char *text, const char *wanted, int found) {
    for (size_t piece = 1; piece <= strlen(text); piece++) {
        assert_int_equal(feed(f, text, strlen(text), piece), found >= 0);
        assert_int_equal(f->out.len, strlen(wanted));
        assert_memory_equal(f->out.len ? f->out.data : "", wanted, f->out.len);
        assert_int_equal(f->match.found, found);
    }
}

static void test_a_stop_string_ends_the_text_before_it(void **state) {
    struct fixture *f = *state;
    add(f, "END");
    expect(f, "one ENtwo EEND three", "one ENtwo E", 0);
    expect(f, "END", "", 0);
    expect(f, "nothing EN", "nothing EN", -1);
}

static void test_overlaps_of_a_string_with_itself_are_followed(void **state) {
    struct fixture *f = *state;
    add(f, "aabaac");
    expect(f, "aabaabaac!", "aab", 0);
    expect(f, "aaaaabaac", "aaa", 0);
}

static void test_the_first_to_be_complete_wins_and_then_the_longest(void **state) {
    struct fixture *f = *state;
    add(f, "cdefgh");
    add(f, "de");
    add(f, "bcde");
    expect(f, "abcdefgh", "a", 2);
    expect(f, "acdefgh", "ac", 1);
}

static void test_bytes_of_several_characters_do_not_mix(void **state) {
    struct fixture *f = *state;
    add(f, "\xF0\x9F\x99\x83");
    expect(f, "a\xF0\x9F\x99\x82 b\xF0\x9F\x99\x83", "a\xF0\x9F\x99\x82 b", 0);
}

static void test_no_more_is_held_back_than_may_become_a_stop_string(void **state) {
    struct fixture *f = *state;
    add(f, "abc");
    rp_stop_match_init(&f->match, &f->set);
    const char *text = "xababx";
    const size_t passed[] = {1, 1, 1, 3, 3, 6};
    for (size_t i = 0; i < strlen(text); i++) {
        assert_false(rp_stop_match_push(&f->match, text + i, 1, &f->out));
        assert_int_equal(f->out.len, passed[i]);
    }
}

static void test_an_empty_set_passes_everything(void **state) {
    struct fixture *f = *state;
    expect(f, "anything", "anything", -1);
}

static void test_limits_are_answers(void **state) {
    struct fixture *f = *state;
    char text[RP_STOP_BYTES_MAX + 1];
    memset(text, 'x', sizeof text);
    assert_int_equal(rp_stop_set_add(&f->set, text, 0), RP_STATUS_RANGE);
    assert_int_equal(rp_stop_set_add(&f->set, text, sizeof text), RP_STATUS_RANGE);
    for (int i = 0; i < RP_STOP_STRINGS_MAX; i++)
        assert_int_equal(rp_stop_set_add(&f->set, text, RP_STOP_BYTES_MAX), RP_OK);
    assert_int_equal(rp_stop_set_add(&f->set, text, 1), RP_STATUS_RANGE);
    assert_true(feed(f, text, RP_STOP_BYTES_MAX, 7));
    assert_int_equal(f->out.len, 0);
    assert_false(feed(f, text, RP_STOP_BYTES_MAX - 1, 7));
    assert_int_equal(f->out.len, RP_STOP_BYTES_MAX - 1);
}

/* The end of the text by the definition, and the string; len if none occurs. */
static size_t search(const struct rp_stop_set *set, const char *text, size_t len, int *out_found) {
    for (size_t end = 1; end <= len; end++) {
        size_t longest = 0;
        for (uint32_t s = 0; s < set->count; s++) {
            size_t n = set->strings[s].len;
            if (n <= end && n > longest && memcmp(text + end - n, set->strings[s].bytes, n) == 0) {
                longest = n;
                *out_found = (int)s;
            }
        }
        if (longest)
            return end - longest;
    }
    *out_found = -1;
    return len;
}

static void test_random_texts_agree_with_a_search(void **state) {
    struct fixture *f = *state;
    uint64_t random = 88172645463325252u; /* xorshift64, any seed but 0 */
    for (int round = 0; round < 20000; round++) {
        char text[48], stop[9];
        rp_stop_set_deinit(&f->set);
        for (int s = 0; s < 3; s++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            size_t len = 1 + random % 8;
            for (size_t i = 0; i < len; i++)
                stop[i] = "ab"[random >> (8 + i) & 1];
            assert_int_equal(rp_stop_set_add(&f->set, stop, len), RP_OK);
        }
        for (size_t i = 0; i < sizeof text; i++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            /* A third letter, so that texts do not stop immediately. */
            text[i] = random % 8 ? "ab"[random >> 8 & 1] : 'c';
        }
        int found;
        size_t end = search(&f->set, text, sizeof text, &found);
        assert_int_equal(feed(f, text, sizeof text, 1 + random % 9), found >= 0);
        assert_int_equal(f->out.len, end);
        assert_memory_equal(f->out.len ? f->out.data : "", text, end);
        assert_int_equal(f->match.found, found);
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_stop_string_ends_the_text_before_it),
        TEST(test_overlaps_of_a_string_with_itself_are_followed),
        TEST(test_the_first_to_be_complete_wins_and_then_the_longest),
        TEST(test_bytes_of_several_characters_do_not_mix),
        TEST(test_no_more_is_held_back_than_may_become_a_stop_string),
        TEST(test_an_empty_set_passes_everything),
        TEST(test_limits_are_answers),
        TEST(test_random_texts_agree_with_a_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
