/* Rewrites a pattern written for Oniguruma (the package tokenizers) so that PCRE2 matches the same
 * text, whatever its version: classes of characters, \p{...}, \s, \w, \b and letters under (?i)
 * become explicit ranges of the tables in text/unicode/. The rules are Oniguruma's, found by
 * comparing answers (tests/oracle/unicode_oracle.py). What cannot be rewritten is refused by name.
 */
#include "text/tokenizer/tokenizer_pattern.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* PCRE2 compiles patterns to at most 64 KiB, a range to about eight bytes. */
#define OUT_MAX     ((size_t)1 << 20)
#define SHARED_RUNS 16

enum rp_tok_atom rp_tok_refuse(struct rp_tok_rewriter *r, const char *what) {
    if (!r->refused)
        r->refused = what;
    return RP_TOK_ATOM_DONE;
}

enum rp_tok_atom rp_tok_refuse_invalid(struct rp_tok_rewriter *r, const char *what) {
    r->invalid = !r->refused;
    return rp_tok_refuse(r, what);
}

/* ---- Output ----------------------------------------------------------------------------- */

/* Rough frequency of a range in texts: its size, and more below U+0600 (Latin to Hebrew), among
 * punctuation and kana, and among full-width forms. */
static uint32_t weight(const struct rp_tok_run *run) {
    uint32_t size = run->last - run->first + 1, first = run->first;
    bool frequent =
        first < 0x600 || (first >= 0x2000 && first < 0x3100) || (first >= 0xFF00 && first < 0xFFF0);
    return frequent ? size * 64 : first < 0x30000 ? size : 0;
}

static int heavier_first(const void *a, const void *b) {
    const struct rp_tok_run *x = a, *y = b;
    uint32_t nx = weight(x), ny = weight(y);
    return nx != ny ? (nx < ny) - (nx > ny) : (x->first > y->first) - (x->first < y->first);
}

/* Replaces the class that `out` ends with, from `begin`, by a call of its definition. */
static void share_class(struct rp_tok_rewriter *r, size_t begin) {
    size_t len = r->out.len - begin;
    char name[16];
    const char *known = NULL;
    if (r->out.failed)
        return;
    if (r->classes.len)
        known = memmem(r->classes.data, r->classes.len, r->out.data + begin, len);
    if (known) {
        snprintf(name, sizeof name, "%.5s", known - 6); /* (?<c0000>[...]) */
    } else {
        snprintf(name, sizeof name, "c%04u", r->class_count++);
        rp_buffer_printf(&r->classes, "(?<%s>", name);
        rp_buffer_append(&r->classes, r->out.data + begin, len);
        rp_buffer_puts(&r->classes, ")");
    }
    r->out.len = begin;
    rp_buffer_printf(&r->out, "(?&%s)", name);
}

/* PCRE2 before 10.45 compares with one range after the other: the frequent ones come first. */
static void put_set(struct rp_tok_rewriter *r, const struct rp_unicode_set *set) {
    struct rp_tok_run run = {0};
    rp_buffer_clear(&r->runs);
    for (; rp_unicode_set_next(set, &run.first, &run.last); run.first = run.last + 1)
        rp_buffer_append(&r->runs, (const char *)&run, sizeof run);
    size_t count = r->runs.len / sizeof run;
    if (r->runs.failed) {
        r->no_memory = true;
        return;
    }
    if (count == 0) {
        rp_buffer_puts(&r->out, "(?!)");
        return;
    }
    size_t begin = r->out.len;
    qsort(r->runs.data, count, sizeof run, heavier_first);
    rp_buffer_puts(&r->out, "[");
    for (size_t i = 0; i < count; i++) {
        char text[32];
        memcpy(&run, r->runs.data + i * sizeof run, sizeof run);
        snprintf(text, sizeof text, run.first == run.last ? "\\x{%X}" : "\\x{%X}-\\x{%X}",
                 run.first, run.last);
        rp_buffer_puts(&r->out, text);
    }
    rp_buffer_puts(&r->out, "]");
    if (r->shared && count > SHARED_RUNS)
        share_class(r, begin);
    if (r->out.len > OUT_MAX) {
        r->too_long = true;
        (void)rp_tok_refuse(r, "so long a pattern");
    }
}

static void put_code(struct rp_tok_rewriter *r, uint32_t code) {
    char text[16];
    if (code < 0x80 && isalnum((int)code)) {
        snprintf(text, sizeof text, "%c", (char)code);
        rp_buffer_puts(&r->out, text);
    } else {
        snprintf(text, sizeof text, "\\x{%X}", code);
        rp_buffer_puts(&r->out, text);
    }
}

static void put_literal(struct rp_tok_rewriter *r, uint32_t code) {
    if (!r->caseless) {
        r->letter_count = 0;
        put_code(r, code);
        return;
    }
    memset(r->scratch, 0, sizeof *r->scratch);
    rp_unicode_set_add(r->scratch, code, code);
    rp_unicode_set_add_folded(r->scratch);
    if (r->letter_count == RP_ARRAY_COUNT(r->letters))
        memmove(r->letters, r->letters + 1, sizeof r->letters - sizeof *r->letters);
    else
        r->letter_count++;
    r->letters[r->letter_count - 1] = code;
    if (rp_unicode_set_multi_fold(r->scratch) ||
        rp_unicode_ends_multi_fold(r->letters, r->letter_count)) {
        snprintf(r->detail, sizeof r->detail,
                 "letters up to U+%04X, of which several equal one under (?i),", code);
        (void)rp_tok_refuse(r, r->detail);
        return;
    }
    struct rp_tok_run run = {0};
    (void)rp_unicode_set_next(r->scratch, &run.first, &run.last);
    struct rp_tok_run next = {.first = run.last + 1};
    if (run.first == run.last && !rp_unicode_set_next(r->scratch, &next.first, &next.last))
        put_code(r, code);
    else
        put_set(r, r->scratch);
}

static void rewrite_class(struct rp_tok_rewriter *r) {
    struct rp_unicode_set *set = rp_calloc(1, sizeof *set);
    r->letter_count = 0;
    if (set) {
        rp_tok_read_class(r, set, 0);
        put_set(r, set);
    } else {
        r->no_memory = true;
    }
    rp_free(set);
}

/* ---- Groups and the rest ---------------------------------------------------------------- */

static void rewrite_boundary(struct rp_tok_rewriter *r, bool negated) {
    static const char *const parts[2][5] = {{"(?:(?<=", ")(?!", ")|(?<!", ")(?=", "))"},
                                            {"(?:(?<=", ")(?=", ")|(?<!", ")(?!", "))"}};
    memset(r->scratch, 0, sizeof *r->scratch);
    rp_tok_add_word(r->scratch);
    for (int i = 0; i < 5; i++) {
        rp_buffer_puts(&r->out, parts[negated][i]);
        if (i < 4)
            put_set(r, r->scratch);
    }
}

static void rewrite_escape(struct rp_tok_rewriter *r) {
    uint32_t code = 0;
    char text[16];
    r->i++;
    enum rp_tok_atom atom = rp_tok_read_escape(r, false, &code);
    if (atom == RP_TOK_ATOM_CODE) {
        put_literal(r, code);
        return;
    }
    r->letter_count = 0;
    if (atom == RP_TOK_ATOM_SET) {
        put_set(r, r->scratch);
        return;
    }
    if (r->refused)
        return;
    char c = r->in[r->i++];
    if (c == 'b' || c == 'B') {
        rewrite_boundary(r, c == 'B');
    } else if (c >= '1' && c <= '9' && !isdigit(rp_tok_peek(r, 0)) && !r->caseless) {
        snprintf(text, sizeof text, "\\g{%c}", c);
        rp_buffer_puts(&r->out, text);
    } else if (memchr("AzZGKR", c, 6)) {
        snprintf(text, sizeof text, "\\%c", c);
        rp_buffer_puts(&r->out, text);
    } else {
        snprintf(r->detail, sizeof r->detail, "\\%c", c);
        (void)rp_tok_refuse(r, r->detail);
    }
}

/* (?imx-imx) up to the end of the group around it, or (?imx-imx: with a group of its own. */
static void rewrite_options(struct rp_tok_rewriter *r) {
    bool on = true, caseless = r->caseless;
    const char *lines = "(?:";
    r->i += 2;
    for (; rp_tok_peek(r, 0) == 'i' || rp_tok_peek(r, 0) == 'm' || rp_tok_peek(r, 0) == '-';
         r->i++) {
        if (r->in[r->i] == 'i')
            caseless = on;
        else if (r->in[r->i] == 'm') /* . also matches a line end: PCRE2's s */
            lines = on ? "(?s:" : "(?-s:";
        else
            on = false;
    }
    if (rp_tok_peek(r, 0) == ':' && r->depth < RP_TOK_GROUPS_MAX) {
        r->groups[++r->depth].caseless = r->caseless;
        r->groups[r->depth].isolated = 0;
    } else if (rp_tok_peek(r, 0) == ')' && r->groups[r->depth].isolated < UINT8_MAX) {
        r->groups[r->depth].isolated++;
    } else {
        (void)rp_tok_refuse(r, "this option or kind of group");
        return;
    }
    r->i++;
    r->caseless = caseless;
    rp_buffer_puts(&r->out, lines);
}

static void rewrite_group(struct rp_tok_rewriter *r) {
    static const char *const kinds[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?<", "("};
    const char *at = r->in + r->i, *end;
    size_t left = r->len - r->i, k = 0;
    if (left >= 3 && memcmp(at, "(?#", 3) == 0) {
        end = memchr(at, ')', left);
        r->i = end ? (size_t)(end - r->in) + 1 : r->len;
        return;
    }
    while (left < strlen(kinds[k]) || memcmp(at, kinds[k], strlen(kinds[k])) != 0)
        k++;
    size_t n = strlen(kinds[k]);
    if (n == 1 && rp_tok_peek(r, 1) == '?') {
        rewrite_options(r);
        return;
    }
    if (n == 1 && rp_tok_peek(r, 1) == '*') {
        (void)rp_tok_refuse(r, "(*");
        return;
    }
    if (k == 6) { /* a name */
        while (isalnum(rp_tok_peek(r, n)) || rp_tok_peek(r, n) == '_')
            n++;
        if (rp_tok_peek(r, n++) != '>') {
            (void)rp_tok_refuse(r, "this name of a group");
            return;
        }
    }
    if (r->depth == RP_TOK_GROUPS_MAX) {
        (void)rp_tok_refuse(r, "groups nested so deep");
        return;
    }
    r->groups[++r->depth].caseless = r->caseless;
    r->groups[r->depth].isolated = 0;
    rp_buffer_append(&r->out, at, n);
    r->i += n;
}

static void close_group(struct rp_tok_rewriter *r) {
    for (; r->groups[r->depth].isolated; r->groups[r->depth].isolated--)
        rp_buffer_puts(&r->out, ")");
    if (r->i == r->len)
        return;
    if (r->depth == 0) {
        (void)rp_tok_refuse_invalid(r, "a ) without (");
        return;
    }
    r->caseless = r->groups[r->depth--].caseless;
    rp_buffer_puts(&r->out, ")");
    r->i++;
}

/* {n}, {n,}, {n,m}, {,m} at the {; false: a literal. */
static bool rewrite_interval(struct rp_tok_rewriter *r) {
    size_t n = 1, low, high;
    bool comma = false;
    while (isdigit(rp_tok_peek(r, n)))
        n++;
    low = n - 1;
    if (rp_tok_peek(r, n) == ',') {
        comma = true;
        n++;
    }
    high = n;
    while (comma && isdigit(rp_tok_peek(r, n)))
        n++;
    high = n - high;
    if (rp_tok_peek(r, n) != '}' || (low == 0 && high == 0))
        return false;
    rp_buffer_puts(&r->out, low ? "{" : "{0");
    rp_buffer_append(&r->out, r->in + r->i + 1, n);
    r->i += n + 1;
    /* In Ruby's syntax these repeat again; in PCRE2 they are possessive and lazy. */
    if (rp_tok_peek(r, 0) == '+')
        (void)rp_tok_refuse(r, "a + after {n,m}");
    if (rp_tok_peek(r, 0) == '?' && !comma)
        (void)rp_tok_refuse(r, "a ? after {n}");
    return true;
}

static void rewrite(struct rp_tok_rewriter *r) {
    while (r->i < r->len && !r->refused && !r->no_memory) {
        int c = rp_tok_peek(r, 0);
        uint32_t code = 0;
        if (c == '\\') {
            rewrite_escape(r);
        } else if (c == '[') {
            rewrite_class(r);
        } else if (c == '(') {
            rewrite_group(r);
        } else if (c == ')') {
            close_group(r);
        } else if (memchr("|.^$", c, 4)) {
            r->letter_count = 0;
            rp_buffer_append(&r->out, r->in + r->i++, 1);
        } else if (memchr("*+?", c, 3)) {
            rp_buffer_append(&r->out, r->in + r->i++, 1);
        } else if (c != '{' || !rewrite_interval(r)) {
            int size = rp_utf8_decode(r->in + r->i, r->len - r->i, &code);
            if (size <= 0) {
                (void)rp_tok_refuse_invalid(r, "invalid UTF-8");
                return;
            }
            r->i += (size_t)size;
            put_literal(r, code);
        }
    }
    if (r->depth && !r->refused)
        (void)rp_tok_refuse_invalid(r, "a ( without )");
    if (!r->refused && !r->no_memory)
        close_group(r);
}

int rp_tok_pattern_rewrite(struct rp_tok_load *load, const char *where, const char *pattern,
                           size_t len, bool shared, struct rp_buffer *out) {
    struct rp_tok_rewriter *r = rp_calloc(1, sizeof *r);
    int status = RP_OK;
    if (!r)
        return rp_tok_no_memory(load);
    r->in = pattern;
    r->len = len;
    r->shared = shared;
    r->scratch = rp_calloc(1, sizeof *r->scratch);
    rp_buffer_init(&r->out, 0);
    rp_buffer_init(&r->runs, 0);
    rp_buffer_init(&r->classes, 0);
    r->no_memory = !r->scratch;
    rewrite(r);
    if (r->classes.len) {
        rp_buffer_puts(&r->out, "(?(DEFINE)");
        rp_buffer_append(&r->out, r->classes.data, r->classes.len);
        rp_buffer_puts(&r->out, ")");
    }
    if (r->no_memory || r->out.failed || r->classes.failed)
        status = rp_tok_no_memory(load);
    else if (r->invalid)
        status = rp_error_set(load->err, RP_STATUS_FORMAT, "%s: %s: invalid pattern: %s: %.80s",
                              load->file, where, r->refused, pattern);
    else if (r->refused)
        status = rp_error_set(load->err, r->too_long ? RP_STATUS_RANGE : RP_STATUS_UNSUPPORTED,
                              "%s: %s: %s is not supported: %.80s", load->file, where, r->refused,
                              pattern);
    else
        rp_buffer_append(out, r->out.data ? r->out.data : "", r->out.len);
    rp_buffer_deinit(&r->runs);
    rp_buffer_deinit(&r->classes);
    rp_buffer_deinit(&r->out);
    rp_free(r->scratch);
    rp_free(r);
    return status;
}
