/* Goal: ids of real vocabularies equal those of other implementations.
 * Method: the case files of llama.cpp: texts separated by a line, one line of ids (without special
 * tokens) for each. The files are in $REPRISE_TEST_DATA, default ../shared/data relative to
 * the source; a test without its file is skipped. */
#include "tests/text/tokenizer_fixture.h"

#define SEPARATOR "\n__ggml_vocab_test__\n"

static void data_path(char *out, size_t size, const char *name) {
    const char *data = getenv("REPRISE_TEST_DATA"), *source = getenv("REPRISE_SOURCE_DIR");
    if (data)
        snprintf(out, size, "%s/tokenizers/%s", data, name);
    else
        snprintf(out, size, "%s/../shared/data/tokenizers/%s", source ? source : ".", name);
}

/* The file as a string in *out; false if it does not exist. */
static bool read_file(const char *name, struct rp_buffer *out) {
    char path[1024], block[4096];
    size_t n;
    data_path(path, sizeof path, name);
    FILE *file = fopen(path, "rb");
    if (!file)
        return false;
    rp_buffer_clear(out);
    while ((n = fread(block, 1, sizeof block, file)) > 0)
        rp_buffer_append(out, block, n);
    fclose(file);
    rp_buffer_append(out, "", 1);
    return true;
}

static struct rp_buffer texts, answers;

static void run_cases(struct fixture *f, const char *folder, const char *cases) {
    char path[1024], name[128];
    snprintf(name, sizeof name, "cases/%s.inp", cases);
    bool found = read_file(name, &texts);
    snprintf(name, sizeof name, "cases/%s.out", cases);
    found = found && read_file(name, &answers);
    snprintf(name, sizeof name, "%s/tokenizer.json", folder);
    data_path(path, sizeof path, name);
    if (!found || access(path, R_OK) != 0) {
        print_message("skipped: no test data for %s (REPRISE_TEST_DATA)\n", folder);
        skip();
    }
    if (rp_tokenizer_open(path, &f->tok, &f->err) != RP_OK)
        fail_msg("%s", f->err.text);
    f->scratch = rp_tokenizer_scratch_create(f->tok);
    assert_non_null(f->scratch);
    char *text = texts.data, *answer = answers.data;
    int count = 0;
    while (text) {
        char *end = strstr(text, SEPARATOR), *newline = strchr(answer, '\n');
        if (end) /* the last text, after the last separator, is empty */
            *end = '\0';
        if (newline)
            *newline = '\0';
        while (*answer == ' ')
            answer++;
        assert_string_equal(fixture_ids(f, text), answer);
        count++;
        text = end ? end + strlen(SEPARATOR) : NULL;
        answer = newline ? newline + 1 : answer + strlen(answer);
    }
    assert_int_equal(count, 47);
}

static void test_gpt2_has_the_ids_of_all_cases(void **state) {
    run_cases(*state, "gpt-2", "gpt-2");
}

static void test_llama2_has_the_ids_of_all_cases(void **state) {
    run_cases(*state, "hf_llama2", "llama-spm");
}

static void test_phi3_has_the_ids_of_all_cases(void **state) {
    run_cases(*state, "hf_phi-3-mini", "phi-3");
}

static void test_config_beside_the_tokenizer_names_bos_and_eos(void **state) {
    struct fixture *f = *state;
    char path[1024];
    data_path(path, sizeof path, "hf_llama2");
    if (access(path, R_OK) != 0) {
        print_message("skipped: no test data for hf_llama2 (REPRISE_TEST_DATA)\n");
        skip();
    }
    assert_int_equal(rp_tokenizer_open(path, &f->tok, &f->err), RP_OK);
    assert_int_equal(rp_tokenizer_bos(f->tok), 1);
    assert_int_equal(rp_tokenizer_eos(f->tok), 2);
}

static int release(void **state) {
    (void)state;
    rp_buffer_deinit(&texts);
    rp_buffer_deinit(&answers);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FIXTURE_TEST(test_gpt2_has_the_ids_of_all_cases),
        FIXTURE_TEST(test_llama2_has_the_ids_of_all_cases),
        FIXTURE_TEST(test_phi3_has_the_ids_of_all_cases),
        FIXTURE_TEST(test_config_beside_the_tokenizer_names_bos_and_eos),
    };
    return cmocka_run_group_tests(tests, NULL, release);
}
