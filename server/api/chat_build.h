/* chat_build.h - builds a request to /v1/chat/completions from one of another API, so that every
 * API has the same fields, checks and prompts.
 *
 * Neighboring parts of the assistant (reasoning, texts, calls) become one message. Where the
 * model's template takes system messages only at the start, a later one becomes text of the user's
 * turn: in place, because moving it to the start would change the prompt's first tokens and so make
 * the prefix cache useless.
 * Thread: loop. Memory: values of the client's tree are shared, not copied; the work is in
 * proportion to their number. */
#ifndef RP_SERVER_CHAT_BUILD_H
#define RP_SERVER_CHAT_BUILD_H

#include "server/http/http_error.h"

#include <jansson.h>

struct rp_chat_build {
    json_t *root, *messages, *tools; /* tools: NULL until the first one */
    json_t *last;                    /* the last message, if more may be added to it */
    struct rp_buffer reasoning;      /* of the last message, if it is the assistant's */
    json_t *held;                    /* texts for the next turn of the user; NULL: none */
    bool late_system;                /* the template renders a system message anywhere */
    bool merge_users;                /* neighboring messages of the user become one */
    bool failed;                     /* memory is out */
};

void rp_chat_build_begin(struct rp_chat_build *build, bool late_system, bool merge_users);
/* The request, which the caller owns, with its messages and tools; NULL with *error: no memory. */
json_t *rp_chat_build_end(struct rp_chat_build *build, struct rp_http_error *error);
/* Instead of end. */
void rp_chat_build_drop(struct rp_chat_build *build);

/* A member of the request; `value` is shared. _new: is taken over, and may be NULL (no memory). */
void rp_chat_build_set(struct rp_chat_build *build, const char *name, json_t *value);
void rp_chat_build_set_new(struct rp_chat_build *build, const char *name, json_t *value);

/* A string of the system, the user or the assistant. An empty text adds nothing, except that of a
 * whole message of the user. */
void rp_chat_build_text(struct rp_chat_build *build, const char *role, json_t *text);
/* The next text begins a message of its own. */
void rp_chat_build_close(struct rp_chat_build *build);
void rp_chat_build_reasoning(struct rp_chat_build *build, json_t *text);
/* arguments: an object, or a string. id may be NULL. */
void rp_chat_build_call(struct rp_chat_build *build, json_t *id, json_t *name, json_t *arguments);
/* A call of a custom tool, whose input is a text. */
void rp_chat_build_custom_call(struct rp_chat_build *build, json_t *id, json_t *name,
                               json_t *input);
/* content: a string, or text parts as in a chat. */
void rp_chat_build_result(struct rp_chat_build *build, json_t *id, json_t *content);
/* Any of the last three may be NULL. */
void rp_chat_build_function(struct rp_chat_build *build, json_t *name, json_t *description,
                            json_t *parameters, json_t *strict);
/* {"type":"custom","custom":definition} */
void rp_chat_build_custom(struct rp_chat_build *build, json_t *name, json_t *description,
                          json_t *format);

/* Names `prefix[index]suffix` in the error. Returns false. */
bool rp_chat_build_wrong(struct rp_http_error *error, const char *prefix, size_t index,
                         const char *suffix, const char *what);
/* Sets an error that names the field unless it is absent, null or of one of the types: a
 * combination of 1 << json_type. */
bool rp_chat_build_expect(const json_t *value, unsigned types, const char *name, const char *what,
                          struct rp_http_error *error);

#endif
