/* Goal: flags, environment and defaults follow the table; errors name the flag, with a hint. */
#include "server/cli/flags.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct options {
    bool fast, safe;
    uint32_t count, mode, tokens;
    uint64_t bytes;
    double share;
    const char *name;
};

#define AT(field) offsetof(struct options, field)

static const struct rp_flag flags[] = {
    {"fast", RP_FLAG_SWITCH, AT(fast), NULL, 0, 0, NULL, "help"},
    {"safe", RP_FLAG_SWITCH, AT(safe), NULL, 0, 0, "true", "help"},
    {"max-count", RP_FLAG_UINT, AT(count), "N", 1, 100, "7", "help"},
    {"mode", RP_FLAG_CHOICE, AT(mode), "auto|cpu|gpu", 0, 0, "auto", "help"},
    {"bytes", RP_FLAG_SIZE, AT(bytes), "SIZE", 0, 1e15, NULL, "help"},
    {"share", RP_FLAG_REAL, AT(share), "S", 0, 1, "0.5", "help"},
    {"name", RP_FLAG_TEXT, AT(name), "NAME", 0, 0, NULL, "help"},
    {"tokens", RP_FLAG_UINT, AT(tokens), "N", 0, 10000000, NULL, "help"},
};

static const struct rp_foreign_flag foreign[] = {{"foreign", "do this"}};
static const struct rp_command_spec spec = {"test", "DIR [MORE]", 1, 2, "A test.", flags,
                                            8,      foreign,      1};

static struct options options;
static const char *positionals[RP_POSITIONALS_MAX];
static struct rp_error err;

/* Parses the words after the command's name, split at spaces. */
static int parse(const char *line) {
    static char copy[512];
    char *argv[32] = {(char *)"test"}, *save = NULL;
    int argc = 1;
    memset(&options, 0, sizeof options);
    memset(&err, 0, sizeof err);
    strncpy(copy, line, sizeof copy - 1);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    return rp_flags_parse(&spec, argc, argv, &options, positionals, &err);
}

static void assert_refused(const char *line, const char *text) {
    assert_int_equal(parse(line), RP_STATUS_INVALID);
    if (!strstr(err.text, text))
        fail_msg("\"%s\" does not name \"%s\"", err.text, text);
}

static void test_defaults_come_from_the_table(void **state) {
    (void)state;
    assert_int_equal(parse("dir"), RP_OK);
    assert_string_equal(positionals[0], "dir");
    assert_null(positionals[1]);
    assert_true(options.safe && !options.fast);
    assert_int_equal(options.count, 7);
    assert_int_equal(options.mode, 0);
    assert_true(options.share == 0.5);
    assert_null(options.name);
}

static void test_every_type_is_read_in_both_spellings_and_the_last_wins(void **state) {
    (void)state;
    assert_int_equal(parse("--max-count 9 dir --mode=gpu --bytes 1.5K --share 1 --name x=y --fast "
                           "--no-safe --max-count=10 more"),
                     RP_OK);
    assert_int_equal(options.count, 10);
    assert_int_equal(options.mode, 2);
    assert_int_equal(options.bytes, 1536);
    assert_true(options.share == 1.0 && options.fast && !options.safe);
    assert_string_equal(options.name, "x=y");
    assert_string_equal(positionals[1], "more");
}

static void test_sizes_take_binary_suffixes(void **state) {
    (void)state;
    assert_int_equal(parse("d --bytes 2G"), RP_OK);
    assert_int_equal(options.bytes, (uint64_t)2 << 30);
    assert_int_equal(parse("d --bytes 3MiB"), RP_OK);
    assert_int_equal(options.bytes, 3 << 20);
    assert_refused("d --bytes 3X", "--bytes");
    assert_refused("d --bytes 0.3", "--bytes");
}

static void test_counts_take_suffixes_as_vllm_reads_them(void **state) {
    (void)state;
    assert_int_equal(parse("d --tokens 8k"), RP_OK);
    assert_int_equal(options.tokens, 8000);
    assert_int_equal(parse("d --tokens 8K"), RP_OK);
    assert_int_equal(options.tokens, 8192);
    assert_int_equal(parse("d --tokens 25.6k"), RP_OK);
    assert_int_equal(options.tokens, 25600);
    assert_int_equal(parse("d --tokens 1M"), RP_OK);
    assert_int_equal(options.tokens, 1 << 20);
    assert_refused("d --tokens 8x", "--tokens");
    assert_refused("d --tokens 1.5", "whole number");
    assert_refused("d --tokens 0.0001k", "whole number");
    assert_refused("d --max-count 1k", "100");
}

static void test_what_is_wrong_is_named(void **state) {
    (void)state;
    assert_refused("d --max-count 0", "--max-count");
    assert_refused("d --max-count 101", "100");
    assert_refused("d --max-count 1.5", "whole number");
    assert_refused("d --max-count nan", "--max-count");
    assert_refused("d --max-count", "needs a value");
    assert_refused("d --mode tpu", "auto|cpu|gpu");
    assert_refused("d --share 1e309", "--share");
    assert_refused("d --fast=perhaps", "--fast");
    assert_refused("a b c", "too many");
    assert_refused("", "DIR");
    assert_refused("d -x", "-x");
    assert_refused("d --no-name", "--no-name");
}

static void test_a_misspelt_flag_gets_the_nearest_name(void **state) {
    (void)state;
    assert_refused("d --max-cuont 3", "--max-cuont");
    assert_non_null(strstr(err.hint, "--max-count"));
    assert_refused("d --entirely-different 3", "unknown flag");
    assert_refused("d --one 1 --max-count 3 --two=2 -x", "unknown flags --one, --two, -x");
    assert_refused("--one 1 d --foreign 4", "unknown flags --one, --foreign (do this)");
    assert_null(strstr(err.hint, "did you mean"));
}

static void test_the_environment_overrides_defaults_and_not_flags(void **state) {
    (void)state;
    setenv("REPRISE_MAX_COUNT", "42", 1);
    assert_int_equal(parse("d"), RP_OK);
    assert_int_equal(options.count, 42);
    assert_int_equal(parse("d --max-count 8"), RP_OK);
    assert_int_equal(options.count, 8);
    setenv("REPRISE_MAX_COUNT", "many", 1);
    assert_refused("d", "--max-count");
    assert_non_null(strstr(err.hint, "REPRISE_MAX_COUNT"));
    assert_int_equal(parse("d --max-count 8"), RP_OK); /* the variable is not read */
    assert_int_equal(options.count, 8);
    assert_int_equal(parse("--help"), RP_STATUS_CANCELLED);
    unsetenv("REPRISE_MAX_COUNT");
}

static void test_two_dashes_end_the_flags(void **state) {
    (void)state;
    assert_int_equal(parse("d -- --fast"), RP_OK);
    assert_string_equal(positionals[1], "--fast");
    assert_false(options.fast);
}

static void test_a_list_is_positive_numbers_between_commas(void **state) {
    (void)state;
    static const char *const bad[] = {"",   ",",  "1,,2", "0",       "1,0",    "x",
                                      "1x", "1,", "1 2",  "1048577", "1,2,3,4"};
    uint32_t out[3], count = 0;
    assert_int_equal(rp_flag_list("batch", "7", 1, 9, out, 3, &count, &err), RP_OK);
    assert_int_equal(count, 1);
    assert_int_equal(out[0], 7);
    assert_int_equal(rp_flag_list("batch", "1,8,1048576", 1, 1048576, out, 3, &count, &err), RP_OK);
    assert_int_equal(count, 3);
    assert_int_equal(out[2], 1048576);
    for (size_t i = 0; i < RP_ARRAY_COUNT(bad); i++) {
        assert_int_equal(rp_flag_list("batch", bad[i], 1, 1048576, out, 3, &count, &err),
                         RP_STATUS_INVALID);
        assert_non_null(strstr(err.text, "--batch"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_come_from_the_table),
        cmocka_unit_test(test_every_type_is_read_in_both_spellings_and_the_last_wins),
        cmocka_unit_test(test_sizes_take_binary_suffixes),
        cmocka_unit_test(test_counts_take_suffixes_as_vllm_reads_them),
        cmocka_unit_test(test_what_is_wrong_is_named),
        cmocka_unit_test(test_a_misspelt_flag_gets_the_nearest_name),
        cmocka_unit_test(test_the_environment_overrides_defaults_and_not_flags),
        cmocka_unit_test(test_two_dashes_end_the_flags),
        cmocka_unit_test(test_a_list_is_positive_numbers_between_commas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
