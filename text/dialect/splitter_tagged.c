/* Calls whose parameters have tags of their own. Their values are raw text, so a value's type comes
 * from the tool's schema. */
#include "text/dialect/splitter_internal.h"
#include "text/json_file.h"

#include <string.h>

void rp_split_start_parameters(struct rp_splitter *s) {
    rp_split_begin(s);
    rp_split_argument(s, '{');
    s->has_parameter = false;
    s->mode = MODE_PARAMETERS;
}

static bool end_parameters(struct rp_splitter *s, bool regular) {
    rp_split_argument(s, '}');
    s->misses += !regular;
    rp_split_end(s, true);
    return true;
}

bool rp_split_step_parameters(struct rp_splitter *s) {
    bool partial = false;
    uint32_t end;
    if (symbol_is_space(s->pending[0])) {
        rp_split_take(s, 1);
        return true;
    }
    if (rp_split_sees(s, MK_KEY_OPEN, &end, &partial)) {
        rp_split_take(s, end);
        s->key_len = 0;
        s->mode = MODE_KEY;
        return true;
    }
    if (rp_split_sees(s, MK_CALL_CLOSE, &end, &partial)) /* taken after the call */
        return end_parameters(s, true);
    if (partial && !rp_split_sees(s, MK_SECTION_CLOSE, &end, &partial))
        return false;
    return end_parameters(s, false);
}

/* The tag of a parameter that is none: what was read is text after the call. */
static bool key_is_wrong(struct rp_splitter *s) {
    const char *open = s->bound->row.key_open;
    rp_split_argument(s, '}');
    rp_split_end(s, false);
    rp_split_block(s, false);
    rp_split_put_text(s, RP_SPLIT_TEXT, open, strlen(open));
    rp_split_put_text(s, RP_SPLIT_TEXT, s->key, s->key_len);
    s->fresh = false;
    return true;
}

static void key_is_done(struct rp_splitter *s, bool raw, bool has_raw) {
    uint32_t len = s->key_len, from = 0;
    while (len > 0 && symbol_is_space((unsigned char)s->key[len - 1]))
        len--;
    while (from < len && symbol_is_space((unsigned char)s->key[from]))
        from++;
    rp_split_arguments(s, s->has_parameter ? ", \"" : "\"");
    rp_split_escaped_text(s, s->key + from, len - from);
    rp_split_arguments(s, "\": ");
    s->has_parameter = true;
    s->types = s->tool ? rp_dialect_types(s->tool->parameters, s->key + from, len - from)
                       : (unsigned)TYPE_ALL;
    if (has_raw)
        s->types = !raw                                ? TYPE_STRING
                   : s->types & ~(unsigned)TYPE_STRING ? s->types & ~(unsigned)TYPE_STRING
                                                       : (unsigned)TYPE_ALL;
    s->mode = MODE_VALUE;
    s->value = VALUE_START;
    s->skip_newline = s->bound->markers[MK_KEY_CLOSE].newline_after;
    rp_buffer_clear(&s->held);
}

bool rp_split_step_key(struct rp_splitter *s) {
    bool partial = false, has_raw = s->bound->markers[MK_RAW_KEY_CLOSE].count > 0;
    uint32_t end;
    if (rp_split_sees(s, MK_KEY_CLOSE, &end, &partial)) {
        rp_split_take(s, end);
        key_is_done(s, false, has_raw);
        return true;
    }
    if (rp_split_sees(s, MK_RAW_KEY_CLOSE, &end, &partial)) {
        rp_split_take(s, end);
        key_is_done(s, true, has_raw);
        return true;
    }
    if (partial)
        return false;
    int c = symbol_byte(s->pending[0]);
    if (c < 0 || c == '<' || s->key_len == KEY_MAX_BYTES)
        return key_is_wrong(s);
    s->key[s->key_len++] = (char)c;
    rp_split_take(s, 1);
    return true;
}

/* --- Values ---------------------------------------------------------------------------------- */

static bool has_special(const struct marker *marker) {
    for (uint32_t i = 0; i < marker->count; i++)
        if (marker->symbols[i] - SYM_SPECIAL < SPECIALS_MAX)
            return true;
    return false;
}

/* Marker, white space, and one of what may follow it. A special token needs nothing
 * that confirms it. */
static enum match followed(const struct rp_splitter *s, enum marker_kind kind, uint32_t at,
                           const enum marker_kind *next, uint32_t count, uint32_t *end) {
    uint32_t after, unused;
    enum match match = rp_split_match(s, kind, at, end);
    if (match != MATCH_FULL || has_special(&s->bound->markers[kind]))
        return match;
    for (after = *end; after < s->pending_count && after - *end < GAP_MAX; after++)
        if (!symbol_is_space(s->pending[after]))
            break;
    if (after == s->pending_count)
        return s->ending ? MATCH_FULL : MATCH_PARTIAL;
    match = MATCH_NO;
    for (uint32_t i = 0; i < count; i++) {
        enum match one = rp_split_match(s, next[i], after, &unused);
        match = one > match ? one : match;
    }
    return match;
}

/* A close tag counts only where something follows that may follow it; the value may contain its
 * text. *end 0: the tag of the call closes the value, because its own is missing. */
static enum match value_closes(const struct rp_splitter *s, uint32_t *end) {
    static const enum marker_kind after_value[] = {MK_KEY_OPEN, MK_CALL_CLOSE, MK_SECTION_CLOSE};
    static const enum marker_kind after_call[] = {MK_SECTION_CLOSE};
    uint32_t unused, at = s->bound->markers[MK_VALUE_CLOSE].newline_before && s->pending[0] == '\n';
    enum match match =
        followed(s, MK_VALUE_CLOSE, at, after_value, RP_ARRAY_COUNT(after_value), end);
    if (match == MATCH_FULL)
        return match;
    enum match implied =
        followed(s, MK_CALL_CLOSE, at, after_call, RP_ARRAY_COUNT(after_call), &unused);
    if (implied != MATCH_FULL)
        return implied > match ? implied : match;
    *end = 0;
    return MATCH_FULL;
}

/* A value that was held back because it may be no string. */
static void put_held_value(struct rp_splitter *s) {
    static const struct {
        const char *python, *json;
        unsigned type;
    } words[] = {{"True", "true", TYPE_BOOLEAN},
                 {"False", "false", TYPE_BOOLEAN},
                 {"None", "null", TYPE_NULL}};
    const char *text = s->held.len ? s->held.data : "";
    size_t from = 0, to = s->held.len;
    json_error_t where;
    bool no_memory;
    while (from < to && symbol_is_space((unsigned char)text[from]))
        from++;
    while (to > from && symbol_is_space((unsigned char)text[to - 1]))
        to--;
    for (size_t i = 0; i < RP_ARRAY_COUNT(words); i++)
        if ((s->types & words[i].type) && to - from == strlen(words[i].python) &&
            memcmp(text + from, words[i].python, to - from) == 0) {
            rp_split_arguments(s, words[i].json);
            return;
        }
    unsigned type = TYPE_NUMBER;
    if (!rp_json_is_number(text + from, to - from)) {
        json_t *value = rp_json_parse(
            text + from, to - from, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, &where, &no_memory);
        s->failed |= no_memory;
        type = value ? rp_dialect_type_of(value) : 0;
        json_decref(value);
    }
    /* A text that is JSON of a type the schema does not have stays text if it may be one. */
    if (type && ((s->types & type & ~(unsigned)TYPE_STRING) || !(s->types & TYPE_STRING))) {
        for (size_t i = from; i < to; i++)
            rp_split_argument(s, text[i]);
    } else {
        rp_split_argument(s, '"');
        rp_split_escaped_text(s, text, s->held.len);
        rp_split_argument(s, '"');
    }
}

static void start_value(struct rp_splitter *s) {
    bool containers = (s->types & (TYPE_OBJECT | TYPE_ARRAY)) && !(s->types & TYPE_STRING);
    if (s->types == TYPE_STRING) {
        rp_split_argument(s, '"');
        s->value = VALUE_STRING;
    } else if (containers && (s->pending[0] == '{' || s->pending[0] == '[')) {
        s->value = VALUE_RAW;
        s->scan = (struct json_scan){.depth = 0};
    } else if (!symbol_is_space(s->pending[0])) {
        s->value = VALUE_HELD;
    } else {
        rp_split_hold(s, 1); /* it counts if the value is a string after all */
    }
}

static void value_is_done(struct rp_splitter *s) {
    if (s->value == VALUE_HELD || s->value == VALUE_START) {
        if (s->types == TYPE_STRING)
            rp_split_arguments(s, "\"\"");
        else
            put_held_value(s);
    } else if (s->value == VALUE_STRING) {
        rp_split_argument(s, '"');
    }
    rp_buffer_clear(&s->held);
    s->mode = MODE_PARAMETERS;
}

static void put_value_symbol(struct rp_splitter *s, rp_symbol symbol) {
    int byte = symbol_byte(symbol);
    char c = (char)byte;
    const char *text = byte < 0 ? s->bound->specials[symbol - SYM_SPECIAL] : &c;
    size_t len = byte < 0 ? strlen(text) : 1;
    for (size_t i = 0; i < len; i++) {
        if (s->value == VALUE_STRING) {
            rp_split_escaped(s, (unsigned char)text[i]);
            continue;
        }
        rp_split_argument(s, text[i]);
        (void)rp_json_scan(&s->scan, (unsigned char)text[i]);
    }
}

bool rp_split_step_value(struct rp_splitter *s) {
    uint32_t end = 0;
    if (s->skip_newline) {
        s->skip_newline = false;
        if (s->pending[0] == '\n') {
            rp_split_take(s, 1);
            return true;
        }
    }
    /* A string of a JSON value may contain any tag. */
    bool inside = s->value == VALUE_RAW && s->scan.in_string && symbol_byte(s->pending[0]) >= 0;
    enum match match = inside ? MATCH_NO : value_closes(s, &end);
    if (match == MATCH_PARTIAL)
        return false;
    if (match == MATCH_FULL) {
        s->misses += end == 0;
        rp_split_take(s, end == 0 ? s->pending[0] == '\n' : end);
        value_is_done(s);
        return true;
    }
    if (s->value == VALUE_START) {
        start_value(s);
        return true;
    }
    if (s->value == VALUE_HELD) {
        rp_split_hold(s, 1);
        if (s->held.len <= HELD_MAX)
            return true;
        rp_split_argument(s, '"');
        rp_split_escaped_text(s, s->held.data, s->held.len);
        rp_buffer_clear(&s->held);
        s->value = VALUE_STRING;
        return true;
    }
    put_value_symbol(s, s->pending[0]);
    rp_split_take(s, 1);
    return true;
}

void rp_split_finish_value(struct rp_splitter *s) {
    for (size_t i = 0; i < s->held.len; i++) /* cut: as it is */
        rp_split_argument(s, s->held.data[i]);
    rp_buffer_clear(&s->held);
}
