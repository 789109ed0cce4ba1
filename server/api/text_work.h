/* text_work.h - tokenizing: short texts at once, long ones in the thread pool, so that the loop
 * goes on.
 * Thread: start, done on the loop; the work itself on a worker, which touches nothing but the
 * job. */
#ifndef RP_SERVER_TEXT_WORK_H
#define RP_SERVER_TEXT_WORK_H

#include "text/tokenizer/tokenizer.h"

#include <uv.h>

struct rp_server;

/* More than this goes to a worker: about 0.3 ms of tokenizing. */
#define RP_TEXT_INLINE_BYTES 16384

/* A text (allow_special throughout), or what `make` makes of a conversation: text is then NULL and
 * len a measure of the work. Neither: the ids are there already. */
struct rp_text_item {
    const char *text; /* borrowed until done */
    size_t len;
    /* On the thread that tokenizes: sets spans, which last until done, or a status that is not
     * RP_OK. */
    int (*make)(struct rp_text_item *item);
    void *ctx;
    const struct rp_text_span *spans;
    size_t span_count;
    struct rp_token_ids ids;
    int status;
};

/* Zeroed by the caller, and kept until done has been called. */
struct rp_text_job {
    struct rp_text_item *items;
    uint32_t item_count;
    unsigned flags; /* RP_ENCODE_ADD_SPECIAL */
    size_t limit;   /* ids per item; 0: none */
    void (*done)(struct rp_text_job *job);
    void *ctx;

    struct rp_server *server; /* private */
    uv_work_t work;
};

/* Calls done before it returns when the text is short. */
void rp_text_work_start(struct rp_server *server, struct rp_text_job *job);
/* One short text, at once; special tokens in it are text. */
int rp_text_encode_now(struct rp_server *server, const char *text, size_t len,
                       struct rp_token_ids *out) RP_MUST_USE;
void rp_text_work_deinit(struct rp_server *server);

#endif
