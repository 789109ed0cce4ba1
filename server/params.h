/* params.h - the fields of a request to /v1/completions: one table of names, types and ranges.
 *
 * A field of the wrong type or out of range is an error that names it. A field that would change what
 * the answer means and is not supported yet is an error that says so, unless it has the value that means
 * "off". Any other field is accepted, and its name is logged once.
 * Thread: loop. Memory: pointers point into the tree that was read, except the stop set. */
#ifndef RP_SERVER_PARAMS_H
#define RP_SERVER_PARAMS_H

#include "engine/request.h"
#include "server/http_error.h"
#include "server/http_server.h"
#include "server/stop_match.h"

#include <jansson.h>

struct rp_server;

struct rp_completion_params {
    json_t *prompt; /* borrowed */
    const char *cache_salt;
    bool stream, include_usage, continuous_usage;
    bool add_special_tokens, skip_special_tokens, ignore_eos, include_stop;
    bool has_seed;
    int64_t seed, max_tokens, min_tokens, top_k;
    double temperature, top_p, min_p;
    struct rp_stop_set stop;
    int32_t stop_ids[RP_STOP_IDS_MAX];
    uint32_t stop_id_count; /* the client's, then the model's */
};

/* The defaults come from serving. False with *error. Unknown names are passed to `unknown` (may be
 * NULL). deinit is legal after either. */
bool rp_params_read(json_t *root, const struct rp_serving *serving,
                    void (*unknown)(void *ctx, const char *name), void *ctx,
                    struct rp_completion_params *out, struct rp_http_error *error);
void rp_params_deinit(struct rp_completion_params *params);

/* A request's "model", where there is one, must be the served one: 404 otherwise. */
bool rp_params_check_model(json_t *root, const struct rp_serving *serving,
                           struct rp_http_error *error);
/* A token id below vocab_size; `param` names the field. */
bool rp_params_token_id(const json_t *value, uint32_t vocab_size, const char *param, int32_t *out,
                        struct rp_http_error *error);
/* true, false, or the value that out had when the field is absent or null. */
bool rp_params_bool(json_t *root, const char *name, bool *out, struct rp_http_error *error);

/* Logs a field's name the first time that it is seen; ctx is the server. */
void rp_params_log_unknown(void *ctx, const char *name);

#endif
