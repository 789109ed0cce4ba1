/* serve_config.h - what the flags of `serve` mean to the HTTP server: keys, addresses, limits.
 * Thread: main. */
#ifndef RP_SERVER_SERVE_CONFIG_H
#define RP_SERVER_SERVE_CONFIG_H

#include "server/auth.h"
#include "server/http_server.h"
#include "server/serve_options.h"

#define RP_MODEL_NAME_BYTES 256 /* with the 0 at the end; a file name is never longer */

/* Checks what the table of flags cannot, reads the keys and fills *out_config, which borrows both. INVALID
 * and the like are usage errors. */
int rp_serve_config(const struct rp_serve_options *options, struct rp_auth *out_auth,
                    struct rp_server_config *out_config, struct rp_error *err) RP_MUST_USE;
/* What --served-model-name says, else the last component of the directory's name. */
void rp_serve_model_name(const struct rp_serve_options *options, const char *dir, char *out,
                         size_t size);
/* The flags in force as members of the JSON object that is open; ctx is the options. Of a key only
 * whether there is one. */
void rp_serve_write_flags(void *ctx, struct rp_json *json);

#endif
