/* The pre-tokenizer: a text passes the steps one after the other, each cutting what it gets. The
 * depth of the calls is the number of steps in the file, never the text. */
#include "base/utf8.h"
#include "text/tokenizer/tokenizer_internal.h"
#include "text/unicode/unicode.h"

#include <string.h>

static void run_step(struct rp_tokenizer_scratch *s, size_t index, const char *text, size_t len,
                     bool at_start);

/* Collects matches and the gaps between them, in order, and passes on the pieces that the behavior
 * makes of them. One item waits, because it may yet be joined with the next one. */
struct splitter {
    struct rp_tokenizer_scratch *s;
    const struct rp_tok_step *step;
    size_t next_step;
    const char *text;
    bool at_start;
    size_t wait_begin, wait_end;
    bool waits, wait_is_match;
};

static void pass(struct splitter *sp, size_t begin, size_t end) {
    if (end > begin)
        run_step(sp->s, sp->next_step, sp->text + begin, end - begin, sp->at_start && begin == 0);
}

static void pass_waiting(struct splitter *sp) {
    if (sp->waits)
        pass(sp, sp->wait_begin, sp->wait_end);
    sp->waits = false;
}

static void hold(struct splitter *sp, size_t begin, size_t end, bool is_match) {
    pass_waiting(sp);
    sp->wait_begin = begin;
    sp->wait_end = end;
    sp->wait_is_match = is_match;
    sp->waits = true;
}

static void split_item(struct splitter *sp, size_t begin, size_t end, bool is_match) {
    is_match = is_match != sp->step->invert;
    switch (sp->step->behavior) {
    case RP_TOK_ISOLATED:
        pass(sp, begin, end);
        break;
    case RP_TOK_REMOVED:
        if (!is_match)
            pass(sp, begin, end);
        break;
    case RP_TOK_CONTIGUOUS:
        if (sp->waits && sp->wait_is_match == is_match)
            sp->wait_end = end;
        else
            hold(sp, begin, end, is_match);
        break;
    case RP_TOK_MERGED_WITH_PREVIOUS:
        if (is_match && sp->waits && !sp->wait_is_match) {
            sp->wait_end = end;
            sp->wait_is_match = true;
        } else {
            hold(sp, begin, end, is_match);
        }
        break;
    case RP_TOK_MERGED_WITH_NEXT:
        if (!is_match && sp->waits && sp->wait_is_match) {
            sp->wait_end = end;
            pass_waiting(sp);
        } else {
            hold(sp, begin, end, is_match);
        }
        break;
    }
}

static void step_regex(struct splitter *sp, size_t len) {
    size_t done = 0, from = 0, begin = 0, end = 0, last_end = SIZE_MAX;
    while (from <= len && sp->s->status == RP_OK) {
        int rc = rp_tok_regex_match(sp->step->regex, sp->s, sp->text, len, from, &begin, &end);
        if (rc < 0)
            sp->s->status = rc;
        if (rc <= 0)
            break;
        if (begin == end && end == last_end) {
            /* As Oniguruma's iterator: no empty match right after a match. */
            int size = rp_utf8_decode(sp->text + from, len - from, NULL);
            from += size > 0 ? (size_t)size : 1;
            continue;
        }
        if (begin != done)
            split_item(sp, done, begin, false);
        split_item(sp, begin, end, true);
        done = from = last_end = end;
    }
    if (done != len && sp->s->status == RP_OK)
        split_item(sp, done, len, false);
}

static void step_literal(struct splitter *sp, size_t len) {
    const struct rp_tok_step *step = sp->step;
    size_t done = 0;
    const char *hit;
    while (sp->s->status == RP_OK &&
           (hit = memmem(sp->text + done, len - done, step->literal, step->literal_len))) {
        size_t begin = (size_t)(hit - sp->text);
        if (begin != done)
            split_item(sp, done, begin, false);
        done = begin + step->literal_len;
        split_item(sp, begin, done, true);
    }
    if (done != len)
        split_item(sp, done, len, false);
}

/* Digits: what Rust's char::is_numeric is in the package. */
static void step_digits(struct splitter *sp, size_t len) {
    size_t done = 0;
    for (size_t i = 0; i < len && sp->s->status == RP_OK;) {
        uint32_t code = 0;
        int size = rp_utf8_decode(sp->text + i, len - i, &code);
        size_t end = i + (size > 0 ? (size_t)size : 1);
        if (rp_unicode_record(code)->flags & RP_UNICODE_SPLIT_NUMBER) {
            if (i != done)
                split_item(sp, done, i, false);
            split_item(sp, i, end, true);
            done = end;
        }
        i = end;
    }
    if (done != len)
        split_item(sp, done, len, false);
}

static void step_scan(struct splitter *sp, size_t len) {
    const uint8_t *classes = sp->s->tok->classes;
    rp_tok_scan_fn scan = sp->step->scan;
    bool last = sp->next_step == sp->s->tok->step_count && !sp->s->tok->mapped_steps;
    for (size_t pos = 0; pos < len && sp->s->status == RP_OK;) {
        size_t end = scan(classes, sp->text, len, pos);
        if (last)
            rp_tok_bpe_encode(sp->s, sp->text + pos, end - pos);
        else
            pass(sp, pos, end);
        pos = end;
    }
}

/* The text with something before it, in the step's own buffer; NULL when memory is out. */
static const char *prefixed(struct splitter *sp, size_t index, const char *prefix,
                            size_t prefix_len, size_t len) {
    struct rp_buffer *buffer = &sp->s->step_text[index];
    rp_buffer_clear(buffer);
    rp_buffer_append(buffer, prefix, prefix_len);
    rp_buffer_append(buffer, sp->text, len);
    if (buffer->failed)
        sp->s->status = RP_STATUS_NO_MEMORY;
    return buffer->failed ? NULL : buffer->data;
}

static void step_metaspace(struct splitter *sp, size_t index, size_t len) {
    const struct rp_tok_step *step = sp->step;
    struct rp_buffer *buffer = &sp->s->step_text[index];
    bool has_marker =
        len >= step->literal_len && memcmp(sp->text, step->literal, step->literal_len) == 0;
    bool prepend = sp->text[0] != ' ' && !has_marker &&
                   (step->prepend == RP_TOK_PREPEND_ALWAYS ||
                    (step->prepend == RP_TOK_PREPEND_FIRST && sp->at_start));
    rp_buffer_clear(buffer);
    if (prepend)
        rp_buffer_append(buffer, step->literal, step->literal_len);
    for (size_t at = 0; at < len;) {
        const char *space = memchr(sp->text + at, ' ', len - at);
        size_t end = space ? (size_t)(space - sp->text) : len;
        rp_buffer_append(buffer, sp->text + at, end - at);
        if (space)
            rp_buffer_append(buffer, step->literal, step->literal_len);
        at = end + 1;
    }
    if (buffer->failed) {
        sp->s->status = RP_STATUS_NO_MEMORY;
        return;
    }
    sp->text = buffer->data;
    if (step->split)
        step_literal(sp, buffer->len);
    else
        pass(sp, 0, buffer->len);
}

/* Steps after ByteLevel see its characters. */
static void step_byte_map(struct splitter *sp, size_t index, size_t len) {
    struct rp_buffer *buffer = &sp->s->step_text[index];
    rp_buffer_clear(buffer);
    for (size_t i = 0; i < len; i++) {
        char utf8[4];
        int n = rp_utf8_encode(rp_tok_byte_to_char((unsigned char)sp->text[i]), utf8);
        rp_buffer_append(buffer, utf8, (size_t)n);
    }
    if (buffer->failed) {
        sp->s->status = RP_STATUS_NO_MEMORY;
        return;
    }
    sp->text = buffer->data;
    pass(sp, 0, buffer->len);
}

/* Back to bytes. A character outside the map (a Metaspace after ByteLevel writes one) has no byte;
 * the package drops it as well, for no token has it. */
static bool unmap(struct rp_tokenizer_scratch *s, const char *text, size_t len) {
    struct rp_buffer *buffer = &s->unmapped;
    rp_buffer_clear(buffer);
    for (size_t i = 0; i < len;) {
        uint32_t code = 0;
        int size = rp_utf8_decode(text + i, len - i, &code);
        int byte = size > 0 ? rp_tok_char_to_byte(code) : -1;
        char c = (char)byte;
        if (byte >= 0)
            rp_buffer_append(buffer, &c, 1);
        i += size > 0 ? (size_t)size : 1;
    }
    if (buffer->failed)
        s->status = RP_STATUS_NO_MEMORY;
    return !buffer->failed && buffer->len > 0;
}

static void run_step(struct rp_tokenizer_scratch *s, size_t index, const char *text, size_t len,
                     bool at_start) {
    if (len == 0 || s->status != RP_OK)
        return;
    if (index == s->tok->step_count) {
        if (!s->tok->mapped_steps)
            rp_tok_bpe_encode(s, text, len);
        else if (unmap(s, text, len))
            rp_tok_bpe_encode(s, s->unmapped.data, s->unmapped.len);
        return;
    }
    const struct rp_tok_step *step = &s->tok->steps[index];
    struct splitter sp = {
        .s = s, .step = step, .next_step = index + 1, .text = text, .at_start = at_start};
    switch (step->kind) {
    case RP_TOK_STEP_SCAN:
        step_scan(&sp, len);
        break;
    case RP_TOK_STEP_REGEX:
        step_regex(&sp, len);
        break;
    case RP_TOK_STEP_LITERAL:
        step_literal(&sp, len);
        break;
    case RP_TOK_STEP_DIGITS:
        step_digits(&sp, len);
        break;
    case RP_TOK_STEP_PREFIX_SPACE:
        if (text[0] == ' ')
            pass(&sp, 0, len);
        else if ((sp.text = prefixed(&sp, index, " ", 1, len)))
            pass(&sp, 0, len + 1);
        break;
    case RP_TOK_STEP_METASPACE:
        step_metaspace(&sp, index, len);
        break;
    case RP_TOK_STEP_BYTE_MAP:
        step_byte_map(&sp, index, len);
        break;
    }
    if (s->status == RP_OK)
        pass_waiting(&sp);
}

void rp_tok_split(struct rp_tokenizer_scratch *scratch, const char *text, size_t len,
                  bool at_start) {
    run_step(scratch, 0, text, len, at_start);
}
