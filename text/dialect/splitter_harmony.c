/* Channels: <|start|>assistant<|channel|>NAME to=RECIPIENT <|constrain|>json<|message|>.. and then
 * <|end|>, <|call|> or <|return|>. The recipient may come before the channel. A header is markup
 * and never text, unless it has no channel. */
#include "text/dialect/splitter_internal.h"

#include <string.h>

enum { HEADER_MAX = 256, ROLE_MAX = 96, CHANNEL_MARK = 1, CONSTRAIN_MARK = 2 };

static void start_header(struct rp_splitter *s, uint32_t taken) {
    rp_split_take(s, taken);
    rp_buffer_clear(&s->held);
    s->mode = MODE_HEADER;
    s->reasoning = false;
}

static void start_text(struct rp_splitter *s, bool reasoning) {
    rp_split_block(s, reasoning);
    s->drop_space = false;
    s->mode = MODE_BODY;
}

/* The word after `prefix`; its length, 0 when there is none. */
static size_t find_word(const char *header, size_t len, const char *prefix, const char **out) {
    size_t n = strlen(prefix), word = 0;
    for (size_t at = 0; at + n <= len; at++) {
        if (memcmp(header + at, prefix, n) != 0)
            continue;
        *out = header + at + n;
        while (at + n + word < len && (unsigned char)(*out)[word] > ' ')
            word++;
        return word;
    }
    return 0;
}

static void header_is_done(struct rp_splitter *s) {
    const char *header = s->held.len ? s->held.data : "", *channel = "", *to = "";
    size_t len = s->held.len, channel_len = find_word(header, len, "\x01", &channel);
    size_t to_len = find_word(header, len, "to=", &to);
    bool reasoning = channel_len == 8 && memcmp(channel, "analysis", 8) == 0;
    if (to_len == 0 || to_len > NAME_MAX_BYTES || s->options.calls_off) {
        start_text(s, reasoning);
        return;
    }
    memcpy(s->name, to, to_len);
    s->name[to_len] = '\0';
    s->name_len = (uint32_t)to_len;
    s->id_len = 0;
    s->arguments_done = s->known_only = false;
    if (!rp_split_name_done(s)) {
        start_text(s, reasoning);
        return;
    }
    rp_split_begin(s);
    s->scan = (struct json_scan){.depth = 0};
    s->mode = MODE_BODY;
}

static void hold_mark(struct rp_splitter *s, uint32_t taken, char mark) {
    rp_split_take(s, taken);
    rp_buffer_append(&s->held, &mark, 1);
    s->failed |= s->held.failed;
}

void rp_split_finish_header(struct rp_splitter *s) {
    if (s->held.len && !memchr(s->held.data, CHANNEL_MARK, s->held.len))
        rp_split_put_text(s, RP_SPLIT_TEXT, s->held.data, s->held.len);
    rp_buffer_clear(&s->held);
}

bool rp_split_step_header(struct rp_splitter *s) {
    bool partial = false;
    uint32_t end;
    if (rp_split_sees(s, MK_MESSAGE, &end, &partial)) {
        rp_split_take(s, end);
        header_is_done(s);
    } else if (rp_split_sees(s, MK_CHANNEL, &end, &partial)) {
        hold_mark(s, end, CHANNEL_MARK);
    } else if (rp_split_sees(s, MK_CONSTRAIN, &end, &partial)) {
        hold_mark(s, end, CONSTRAIN_MARK);
    } else if (rp_split_sees(s, MK_START, &end, &partial)) {
        start_header(s, end);
    } else if (rp_split_sees(s, MK_END, &end, &partial) ||
               rp_split_sees(s, MK_RETURN, &end, &partial) ||
               rp_split_sees(s, MK_CALL, &end, &partial)) {
        rp_split_take(s, end);
        rp_split_finish_header(s);
        s->mode = MODE_BETWEEN;
    } else if (partial) {
        return false;
    } else {
        bool has_channel = s->held.len && memchr(s->held.data, CHANNEL_MARK, s->held.len);
        rp_split_hold(s, 1);
        if (s->held.len > (has_channel ? HEADER_MAX : ROLE_MAX)) {
            s->misses++;
            rp_split_put_text(s, RP_SPLIT_TEXT, s->held.data, s->held.len);
            start_text(s, false);
        }
    }
    return true;
}

static void end_call(struct rp_splitter *s, bool complete) {
    if (!s->scan.started)
        rp_split_arguments(s, "{}");
    rp_split_end(s, complete && s->scan.depth == 0 && !s->scan.in_string);
    s->mode = MODE_BETWEEN;
}

/* A marker that ends the body; *end: what to take of it. */
static bool body_ends(struct rp_splitter *s, uint32_t *end, bool *partial) {
    return rp_split_sees(s, MK_CALL, end, partial) || rp_split_sees(s, MK_END, end, partial) ||
           rp_split_sees(s, MK_RETURN, end, partial);
}

bool rp_split_step_body(struct rp_splitter *s) {
    bool partial = false;
    uint32_t end = 0;
    bool ends = body_ends(s, &end, &partial);
    if (ends || rp_split_sees(s, MK_START, &end, &partial) ||
        rp_split_sees(s, MK_CHANNEL, &end, &partial)) {
        if (ends)
            rp_split_take(s, end);
        if (s->begun)
            end_call(s, ends);
        s->mode = MODE_BETWEEN;
        s->reasoning = false;
        return true;
    }
    if (partial)
        return false;
    int c = symbol_byte(s->pending[0]);
    rp_symbol symbol = s->pending[0];
    rp_split_take(s, 1);
    if (c < 0 && !s->options.keep_special)
        return true;
    char byte = (char)c;
    const char *text = c < 0 ? s->bound->specials[symbol - SYM_SPECIAL] : &byte;
    size_t len = c < 0 ? strlen(text) : 1;
    if (s->begun) {
        for (size_t i = 0; i < len; i++) {
            rp_split_argument(s, text[i]);
            (void)rp_json_scan(&s->scan, (unsigned char)text[i]);
        }
        s->arguments_done = s->scan.started && s->scan.depth == 0 && !s->scan.in_string;
        return true;
    }
    rp_split_put_text(s, s->reasoning ? RP_SPLIT_REASONING : RP_SPLIT_TEXT, text, len);
    return true;
}

bool rp_split_step_between(struct rp_splitter *s) {
    bool partial = false;
    uint32_t end;
    if (rp_split_sees(s, MK_START, &end, &partial)) {
        start_header(s, end);
    } else if (rp_split_sees(s, MK_CHANNEL, &end, &partial)) {
        start_header(s, 0);
    } else if (body_ends(s, &end, &partial)) {
        rp_split_take(s, end); /* a second one */
    } else if (partial) {
        return false;
    } else if (symbol_is_space(s->pending[0])) {
        rp_split_take(s, 1);
    } else {
        start_text(s, false);
    }
    return true;
}
