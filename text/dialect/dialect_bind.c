#include "base/memory.h"
#include "text/dialect/dialect_internal.h"

#include <string.h>

const char *rp_dialect_marker_text(const struct rp_dialect *row, enum marker_kind kind) {
    switch (kind) {
    case MK_REASONING_OPEN:
        return row->reasoning_open;
    case MK_REASONING_CLOSE:
        return row->reasoning_close;
    case MK_SECTION_OPEN:
        return row->section_open;
    case MK_SECTION_CLOSE:
        return row->section_close;
    case MK_CALL_OPEN:
        return row->call_open;
    case MK_CALL_CLOSE:
        return row->call_close;
    case MK_SEPARATOR:
        return row->separator;
    case MK_NAME_CLOSE:
        return row->name_close;
    case MK_ID_OPEN:
        return row->id_open;
    case MK_KEY_OPEN:
        return row->key_open;
    case MK_KEY_CLOSE:
        return row->key_close;
    case MK_RAW_KEY_CLOSE:
        return row->raw_key_close;
    case MK_VALUE_CLOSE:
        return row->value_close;
    case MK_QUOTE:
        return row->quote;
    default:
        break;
    }
    static const char *const harmony[] = {"<|start|>",   "<|channel|>", "<|constrain|>",
                                          "<|message|>", "<|end|>",     "<|call|>",
                                          "<|return|>"};
    return row->shape == RP_CALL_HARMONY ? harmony[kind - MK_START] : "";
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

int rp_dialect_special_at(const struct rp_bound_dialect *bound, const char *text, size_t len) {
    int best = -1;
    size_t best_len = 0;
    for (uint32_t i = 0; i < bound->special_count; i++) {
        size_t n = strlen(bound->specials[i]);
        if (n > best_len && n <= len && memcmp(text, bound->specials[i], n) == 0) {
            best = (int)i;
            best_len = n;
        }
    }
    return best;
}

/* Trims white space at both ends; a run inside becomes one gap. */
static bool resolve(const struct rp_bound_dialect *bound, const char *text, struct marker *out) {
    size_t at = 0, len = strlen(text), gaps = 0;
    out->newline_before = len > 0 && text[0] == '\n';
    out->newline_after = len > 0 && text[len - 1] == '\n';
    while (at < len && is_space(text[at]))
        at++;
    while (len > at && is_space(text[len - 1]))
        len--;
    while (at < len) {
        if (out->count == MARKER_SYMBOLS)
            return false;
        if (is_space(text[at])) {
            if (++gaps > MARKER_GAPS)
                return false;
            out->symbols[out->count++] = SYM_GAP;
            while (is_space(text[at]))
                at++;
            continue;
        }
        int special = rp_dialect_special_at(bound, text + at, len - at);
        out->symbols[out->count++] =
            special < 0 ? (unsigned char)text[at] : (rp_symbol)(SYM_SPECIAL + (unsigned)special);
        at += special < 0 ? 1 : strlen(bound->specials[special]);
    }
    return true;
}

static size_t string_bytes(const struct rp_dialect *row) {
    size_t bytes = 0;
#define X(member) bytes += strlen(row->member) + 1;
    RP_DIALECT_STRINGS(X)
#undef X
    return bytes;
}

static char *copy_strings(struct rp_dialect *row, char *to) {
    size_t len;
#define X(member)                                                                                  \
    len = strlen(row->member) + 1;                                                                 \
    memcpy(to, row->member, len);                                                                  \
    row->member = to;                                                                              \
    to += len;
    RP_DIALECT_STRINGS(X)
#undef X
    return to;
}

/* Which special tokens are in the markers; their number, or SPECIALS_MAX + 1. */
static uint32_t find_specials(const struct rp_dialect *row, const char *const *specials,
                              size_t count, const char **out, size_t *out_bytes) {
    uint32_t found = 0;
    *out_bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bool used = false;
        for (int kind = 0; kind < MK_COUNT && specials[i][0] && !used; kind++)
            used = strstr(rp_dialect_marker_text(row, (enum marker_kind)kind), specials[i]) != NULL;
        if (!used)
            continue;
        if (found == SPECIALS_MAX)
            return SPECIALS_MAX + 1;
        out[found++] = specials[i];
        *out_bytes += strlen(specials[i]) + 1;
    }
    return found;
}

int rp_dialect_bind(const struct rp_dialect *row, const struct rp_dialect *reasoning,
                    const char *const *specials, size_t special_count,
                    struct rp_bound_dialect **out, struct rp_error *err) {
    struct rp_dialect merged = *row;
    *out = NULL;
    if (reasoning && merged.shape != RP_CALL_HARMONY) {
        merged.reasoning_open = reasoning->reasoning_open;
        merged.reasoning_close = reasoning->reasoning_close;
    }
    const char *used[SPECIALS_MAX];
    size_t special_bytes;
    uint32_t count = find_specials(&merged, specials, special_count, used, &special_bytes);
    if (count > SPECIALS_MAX)
        return rp_error_set(err, RP_STATUS_RANGE,
                            "dialect %s: its markers contain more than %d special tokens",
                            row->name, SPECIALS_MAX);
    struct rp_bound_dialect *bound = rp_calloc(1, sizeof *bound);
    char *to = rp_alloc(string_bytes(&merged) + special_bytes);
    if (!bound || !to) {
        rp_free(bound);
        rp_free(to);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "dialect %s: out of memory", row->name);
    }
    bound->row = merged;
    bound->strings = to;
    to = copy_strings(&bound->row, to);
    for (uint32_t i = 0; i < count; i++) {
        size_t len = strlen(used[i]) + 1;
        memcpy(to, used[i], len);
        bound->specials[i] = to;
        to += len;
    }
    bound->special_count = count;
    for (int kind = 0; kind < MK_COUNT; kind++)
        if (!resolve(bound, rp_dialect_marker_text(&bound->row, (enum marker_kind)kind),
                     &bound->markers[kind])) {
            rp_bound_dialect_free(bound);
            return rp_error_set(err, RP_STATUS_RANGE,
                                "dialect %s: a marker is longer than %d bytes or has more than %d "
                                "gaps",
                                row->name, MARKER_SYMBOLS, MARKER_GAPS);
        }
    *out = bound;
    return RP_OK;
}

void rp_bound_dialect_free(struct rp_bound_dialect *bound) {
    if (!bound)
        return;
    rp_free(bound->strings);
    rp_free(bound);
}

const struct rp_dialect *rp_bound_dialect_row(const struct rp_bound_dialect *bound) {
    return &bound->row;
}

/* --- Where the answer begins ----------------------------------------------------------------- */

/* `text` without the white space at the ends, as a marker is trimmed. */
static const char *trimmed(const char *text, size_t *out_len) {
    size_t len = strlen(text);
    while (len > 0 && is_space(text[len - 1]))
        len--;
    while (len > 0 && is_space(*text)) {
        text++;
        len--;
    }
    *out_len = len;
    return text;
}

/* Length of text without white space at its end. */
static size_t without_space(const char *text, size_t len) {
    while (len > 0 && is_space(text[len - 1]))
        len--;
    return len;
}

static bool ends_with(const char *text, size_t len, const char *marker) {
    size_t n;
    marker = trimmed(marker, &n);
    return n > 0 && len >= n && memcmp(text + len - n, marker, n) == 0;
}

enum rp_split_start rp_dialect_start(const struct rp_bound_dialect *bound,
                                     const struct rp_text_span *spans, size_t count) {
    bool harmony = bound->row.shape == RP_CALL_HARMONY;
    for (size_t i = count; i-- > 0;) {
        if (!spans[i].allow_special)
            continue; /* text to be continued: it cannot open or close anything */
        size_t len = without_space(spans[i].text, spans[i].len);
        if (len == 0)
            continue;
        if (harmony) {
            if (ends_with(spans[i].text, len, "<|start|>assistant"))
                return RP_START_HEADER;
            return ends_with(spans[i].text, len, "<|channel|>analysis<|message|>")
                       ? RP_START_REASONING
                       : RP_START_TEXT;
        }
        return ends_with(spans[i].text, len, bound->row.reasoning_open) ? RP_START_REASONING
                                                                        : RP_START_TEXT;
    }
    return RP_START_TEXT;
}
