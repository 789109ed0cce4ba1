/* serve_config.h - what the flags of `serve` mean to the HTTP server: keys, addresses, limits.
 * Thread: main. */
#ifndef RP_SERVER_SERVE_CONFIG_H
#define RP_SERVER_SERVE_CONFIG_H

#include "server/cli/serve_options.h"
#include "server/http/auth.h"
#include "server/http_server.h"
#include "text/template/chat_template.h"

#define RP_MODEL_NAME_BYTES 256 /* with the 0 at the end; a file name is never longer */

/* Checks what the table of flags cannot, reads the keys and fills *out_config, which borrows both.
 * INVALID and the like are usage errors. */
int rp_serve_config(const struct rp_serve_options *options, struct rp_auth *out_auth,
                    struct rp_server_config *out_config, struct rp_error *err) RP_MUST_USE;
/* The keys of the flags and the environment; ctx is the options. */
int rp_serve_read_keys(void *ctx, struct rp_auth *out, struct rp_error *err) RP_MUST_USE;
/* What --served-model-name says, else the last component of the directory's name. */
void rp_serve_model_name(const struct rp_serve_options *options, const char *dir, char *out,
                         size_t size);
/* The flags in force as members of the JSON object that is open; ctx is the options. Of a key only
 * whether there is one. */
void rp_serve_write_flags(void *ctx, struct rp_json *json);

/* The chat template that the flags name, or the model's; *out stays NULL when there is none, or
 * (with a line in the log) when the model's own cannot be read. */
int rp_serve_open_templates(const struct rp_serve_options *options, const char *dir,
                            struct rp_chat_templates **out, struct rp_error *err) RP_MUST_USE;

#endif
