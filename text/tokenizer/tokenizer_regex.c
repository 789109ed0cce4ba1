/* Compiles and runs patterns with PCRE2, after tokenizer_pattern.c has rewritten them. PCRE2 sees
 * explicit ranges only, so its own Unicode tables (PCRE2_UCP) are never asked. ^ and $ match at
 * every line, as in Ruby: PCRE2_MULTILINE. */
#include "text/tokenizer/tokenizer_internal.h"

/* The longest published pattern has 500 bytes. */
#define PATTERN_MAX 65536

/* JIT stack: grows on demand; the pathological texts of the tests need less than 64 KiB. */
#define JIT_STACK_MIN 32768
#define JIT_STACK_MAX ((size_t)8 << 20)

static pcre2_code *compile(const struct rp_buffer *pattern, int *error, size_t *offset) {
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return NULL;
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)pattern->data, pattern->len,
                      PCRE2_UTF | PCRE2_NEVER_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                      error, offset, context);
    pcre2_compile_context_free(context);
    return code;
}

int rp_tok_regex_compile(struct rp_tok_load *load, const char *where, const char *pattern,
                         size_t len, pcre2_code **out) {
    int error = 0;
    size_t offset = 0;
    struct rp_buffer rewritten;
    *out = NULL;
    if (len > PATTERN_MAX)
        return rp_error_set(load->err, RP_STATUS_RANGE, "%s: %s: the pattern is too long",
                            load->file, where);
    rp_buffer_init(&rewritten, 0);
    int status = RP_STATUS_RANGE;
    for (int shared = 0; shared < 2; shared++) {
        rp_buffer_clear(&rewritten);
        status = rp_tok_pattern_rewrite(load, where, pattern, len, shared, &rewritten);
        rp_buffer_append(&rewritten, "", 1);
        if (status == RP_OK && rewritten.failed)
            status = rp_tok_no_memory(load);
        if (status == RP_OK) {
            rewritten.len--;
            *out = compile(&rewritten, &error, &offset);
        }
        bool too_long = status == RP_STATUS_RANGE ||
                        (status == RP_OK && !*out && error == PCRE2_ERROR_PATTERN_TOO_LARGE);
        if (!too_long)
            break;
    }
    rp_buffer_deinit(&rewritten);
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
