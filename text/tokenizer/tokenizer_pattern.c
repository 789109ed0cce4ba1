/* Rewrites a pattern written for Oniguruma (the package tokenizers) so that PCRE2 matches the same
 * text, whatever its version: classes of characters, \p{...}, \s, \w, \b and letters under (?i)
 * become explicit ranges of the tables in text/unicode/. The rules are Oniguruma's, found by
 * comparing answers (tests/oracle/unicode_oracle.py). What cannot be rewritten is refused by name.
 */
#include "base/utf8.h"
#include "text/tokenizer/tokenizer_internal.h"
#include "text/unicode/unicode.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUPS_MAX  200
#define CLASSES_MAX 8

#define CATEGORY(name) (1u << RP_UNICODE_##name)
#define MARKS          (CATEGORY(MN) | CATEGORY(MC) | CATEGORY(ME))
#define PUNCTUATION                                                                                \
    (CATEGORY(PC) | CATEGORY(PD) | CATEGORY(PS) | CATEGORY(PE) | CATEGORY(PI) | CATEGORY(PF) |     \
     CATEGORY(PO))
#define SYMBOLS   (CATEGORY(SM) | CATEGORY(SC) | CATEGORY(SK) | CATEGORY(SO))
#define INVISIBLE (CATEGORY(CC) | CATEGORY(CN) | CATEGORY(CS))

struct run {
    uint32_t first, last;
};

struct rewriter {
    const char *in;
    size_t len, i;
    struct rp_buffer out, runs;
    /* One shorthand or name at a time. */
    struct rp_unicode_set *scratch;
    const char *refused;
    char detail[72];
    /* invalid: Oniguruma refuses the pattern as well */
    bool no_memory, invalid, caseless;
    /* The open groups: what they restore, and how many (?i) they also close. */
    struct {
        bool caseless;
        uint8_t isolated;
    } groups[GROUPS_MAX + 1];
    size_t depth;
    /* The last characters under (?i) with nothing but parentheses between them. */
    uint32_t letters[3];
    size_t letter_count;
};

enum atom { ATOM_CODE, ATOM_SET, ATOM_DONE };

static enum atom refuse(struct rewriter *r, const char *what) {
    if (!r->refused)
        r->refused = what;
    return ATOM_DONE;
}

static enum atom refuse_invalid(struct rewriter *r, const char *what) {
    r->invalid = !r->refused;
    return refuse(r, what);
}

static int peek(const struct rewriter *r, size_t ahead) {
    return r->i + ahead < r->len ? (unsigned char)r->in[r->i + ahead] : -1;
}

/* ---- Output ----------------------------------------------------------------------------- */

/* Rough frequency of a range in texts: its size, and more below U+0600 (Latin to Hebrew), among
 * punctuation and kana, and among full-width forms. */
static uint32_t weight(const struct run *run) {
    uint32_t size = run->last - run->first + 1, first = run->first;
    bool frequent =
        first < 0x600 || (first >= 0x2000 && first < 0x3100) || (first >= 0xFF00 && first < 0xFFF0);
    return frequent ? size * 64 : first < 0x30000 ? size : 0;
}

static int heavier_first(const void *a, const void *b) {
    const struct run *x = a, *y = b;
    uint32_t nx = weight(x), ny = weight(y);
    return nx != ny ? (nx < ny) - (nx > ny) : (x->first > y->first) - (x->first < y->first);
}

/* PCRE2 before 10.45 compares with one range after the other: the frequent ones come first. */
static void put_set(struct rewriter *r, const struct rp_unicode_set *set) {
    struct run run = {0};
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
}

static void put_code(struct rewriter *r, uint32_t code) {
    char text[16];
    if (code < 0x80 && isalnum((int)code)) {
        snprintf(text, sizeof text, "%c", (char)code);
        rp_buffer_puts(&r->out, text);
    } else {
        snprintf(text, sizeof text, "\\x{%X}", code);
        rp_buffer_puts(&r->out, text);
    }
}

static void put_literal(struct rewriter *r, uint32_t code) {
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
        (void)refuse(r, r->detail);
        return;
    }
    struct run run = {0};
    (void)rp_unicode_set_next(r->scratch, &run.first, &run.last);
    struct run next = {.first = run.last + 1};
    if (run.first == run.last && !rp_unicode_set_next(r->scratch, &next.first, &next.last))
        put_code(r, code);
    else
        put_set(r, r->scratch);
}

/* ---- Sets ------------------------------------------------------------------------------- */

static void add_spaces(struct rp_unicode_set *set) {
    static const struct run spaces[] = {
        {9, 13},          {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
        {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(spaces); i++)
        rp_unicode_set_add(set, spaces[i].first, spaces[i].last);
}

static void add_hex_digits(struct rp_unicode_set *set) {
    rp_unicode_set_add(set, '0', '9');
    rp_unicode_set_add(set, 'A', 'F');
    rp_unicode_set_add(set, 'a', 'f');
}

static void add_word(struct rp_unicode_set *set) {
    rp_unicode_set_add_kind(set, RP_UNICODE_ALPHABETIC, MARKS | CATEGORY(ND) | CATEGORY(PC));
}

static const char *const class_names[] = {
    "alnum", "alpha",    "ascii",      "blank",     "cntrl",     "digit",      "graph",
    "lower", "print",    "punct",      "space",     "upper",     "xdigit",     "word",
    "any",   "assigned", "alphabetic", "lowercase", "uppercase", "whitespace", "splitpunct",
};

/* The classes of [:name:] and the properties of \p{name} that are no category and no script. */
static bool add_class(struct rp_unicode_set *set, const char *name, size_t len) {
    size_t k = 0;
    while (k < RP_ARRAY_COUNT(class_names) &&
           (strlen(class_names[k]) != len || memcmp(class_names[k], name, len) != 0))
        k++;
    switch (k) {
    case 0:
        rp_unicode_set_add_kind(set, RP_UNICODE_ALPHABETIC, CATEGORY(ND));
        return true;
    case 1:
    case 16:
        rp_unicode_set_add_kind(set, RP_UNICODE_ALPHABETIC, 0);
        return true;
    case 2:
        rp_unicode_set_add(set, 0, 0x7F);
        return true;
    case 3:
        rp_unicode_set_add(set, '\t', '\t');
        rp_unicode_set_add_kind(set, 0, CATEGORY(ZS));
        return true;
    case 4:
        rp_unicode_set_add_kind(set, 0, CATEGORY(CC));
        return true;
    case 5:
        rp_unicode_set_add_kind(set, 0, CATEGORY(ND));
        return true;
    case 6:
    case 8:
        add_spaces(set);
        rp_unicode_set_add_kind(set, 0, INVISIBLE);
        rp_unicode_set_invert(set);
        if (k == 8)
            rp_unicode_set_add_kind(set, 0, CATEGORY(ZS));
        return true;
    case 7:
    case 17:
        rp_unicode_set_add_kind(set, RP_UNICODE_LOWERCASE, 0);
        return true;
    case 9:
        rp_unicode_set_add_kind(set, 0, PUNCTUATION | SYMBOLS);
        return true;
    case 10:
    case 19:
        add_spaces(set);
        return true;
    case 11:
    case 18:
        rp_unicode_set_add_kind(set, RP_UNICODE_UPPERCASE, 0);
        return true;
    case 12:
        add_hex_digits(set);
        return true;
    case 13:
        add_word(set);
        return true;
    case 14:
        rp_unicode_set_invert(set);
        return true;
    case 15:
        rp_unicode_set_add_kind(set, 0, CATEGORY(CN) | CATEGORY(CS));
        rp_unicode_set_invert(set);
        return true;
    case 20: /* not Oniguruma's: the pattern of the pre-tokenizer Punctuation */
        rp_unicode_set_add_kind(set, RP_UNICODE_SPLIT_PUNCT, 0);
        return true;
    default:
        return false;
    }
}

/* \p{Name}, \p{^Name}, \P{Name} from the { on, into the scratch. */
static enum atom read_property(struct rewriter *r, bool negated) {
    size_t begin = r->i + 1, end = begin;
    char name[32];
    size_t n = 0;
    while (end < r->len && r->in[end] != '}')
        end++;
    if (end == r->len)
        return refuse_invalid(r, "\\p{ without }");
    r->i = end + 1;
    if (r->in[begin] == '^') {
        negated = !negated;
        begin++;
    }
    for (size_t i = begin; i < end && n < sizeof name; i++)
        if (r->in[i] != ' ' && r->in[i] != '_' && r->in[i] != '-')
            name[n++] = (char)tolower((unsigned char)r->in[i]);
    if (!rp_unicode_set_add_name(r->scratch, r->in + begin, end - begin) &&
        !add_class(r->scratch, name, n)) {
        struct rp_tok_quote quote = rp_tok_quote(r->in + begin, RP_MIN(end - begin, (size_t)40));
        snprintf(r->detail, sizeof r->detail, "\\p{%.50s}", quote.text);
        return refuse(r, r->detail);
    }
    if (negated)
        rp_unicode_set_invert(r->scratch);
    return ATOM_SET;
}

/* ---- Escapes ---------------------------------------------------------------------------- */

static int hex_value(int c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Between `least` and `most` digits. */
static bool read_number(struct rewriter *r, int base, int least, int most, uint32_t *out) {
    int count = 0;
    *out = 0;
    for (; count < most && hex_value(peek(r, 0)) >= 0 && hex_value(peek(r, 0)) < base; count++)
        *out = *out * (uint32_t)base + (uint32_t)hex_value(r->in[r->i++]);
    return count >= least;
}

static enum atom read_hex(struct rewriter *r, uint32_t *code) {
    if (peek(r, 0) == '{') {
        r->i++;
        if (!read_number(r, 16, 1, 8, code) || peek(r, 0) != '}' || *code > 0x10FFFF ||
            (*code >= 0xD800 && *code <= 0xDFFF))
            return refuse(r, "this \\x{...}");
        r->i++;
        return ATOM_CODE;
    }
    if (!read_number(r, 16, 1, 2, code) || *code >= 0x80)
        return refuse(r, "a \\x without braces that is not ASCII");
    return ATOM_CODE;
}

/* \s \d \w \h and their complements, into the scratch. */
static enum atom read_shorthand(struct rewriter *r, int c, bool in_class) {
    switch (tolower(c)) {
    case 's':
        add_spaces(r->scratch);
        break;
    case 'd':
        rp_unicode_set_add_kind(r->scratch, 0, CATEGORY(ND));
        break;
    case 'w':
        add_word(r->scratch);
        /* Oniguruma looks these up in another table, but not in a class. */
        if (!in_class) {
            rp_unicode_set_add(r->scratch, 0xB2, 0xB3);
            rp_unicode_set_add(r->scratch, 0xB9, 0xB9);
            rp_unicode_set_add(r->scratch, 0xBC, 0xBE);
        }
        break;
    default:
        add_hex_digits(r->scratch);
        break;
    }
    if (isupper(c))
        rp_unicode_set_invert(r->scratch);
    return ATOM_SET;
}

/* After the \: a character, a set in the scratch, or ATOM_DONE for one that is neither, which is
 * left to be read. */
static enum atom read_escape(struct rewriter *r, bool in_class, uint32_t *code) {
    static const char letters[] = "t\tn\nr\rf\fv\va\ae\033";
    int c = peek(r, 0);
    if (c < 0)
        return refuse_invalid(r, "a \\ at the end");
    memset(r->scratch, 0, sizeof *r->scratch);
    if ((c == 'p' || c == 'P') && peek(r, 1) == '{') {
        r->i++;
        return read_property(r, c == 'P');
    }
    if (memchr("sSdDwWhH", c, 8)) {
        r->i++;
        return read_shorthand(r, c, in_class);
    }
    for (size_t i = 0; i + 1 < sizeof letters; i += 2)
        if (letters[i] == c) {
            r->i++;
            *code = (unsigned char)letters[i + 1];
            return ATOM_CODE;
        }
    if (c == 'b' && in_class) {
        r->i++;
        *code = '\b';
        return ATOM_CODE;
    }
    if (c == 'x') {
        r->i++;
        return read_hex(r, code);
    }
    if (c == 'u') {
        r->i++; /* U+ and four digits */
        return read_number(r, 16, 4, 4, code) && !(*code >= 0xD800 && *code <= 0xDFFF)
                   ? ATOM_CODE
                   : refuse(r, "this \\u");
    }
    if (c == '0' || (in_class && c >= '1' && c <= '7'))
        return read_number(r, 8, 1, 3, code) && *code < 0x80 ? ATOM_CODE : refuse(r, "this \\0");
    if (isalnum(c) && c != 'p' && c != 'P')
        return ATOM_DONE;
    int size = rp_utf8_decode(r->in + r->i, r->len - r->i, code);
    if (size <= 0)
        return refuse_invalid(r, "invalid UTF-8");
    r->i += (size_t)size;
    return ATOM_CODE;
}

/* ---- Classes ---------------------------------------------------------------------------- */

/* One character of a class, or a set in the scratch. */
static enum atom read_member(struct rewriter *r, uint32_t *code) {
    if (peek(r, 0) == '\\') {
        r->i++;
        enum atom atom = read_escape(r, true, code);
        if (atom == ATOM_DONE && !r->refused) {
            snprintf(r->detail, sizeof r->detail, "\\%c inside a class", r->in[r->i]);
            return refuse(r, r->detail);
        }
        return atom;
    }
    int size = rp_utf8_decode(r->in + r->i, r->len - r->i, code);
    if (size <= 0)
        return refuse_invalid(r, "invalid UTF-8");
    r->i += (size_t)size;
    return ATOM_CODE;
}

static void unite(struct rp_unicode_set *to, const struct rp_unicode_set *from) {
    for (size_t i = 0; i < RP_UNICODE_SET_WORDS; i++)
        to->words[i] |= from->words[i];
}

/* [:name:] or [:^name:] at the [; false when it is none. */
static bool read_posix(struct rewriter *r, struct rp_unicode_set *set) {
    const char *begin = r->in + r->i + 2, *end = memmem(begin, r->len - r->i - 2, ":]", 2);
    bool negated = end && begin < end && *begin == '^';
    begin += negated;
    memset(r->scratch, 0, sizeof *r->scratch);
    if (!end || !add_class(r->scratch, begin, (size_t)(end - begin)))
        return false;
    if (negated)
        rp_unicode_set_invert(r->scratch);
    unite(set, r->scratch);
    r->i = (size_t)(end - r->in) + 2;
    return true;
}

static void read_class(struct rewriter *r, struct rp_unicode_set *set, int depth);

/* Members up to && or the closing bracket, which is left to be read. */
static void read_members(struct rewriter *r, struct rp_unicode_set *set, int depth, bool first) {
    while (!r->refused && !r->no_memory) {
        int c = peek(r, 0);
        uint32_t code = 0, last;
        if (c < 0) {
            (void)refuse_invalid(r, "a class without ]");
            return;
        }
        if ((c == ']' && !first) || (c == '&' && peek(r, 1) == '&'))
            return;
        first = false;
        if (c == '[') {
            if (peek(r, 1) != ':' || !read_posix(r, set))
                read_class(r, set, depth + 1);
            continue;
        }
        enum atom atom = read_member(r, &code);
        bool range = peek(r, 0) == '-' && peek(r, 1) != ']' && peek(r, 1) >= 0;
        if (atom == ATOM_SET) {
            unite(set, r->scratch);
            if (range)
                (void)refuse_invalid(r, "a range that begins with a set");
        } else if (atom == ATOM_CODE && range && c != '-') {
            r->i++;
            if (peek(r, 0) == '[' || read_member(r, &last) != ATOM_CODE || last < code) {
                (void)refuse_invalid(r, "a range whose end is no later character");
                return;
            }
            rp_unicode_set_add(set, code, last);
        } else if (atom == ATOM_CODE) {
            rp_unicode_set_add(set, code, code);
        }
    }
}

/* Adds the class at the [ to the set. */
static void read_class(struct rewriter *r, struct rp_unicode_set *set, int depth) {
    struct rp_unicode_set *sets = depth < CLASSES_MAX ? rp_calloc(2, sizeof *sets) : NULL;
    if (!sets) {
        r->no_memory = depth < CLASSES_MAX;
        (void)refuse(r, "classes nested so deep");
        return;
    }
    bool negated = peek(r, 1) == '^', first = true;
    r->i += negated ? 2 : 1;
    /* sets[0]: what is left after each &&; sets[1]: the members since. */
    memset(sets[0].words, 0xFF, sizeof sets[0].words);
    do {
        r->i += first ? 0 : 2;
        memset(&sets[1], 0, sizeof sets[1]);
        read_members(r, &sets[1], depth, first);
        first = false;
        for (size_t i = 0; i < RP_UNICODE_SET_WORDS; i++)
            sets[0].words[i] &= sets[1].words[i];
    } while (!r->refused && !r->no_memory && peek(r, 0) == '&');
    r->i++;
    if (depth == 0 && r->caseless) {
        if (!negated && rp_unicode_set_multi_fold(&sets[0])) {
            snprintf(r->detail, sizeof r->detail,
                     "a class with U+%04X, which equals several characters under (?i),",
                     rp_unicode_set_multi_fold(&sets[0]));
            (void)refuse(r, r->detail);
        }
        rp_unicode_set_add_folded(&sets[0]);
    }
    if (negated)
        rp_unicode_set_invert(&sets[0]);
    unite(set, &sets[0]);
    rp_free(sets);
}

static void rewrite_class(struct rewriter *r) {
    struct rp_unicode_set *set = rp_calloc(1, sizeof *set);
    r->letter_count = 0;
    if (set) {
        read_class(r, set, 0);
        put_set(r, set);
    } else {
        r->no_memory = true;
    }
    rp_free(set);
}

/* ---- Groups and the rest ---------------------------------------------------------------- */

static void rewrite_boundary(struct rewriter *r, bool negated) {
    static const char *const parts[2][5] = {{"(?:(?<=", ")(?!", ")|(?<!", ")(?=", "))"},
                                            {"(?:(?<=", ")(?=", ")|(?<!", ")(?!", "))"}};
    memset(r->scratch, 0, sizeof *r->scratch);
    (void)read_shorthand(r, 'w', false);
    for (int i = 0; i < 5; i++) {
        rp_buffer_puts(&r->out, parts[negated][i]);
        if (i < 4)
            put_set(r, r->scratch);
    }
}

static void rewrite_escape(struct rewriter *r) {
    uint32_t code = 0;
    char text[16];
    r->i++;
    enum atom atom = read_escape(r, false, &code);
    if (atom == ATOM_CODE) {
        put_literal(r, code);
        return;
    }
    r->letter_count = 0;
    if (atom == ATOM_SET) {
        put_set(r, r->scratch);
        return;
    }
    if (r->refused)
        return;
    char c = r->in[r->i++];
    if (c == 'b' || c == 'B') {
        rewrite_boundary(r, c == 'B');
    } else if (c >= '1' && c <= '9' && !isdigit(peek(r, 0)) && !r->caseless) {
        snprintf(text, sizeof text, "\\g{%c}", c);
        rp_buffer_puts(&r->out, text);
    } else if (memchr("AzZGKR", c, 6)) {
        snprintf(text, sizeof text, "\\%c", c);
        rp_buffer_puts(&r->out, text);
    } else {
        snprintf(r->detail, sizeof r->detail, "\\%c", c);
        (void)refuse(r, r->detail);
    }
}

/* (?imx-imx) up to the end of the group around it, or (?imx-imx: with a group of its own. */
static void rewrite_options(struct rewriter *r) {
    bool on = true, caseless = r->caseless;
    const char *lines = "(?:";
    r->i += 2;
    for (; peek(r, 0) == 'i' || peek(r, 0) == 'm' || peek(r, 0) == '-'; r->i++) {
        if (r->in[r->i] == 'i')
            caseless = on;
        else if (r->in[r->i] == 'm') /* . also matches a line end: PCRE2's s */
            lines = on ? "(?s:" : "(?-s:";
        else
            on = false;
    }
    if (peek(r, 0) == ':' && r->depth < GROUPS_MAX) {
        r->groups[++r->depth].caseless = r->caseless;
        r->groups[r->depth].isolated = 0;
    } else if (peek(r, 0) == ')' && r->groups[r->depth].isolated < UINT8_MAX) {
        r->groups[r->depth].isolated++;
    } else {
        (void)refuse(r, "this option or kind of group");
        return;
    }
    r->i++;
    r->caseless = caseless;
    rp_buffer_puts(&r->out, lines);
}

static void rewrite_group(struct rewriter *r) {
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
    if (n == 1 && peek(r, 1) == '?') {
        rewrite_options(r);
        return;
    }
    if (n == 1 && peek(r, 1) == '*') {
        (void)refuse(r, "(*");
        return;
    }
    if (k == 6) { /* a name */
        while (isalnum(peek(r, n)) || peek(r, n) == '_')
            n++;
        if (peek(r, n++) != '>') {
            (void)refuse(r, "this name of a group");
            return;
        }
    }
    if (r->depth == GROUPS_MAX) {
        (void)refuse(r, "groups nested so deep");
        return;
    }
    r->groups[++r->depth].caseless = r->caseless;
    r->groups[r->depth].isolated = 0;
    rp_buffer_append(&r->out, at, n);
    r->i += n;
}

static void close_group(struct rewriter *r) {
    for (; r->groups[r->depth].isolated; r->groups[r->depth].isolated--)
        rp_buffer_puts(&r->out, ")");
    if (r->i == r->len)
        return;
    if (r->depth == 0) {
        (void)refuse_invalid(r, "a ) without (");
        return;
    }
    r->caseless = r->groups[r->depth--].caseless;
    rp_buffer_puts(&r->out, ")");
    r->i++;
}

/* {n}, {n,}, {n,m}, {,m} at the {; false: a literal. */
static bool rewrite_interval(struct rewriter *r) {
    size_t n = 1, low, high;
    bool comma = false;
    while (isdigit(peek(r, n)))
        n++;
    low = n - 1;
    if (peek(r, n) == ',') {
        comma = true;
        n++;
    }
    high = n;
    while (comma && isdigit(peek(r, n)))
        n++;
    high = n - high;
    if (peek(r, n) != '}' || (low == 0 && high == 0))
        return false;
    rp_buffer_puts(&r->out, low ? "{" : "{0");
    rp_buffer_append(&r->out, r->in + r->i + 1, n);
    r->i += n + 1;
    /* In Ruby's syntax these repeat again; in PCRE2 they are possessive and lazy. */
    if (peek(r, 0) == '+')
        (void)refuse(r, "a + after {n,m}");
    if (peek(r, 0) == '?' && !comma)
        (void)refuse(r, "a ? after {n}");
    return true;
}

static void rewrite(struct rewriter *r) {
    while (r->i < r->len && !r->refused && !r->no_memory) {
        int c = peek(r, 0);
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
                (void)refuse_invalid(r, "invalid UTF-8");
                return;
            }
            r->i += (size_t)size;
            put_literal(r, code);
        }
    }
    if (r->depth && !r->refused)
        (void)refuse_invalid(r, "a ( without )");
    if (!r->refused && !r->no_memory)
        close_group(r);
}

int rp_tok_pattern_rewrite(struct rp_tok_load *load, const char *where, const char *pattern,
                           size_t len, struct rp_buffer *out) {
    struct rewriter *r = rp_calloc(1, sizeof *r);
    int status = RP_OK;
    if (!r)
        return rp_tok_no_memory(load);
    r->in = pattern;
    r->len = len;
    r->scratch = rp_calloc(1, sizeof *r->scratch);
    rp_buffer_init(&r->out, 0);
    rp_buffer_init(&r->runs, 0);
    r->no_memory = !r->scratch;
    rewrite(r);
    if (r->no_memory || r->out.failed)
        status = rp_tok_no_memory(load);
    else if (r->invalid)
        status = rp_error_set(load->err, RP_STATUS_FORMAT, "%s: %s: invalid pattern: %s: %.80s",
                              load->file, where, r->refused, pattern);
    else if (r->refused)
        status =
            rp_error_set(load->err, RP_STATUS_UNSUPPORTED, "%s: %s: %s is not supported: %.80s",
                         load->file, where, r->refused, pattern);
    else
        rp_buffer_append(out, r->out.data ? r->out.data : "", r->out.len);
    rp_buffer_deinit(&r->runs);
    rp_buffer_deinit(&r->out);
    rp_free(r->scratch);
    rp_free(r);
    return status;
}
