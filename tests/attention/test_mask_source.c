/* Goal: the C text of a program computes what mask.h computes. Method: the texts of many programs,
 * random and named, are compiled by the machine's compiler into one shared object, as C and (only
 * to check the syntax) as C++. */
#include "attention/mask/mask_internal.h"
#include "attention/mask/mask_source.h"
#include "base/memory.h"
#include "tests/support/mask_program.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define PROGRAMS 150

static const struct rp_mask_limits limits = {.length = 1000, .heads = 6, .layers = 3};

static const char *const named[] = {
    "causal",
    "param w = 256 in 1..900; causal && (sliding_window(w) || sink(4)); soft_cap(50)",
    "prefix_lm(64)",
    "chunked(64) && causal; alibi",
    "document(100, 250, 600)",
    "dilated(4) || sink(3); score = score > 0 ? exp(score) : -abs(score)",
    "causal && sliding_window(64 * (h + 1))",
    "true",
    "!causal && chunked(7)",
    "-5 < (kv - q) / -3 && (kv - q) % -7 != -2 && abs(kv - q) * -2 > -500",
};

typedef int sees_fn(int q, int kv, int h, const int *params);
typedef float score_fn(float score, int q, int kv, int h, const int *params);
typedef int classify_fn(int q_begin, int q_end, int kv_begin, int kv_end, int h_begin, int h_end,
                        const int *params);

struct fixture {
    struct rp_mask *masks[PROGRAMS];
    struct mask_program program;
    struct rp_buffer text;
    char folder[64];
    void *library;
    uint64_t seed;
};

static int setup(void **state) {
    *state = rp_calloc(1, sizeof(struct fixture));
    return *state ? 0 : -1;
}

static void path_of(const struct fixture *f, const char *name, char out[128]) {
    snprintf(out, 128, "%s/%s", f->folder, name);
}

static int teardown(void **state) {
    struct fixture *f = *state;
    char path[128];
    if (f->library)
        dlclose(f->library);
    path_of(f, "masks.c", path);
    unlink(path);
    path_of(f, "masks.so", path);
    unlink(path);
    if (f->folder[0])
        rmdir(f->folder);
    for (uint32_t i = 0; i < PROGRAMS; i++)
        rp_mask_free(f->masks[i]);
    rp_buffer_deinit(&f->text);
    rp_free(f);
    return 0;
}

/* The programs of layer 1: named ones, then random ones. */
static void make_programs(struct fixture *f) {
    struct rp_error err;
    for (uint32_t i = 0; i < PROGRAMS;) {
        const char *text = f->program.text;
        struct rp_mask *whole;
        if (i < RP_ARRAY_COUNT(named))
            text = named[i];
        else if (!mask_program_random(&f->seed, &limits, &f->program))
            continue;
        if (rp_mask_parse(text, strlen(text), &limits, &whole, &err) != RP_OK) {
            assert_true(i >= RP_ARRAY_COUNT(named));
            continue;
        }
        if (rp_mask_at_layer(whole, 1, &f->masks[i], &err) == RP_OK)
            i++;
        rp_mask_free(whole);
    }
}

static void write_texts(struct fixture *f) {
    static const char *const facts[] = {"HAS_SCORE", "READS_HEAD", "CAUSAL", "PARAMS"};
    rp_buffer_puts(&f->text, "#define RP_MASK_FN\n");
    for (uint32_t i = 0; i < PROGRAMS; i++) {
        rp_buffer_printf(&f->text,
                         "#define rp_mask_sees sees_%u\n#define rp_mask_score score_%u\n"
                         "#define rp_mask_classify classify_%u\n",
                         i, i, i);
        rp_mask_source(f->masks[i], &f->text);
        rp_buffer_printf(&f->text, "extern const int facts_%u[4];\nconst int facts_%u[4] = {", i,
                         i);
        for (uint32_t k = 0; k < RP_ARRAY_COUNT(facts); k++)
            rp_buffer_printf(&f->text, "RP_MASK_%s, ", facts[k]);
        rp_buffer_puts(&f->text, "};\n");
        for (uint32_t k = 0; k < RP_ARRAY_COUNT(facts); k++)
            rp_buffer_printf(&f->text, "#undef RP_MASK_%s\n", facts[k]);
        rp_buffer_puts(&f->text, "#undef rp_mask_sees\n#undef rp_mask_score\n"
                                 "#undef rp_mask_classify\n");
    }
}

/* 0, the compiler's status, or 127 if there is no compiler of this name. */
static int run(const char *const *command) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execvp(command[0], (char *const *)command);
        _exit(127);
    }
    int status = 0;
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void compile(struct fixture *f) {
    char source[128], object[128];
    snprintf(f->folder, sizeof f->folder, "/tmp/rp_mask_XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    path_of(f, "masks.c", source);
    path_of(f, "masks.so", object);
    FILE *file = fopen(source, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(f->text.data, 1, f->text.len, file), f->text.len);
    assert_int_equal(fclose(file), 0);
    const char *const cc[] = {"cc",      "-std=c11",
                              "-Wall",   "-Wextra",
                              "-Werror", "-Wno-unused-function",
                              "-O1",     "-ffp-contract=off",
                              "-fPIC",   "-shared",
                              "-o",      object,
                              source,    "-lm",
                              NULL};
    int status = run(cc);
    if (status == 127) {
        printf("skipped: no compiler `cc` on this machine\n");
        skip();
    }
    assert_int_equal(status, 0);
    const char *const cxx[] = {"c++",           "-x",      "c++",     "-std=c++17",
                               "-Wall",         "-Wextra", "-Werror", "-Wno-unused-function",
                               "-fsyntax-only", source,    NULL};
    status = run(cxx);
    assert_true(status == 0 || status == 127);
    f->library = dlopen(object, RTLD_NOW);
    assert_non_null(f->library);
}

static void *symbol(const struct fixture *f, const char *name, uint32_t i) {
    char text[32];
    snprintf(text, sizeof text, "%s_%u", name, i);
    void *found = dlsym(f->library, text);
    assert_non_null(found);
    return found;
}

static bool same_score(const struct rp_mask *mask, float a, float b) {
    if (memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b)))
        return true;
    bool transcendent = strstr(rp_mask_text(mask), "tanh(") || strstr(rp_mask_text(mask), "exp(");
    return transcendent && fabsf(a - b) <= 1e-6f * RP_MAX(fabsf(a), fabsf(b));
}

static void random_params(struct fixture *f, const struct rp_mask *mask, int32_t *params) {
    for (uint32_t i = 0; i < rp_mask_param_count(mask); i++) {
        const struct rp_mask_param *p = rp_mask_param(mask, i);
        params[i] = p->min + (int32_t)mask_random(&f->seed, (uint64_t)(p->max - p->min) + 1);
    }
}

static void check_pairs(struct fixture *f, uint32_t i) {
    const struct rp_mask *mask = f->masks[i];
    int32_t params[RP_MASK_PARAMS_MAX];
    sees_fn *sees;
    score_fn *score;
    *(void **)&sees = symbol(f, "sees", i);
    *(void **)&score = symbol(f, "score", i);
    for (uint32_t k = 0; k < 200; k++) {
        struct rp_mask_pair p = {.q = (int32_t)mask_random(&f->seed, 1024),
                                 .kv = (int32_t)mask_random(&f->seed, 1024),
                                 .h = (int32_t)mask_random(&f->seed, limits.heads),
                                 .layer = 1};
        float before = (float)(int64_t)mask_random(&f->seed, 2000) * 0.01f - 10.0f;
        random_params(f, mask, params);
        float want = rp_mask_score(mask, &p, params, before);
        float got = score(before, p.q, p.kv, p.h, params);
        if (rp_mask_sees(mask, &p, params) != sees(p.q, p.kv, p.h, params) ||
            !same_score(mask, got, want))
            fail_msg("q=%d kv=%d h=%d: %a, not %a: %s", p.q, p.kv, p.h, (double)got, (double)want,
                     rp_mask_text(mask));
    }
}

static void check_tiles(struct fixture *f, uint32_t i) {
    const struct rp_mask *mask = f->masks[i];
    int32_t params[RP_MASK_PARAMS_MAX];
    classify_fn *classify;
    *(void **)&classify = symbol(f, "classify", i);
    for (uint32_t k = 0; k < 60; k++) {
        int32_t size = k % 8 == 7 ? 200 : 32; /* some are too large to be searched */
        struct rp_mask_tile t = {.q_begin = (int32_t)mask_random(&f->seed, 1024 - (uint32_t)size),
                                 .kv_begin = (int32_t)mask_random(&f->seed, 1024 - (uint32_t)size),
                                 .h_begin = (int32_t)mask_random(&f->seed, limits.heads),
                                 .layer = 1};
        t.q_end = t.q_begin + 1 + (int32_t)mask_random(&f->seed, (uint64_t)size);
        t.kv_end = t.kv_begin + 1 + (int32_t)mask_random(&f->seed, (uint64_t)size);
        t.h_end = k % 2 ? t.h_begin + 1 : (int32_t)limits.heads;
        random_params(f, mask, params);
        int got = classify(t.q_begin, t.q_end, t.kv_begin, t.kv_end, t.h_begin, t.h_end, params);
        if (got != (int)rp_mask_classify(mask, &t, params))
            fail_msg("q %d..%d kv %d..%d h %d..%d: %d: %s", t.q_begin, t.q_end, t.kv_begin,
                     t.kv_end, t.h_begin, t.h_end, got, rp_mask_text(mask));
    }
}

static void test_compiled_programs_say_what_evaluated_ones_say(void **state) {
    struct fixture *f = *state;
    make_programs(f);
    write_texts(f);
    assert_false(f->text.failed);
    compile(f);
    for (uint32_t i = 0; i < PROGRAMS; i++) {
        const int *facts = symbol(f, "facts", i);
        assert_int_equal(facts[0], rp_mask_has_score(f->masks[i]));
        assert_int_equal(facts[1], rp_mask_reads_head(f->masks[i]));
        assert_int_equal(facts[2], rp_mask_is_causal(f->masks[i]));
        assert_int_equal(facts[3], rp_mask_param_count(f->masks[i]));
        check_pairs(f, i);
        check_tiles(f, i);
    }
}

static void test_equal_programs_have_equal_texts(void **state) {
    static const char *const texts[] = {
        "param w = 3; causal && sliding_window(w + 0); soft_cap(10 * 5)",
        "param n = 7 in 1..9; kv <= q; q - kv < n; score = 50 * tanh(score / 50.0)"};
    struct fixture *f = *state;
    struct rp_buffer other;
    rp_buffer_init(&other, 0);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(rp_mask_parse(texts[i], strlen(texts[i]), &limits, &f->masks[i], NULL),
                         RP_OK);
    rp_mask_source(f->masks[0], &f->text);
    rp_mask_source(f->masks[1], &other);
    bool same = other.len == f->text.len && memcmp(other.data, f->text.data, other.len) == 0;
    rp_buffer_deinit(&other);
    assert_true(same);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_compiled_programs_say_what_evaluated_ones_say),
        TEST(test_equal_programs_have_equal_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
