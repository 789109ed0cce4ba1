/* answer.h - an answer as a sequence of events, and the table of functions through which each API
 * writes it. completion_answer.c calls the table; what an API's answers look like is known to its
 * file alone (answer_completions.c, answer_chat.c).
 *
 *   stream   open, begin, parts..., end or error, close
 *   whole    open, whole_begin, whole_choice for each choice, whole_end, close
 *
 * The functions append to answer->out, which is sent when they return; out->failed ends the
 * connection. Thread: loop. */
#ifndef RP_SERVER_ANSWER_H
#define RP_SERVER_ANSWER_H

#include "base/buffer.h"
#include "server/api/params.h"
#include "server/api/token_log.h"
#include "server/http/http_error.h"

/* --- Events ---------------------------------------------------------------------------------- */

enum rp_answer_event_kind {
    RP_ANSWER_REASONING,
    RP_ANSWER_TEXT,
    RP_ANSWER_CALL,      /* a tool call begins: id and name are known */
    RP_ANSWER_ARGUMENTS, /* a piece of its arguments: JSON, or the input of a custom tool */
    RP_ANSWER_CALL_END
};

struct rp_answer_event {
    enum rp_answer_event_kind kind;
    bool custom;   /* calls: the tool is a custom one */
    uint32_t call; /* calls: index of the call in the choice, without gaps */
    size_t at, len;
    uint32_t id_len; /* CALL: the bytes are the id, then the name */
};

/* The events of a choice that are not sent yet. Bytes are whole UTF-8 characters. A zeroed one is
 * empty; deinit frees. */
struct rp_answer_events {
    struct rp_buffer bytes, list;
};

/* Text, reasoning and arguments continue the last event if it is of the same kind (and call). */
void rp_answer_add(struct rp_answer_events *events, enum rp_answer_event_kind kind,
                   const char *bytes, size_t len);
void rp_answer_add_call(struct rp_answer_events *events, uint32_t call, bool custom, const char *id,
                        const char *name, size_t name_len);
/* A piece of the arguments of the call that began last; its begin may have been cleared. */
void rp_answer_add_arguments(struct rp_answer_events *events, uint32_t call, bool custom,
                             const char *bytes, size_t len);
void rp_answer_add_call_end(struct rp_answer_events *events, uint32_t call, bool custom);
uint32_t rp_answer_count(const struct rp_answer_events *events);
const struct rp_answer_event *rp_answer_event(const struct rp_answer_events *events, uint32_t i);
/* Its bytes, len of them; never NULL. */
const char *rp_answer_bytes(const struct rp_answer_events *events,
                            const struct rp_answer_event *event);
/* Whether there is an event of the kind. */
bool rp_answer_has(const struct rp_answer_events *events, enum rp_answer_event_kind kind);
bool rp_answer_events_failed(const struct rp_answer_events *events);
/* Empties it and keeps its memory. */
void rp_answer_events_clear(struct rp_answer_events *events);
void rp_answer_events_deinit(struct rp_answer_events *events);

/* --- One answer ------------------------------------------------------------------------------ */

struct rp_answer_usage {
    uint64_t prompt, completion, cached, reasoning;
    uint64_t first_token_ns; /* of the first choice, as rp_tick_ns; 0: not yet */
};

/* What a part of a stream, or a whole answer, says about one choice. */
struct rp_answer_choice {
    uint32_t index;
    bool first; /* first part of the choice */
    bool held;  /* no events because the tokens may be the beginning of a tool call */
    const struct rp_answer_events *events;
    const char *finish_reason; /* "stop", "length", "tool_calls"; NULL: not finished */
    const char *stop_string;   /* the stop string that ended it, or NULL */
    size_t stop_string_len;
    /* stop_reason as an id given by the client; -1: none */
    int32_t stop_token;
    const struct rp_buffer *logprobs;        /* JSON; NULL: null */
    const struct rp_buffer *prompt_logprobs; /* JSON; NULL: no such member */
    /* return_token_ids; NULL: no such member */
    const struct rp_token_ids *token_ids, *prompt_ids;
};

struct rp_answer {
    const struct rp_answer_api *api;
    char id[32]; /* with the API's prefix */
    int64_t created;
    const char *model;
    struct rp_server *server;
    uint64_t owner; /* of the API key, as rp_server_key_salt; 0: none */
    bool stream, include_usage, continuous_usage;
    bool legacy_calls;     /* of a chat: a call is a function_call (tools.h) */
    struct rp_buffer head; /* of the API: JSON that all parts begin with */
    struct rp_buffer out, scratch;
    void *state; /* of the API: allocated by open, freed by close */
};

/* Calls api->open. False: no memory; close is legal then. */
bool rp_answer_open(struct rp_answer *answer, json_t *root,
                    const struct rp_completion_params *params);
void rp_answer_close(struct rp_answer *answer);

struct rp_answer_api {
    const char *id_prefix;
    const char *content_type; /* of a stream; NULL: server-sent events */
    /* Sent when a stream had no output for limits.keep_alive_ms, also before its first part;
     * NULL: nothing. */
    const char *keep_alive;
    /* id, created, model, stream and the usage flags are set. root: the request, until open
     * returns. False: no memory; close is called also then. */
    bool (*open)(struct rp_answer *answer, json_t *root, const struct rp_completion_params *params);
    void (*close)(struct rp_answer *answer); /* NULL: nothing to free */

    /* Before the first part of a stream, when the prompt's tokens are known. NULL: nothing. */
    void (*begin)(struct rp_answer *answer, const struct rp_answer_usage *usage);
    /* The choice's new events, and its end if finish_reason is set. usage: of this choice so far.
     * Called for each token whose text is certain, also without events if finish_reason or
     * log-probabilities are set. */
    void (*part)(struct rp_answer *answer, const struct rp_answer_choice *choice,
                 const struct rp_answer_usage *usage);
    /* All choices have ended. more (may be empty): additional members, each preceded by a comma. */
    void (*end)(struct rp_answer *answer, const struct rp_answer_usage *usage,
                const struct rp_buffer *more);
    /* Ends a stream that has begun. */
    void (*error)(struct rp_answer *answer, const struct rp_http_error *error);

    void (*whole_begin)(struct rp_answer *answer);
    void (*whole_choice)(struct rp_answer *answer, const struct rp_answer_choice *choice);
    void (*whole_end)(struct rp_answer *answer, const struct rp_answer_usage *usage,
                      const struct rp_buffer *more);

    /* The log's ready entries as the `logprobs` of a choice. before: echoed prompt, or NULL. */
    void (*logprobs)(const struct rp_token_log *before, struct rp_token_log *log,
                     const struct rp_token_style *style, struct rp_buffer *out);
    bool prompt_logprobs_in_choice; /* otherwise a member of the answer */
};

extern const struct rp_answer_api rp_answer_completions, rp_answer_chat, rp_answer_responses,
    rp_answer_messages, rp_answer_ollama_chat, rp_answer_ollama_generate;

/* --- JSON that /v1/completions and /v1/chat/completions share (answer_json.c) ----------------- */

/* answer->head: {"id":...,"object":...,"created":...,"model":... */
bool rp_answer_json_head(struct rp_answer *answer, const char *object);
/* A chunk: begin, choice (optional), end. usage NULL: none; end closes the event. */
void rp_answer_json_begin(struct rp_answer *answer);
void rp_answer_json_end(struct rp_answer *answer, const struct rp_answer_usage *usage,
                        const struct rp_buffer *more);
/* The choice from its log-probabilities on: ,"logprobs":..} */
void rp_answer_json_choice_tail(struct rp_buffer *out, const struct rp_answer_choice *choice,
                                bool finished);
/* The events' bytes of a kind, joined, as a JSON string. */
void rp_answer_json_joined(struct rp_answer *answer, const struct rp_answer_events *events,
                           enum rp_answer_event_kind kind);
/* Entries of the table that both use. */
void rp_answer_json_last(struct rp_answer *answer, const struct rp_answer_usage *usage,
                         const struct rp_buffer *more);
void rp_answer_json_error(struct rp_answer *answer, const struct rp_http_error *error);
void rp_answer_json_whole_begin(struct rp_answer *answer);
void rp_answer_json_whole_end(struct rp_answer *answer, const struct rp_answer_usage *usage,
                              const struct rp_buffer *more);

#endif
