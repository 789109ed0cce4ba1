/* params.h - the fields of a request to /v1/completions or /v1/chat/completions, from one table of
 * names, types and ranges.
 *
 * A field of the wrong type or out of range is an error that names it. An unsupported field that
 * would change the meaning of the answer is an error, unless it has its "off" value. Any other
 * field is ignored, and its name is logged once.
 * Thread: loop. Memory: pointers point into the parsed tree, except those that deinit frees. */
#ifndef RP_SERVER_PARAMS_H
#define RP_SERVER_PARAMS_H

#include "engine/request.h"
#include "server/api/grammar_service.h"
#include "server/api/stop_match.h"
#include "server/api/tools.h"
#include "server/http/http_error.h"
#include "server/http_server.h"

#include <jansson.h>

struct rp_server;
struct rp_answer_api;

/* What a request asks for: one bit each, so that a field can belong to both. */
enum rp_api { RP_API_COMPLETIONS = 1, RP_API_CHAT = 2 };

#define RP_BAD_WORDS_MAX      64  /* strings in bad_words */
#define RP_BAD_WORD_BYTES_MAX 128 /* length of one string */

struct rp_completion_params {
    enum rp_api api;
    const struct rp_answer_api *answers; /* how its answer is written; rp_params_read leaves NULL */
    json_t *prompt;                      /* borrowed; for a chat, its messages */
    const char *cache_salt;
    bool limit_to_context; /* max_tokens beyond the context is lowered, not an error */
    bool stream, include_usage, continuous_usage;
    bool add_special_tokens, skip_special_tokens, ignore_eos, include_stop;
    bool profile;
    bool has_seed;
    bool include_timing;   /* the answer includes a breakdown of its time */
    bool echo;             /* the answer's text begins with the prompt's */
    bool return_token_ids; /* choices include the ids of their tokens and of the prompt */
    bool as_token_ids;     /* tokens of log-probabilities are written "token_id:17" */
    int64_t seed, min_tokens, top_k;
    int64_t max_tokens; /* -1: as many as the context has room for */
    int64_t priority;   /* lower is earlier among the waiting requests of the same key */
    double timeout;     /* seconds from the first byte; 0: the server's limit alone */
    int64_t n, best_of; /* best_of answers are generated per prompt, the best n are returned */
    /* most likely tokens returned with each token; -1: none, not even the token's own */
    int64_t logprobs;
    int64_t prompt_logprobs; /* the same for the prompt */
    double temperature, top_p, min_p;
    double repetition_penalty, presence_penalty, frequency_penalty;
    struct rp_stop_set stop;
    int32_t stop_ids[RP_STOP_IDS_MAX];
    uint32_t stop_id_count; /* the client's ids, then the model's */
    struct rp_logit_bias *biases;
    uint32_t bias_count;
    /* as in rp_request: all parameters, or none if the program has none */
    uint32_t mask_param_count;
    int32_t mask_params[RP_MASK_PARAMS_MAX];
    uint32_t *allowed;   /* bitmap of ids, as in rp_request; NULL: all */
    json_t *bad_words;   /* borrowed: strings to tokenize; NULL: none */
    int32_t *bad_tokens; /* bad_words as tokens, as in rp_request */
    uint32_t bad_token_ints;
    struct rp_grammar_spec grammar; /* what the answer must match */
    /* Chat only. */
    json_t *documents, *template_kwargs; /* borrowed, or NULL */
    const char *reasoning_effort;
    const json_t *enable_thinking; /* borrowed: true or false; NULL: not given */
    struct rp_tools tools;
    bool add_generation_prompt, continue_final_message, include_reasoning, parallel_tool_calls;
    int64_t reasoning_tokens; /* most tokens of reasoning; -1: no limit */
    /* As given; rp_params_read resolves their combination. */
    bool chat_logprobs;
    int64_t top_logprobs, max_completion_tokens;
};

/* Defaults come from serving. False with *error. Unknown names are passed to `unknown` (may be
 * NULL). deinit is legal after success and failure. */
bool rp_params_read(json_t *root, enum rp_api api, const struct rp_serving *serving,
                    void (*unknown)(void *ctx, const char *name), void *ctx,
                    struct rp_completion_params *out, struct rp_http_error *error);
void rp_params_deinit(struct rp_completion_params *params);

/* params_special.c: the fields that are neither numbers nor booleans. */
bool rp_params_read_special(json_t *root, const struct rp_serving *serving,
                            struct rp_completion_params *out, struct rp_http_error *error);

/* params_grammar.c: response_format and its relatives. */
bool rp_params_read_grammar(json_t *root, struct rp_completion_params *out,
                            struct rp_http_error *error);

/* A request's "model", if present, must be the served one: 404 otherwise. */
bool rp_params_check_model(json_t *root, const struct rp_serving *serving,
                           struct rp_http_error *error);
/* Reads a token id below vocab_size; `param` names the field. */
bool rp_params_token_id(const json_t *value, uint32_t vocab_size, const char *param, int32_t *out,
                        struct rp_http_error *error);
/* Reads true or false; *out is unchanged when the field is absent or null. */
bool rp_params_bool(json_t *root, const char *name, bool *out, struct rp_http_error *error);
/* The field's value; NULL when it is absent or null. */
json_t *rp_params_get(json_t *root, const char *name);

/* Logs a field's name the first time it is seen; ctx is the server. */
void rp_params_log_unknown(void *ctx, const char *name);

#endif
