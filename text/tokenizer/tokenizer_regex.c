/* Patterns of a tokenizer.json are written for Oniguruma (Ruby syntax) and run here by PCRE2. What
 * the two read differently is rewritten: \s \S   PCRE2's also takes U+180E: the class White_Space
 * is written out \w \W   PCRE2 10.42's is letters, numbers and _: Unicode's word characters are
 * written out \h \H   a hexadecimal digit in Oniguruma, a horizontal space in PCRE2 ^ $     match
 * at every line in Ruby: PCRE2_MULTILINE \p{Han} PCRE2 means Script_Extensions, Oniguruma Script:
 * \p{sc:Han} What cannot be rewritten (nested classes, && in a class, X{n,m}+) is refused. */
#include "text/tokenizer/tokenizer_internal.h"

#include <ctype.h>
#include <string.h>

#define SPACE_RANGES                                                                               \
    "\\x09-\\x0D\\x20\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"        \
    "\\x{205F}\\x{3000}"
#define NOT_SPACE_RANGES                                                                           \
    "\\x00-\\x08\\x0E-\\x1F\\x21-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}"       \
    "\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}"                 \
    "\\x{3001}-\\x{10FFFF}"
#define WORD_CLASSES "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}"

/* The longest published pattern has 500 bytes. */
#define PATTERN_MAX 65536

/* JIT stack: grows on demand; the pathological texts of the tests need less than 64 KiB. */
#define JIT_STACK_MIN 32768
#define JIT_STACK_MAX ((size_t)8 << 20)

struct rewriter {
    const char *in;
    size_t len, i;
    struct rp_buffer out;
    bool in_class, by_script;
    const char *refused;
};

/* \p{Name} with a long name is a script: the general categories have one or two letters. */
static void rewrite_property(struct rewriter *r) {
    size_t at = r->i + 2, end;
    if (at >= r->len || r->in[at] != '{') {
        rp_buffer_append(&r->out, r->in + r->i, RP_MIN(r->len - r->i, (size_t)2));
        r->i = RP_MIN(at, r->len);
        return;
    }
    at++;
    bool negated = at < r->len && r->in[at] == '^';
    at += negated;
    for (end = at; end < r->len && isalpha((unsigned char)r->in[end]); end++)
        ;
    rp_buffer_append(&r->out, r->in + r->i, at - r->i);
    if (r->by_script && end - at > 2 && end < r->len && r->in[end] == '}' &&
        !(end - at == 3 && strncasecmp(r->in + at, "Any", 3) == 0))
        rp_buffer_puts(&r->out, "sc:");
    rp_buffer_append(&r->out, r->in + at, end - at);
    r->i = end;
}

static void rewrite_escape(struct rewriter *r) {
    char c = r->i + 1 < r->len ? r->in[r->i + 1] : '\0';
    const char *text = NULL;
    switch (c) {
    case 's':
        text = r->in_class ? SPACE_RANGES : "[" SPACE_RANGES "]";
        break;
    case 'S':
        text = r->in_class ? NOT_SPACE_RANGES : "[^" SPACE_RANGES "]";
        break;
    case 'w':
        text = r->in_class ? WORD_CLASSES : "[" WORD_CLASSES "]";
        break;
    case 'W':
        if (r->in_class)
            r->refused = "\\W inside a class";
        text = "[^" WORD_CLASSES "]";
        break;
    case 'h':
        text = r->in_class ? "0-9a-fA-F" : "[0-9a-fA-F]";
        break;
    case 'H':
        if (r->in_class)
            r->refused = "\\H inside a class";
        text = "[^0-9a-fA-F]";
        break;
    case 'p':
    case 'P':
        rewrite_property(r);
        return;
    default:
        rp_buffer_append(&r->out, r->in + r->i, RP_MIN(r->len - r->i, (size_t)2));
        r->i = RP_MIN(r->i + 2, r->len);
        return;
    }
    rp_buffer_puts(&r->out, text);
    r->i += 2;
}

static void rewrite_class_char(struct rewriter *r) {
    char c = r->in[r->i];
    if (c == '[' && r->i + 1 < r->len && r->in[r->i + 1] == ':') {
        const char *end = memchr(r->in + r->i, ']', r->len - r->i);
        size_t n = end ? (size_t)(end - r->in) + 1 - r->i : 1;
        rp_buffer_append(&r->out, r->in + r->i, n);
        r->i += n;
        return;
    }
    if (c == '[')
        r->refused = "a class inside a class";
    if (c == '&' && r->i + 1 < r->len && r->in[r->i + 1] == '&')
        r->refused = "&& inside a class";
    if (c == ']')
        r->in_class = false;
    rp_buffer_append(&r->out, &c, 1);
    r->i++;
}

static void rewrite(struct rewriter *r) {
    while (r->i < r->len && !r->refused) {
        char c = r->in[r->i];
        if (c == '\\') {
            rewrite_escape(r);
        } else if (r->in_class) {
            rewrite_class_char(r);
        } else {
            /* After {n,m} a + repeats again in Ruby, but is possessive in PCRE2. */
            if (c == '+' && r->i > 1 && r->in[r->i - 1] == '}' &&
                isdigit((unsigned char)r->in[r->i - 2]))
                r->refused = "a + after {n,m}";
            rp_buffer_append(&r->out, &c, 1);
            r->i++;
            if (c == '[') {
                r->in_class = true;
                if (r->i < r->len && r->in[r->i] == '^')
                    rp_buffer_append(&r->out, &r->in[r->i++], 1);
                if (r->i < r->len && r->in[r->i] == ']')
                    r->refused = "an empty class";
            }
        }
    }
}

static pcre2_code *compile(const struct rp_buffer *pattern, int *error, size_t *offset) {
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return NULL;
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_code *code = pcre2_compile(
        (PCRE2_SPTR)pattern->data, pattern->len,
        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, error, offset, context);
    pcre2_compile_context_free(context);
    return code;
}

int rp_tok_regex_compile(struct rp_tok_load *load, const char *where, const char *pattern,
                         size_t len, pcre2_code **out) {
    int error = 0, status = RP_OK;
    size_t offset = 0;
    *out = NULL;
    if (len > PATTERN_MAX)
        return rp_error_set(load->err, RP_STATUS_RANGE, "%s: %s: the pattern is too long",
                            load->file, where);
    /* A name that is no script fails in the first round and gets its chance in the second. */
    for (int by_script = 1; by_script >= 0 && !*out && status == RP_OK; by_script--) {
        struct rewriter r = {.in = pattern, .len = len, .by_script = by_script};
        rp_buffer_init(&r.out, 0);
        rewrite(&r);
        rp_buffer_append(&r.out, "", 1);
        if (r.out.failed) {
            status = rp_tok_no_memory(load);
        } else if (r.refused) {
            status =
                rp_error_set(load->err, RP_STATUS_UNSUPPORTED, "%s: %s: %s is not supported: %.80s",
                             load->file, where, r.refused, pattern);
        } else {
            r.out.len--;
            *out = compile(&r.out, &error, &offset);
        }
        rp_buffer_deinit(&r.out);
    }
    if (status != RP_OK)
        return status;
    if (!*out) {
        char text[120] = "out of memory";
        if (error)
            pcre2_get_error_message(error, (PCRE2_UCHAR *)text, sizeof text);
        return rp_error_set(load->err, RP_STATUS_FORMAT, "%s: %s: invalid pattern: %s: %.80s",
                            load->file, where, text, pattern);
    }
    /* Without JIT (an unusual build) the interpreter runs it: slower, same result. */
    (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);
    return RP_OK;
}

static bool prepare(struct rp_tokenizer_scratch *s) {
    if (s->match && s->match_context)
        return true;
    if (!s->match)
        s->match = pcre2_match_data_create(1, NULL);
    if (!s->match_context)
        s->match_context = pcre2_match_context_create(NULL);
    if (!s->match || !s->match_context)
        return false;
    s->jit_stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, NULL);
    if (s->jit_stack)
        pcre2_jit_stack_assign(s->match_context, NULL, s->jit_stack);
    return true;
}

int rp_tok_regex_match(const pcre2_code *regex, struct rp_tokenizer_scratch *scratch,
                       const char *text, size_t len, size_t from, size_t *start, size_t *end) {
    if (!prepare(scratch))
        return RP_STATUS_NO_MEMORY;
    int rc = pcre2_match(regex, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, scratch->match,
                         scratch->match_context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0)
        return rc == PCRE2_ERROR_NOMEMORY ? RP_STATUS_NO_MEMORY : RP_STATUS_FORMAT;
    const size_t *span = pcre2_get_ovector_pointer(scratch->match);
    *start = span[0];
    *end = span[1];
    /* \K in a lookahead can put the start after the end. */
    return *start <= *end && *start >= from ? 1 : RP_STATUS_FORMAT;
}
