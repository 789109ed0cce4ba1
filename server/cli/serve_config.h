/* serve_config.h - HTTP server configuration from the flags of `serve`: keys, addresses, limits.
 * Thread: main. */
#ifndef RP_SERVER_SERVE_CONFIG_H
#define RP_SERVER_SERVE_CONFIG_H

#include "server/cli/serve_options.h"
#include "server/http/auth.h"
#include "server/http_server.h"
#include "text/template/chat_template.h"

#define RP_MODEL_NAME_BYTES 256 /* including the NUL; at least the maximum length of a file name */

/* Makes the checks that the flag table cannot express, reads the keys and fills *out_config, which
 * borrows both. Errors such as INVALID are usage errors. */
int rp_serve_config(const struct rp_serve_options *options, struct rp_auth *out_auth,
                    struct rp_server_config *out_config, struct rp_error *err) RP_MUST_USE;
/* Whether the main listener is reachable from other machines. */
bool rp_serve_is_exposed(const struct rp_serve_options *options);
/* Reads the keys of the flags and the environment; ctx is the options. */
int rp_serve_read_keys(void *ctx, struct rp_auth *out, struct rp_error *err) RP_MUST_USE;
/* The value of --served-model-name, else the name of a model from the cache (model_arg: what the
 * user gave), else the last component of the path. */
void rp_serve_model_name(const struct rp_serve_options *options, const char *model_arg,
                         const char *dir, char *out, size_t size);
/* Writes the flags in force as members of the open JSON object; ctx is the options. For keys only
 * whether there is one. */
void rp_serve_write_flags(void *ctx, struct rp_json *json);

/* Opens the chat template given by the flags, or the model's; *out stays NULL when there is none,
 * or (with a log line) when the model's own cannot be read. */
int rp_serve_open_templates(const struct rp_serve_options *options, const char *dir,
                            struct rp_chat_templates **out, struct rp_error *err) RP_MUST_USE;

#endif
