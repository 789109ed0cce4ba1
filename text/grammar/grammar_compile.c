/* grammar_compile.c - grammars from a pattern and from a list of choices. */
#include "text/grammar/grammar_internal.h"

#include "base/utf8.h"

#include <string.h>

#define PATTERN_BYTES ((size_t)64 << 10)
#define CHOICES_MAX   4096

int grammar_finish(struct rp_grammar *g, uint32_t node, int rc, const char *what,
                   struct rp_grammar **out, struct rp_error *err) {
    if (rc == RP_OK) {
        g_settle(g, 0);
        g->start = g_state(g, node);
        if (g->status != RP_OK)
            rc = rp_error_set(err, g->status, "%s: %s", what,
                              g->status == RP_STATUS_FULL ? "is too complex" : "out of memory");
        else if (g->start == NODE_NONE)
            rc = rp_error_set(err, RP_STATUS_UNSUPPORTED, "%s: no text can satisfy it", what);
    } else if (g->status != RP_OK)
        rc = rp_error_set(err, g->status, "%s: %s", what,
                          g->status == RP_STATUS_FULL ? "is too complex" : "out of memory");
    if (rc == RP_OK)
        *out = g;
    else
        rp_grammar_free(g);
    return rc;
}

int rp_grammar_compile_regex(const char *pattern, size_t len,
                             const struct rp_grammar_limits *limits, struct rp_grammar **out,
                             struct rp_error *err) {
    size_t bytes = limits && limits->source_bytes ? limits->source_bytes : PATTERN_BYTES;
    *out = NULL;
    if (len > bytes)
        return rp_error_set(err, RP_STATUS_FULL, "pattern: has %zu bytes, at most %zu are taken",
                            len, bytes);
    struct rp_grammar *g = grammar_create(limits);
    if (!g)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "pattern: out of memory");
    uint32_t rx;
    int rc = regex_parse(g, pattern, len, RX_PLAIN, false, &rx, err);
    return grammar_finish(g, rc == RP_OK ? g_lex(g, rx) : NODE_NONE, rc, "pattern", out, err);
}

int rp_grammar_compile_choice(const char *const *choices, size_t count,
                              const struct rp_grammar_limits *limits, struct rp_grammar **out,
                              struct rp_error *err) {
    *out = NULL;
    if (count == 0 || count > CHOICES_MAX)
        return rp_error_set(err, RP_STATUS_RANGE, "choice: has %zu texts, 1 to %d are taken", count,
                            CHOICES_MAX);
    struct rp_grammar *g = grammar_create(limits);
    if (!g)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "choice: out of memory");
    int rc = RP_OK;
    for (size_t i = 0; i < count && rc == RP_OK; i++) {
        uint32_t node = g_lit(g, choices[i], strlen(choices[i]));
        if (!rp_utf8_valid(choices[i], strlen(choices[i])))
            rc = rp_error_set(err, RP_STATUS_FORMAT, "choice %zu: is not UTF-8", i);
        else if (!VEC_PUSH(g, &g->work, node))
            rc = g->status;
    }
    uint32_t node = g_or(g, g->work.at, g->work.count);
    g->work.count = 0;
    return grammar_finish(g, node, rc, "choice", out, err);
}
