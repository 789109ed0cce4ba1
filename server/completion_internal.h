/* completion_internal.h - what completion_start.c and completion.c share. Thread: loop. */
#ifndef RP_SERVER_COMPLETION_INTERNAL_H
#define RP_SERVER_COMPLETION_INTERNAL_H

#include "model/detokenizer.h"
#include "server/completion.h"
#include "server/text_work.h"

/* One prompt and its answer. */
struct rp_choice {
    struct rp_request request;
    struct rp_completion *completion;
    struct rp_detokenizer detok;
    struct rp_stop_match match;
    struct rp_buffer text; /* not sent yet; without streaming, all of it */
    int32_t *ids;          /* the prompt, when it came as ids (else in the text item) */
    uint64_t last_token_ns;
    uint32_t tokens; /* of the answer */
    int32_t stop_token;
    const char *finish_reason; /* set: the answer has ended */
    bool submitted;            /* and not closed yet */
};

struct rp_completion {
    struct rp_server *server;
    struct rp_completion *prev, *next;
    struct rp_conn *conn; /* NULL: answered, or the client has left */
    json_t *root;         /* holds the texts until they are tokenised */
    struct rp_completion_params params;
    struct rp_text_job job;
    struct rp_text_item *items;
    struct rp_buffer head, out, detok_text;
    uint64_t first_byte_ns, salt;
    uint32_t choice_count, open_count;
    uint32_t holds; /* of functions that go on using it after a call that may lose the client */
    bool working;   /* the job is in the pool */
    bool streaming;
    struct rp_choice choices[];
};

/* Frees it when nobody needs it any more: no client, no open request, no work, no hold. */
void rp_completion_try_free(struct rp_completion *c);
/* The connection's `gone`: the client has left. */
void rp_completion_gone(void *ctx);
/* Answers with an error, or ends the stream with one, and cancels the requests; the caller frees. */
void rp_completion_fail(struct rp_completion *c, const struct rp_http_error *error);
void rp_completion_fail_text(struct rp_completion *c, int status, const char *code,
                             const char *text);

#endif
