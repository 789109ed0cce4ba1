/* grammar_service.h - compiles the grammars of requests, shares them, and makes the mask of each
 * token while the device computes it.
 *
 *   compile  worker of libuv's pool: source -> matcher, from the cache if it is there
 *   row      loop: one answer that follows a grammar. Each of its tokens is handed to a mask
 *            thread, which advances the row's state, writes the next mask and releases the row's
 *            hold (engine/request.h).
 *
 * Memory: the tokens of the model as a trie, made by the first compile; idle grammars up to
 * RP_GRAMMAR_IDLE_BYTES, in all up to RP_GRAMMAR_LIVE_BYTES; a mask per row. */
#ifndef RP_SERVER_GRAMMAR_SERVICE_H
#define RP_SERVER_GRAMMAR_SERVICE_H

#include "engine/request.h"
#include "metrics/metrics.h"
#include "server/http/http_error.h"

struct rp_tokenizer;
struct rp_grammar_entry;
struct rp_grammar_service;

#define RP_GRAMMAR_IDLE_BYTES ((size_t)128 << 20)
#define RP_GRAMMAR_LIVE_BYTES ((size_t)512 << 20)

enum rp_grammar_kind {
    RP_GRAMMAR_NONE,
    RP_GRAMMAR_JSON_OBJECT,
    RP_GRAMMAR_JSON_SCHEMA,
    RP_GRAMMAR_REGEX,
    RP_GRAMMAR_CHOICE, /* source: a JSON array of strings */
    RP_GRAMMAR_STRUCTURAL_TAG,
    RP_GRAMMAR_GBNF,
    RP_GRAMMAR_LARK
};

/* What an answer must match, as the request has it. */
struct rp_grammar_spec {
    enum rp_grammar_kind kind;
    const char *field; /* of the request, for errors; static */
    char *source;      /* owned */
    size_t len;
};

struct rp_grammar_config {
    const struct rp_tokenizer *tokenizer;
    uint32_t vocab_size;
    const int32_t *end_ids; /* the model's end-of-sequence tokens */
    uint32_t end_count;
    struct rp_engine *engine; /* notified when a hold is released */
};

/* Starts `threads` mask threads. NO_MEMORY with *err, also when a thread cannot be created. */
int rp_grammar_service_create(uint32_t threads, struct rp_grammar_service **out,
                              struct rp_error *err) RP_MUST_USE;
/* Call before the first compile. */
void rp_grammar_service_set_model(struct rp_grammar_service *service,
                                  const struct rp_grammar_config *config);
/* All rows are closed. NULL is allowed. */
void rp_grammar_service_destroy(struct rp_grammar_service *service);
/* Adds its metrics to a registry that the service outlives. */
void rp_grammar_service_register(struct rp_grammar_service *service, struct rp_registry *registry);

/* Any thread; takes up to 250 ms. NULL with *error: 400 names the field and what is wrong. */
struct rp_grammar_entry *rp_grammar_compile(struct rp_grammar_service *service,
                                            const struct rp_grammar_spec *spec,
                                            struct rp_http_error *error);
/* NULL is allowed. */
void rp_grammar_entry_release(struct rp_grammar_service *service, struct rp_grammar_entry *entry);

/* --- Rows ------------------------------------------------------------------------------------ */

enum rp_grammar_row_status {
    RP_GRAMMAR_ROW_OK,
    RP_GRAMMAR_ROW_DONE,        /* the text is complete and nothing may follow */
    RP_GRAMMAR_ROW_DEAD_END,    /* no token is allowed, and the text is not complete */
    RP_GRAMMAR_ROW_TOO_COMPLEX, /* a mask used up its fuel, or the grammar its memory */
    RP_GRAMMAR_ROW_NO_MEMORY
};

struct rp_grammar_row;

/* Loop: hands the opened rows and taken tokens since the last flush to the mask threads. Call after
 * each batch of events and after submitting. */
void rp_grammar_flush(struct rp_grammar_service *service);

/* Loop: sets request->hold and starts on the mask of the first token. The other fields of the
 * request must be set; it must be valid until close. Keeps a reference to the entry. NULL: no
 * memory. */
struct rp_grammar_row *rp_grammar_row_open(struct rp_grammar_service *service,
                                           struct rp_grammar_entry *entry,
                                           struct rp_request *request);
/* Loop: whether the token was allowed; then the mask of the next one is made. Not for a last
 * token. */
bool rp_grammar_row_take(struct rp_grammar_row *row, int32_t token);
/* Loop, before take: how many tokens the mask of the token that was chosen last allows. */
uint32_t rp_grammar_row_allowed(const struct rp_grammar_row *row);
/* Any thread. Not OK: the row's request was cancelled for that reason. */
enum rp_grammar_row_status rp_grammar_row_status(const struct rp_grammar_row *row);
/* Loop, after the request's CLOSED event. NULL is allowed. */
void rp_grammar_row_close(struct rp_grammar_row *row);

#endif
