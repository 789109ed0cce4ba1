/* bench_grammar.c - times and verdicts of text/grammar on schemas with valid and invalid values.
 *
 *   bench_grammar VOCABULARY SCHEMAS [NAME] [-v]
 *
 * grammar_bench_data.py writes both files: little-endian, lengths are uint32. VOCABULARY: count,
 * then len and bytes of each token. SCHEMAS: len, name, len, schema, number of values; each value:
 * valid (0 or 1), len, JSON text, number of tokens, tokens. */
#include "tools/bench_grammar_order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SLOW_NS         500000 /* -v names masks that take longer */
#define SLOW_COMPILE_NS 4000000

/* CPU time of this thread: a busy machine does not count. */
static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct file {
    char *at, *end;
};

static struct file read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    struct file out = {NULL, NULL};
    if (!f || fseek(f, 0, SEEK_END) != 0) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    long size = ftell(f);
    rewind(f);
    out.at = malloc((size_t)size + 1);
    if (!out.at || fread(out.at, 1, (size_t)size, f) != (size_t)size)
        exit(1);
    out.end = out.at + size;
    fclose(f);
    return out;
}

static uint32_t number(struct file *f) {
    uint32_t value;
    memcpy(&value, f->at, sizeof value);
    f->at += sizeof value;
    return value;
}

struct times {
    double *us;
    size_t count, capacity;
};
static void add_time(struct times *t, uint64_t ns) {
    if (t->count == t->capacity) {
        t->capacity = t->capacity ? t->capacity * 2 : 4096;
        t->us = realloc(t->us, t->capacity * sizeof *t->us);
        if (!t->us)
            exit(1);
    }
    t->us[t->count++] = (double)ns / 1000;
}
static int compare_times(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static void print_times(const char *name, struct times *t) {
    double sum = 0;
    if (t->count == 0)
        return;
    qsort(t->us, t->count, sizeof *t->us, compare_times);
    for (size_t i = 0; i < t->count; i++)
        sum += t->us[i];
    printf("%-20s n %8zu  mean %8.1f  p50 %8.1f  p90 %8.1f  p99 %8.1f  p99.9 %8.1f  max %8.1f us\n",
           name, t->count, sum / (double)t->count, t->us[t->count / 2], t->us[t->count * 9 / 10],
           t->us[t->count * 99 / 100], t->us[t->count * 999 / 1000], t->us[t->count - 1]);
}

static struct times compiles, masks;
static size_t schemas, refused, values, wrong_refusals, wrong_order, wrong_accepts, failures;
static size_t largest;

/* Walks one value; 1: accepted. */
static int walk(struct rp_matcher *m, const uint32_t *tokens, uint32_t count, uint32_t *bits,
                uint32_t *out_at, const char *slow_name) {
    uint32_t state = rp_matcher_start(m);
    for (uint32_t i = 0; i < count; i++) {
        *out_at = i;
        uint64_t begin = now_ns();
        int rc = rp_matcher_mask(m, state, bits, RP_MASK_FUEL);
        bool allowed = rc == RP_OK && bits[tokens[i] / 32] >> tokens[i] % 32 & 1;
        int moved = rp_matcher_advance(m, state, tokens[i], &state);
        uint64_t ns = now_ns() - begin;
        add_time(&masks, ns);
        if (slow_name && ns > SLOW_NS)
            printf("slow %s token %u: %.0f us\n", slow_name, i, (double)ns / 1000);
        if (rc != RP_OK || (moved != RP_OK && moved != RP_STATUS_INVALID)) {
            failures++;
            if (slow_name)
                printf("too complex %s token %u\n", slow_name, i);
            return 0;
        }
        if (allowed != (moved == RP_OK)) {
            printf("MASK AND STEP DISAGREE at token %u\n", i);
            exit(1);
        }
        if (!allowed)
            return 0;
    }
    *out_at = count;
    return rp_matcher_is_accepting(m, state);
}

static void one_schema(struct file *f, const struct rp_token_trie *trie, uint32_t *bits,
                       const char *only, bool verbose) {
    uint32_t name_len = number(f);
    const char *name = f->at;
    char text_name[256];
    snprintf(text_name, sizeof text_name, "%.*s", (int)name_len, name);
    f->at += name_len;
    uint32_t len = number(f);
    const char *schema = f->at;
    f->at += len;
    struct rp_grammar *g;
    struct rp_matcher *m = NULL;
    struct rp_error err;
    bool skip = only && (strlen(only) > name_len || memcmp(only, name, strlen(only)) != 0);
    if (!skip) {
        uint64_t begin = now_ns();
        schemas++;
        int rc = rp_grammar_compile_json_schema(schema, len, NULL, &g, &err);
        if (rc != RP_OK) {
            refused++;
            if (verbose)
                printf("refused %.*s: %s\n", (int)name_len, name, err.text);
        } else {
            if (rp_matcher_make(g, trie, 0, &m) != RP_OK ||
                rp_matcher_mask(m, rp_matcher_start(m), bits, RP_MASK_FUEL) != RP_OK)
                failures++;
            if (verbose && m && now_ns() - begin > SLOW_COMPILE_NS)
                printf("slow compile %.*s: %.0f us\n", (int)name_len, name,
                       (double)(now_ns() - begin) / 1000);
            add_time(&compiles, now_ns() - begin);
        }
    }
    uint32_t count = number(f);
    for (uint32_t i = 0; i < count; i++) {
        bool valid = number(f) != 0;
        uint32_t text_len = number(f), at = 0;
        const char *text = f->at;
        f->at += text_len;
        uint32_t token_count = number(f);
        uint32_t *tokens = malloc((size_t)token_count * sizeof *tokens + 1);
        if (!tokens)
            exit(1);
        memcpy(tokens, f->at, (size_t)token_count * sizeof *tokens);
        f->at += (size_t)token_count * sizeof *tokens;
        if (m) {
            bool accepted = walk(m, tokens, token_count, bits, &at, verbose ? text_name : NULL);
            values++;
            bool order = valid && !accepted && bench_order(trie, schema, len, text, text_len);
            wrong_refusals += valid && !accepted;
            wrong_order += order;
            wrong_accepts += !valid && accepted;
            if (verbose && accepted != valid)
                printf("WRONG %.*s value %u (%s) token %u of %u: %.*s\n", (int)name_len, name, i,
                       order   ? "order"
                       : valid ? "valid"
                               : "invalid",
                       at, token_count, (int)RP_MIN(text_len, 2000), text);
        }
        free(tokens);
    }
    if (m)
        largest = RP_MAX(largest, rp_grammar_memory(g));
    rp_matcher_free(m);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: bench_grammar VOCABULARY SCHEMAS [NAME] [-v]\n");
        return 2;
    }
    const char *only = NULL;
    bool verbose = false;
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "-v") == 0)
            verbose = true;
        else
            only = argv[i];
    }
    struct file vocabulary = read_file(argv[1]), data = read_file(argv[2]);
    uint32_t count = number(&vocabulary);
    struct rp_trie_token *tokens = calloc(count, sizeof *tokens);
    for (uint32_t i = 0; tokens && i < count; i++) {
        tokens[i].len = number(&vocabulary);
        tokens[i].bytes = vocabulary.at;
        vocabulary.at += tokens[i].len;
    }
    struct rp_token_trie *trie;
    struct rp_error err;
    uint32_t end = 2;
    uint64_t begin = now_ns();
    if (!tokens || rp_token_trie_make(tokens, count, count, &end, 1, &trie, &err) != RP_OK)
        return 1;
    printf("trie: %u tokens, %.1f ms, %.1f MB\n", count, (double)(now_ns() - begin) / 1e6,
           (double)rp_token_trie_memory(trie) / 1e6);
    uint32_t *bits = calloc((count + 31) / 32, sizeof *bits);
    while (bits && data.at < data.end)
        one_schema(&data, trie, bits, only, verbose);
    print_times("compile + first mask", &compiles);
    print_times("mask + step", &masks);
    printf("schemas %zu, refused %zu (%.1f %%); values %zu: valid refused %zu (%zu by the order of "
           "keys), invalid accepted %zu; too complex %zu; largest grammar %.1f MB\n",
           schemas, refused, 100.0 * (double)refused / (double)RP_MAX(schemas, 1), values,
           wrong_refusals, wrong_order, wrong_accepts, failures, (double)largest / 1e6);
    rp_token_trie_free(trie);
    free(bits);
    free(tokens);
    return 0;
}
