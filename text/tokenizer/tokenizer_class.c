/* The classes and escapes of Oniguruma's patterns as sets of characters. */
#include "base/utf8.h"
#include "text/tokenizer/tokenizer_internal.h"
#include "text/tokenizer/tokenizer_pattern.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define CLASSES_MAX 8

#define CATEGORY(name) (1u << RP_UNICODE_##name)
#define MARKS          (CATEGORY(MN) | CATEGORY(MC) | CATEGORY(ME))
#define PUNCTUATION                                                                                \
    (CATEGORY(PC) | CATEGORY(PD) | CATEGORY(PS) | CATEGORY(PE) | CATEGORY(PI) | CATEGORY(PF) |     \
     CATEGORY(PO))
#define SYMBOLS   (CATEGORY(SM) | CATEGORY(SC) | CATEGORY(SK) | CATEGORY(SO))
#define INVISIBLE (CATEGORY(CC) | CATEGORY(CN) | CATEGORY(CS))

/* ---- Sets ------------------------------------------------------------------------------- */

static void add_spaces(struct rp_unicode_set *set) {
    static const struct rp_tok_run spaces[] = {
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

void rp_tok_add_word(struct rp_unicode_set *set) {
    add_word(set);
    /* Oniguruma looks these up in another table, but not in a class. */
    rp_unicode_set_add(set, 0xB2, 0xB3);
    rp_unicode_set_add(set, 0xB9, 0xB9);
    rp_unicode_set_add(set, 0xBC, 0xBE);
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
static enum rp_tok_atom read_property(struct rp_tok_rewriter *r, bool negated) {
    size_t begin = r->i + 1, end = begin;
    char name[32];
    size_t n = 0;
    while (end < r->len && r->in[end] != '}')
        end++;
    if (end == r->len)
        return rp_tok_refuse_invalid(r, "\\p{ without }");
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
        return rp_tok_refuse(r, r->detail);
    }
    if (negated)
        rp_unicode_set_invert(r->scratch);
    return RP_TOK_ATOM_SET;
}

/* ---- Escapes ---------------------------------------------------------------------------- */

static int hex_value(int c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Between `least` and `most` digits. */
static bool read_number(struct rp_tok_rewriter *r, int base, int least, int most, uint32_t *out) {
    int count = 0;
    *out = 0;
    for (; count < most && hex_value(rp_tok_peek(r, 0)) >= 0 && hex_value(rp_tok_peek(r, 0)) < base;
         count++)
        *out = *out * (uint32_t)base + (uint32_t)hex_value(r->in[r->i++]);
    return count >= least;
}

static enum rp_tok_atom read_hex(struct rp_tok_rewriter *r, uint32_t *code) {
    if (rp_tok_peek(r, 0) == '{') {
        r->i++;
        if (!read_number(r, 16, 1, 8, code) || rp_tok_peek(r, 0) != '}' || *code > 0x10FFFF ||
            (*code >= 0xD800 && *code <= 0xDFFF))
            return rp_tok_refuse(r, "this \\x{...}");
        r->i++;
        return RP_TOK_ATOM_CODE;
    }
    if (!read_number(r, 16, 1, 2, code) || *code >= 0x80)
        return rp_tok_refuse(r, "a \\x without braces that is not ASCII");
    return RP_TOK_ATOM_CODE;
}

/* \s \d \w \h and their complements, into the scratch. */
static enum rp_tok_atom read_shorthand(struct rp_tok_rewriter *r, int c, bool in_class) {
    switch (tolower(c)) {
    case 's':
        add_spaces(r->scratch);
        break;
    case 'd':
        rp_unicode_set_add_kind(r->scratch, 0, CATEGORY(ND));
        break;
    case 'w':
        if (in_class)
            add_word(r->scratch);
        else
            rp_tok_add_word(r->scratch);
        break;
    default:
        add_hex_digits(r->scratch);
        break;
    }
    if (isupper(c))
        rp_unicode_set_invert(r->scratch);
    return RP_TOK_ATOM_SET;
}

enum rp_tok_atom rp_tok_read_escape(struct rp_tok_rewriter *r, bool in_class, uint32_t *code) {
    static const char letters[] = "t\tn\nr\rf\fv\va\ae\033";
    int c = rp_tok_peek(r, 0);
    if (c < 0)
        return rp_tok_refuse_invalid(r, "a \\ at the end");
    memset(r->scratch, 0, sizeof *r->scratch);
    if ((c == 'p' || c == 'P') && rp_tok_peek(r, 1) == '{') {
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
            return RP_TOK_ATOM_CODE;
        }
    if (c == 'b' && in_class) {
        r->i++;
        *code = '\b';
        return RP_TOK_ATOM_CODE;
    }
    if (c == 'x') {
        r->i++;
        return read_hex(r, code);
    }
    if (c == 'u') {
        r->i++; /* U+ and four digits */
        return read_number(r, 16, 4, 4, code) && !(*code >= 0xD800 && *code <= 0xDFFF)
                   ? RP_TOK_ATOM_CODE
                   : rp_tok_refuse(r, "this \\u");
    }
    if (c == '0' || (in_class && c >= '1' && c <= '7'))
        return read_number(r, 8, 1, 3, code) && *code < 0x80 ? RP_TOK_ATOM_CODE
                                                             : rp_tok_refuse(r, "this \\0");
    if (isalnum(c) && c != 'p' && c != 'P')
        return RP_TOK_ATOM_DONE;
    int size = rp_utf8_decode(r->in + r->i, r->len - r->i, code);
    if (size <= 0)
        return rp_tok_refuse_invalid(r, "invalid UTF-8");
    r->i += (size_t)size;
    return RP_TOK_ATOM_CODE;
}

/* ---- Classes ---------------------------------------------------------------------------- */

/* One character of a class, or a set in the scratch. */
static enum rp_tok_atom read_member(struct rp_tok_rewriter *r, uint32_t *code) {
    if (rp_tok_peek(r, 0) == '\\') {
        r->i++;
        enum rp_tok_atom atom = rp_tok_read_escape(r, true, code);
        if (atom == RP_TOK_ATOM_DONE && !r->refused) {
            snprintf(r->detail, sizeof r->detail, "\\%c inside a class", r->in[r->i]);
            return rp_tok_refuse(r, r->detail);
        }
        return atom;
    }
    int size = rp_utf8_decode(r->in + r->i, r->len - r->i, code);
    if (size <= 0)
        return rp_tok_refuse_invalid(r, "invalid UTF-8");
    r->i += (size_t)size;
    return RP_TOK_ATOM_CODE;
}

static void unite(struct rp_unicode_set *to, const struct rp_unicode_set *from) {
    for (size_t i = 0; i < RP_UNICODE_SET_WORDS; i++)
        to->words[i] |= from->words[i];
}

/* [:name:] or [:^name:] at the [; false when it is none. */
static bool read_posix(struct rp_tok_rewriter *r, struct rp_unicode_set *set) {
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

/* Members up to && or the closing bracket, which is left to be read. */
static void read_members(struct rp_tok_rewriter *r, struct rp_unicode_set *set, int depth,
                         bool first) {
    while (!r->refused && !r->no_memory) {
        int c = rp_tok_peek(r, 0);
        uint32_t code = 0, last;
        if (c < 0) {
            (void)rp_tok_refuse_invalid(r, "a class without ]");
            return;
        }
        if ((c == ']' && !first) || (c == '&' && rp_tok_peek(r, 1) == '&'))
            return;
        first = false;
        if (c == '[') {
            if (rp_tok_peek(r, 1) != ':' || !read_posix(r, set))
                rp_tok_read_class(r, set, depth + 1);
            continue;
        }
        enum rp_tok_atom atom = read_member(r, &code);
        bool range = rp_tok_peek(r, 0) == '-' && rp_tok_peek(r, 1) != ']' && rp_tok_peek(r, 1) >= 0;
        if (atom == RP_TOK_ATOM_SET) {
            unite(set, r->scratch);
            if (range)
                (void)rp_tok_refuse_invalid(r, "a range that begins with a set");
        } else if (atom == RP_TOK_ATOM_CODE && range && c != '-') {
            r->i++;
            if (rp_tok_peek(r, 0) == '[' || read_member(r, &last) != RP_TOK_ATOM_CODE ||
                last < code) {
                (void)rp_tok_refuse_invalid(r, "a range whose end is no later character");
                return;
            }
            rp_unicode_set_add(set, code, last);
        } else if (atom == RP_TOK_ATOM_CODE) {
            rp_unicode_set_add(set, code, code);
        }
    }
}

void rp_tok_read_class(struct rp_tok_rewriter *r, struct rp_unicode_set *set, int depth) {
    struct rp_unicode_set *sets = depth < CLASSES_MAX ? rp_calloc(2, sizeof *sets) : NULL;
    if (!sets) {
        r->no_memory = depth < CLASSES_MAX;
        (void)rp_tok_refuse(r, "classes nested so deep");
        return;
    }
    bool negated = rp_tok_peek(r, 1) == '^', first = true;
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
    } while (!r->refused && !r->no_memory && rp_tok_peek(r, 0) == '&');
    r->i++;
    if (depth == 0 && r->caseless) {
        if (!negated && rp_unicode_set_multi_fold(&sets[0])) {
            snprintf(r->detail, sizeof r->detail,
                     "a class with U+%04X, which equals several characters under (?i),",
                     rp_unicode_set_multi_fold(&sets[0]));
            (void)rp_tok_refuse(r, r->detail);
        }
        rp_unicode_set_add_folded(&sets[0]);
    }
    if (negated)
        rp_unicode_set_invert(&sets[0]);
    unite(set, &sets[0]);
    rp_free(sets);
}
