#include "bench/load/load_chunk.h"

#include "base/hash.h"

#include <string.h>

/* --- hash of the text ------------------------------------------------------------------------ */

void rp_load_text_hash_init(struct rp_load_text_hash *text) { text->hash = text->fill = 0; }

void rp_load_text_hash_add(struct rp_load_text_hash *text, const char *bytes, size_t len) {
    while (len) {
        size_t part = RP_MIN(len, RP_LOAD_TEXT_BLOCK - text->fill);
        memcpy(text->block + text->fill, bytes, part);
        text->fill += (uint32_t)part;
        bytes += part;
        len -= part;
        if (text->fill == RP_LOAD_TEXT_BLOCK) {
            text->hash = rp_hash64(text->block, RP_LOAD_TEXT_BLOCK, text->hash);
            text->fill = 0;
        }
    }
}

uint64_t rp_load_text_hash_get(const struct rp_load_text_hash *text) {
    return rp_hash64(text->block, text->fill, text->hash);
}

/* --- JSON scanner ---------------------------------------------------------------------------- */

struct scanner {
    const char *at, *end;
};

/* The raw bytes between a string's quotes. */
struct span {
    const char *at;
    size_t len;
};

static int peek(struct scanner *w) {
    while (w->at < w->end && (*w->at == ' ' || *w->at == '\t' || *w->at == '\n' || *w->at == '\r'))
        w->at++;
    return w->at < w->end ? (unsigned char)*w->at : -1;
}

static bool accept(struct scanner *w, char c) {
    if (peek(w) != c)
        return false;
    w->at++;
    return true;
}

static bool scan_string(struct scanner *w, struct span *out) {
    if (!accept(w, '"'))
        return false;
    out->at = w->at;
    for (; w->at < w->end; w->at++) {
        if (*w->at == '"') {
            out->len = (size_t)(w->at++ - out->at);
            return true;
        }
        if (*w->at == '\\') {
            if (++w->at == w->end)
                return false;
        } else if ((unsigned char)*w->at < ' ')
            return false;
    }
    return false;
}

/* A number, true, false or null; the spelling is not checked. */
static bool scan_word(struct scanner *w, struct span *out) {
    out->at = w->at;
    while (w->at < w->end &&
           ((*w->at >= '0' && *w->at <= '9') || (*w->at >= 'a' && *w->at <= 'z') || *w->at == 'E' ||
            *w->at == '+' || *w->at == '-' || *w->at == '.'))
        w->at++;
    out->len = (size_t)(w->at - out->at);
    return out->len != 0;
}

/* Skips a value of any depth, without recursion. */
static bool skip(struct scanner *w) {
    uint32_t depth = 0;
    struct span span;
    do {
        int c = peek(w);
        if (c == '"') {
            if (!scan_string(w, &span))
                return false;
        } else if (c == '{' || c == '[') {
            depth++;
            w->at++;
        } else if ((c == '}' || c == ']') && depth) {
            depth--;
            w->at++;
        } else if ((c == ',' || c == ':') && depth) {
            w->at++;
        } else if (c < 0 || !scan_word(w, &span))
            return false;
    } while (depth);
    return true;
}

/* Iterates over the keys of an object: true with the next key, before its value; false at the end,
 * or with *bad set at invalid syntax. `first` is true before the first call. */
static bool next_key(struct scanner *w, bool *first, struct span *key, bool *bad) {
    if (*first ? !accept(w, '{') : peek(w) != '}' && !accept(w, ',')) {
        *bad = true;
        return false;
    }
    if (peek(w) == '}') {
        w->at++;
        return false;
    }
    *first = false;
    if (scan_string(w, key) && accept(w, ':'))
        return true;
    *bad = true;
    return false;
}

static bool is(const struct span *span, const char *text) {
    return span->len == strlen(text) && memcmp(span->at, text, span->len) == 0;
}

/* Reads a nonnegative integer; other values are skipped and *out is unchanged. */
static bool scan_count(struct scanner *w, uint32_t *out) {
    struct span word;
    uint64_t value = 0;
    int c = peek(w);
    if (c < '0' || c > '9')
        return skip(w);
    if (!scan_word(w, &word))
        return false;
    if (word.len > 10)
        return true;
    for (size_t i = 0; i < word.len; i++) {
        if (word.at[i] < '0' || word.at[i] > '9')
            return true;
        value = value * 10 + (uint64_t)(word.at[i] - '0');
    }
    if (value < UINT32_MAX)
        *out = (uint32_t)value;
    return true;
}

/* --- unescaping ------------------------------------------------------------------------------ */

static int hex4(const char *at, const char *end) {
    int value = 0;
    if (end - at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* After "\u": writes the character and returns its length; 0: invalid. Half a surrogate pair
 * becomes U+FFFD. */
static size_t unescape_unicode(const char **at, const char *end, char out[4]) {
    int unit = hex4(*at, end);
    if (unit < 0)
        return 0;
    *at += 4;
    uint32_t code = (uint32_t)unit;
    if (unit >= 0xd800 && unit < 0xe000) {
        code = 0xfffd;
        int low = unit < 0xdc00 && end - *at >= 6 && (*at)[0] == '\\' && (*at)[1] == 'u'
                      ? hex4(*at + 2, end)
                      : -1;
        if (low >= 0xdc00 && low < 0xe000) {
            code = 0x10000u + (((uint32_t)unit - 0xd800u) << 10) + ((uint32_t)low - 0xdc00u);
            *at += 6;
        }
    }
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 63));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 63));
        out[2] = (char)(0x80 | (code & 63));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 63));
    out[2] = (char)(0x80 | (code >> 6 & 63));
    out[3] = (char)(0x80 | (code & 63));
    return 4;
}

/* Returns the length of the next piece of a string's text, 0 at the end; *bad: an invalid
 * escape. */
static size_t next_piece(struct span *span, const char **piece, char scratch[4], bool *bad) {
    static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (span->len == 0)
        return 0;
    const char *at = span->at, *end = at + span->len;
    size_t len;
    if (*at != '\\') {
        const char *backslash = memchr(at, '\\', span->len);
        *piece = at;
        len = backslash ? (size_t)(backslash - at) : span->len;
        at += len;
    } else {
        const char *letter = span->len > 1 && at[1] ? strchr(letters, at[1]) : NULL;
        *piece = scratch;
        if (letter) {
            scratch[0] = values[letter - letters];
            len = 1;
            at += 2;
        } else {
            len = 0;
            if (span->len > 1 && at[1] == 'u') {
                at += 2;
                len = unescape_unicode(&at, end, scratch);
            }
            *bad = len == 0;
        }
    }
    span->at = at;
    span->len = (size_t)(end - at);
    return len;
}

static bool add_text(struct span span, struct rp_load_text_hash *text) {
    const char *piece = NULL;
    char scratch[4];
    bool bad = false;
    size_t len;
    while ((len = next_piece(&span, &piece, scratch, &bad)) != 0)
        rp_load_text_hash_add(text, piece, len);
    return !bad;
}

/* Appends bytes with control characters replaced by blanks; end_clean then removes a truncated
 * character. */
static void copy_clean(char out[96], size_t *used, const char *bytes, size_t len) {
    for (size_t i = 0; i < len && *used < 95; i++) {
        unsigned char c = (unsigned char)bytes[i];
        out[(*used)++] = c < ' ' || c == 127 ? ' ' : (char)c;
    }
    out[*used] = '\0';
}

static void end_clean(char out[96], size_t used) {
    size_t cut = used;
    if (used == 95) {
        while (cut && ((unsigned char)out[cut - 1] & 0xc0) == 0x80)
            cut--;
        if (cut && (unsigned char)out[cut - 1] >= 0xc0)
            cut--;
        else
            cut = used;
    }
    while (cut && out[cut - 1] == ' ')
        cut--;
    out[cut] = '\0';
}

static void copy_message(struct span span, char out[96]) {
    const char *piece = NULL;
    char scratch[4];
    bool bad = false;
    size_t used = 0, len;
    out[0] = '\0';
    while (used < 95 && (len = next_piece(&span, &piece, scratch, &bad)) != 0)
        copy_clean(out, &used, piece, len);
    end_clean(out, used);
}

/* --- chunks ---------------------------------------------------------------------------------- */

/* Reads a text of a choice; null and other types are skipped. */
static bool scan_text(struct scanner *w, struct rp_load_chunk *out,
                      struct rp_load_text_hash *text) {
    struct span span;
    if (peek(w) != '"')
        return skip(w);
    if (!scan_string(w, &span) || !add_text(span, text))
        return false;
    out->has_content |= span.len != 0;
    out->has_empty |= span.len == 0;
    return true;
}

static bool scan_delta(struct scanner *w, struct rp_load_chunk *out,
                       struct rp_load_text_hash *text) {
    bool first = true, bad = false, has_role = false, had_empty = out->has_empty;
    struct span key;
    if (peek(w) != '{')
        return skip(w);
    while (next_key(w, &first, &key, &bad)) {
        bool is_text =
            is(&key, "content") || is(&key, "reasoning_content") || is(&key, "reasoning");
        has_role |= is(&key, "role");
        if (is_text ? !scan_text(w, out, text) : !skip(w))
            return false;
    }
    if (has_role)
        out->has_empty = had_empty;
    return !bad;
}

static bool scan_choice(struct scanner *w, struct rp_load_chunk *out,
                        struct rp_load_text_hash *text) {
    bool first = true, bad = false, fine;
    struct span key, reason;
    while (next_key(w, &first, &key, &bad)) {
        if (is(&key, "text"))
            fine = scan_text(w, out, text);
        else if (is(&key, "delta"))
            fine = scan_delta(w, out, text);
        else if (is(&key, "finish_reason") && peek(w) == '"') {
            fine = scan_string(w, &reason);
            out->finished = true;
            out->stopped |= fine && is(&reason, "stop");
        } else
            fine = skip(w);
        if (!fine)
            return false;
    }
    return !bad;
}

static bool scan_choices(struct scanner *w, struct rp_load_chunk *out,
                         struct rp_load_text_hash *text) {
    if (peek(w) != '[')
        return skip(w);
    w->at++;
    if (accept(w, ']'))
        return true;
    do
        if (!scan_choice(w, out, text))
            return false;
    while (accept(w, ','));
    return accept(w, ']');
}

static bool scan_details(struct scanner *w, struct rp_load_chunk *out) {
    bool first = true, bad = false;
    struct span key;
    if (peek(w) != '{')
        return skip(w);
    while (next_key(w, &first, &key, &bad))
        if (is(&key, "cached_tokens") ? !scan_count(w, &out->cached_tokens) : !skip(w))
            return false;
    return !bad;
}

static bool scan_usage(struct scanner *w, struct rp_load_chunk *out) {
    bool first = true, bad = false, fine;
    struct span key;
    if (peek(w) != '{')
        return skip(w);
    out->has_usage = true;
    while (next_key(w, &first, &key, &bad)) {
        if (is(&key, "prompt_tokens"))
            fine = scan_count(w, &out->prompt_tokens);
        else if (is(&key, "completion_tokens"))
            fine = scan_count(w, &out->completion_tokens);
        else if (is(&key, "prompt_tokens_details"))
            fine = scan_details(w, out);
        else
            fine = skip(w);
        if (!fine)
            return false;
    }
    return !bad;
}

/* Reads {"message": "..."} or "..."; null is not an error. */
static bool scan_error(struct scanner *w, struct rp_load_chunk *out) {
    bool first = true, bad = false;
    struct span key, message;
    int c = peek(w);
    if (c == 'n')
        return skip(w);
    out->has_error = true;
    if (c == '"') {
        if (!scan_string(w, &message))
            return false;
        copy_message(message, out->error);
        return true;
    }
    if (c != '{')
        return skip(w);
    while (next_key(w, &first, &key, &bad)) {
        if (is(&key, "message") && peek(w) == '"') {
            if (!scan_string(w, &message))
                return false;
            copy_message(message, out->error);
        } else if (!skip(w))
            return false;
    }
    return !bad;
}

bool rp_load_chunk_read(const char *json, size_t len, struct rp_load_chunk *out,
                        struct rp_load_text_hash *text) {
    struct scanner w = {json, json + len};
    bool first = true, bad = false, fine;
    struct span key;
    *out = (struct rp_load_chunk){.cached_tokens = UINT32_MAX};
    while (next_key(&w, &first, &key, &bad)) {
        if (is(&key, "choices"))
            fine = scan_choices(&w, out, text);
        else if (is(&key, "usage"))
            fine = scan_usage(&w, out);
        else if (is(&key, "error"))
            fine = scan_error(&w, out);
        else
            fine = skip(&w);
        if (!fine)
            return false;
    }
    return !bad && peek(&w) < 0;
}

void rp_load_error_message(const char *body, size_t len, char out[96]) {
    struct scanner w = {body, body + len};
    struct rp_load_chunk found = {.error = ""};
    bool first = true, bad = false;
    struct span key, message;
    size_t used = 0;
    out[0] = '\0';
    /* A truncated body is read as far as possible. */
    while (next_key(&w, &first, &key, &bad)) {
        bool fine;
        if (is(&key, "error"))
            fine = scan_error(&w, &found);
        else if ((is(&key, "message") || is(&key, "detail")) && peek(&w) == '"') {
            fine = scan_string(&w, &message);
            if (fine)
                copy_message(message, found.error);
        } else
            fine = skip(&w);
        if (!fine)
            break;
    }
    if (found.error[0]) {
        memcpy(out, found.error, sizeof found.error);
        return;
    }
    copy_clean(out, &used, body, len);
    end_clean(out, used);
}
