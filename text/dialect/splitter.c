#include "base/memory.h"
#include "text/dialect/splitter_internal.h"

#include <string.h>

/* --- Reading --------------------------------------------------------------------------------- */

enum match rp_split_match(const struct rp_splitter *s, enum marker_kind kind, uint32_t at,
                          uint32_t *end) {
    const struct marker *marker = &s->bound->markers[kind];
    if (marker->count == 0)
        return MATCH_NO;
    uint32_t gaps = GAP_MAX * MARKER_GAPS;
    for (uint32_t i = 0; i < marker->count; i++) {
        bool after_special = i > 0 && marker->symbols[i - 1] - SYM_SPECIAL < SPECIALS_MAX;
        if (marker->symbols[i] == SYM_GAP || after_special)
            for (; gaps && at < s->pending_count && symbol_is_space(s->pending[at]); gaps--)
                at++;
        if (marker->symbols[i] == SYM_GAP)
            continue;
        if (at == s->pending_count)
            return s->ending ? MATCH_NO : MATCH_PARTIAL;
        if (s->pending[at] != marker->symbols[i])
            return MATCH_NO;
        at++;
    }
    *end = at;
    return MATCH_FULL;
}

bool rp_split_sees(const struct rp_splitter *s, enum marker_kind kind, uint32_t *end,
                   bool *partial) {
    enum match match = rp_split_match(s, kind, 0, end);
    *partial |= match == MATCH_PARTIAL;
    return match == MATCH_FULL;
}

void rp_split_take(struct rp_splitter *s, uint32_t count) {
    s->pending_count -= count;
    memmove(s->pending, s->pending + count, s->pending_count * sizeof *s->pending);
}

static void hold_text(struct rp_splitter *s, const char *text, size_t len) {
    rp_buffer_append(&s->held, text, len);
    s->failed |= s->held.failed;
}

void rp_split_hold(struct rp_splitter *s, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        int byte = symbol_byte(s->pending[i]);
        char c = (char)byte;
        const char *special = byte < 0 ? s->bound->specials[s->pending[i] - SYM_SPECIAL] : &c;
        hold_text(s, special, byte < 0 ? strlen(special) : 1);
    }
    rp_split_take(s, count);
}

/* --- Writing --------------------------------------------------------------------------------- */

void rp_split_flush(struct rp_splitter *s) {
    if (s->out_len == 0)
        return;
    struct rp_split_event event = {.kind = s->out_kind,
                                   .index = s->calls,
                                   .bytes = s->out,
                                   .len = s->out_len,
                                   .name = "",
                                   .id = ""};
    s->out_len = 0;
    s->options.sink(s->options.user, &event);
}

void rp_split_put(struct rp_splitter *s, enum rp_split_kind kind, char byte) {
    if (s->out_len == OUT_BYTES || (s->out_len && s->out_kind != kind))
        rp_split_flush(s);
    s->out_kind = kind;
    s->out[s->out_len++] = byte;
}

void rp_split_put_text(struct rp_splitter *s, enum rp_split_kind kind, const char *text,
                       size_t len) {
    for (size_t i = 0; i < len; i++)
        rp_split_put(s, kind, text[i]);
}

static enum rp_split_kind block_kind(const struct rp_splitter *s) {
    return s->reasoning ? RP_SPLIT_REASONING : RP_SPLIT_TEXT;
}

static void put_space(struct rp_splitter *s) {
    rp_split_put_text(s, block_kind(s), s->space, s->space_count);
    s->space_count = 0;
}

/* A symbol of text or reasoning. White space waits until it is known what follows it. */
static void put_symbol(struct rp_splitter *s, rp_symbol c) {
    int byte = symbol_byte(c);
    if (symbol_is_space(c) && s->fresh && s->drop_space)
        return;
    if (symbol_is_space(c)) {
        if (s->space_count == SPACE_MAX)
            put_space(s);
        s->space[s->space_count++] = (char)c;
        return;
    }
    if (byte < 0 && !s->options.keep_special)
        return;
    put_space(s);
    s->fresh = false;
    if (byte >= 0) {
        rp_split_put(s, block_kind(s), (char)byte);
        return;
    }
    const char *special = s->bound->specials[c - SYM_SPECIAL];
    rp_split_put_text(s, block_kind(s), special, strlen(special));
}

void rp_split_argument(struct rp_splitter *s, char byte) {
    if (s->begun) {
        rp_split_put(s, RP_SPLIT_CALL_ARGUMENTS, byte);
        return;
    }
    rp_buffer_append(&s->early, &byte, 1);
    s->failed |= s->early.failed;
}

void rp_split_arguments(struct rp_splitter *s, const char *text) {
    while (*text)
        rp_split_argument(s, *text++);
}

void rp_split_escaped(struct rp_splitter *s, unsigned char byte) {
    static const char digits[] = "0123456789abcdef";
    static const char letters[] = "btn\0fr";
    if (byte == '"' || byte == '\\') {
        rp_split_argument(s, '\\');
    } else if (byte < 32) {
        bool is_short = byte >= 8 && byte <= 13 && letters[byte - 8];
        rp_split_arguments(s, is_short ? "\\" : "\\u00");
        if (!is_short)
            rp_split_argument(s, digits[byte >> 4]);
        byte = (unsigned char)(is_short ? letters[byte - 8] : digits[byte & 15]);
    }
    rp_split_argument(s, (char)byte);
}

void rp_split_escaped_text(struct rp_splitter *s, const char *text, size_t len) {
    for (size_t i = 0; i < len; i++)
        rp_split_escaped(s, (unsigned char)text[i]);
}

/* --- Calls ----------------------------------------------------------------------------------- */

void rp_split_block(struct rp_splitter *s, bool reasoning) {
    s->mode = MODE_BLOCK;
    s->reasoning = reasoning;
    s->fresh = s->drop_space = true;
    s->space_count = 0;
    s->in_section = s->between = s->after_call = s->separated = s->closed = false;
    s->known_only = s->plain = false;
    rp_buffer_clear(&s->held);
    rp_buffer_clear(&s->early);
}

void rp_split_broken(struct rp_splitter *s) {
    s->misses += !s->plain;
    put_space(s);
    rp_split_put_text(s, block_kind(s), s->held.data, s->held.len);
    rp_split_block(s, s->reasoning);
    s->fresh = false;
}

static bool has_index(const char *name, size_t len, size_t *out_len) {
    size_t at = len;
    while (at > 0 && name[at - 1] >= '0' && name[at - 1] <= '9')
        at--;
    if (at == len || at == 0 || name[at - 1] != ':')
        return false;
    *out_len = at - 1;
    return true;
}

bool rp_split_name_done(struct rp_splitter *s) {
    const struct rp_dialect *row = &s->bound->row;
    size_t prefix = strlen(row->name_prefix), len = s->name_len;
    if (row->id_rule == RP_CALL_ID_FUNCTIONS) {
        memcpy(s->id, s->name, len + 1);
        s->id_len = (uint32_t)len;
        (void)has_index(s->name, len, &len);
    }
    if (prefix && len > prefix && memcmp(s->name, row->name_prefix, prefix) == 0) {
        len -= prefix;
        memmove(s->name, s->name + prefix, len);
    }
    s->name[len] = '\0';
    s->name_len = (uint32_t)len;
    s->tool = NULL;
    for (size_t i = 0; i < s->options.tool_count && !s->tool; i++)
        if (strcmp(s->options.tools[i].name, s->name) == 0)
            s->tool = &s->options.tools[i];
    return len > 0 && (s->tool || !s->known_only);
}

void rp_split_begin(struct rp_splitter *s) {
    rp_split_flush(s);
    s->id[s->id_len] = '\0';
    struct rp_split_event event = {
        .kind = RP_SPLIT_CALL_BEGIN, .index = s->calls, .bytes = "", .name = s->name, .id = s->id};
    s->begun = true;
    s->space_count = 0;
    s->options.sink(s->options.user, &event);
    rp_split_put_text(s, RP_SPLIT_CALL_ARGUMENTS, s->early.data, s->early.len);
    rp_buffer_clear(&s->held);
    rp_buffer_clear(&s->early);
}

void rp_split_end(struct rp_splitter *s, bool complete) {
    bool in_section = s->in_section, known_only = s->known_only;
    rp_split_flush(s);
    struct rp_split_event event = {.kind = RP_SPLIT_CALL_END,
                                   .index = s->calls,
                                   .bytes = "",
                                   .name = "",
                                   .id = "",
                                   .complete = complete};
    s->options.sink(s->options.user, &event);
    s->calls++;
    s->misses += !complete;
    s->begun = false;
    rp_split_block(s, false);
    s->mode = MODE_SECTION;
    s->in_section = in_section;
    s->known_only = known_only;
    s->after_call = s->between = true;
}

bool rp_split_cut(struct rp_splitter *s, bool *partial) {
    uint32_t end;
    return rp_split_sees(s, MK_CALL_CLOSE, &end, partial) ||
           rp_split_sees(s, MK_SECTION_CLOSE, &end, partial) ||
           rp_split_sees(s, MK_RETURN, &end, partial) || rp_split_sees(s, MK_END, &end, partial) ||
           s->pending[0] - SYM_SPECIAL < SPECIALS_MAX;
}

static void start_call(struct rp_splitter *s) {
    s->begun = s->arguments_done = s->name_spaced = false;
    s->name_len = s->id_len = s->key_len = 0;
    s->tool = NULL;
    rp_buffer_clear(&s->early);
    s->mode = MODE_NAME;
    if (s->bound->row.shape == RP_CALL_JSON)
        rp_split_start_json(s);
}

static bool is_name_byte(int c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || c == ':' || c == '/' || (c >= 128 && c < 256);
}

/* --- Text and reasoning ---------------------------------------------------------------------- */

/* Whether text may contain the marker by accident: "[", "{\"". */
static bool is_common(const struct marker *marker) {
    for (uint32_t i = 0; i < marker->count; i++)
        if (marker->symbols[i] - SYM_SPECIAL < SPECIALS_MAX)
            return false;
    return marker->count < 4;
}

static bool starts_special(const struct rp_splitter *s, enum marker_kind kind) {
    return s->bound->markers[kind].symbols[0] - SYM_SPECIAL < SPECIALS_MAX;
}

static bool see_reasoning(struct rp_splitter *s, bool *partial) {
    uint32_t end;
    if ((s->reasoning || s->fresh || starts_special(s, MK_REASONING_CLOSE)) &&
        rp_split_sees(s, MK_REASONING_CLOSE, &end, partial)) {
        /* Outside of a block it is a second one. */
        rp_split_take(s, end);
        rp_split_block(s, false);
        return true;
    }
    if ((s->fresh || (!s->reasoning && starts_special(s, MK_REASONING_OPEN))) &&
        rp_split_sees(s, MK_REASONING_OPEN, &end, partial)) {
        rp_split_take(s, end);
        if (!s->reasoning && !s->fresh)
            put_space(s);
        rp_split_block(s, true);
        return true;
    }
    return false;
}

static bool see_trigger(struct rp_splitter *s, enum marker_kind kind, bool *partial) {
    const struct marker *marker = &s->bound->markers[kind];
    bool common = is_common(marker), has_section = s->bound->markers[MK_SECTION_OPEN].count > 0;
    uint32_t end;
    if (marker->count == 0 || (common && (!s->fresh || s->reasoning)) ||
        (common && kind == MK_CALL_OPEN && has_section) || !rp_split_sees(s, kind, &end, partial))
        return false;
    s->plain = common;
    s->known_only = common || (kind == MK_CALL_OPEN && has_section && !starts_special(s, kind));
    s->in_section = kind == MK_SECTION_OPEN;
    s->mode = MODE_SECTION;
    if (kind == MK_CALL_OPEN)
        start_call(s);
    rp_split_hold(s, end);
    return true;
}

static bool see_call(struct rp_splitter *s, bool *partial) {
    const struct rp_dialect *row = &s->bound->row;
    uint32_t end;
    if (see_trigger(s, MK_SECTION_OPEN, partial) || see_trigger(s, MK_CALL_OPEN, partial))
        return true;
    if (s->fresh && s->calls > 0 && !s->reasoning &&
        ((!is_common(&s->bound->markers[MK_SECTION_CLOSE]) &&
          rp_split_sees(s, MK_SECTION_CLOSE, &end, partial)) ||
         (!is_common(&s->bound->markers[MK_CALL_CLOSE]) &&
          rp_split_sees(s, MK_CALL_CLOSE, &end, partial)))) {
        rp_split_take(s, end); /* a second close */
        return true;
    }
    if (row->shape == RP_CALL_JSON && row->bare && !row->section_open[0] && s->fresh &&
        !s->reasoning && s->pending[0] == '{') {
        s->plain = s->known_only = true;
        start_call(s);
        return true;
    }
    return false;
}

static bool step_block(struct rp_splitter *s) {
    bool partial = false;
    if (!symbol_is_space(s->pending[0]) && !(s->pending[0] & SYM_OPAQUE)) {
        if (see_reasoning(s, &partial))
            return true;
        if (!s->options.calls_off && see_call(s, &partial))
            return true;
        if (partial)
            return false;
    }
    put_symbol(s, s->pending[0]);
    rp_split_take(s, 1);
    return true;
}

/* --- Around calls ---------------------------------------------------------------------------- */

static bool starts_item(const struct rp_splitter *s) {
    const struct rp_dialect *row = &s->bound->row;
    bool ready = !s->between || s->separated ||
                 (s->in_section && s->bound->markers[MK_SEPARATOR].count == 0);
    int c = symbol_byte(s->pending[0]);
    if (!ready || (row->call_open[0] && !row->bare))
        return false;
    return row->shape == RP_CALL_JSON ? c == '{'
                                      : row->shape == RP_CALL_PYTHONIC && is_name_byte(c);
}

static bool step_section(struct rp_splitter *s) {
    bool partial = false;
    uint32_t end;
    if (symbol_is_space(s->pending[0])) {
        if (s->between && s->held.len == 0)
            rp_split_take(s, 1);
        else
            rp_split_hold(s, 1);
        return true;
    }
    if (s->after_call && !s->closed && rp_split_sees(s, MK_CALL_CLOSE, &end, &partial)) {
        rp_split_take(s, end);
        s->closed = true;
        return true;
    }
    if (s->between && !s->separated && rp_split_sees(s, MK_SEPARATOR, &end, &partial)) {
        s->separated = true;
        s->plain = true; /* a separator that no call follows */
        rp_split_hold(s, end);
        return true;
    }
    if (rp_split_sees(s, MK_CALL_OPEN, &end, &partial)) {
        start_call(s);
        rp_split_hold(s, end);
        return true;
    }
    if (rp_split_sees(s, MK_SECTION_OPEN, &end, &partial)) {
        s->in_section = true;
        rp_split_hold(s, end);
        return true;
    }
    if (s->in_section && s->between && rp_split_sees(s, MK_SECTION_CLOSE, &end, &partial)) {
        rp_split_take(s, end);
        rp_split_block(s, false);
        return true;
    }
    if (starts_item(s)) {
        start_call(s);
        return true;
    }
    if (partial)
        return false;
    if (s->between && s->held.len == 0)
        rp_split_block(s, false);
    else
        rp_split_broken(s);
    return true;
}

/* After the name: what the shape of the call continues with. */
static bool name_is_done(struct rp_splitter *s) {
    if (!rp_split_name_done(s)) {
        rp_split_broken(s);
        return true;
    }
    switch (s->bound->row.shape) {
    case RP_CALL_TAGGED:
        rp_split_start_parameters(s);
        break;
    case RP_CALL_NAMED:
        rp_split_start_arguments(s);
        break;
    default:
        rp_split_start_literal(s);
        break;
    }
    return true;
}

static bool name_ends(struct rp_splitter *s, bool *partial) {
    const struct rp_dialect *row = &s->bound->row;
    uint32_t end;
    if (row->shape == RP_CALL_LITERAL)
        return s->pending[0] == '{';
    if (row->shape == RP_CALL_PYTHONIC)
        return s->pending[0] == '(' && !s->name_spaced;
    if (s->bound->markers[MK_NAME_CLOSE].count > 0) {
        if (!rp_split_sees(s, MK_NAME_CLOSE, &end, partial))
            return false;
        rp_split_hold(s, end);
        return true;
    }
    return rp_split_sees(s, MK_KEY_OPEN, &end, partial) ||
           rp_split_sees(s, MK_CALL_CLOSE, &end, partial);
}

static bool step_name(struct rp_splitter *s) {
    bool partial = false;
    uint32_t end;
    if (symbol_is_space(s->pending[0])) {
        s->name_spaced = s->name_len > 0;
        rp_split_hold(s, 1);
        return true;
    }
    if (s->name_len > 0 && name_ends(s, &partial))
        return name_is_done(s);
    if (s->name_len > 0 && rp_split_sees(s, MK_ID_OPEN, &end, &partial)) {
        s->mode = MODE_ID;
        rp_split_hold(s, end);
        return true;
    }
    if (s->name_len == 0 && rp_split_sees(s, MK_CALL_OPEN, &end, &partial)) {
        rp_split_hold(s, end); /* a second one */
        return true;
    }
    if (partial)
        return false;
    int c = symbol_byte(s->pending[0]);
    if (!is_name_byte(c) || s->name_spaced || s->name_len == NAME_MAX_BYTES) {
        rp_split_broken(s);
        return true;
    }
    s->name[s->name_len++] = (char)c;
    s->name[s->name_len] = '\0';
    rp_split_hold(s, 1);
    return true;
}

static bool step_id(struct rp_splitter *s) {
    bool partial = false;
    uint32_t end;
    if (rp_split_sees(s, MK_NAME_CLOSE, &end, &partial)) {
        rp_split_hold(s, end);
        return name_is_done(s);
    }
    if (partial)
        return false;
    int c = symbol_byte(s->pending[0]);
    if (c < 0 || s->id_len == NAME_MAX_BYTES) {
        rp_split_broken(s);
        return true;
    }
    if (!symbol_is_space(s->pending[0]))
        s->id[s->id_len++] = (char)c;
    rp_split_hold(s, 1);
    return true;
}

/* --- The machine ----------------------------------------------------------------------------- */

static bool step(struct rp_splitter *s) {
    static bool (*const steps[])(struct rp_splitter *) = {
        [MODE_BLOCK] = step_block,
        [MODE_SECTION] = step_section,
        [MODE_NAME] = step_name,
        [MODE_ID] = step_id,
        [MODE_ARGUMENTS] = rp_split_step_arguments,
        [MODE_JSON] = rp_split_step_json,
        [MODE_PARAMETERS] = rp_split_step_parameters,
        [MODE_KEY] = rp_split_step_key,
        [MODE_VALUE] = rp_split_step_value,
        [MODE_LITERAL] = rp_split_step_literal,
        [MODE_HEADER] = rp_split_step_header,
        [MODE_BODY] = rp_split_step_body,
        [MODE_BETWEEN] = rp_split_step_between,
    };
    if (!s->begun && s->held.len + s->early.len > HELD_MAX)
        rp_split_broken(s);
    return steps[s->mode](s);
}

static void feed(struct rp_splitter *s, rp_symbol symbol) {
    RP_ASSERT_CMP(s->pending_count, <, PENDING_MAX);
    s->pending[s->pending_count++] = symbol;
    while (s->pending_count > 0 && step(s))
        ;
}

static int pushed(struct rp_splitter *s) {
    rp_split_flush(s);
    return s->failed ? RP_STATUS_NO_MEMORY : RP_OK;
}

int rp_splitter_push(struct rp_splitter *s, const char *bytes, size_t len) {
    for (size_t i = 0; i < len && !s->failed; i++)
        feed(s, (unsigned char)bytes[i]);
    return pushed(s);
}

int rp_splitter_push_special(struct rp_splitter *s, const char *content, size_t len) {
    int special = rp_dialect_special_at(s->bound, content, len);
    if (special >= 0 && strlen(s->bound->specials[special]) == len)
        feed(s, (rp_symbol)(SYM_SPECIAL + (unsigned)special));
    else if (s->options.keep_special)
        for (size_t i = 0; i < len; i++)
            feed(s, (rp_symbol)(SYM_OPAQUE | (unsigned char)content[i]));
    return pushed(s);
}

int rp_splitter_finish(struct rp_splitter *s) {
    s->ending = true;
    while (s->pending_count > 0 && step(s))
        ;
    RP_ASSERT_CMP(s->pending_count, ==, 0);
    if (s->begun) {
        if (s->mode == MODE_VALUE)
            rp_split_finish_value(s);
        if (s->mode == MODE_LITERAL)
            rp_split_finish_literal(s);
        rp_split_end(s, s->arguments_done);
    } else if (s->mode == MODE_JSON) {
        rp_split_broken(s);
    } else if (s->mode == MODE_HEADER) {
        rp_split_finish_header(s);
    } else if (s->held.len > 0) {
        rp_split_broken(s);
    }
    put_space(s);
    return pushed(s);
}

struct rp_splitter *rp_splitter_create(const struct rp_bound_dialect *bound,
                                       const struct rp_splitter_options *options) {
    struct rp_splitter *s = rp_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->bound = bound;
    s->options = *options;
    if (bound->row.shape == RP_CALL_NONE)
        s->options.calls_off = true;
    rp_buffer_init(&s->held, 0);
    rp_buffer_init(&s->early, 0);
    rp_split_block(s, options->start == RP_START_REASONING);
    s->drop_space = s->reasoning;
    if (bound->row.shape == RP_CALL_HARMONY)
        s->mode = options->start == RP_START_HEADER ? MODE_HEADER : MODE_BODY;
    return s;
}

void rp_splitter_destroy(struct rp_splitter *s) {
    if (!s)
        return;
    rp_buffer_deinit(&s->held);
    rp_buffer_deinit(&s->early);
    rp_free(s);
}

bool rp_splitter_in_reasoning(const struct rp_splitter *s) { return s->reasoning; }
uint32_t rp_splitter_calls(const struct rp_splitter *s) { return s->calls + s->begun; }
uint32_t rp_splitter_misses(const struct rp_splitter *s) { return s->misses; }
