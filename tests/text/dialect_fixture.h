/* dialect_fixture.h - feeds text to a splitter and keeps its events. */
#ifndef RP_TESTS_TEXT_DIALECT_FIXTURE_H
#define RP_TESTS_TEXT_DIALECT_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "base/memory.h"
#include "text/dialect/dialect.h"
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Stands for '<' in texts that must not become special tokens: it is fed as '<'. */
#define FAKE "\x01"

enum { DIALECT_CALLS_MAX = 8 };

struct events {
    struct rp_buffer log; /* "R(..)T(..)B(name id)A(..)E" with E! for an incomplete call */
    struct rp_buffer text, reasoning;
    struct rp_buffer arguments[DIALECT_CALLS_MAX];
    char names[DIALECT_CALLS_MAX][140];
    char ids[DIALECT_CALLS_MAX][140];
    uint32_t calls, complete, misses;
    int last; /* kind of the last event, -1 */
    bool open;
};

static inline void events_init(struct events *e) {
    memset(e, 0, sizeof *e);
    e->last = -1;
}

static inline void events_deinit(struct events *e) {
    rp_buffer_deinit(&e->log);
    rp_buffer_deinit(&e->text);
    rp_buffer_deinit(&e->reasoning);
    for (int i = 0; i < DIALECT_CALLS_MAX; i++)
        rp_buffer_deinit(&e->arguments[i]);
}

static inline const char *events_string(struct rp_buffer *b) {
    rp_buffer_append(b, "", 1);
    b->len--;
    return b->data;
}

static inline void events_sink(void *user, const struct rp_split_event *event) {
    struct events *e = user;
    bool bytes = event->kind == RP_SPLIT_REASONING || event->kind == RP_SPLIT_TEXT ||
                 event->kind == RP_SPLIT_CALL_ARGUMENTS;
    if (bytes && e->last != (int)event->kind)
        rp_buffer_puts(&e->log, event->kind == RP_SPLIT_REASONING ? "R("
                                : event->kind == RP_SPLIT_TEXT    ? "T("
                                                                  : "A(");
    if (e->last != (int)event->kind && (e->last == RP_SPLIT_REASONING || e->last == RP_SPLIT_TEXT ||
                                        e->last == RP_SPLIT_CALL_ARGUMENTS)) {
        /* close the one before: inserted before what was just written */
        char tail[3] = "";
        if (bytes) {
            memcpy(tail, e->log.data + e->log.len - 2, 2);
            e->log.len -= 2;
        }
        rp_buffer_puts(&e->log, ")");
        rp_buffer_puts(&e->log, tail);
    }
    e->last = (int)event->kind;
    if (bytes) {
        assert_true(event->len > 0);
        rp_buffer_append(&e->log, event->bytes, event->len);
    }
    if (event->kind == RP_SPLIT_REASONING)
        rp_buffer_append(&e->reasoning, event->bytes, event->len);
    if (event->kind == RP_SPLIT_TEXT)
        rp_buffer_append(&e->text, event->bytes, event->len);
    if (event->kind == RP_SPLIT_REASONING || event->kind == RP_SPLIT_TEXT) {
        assert_false(e->open);
        return;
    }
    assert_int_equal(event->index, e->calls - (event->kind == RP_SPLIT_CALL_BEGIN ? 0 : 1));
    uint32_t at = RP_MIN(event->index, (uint32_t)DIALECT_CALLS_MAX - 1);
    switch (event->kind) {
    case RP_SPLIT_CALL_BEGIN:
        assert_false(e->open);
        e->open = true;
        e->calls++;
        snprintf(e->names[at], sizeof e->names[at], "%s", event->name);
        snprintf(e->ids[at], sizeof e->ids[at], "%s", event->id);
        rp_buffer_printf(&e->log, "B(%s%s%s)", event->name, event->id[0] ? " " : "", event->id);
        break;
    case RP_SPLIT_CALL_ARGUMENTS:
        assert_true(e->open);
        rp_buffer_append(&e->arguments[at], event->bytes, event->len);
        break;
    default:
        assert_true(e->open);
        e->open = false;
        e->complete += event->complete;
        rp_buffer_puts(&e->log, event->complete ? "E" : "E!");
        break;
    }
}

/* How the text is cut: 0: whole; n: pieces of n bytes; with random != 0 of 1 to n. */
struct feeding {
    size_t piece;
    uint32_t random;
    size_t cut_at; /* an additional cut, in bytes of text; 0: none */
};

static inline size_t piece_len(struct feeding *f, size_t left, size_t at) {
    size_t n = f->piece ? f->piece : left;
    if (f->random) {
        f->random = f->random * 1664525u + 1013904223u;
        n = 1 + (f->random >> 16) % f->piece;
    }
    if (f->cut_at > at && at + n > f->cut_at)
        n = f->cut_at - at;
    return RP_MIN(n, left);
}

/* Feeds it with the special tokens as tokens, and finishes. */
static inline void feed_text(const struct rp_bound_dialect *bound,
                             const struct rp_splitter_options *options, const char *const *specials,
                             size_t special_count, const char *text, size_t len,
                             struct feeding feeding, struct events *e) {
    struct rp_splitter_options with = *options;
    with.sink = events_sink;
    with.user = e;
    struct rp_splitter *s = rp_splitter_create(bound, &with);
    assert_non_null(s);
    for (size_t at = 0; at < len;) {
        size_t next = len, longest = 0;
        for (size_t p = at; p < len && longest == 0; p++)
            for (size_t i = 0; i < special_count; i++) {
                size_t n = strlen(specials[i]);
                if (n > longest && p + n <= len && memcmp(text + p, specials[i], n) == 0) {
                    next = p;
                    longest = n;
                }
            }
        while (at < next) {
            char piece[4096];
            size_t n = RP_MIN(piece_len(&feeding, next - at, at), sizeof piece);
            for (size_t i = 0; i < n; i++)
                piece[i] = text[at + i] == FAKE[0] ? '<' : text[at + i];
            assert_int_equal(rp_splitter_push(s, piece, n), RP_OK);
            at += n;
        }
        if (longest)
            assert_int_equal(rp_splitter_push_special(s, text + next, longest), RP_OK);
        at += longest;
    }
    assert_int_equal(rp_splitter_finish(s), RP_OK);
    assert_int_equal(rp_splitter_calls(s), e->calls);
    e->misses = rp_splitter_misses(s);
    rp_splitter_destroy(s);
    if (e->last == RP_SPLIT_REASONING || e->last == RP_SPLIT_TEXT ||
        e->last == RP_SPLIT_CALL_ARGUMENTS)
        rp_buffer_puts(&e->log, ")");
    assert_false(e->open);
}

/* The special tokens of a row when its family has them: all markers between < and > or [ and ]. */
static inline size_t row_specials(const struct rp_dialect *row, char store[][64],
                                  const char **out) {
    const char *markers[] = {row->reasoning_open, row->reasoning_close, row->section_open,
                             row->section_close,  row->call_open,       row->call_close,
                             row->name_close,     row->id_open,         row->quote};
    static const char *const harmony[] = {"<|start|>",   "<|channel|>", "<|constrain|>",
                                          "<|message|>", "<|end|>",     "<|call|>",
                                          "<|return|>"};
    size_t count = 0;
    for (size_t i = 0; row->shape == RP_CALL_HARMONY && i < RP_ARRAY_COUNT(harmony); i++)
        out[count++] = harmony[i];
    for (size_t i = 0; i < RP_ARRAY_COUNT(markers); i++)
        for (const char *at = markers[i]; *at; at++) {
            size_t len = *at == '<' ? strcspn(at, ">") : *at == '[' ? strcspn(at, "]") : 0;
            if (len < 2 || !at[len] || len > 60 || memchr(at, ' ', len) || memchr(at, '\n', len))
                continue;
            memcpy(store[count], at, len + 1);
            store[count][len + 1] = '\0';
            bool known = false;
            for (size_t k = 0; k < count; k++)
                known |= strcmp(out[k], store[count]) == 0;
            if (!known) {
                out[count] = store[count];
                count++;
            }
            at += len;
        }
    return count;
}

#endif
