/* text_work.h - tokenizing: short texts inline, long ones and rendered conversations in the thread
 * pool, so that the loop is not blocked: how long a template takes is not known before.
 * Thread: start and done on the loop; tokenizing on a worker, which accesses only the job. */
#ifndef RP_SERVER_TEXT_WORK_H
#define RP_SERVER_TEXT_WORK_H

#include "text/tokenizer/tokenizer.h"

#include <uv.h>

struct rp_server;

/* Longer texts are tokenized by a worker: about 0.3 ms of tokenizing. */
#define RP_TEXT_INLINE_BYTES 16384

/* A text (special tokens allowed throughout), or a conversation rendered by `make`: text is then
 * NULL and len an estimate of the work. Neither: the ids are already present. */
struct rp_text_item {
    const char *text; /* borrowed until done */
    size_t len;
    /* Called on the thread that tokenizes: sets spans, valid until done, or a status other than
     * RP_OK. */
    int (*make)(struct rp_text_item *item);
    void *ctx;
    const struct rp_text_span *spans;
    size_t span_count;
    struct rp_token_ids ids;
    int status;
};

/* Zeroed by the caller; must stay valid until done has been called. */
struct rp_text_job {
    struct rp_text_item *items;
    uint32_t item_count;
    unsigned flags; /* RP_ENCODE_ADD_SPECIAL */
    size_t limit;   /* ids per item; 0: none */
    /* NULL, or work done on a worker before tokenizing, with ctx. */
    void (*prepare)(void *ctx);
    void (*done)(struct rp_text_job *job);
    void *ctx;

    struct rp_server *server; /* private */
    uv_work_t work;
};

/* Calls done before returning when the text is short and not rendered. */
void rp_text_work_start(struct rp_server *server, struct rp_text_job *job);
/* Tokenizes one short text inline; special tokens in it are encoded as plain text. */
int rp_text_encode_now(struct rp_server *server, const char *text, size_t len,
                       struct rp_token_ids *out) RP_MUST_USE;
void rp_text_work_deinit(struct rp_server *server);

#endif
