/* hub_http.h - requests to a model hub by libcurl, which is opened when the first one is made: the
 * program runs without the library. Redirects are followed here, at most five; the token is sent
 * only to the host of the first URL, and never from https to http.
 * Thread: any number may make requests after rp_hub_http_open. */
#ifndef RP_SERVER_HUB_HTTP_H
#define RP_SERVER_HUB_HTTP_H

#include "base/buffer.h"
#include "base/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What the hub says beside the body. */
struct rp_hub_reply {
    long code;           /* HTTP's; 0: none came */
    char error_code[64]; /* X-Error-Code: GatedRepo, RepoNotFound, ... */
    bool is_refused;     /* the problem is what came, not the connection: no other try helps */
    char problem[320];   /* of the network, when code is 0 or the body did not come whole */
};

/* Loads the library. UNSUPPORTED where it is not installed, or the program was built without. */
int rp_hub_http_open(struct rp_error *err) RP_MUST_USE;
/* The body into `out`, up to its limit. token: "" for none. RP_OK for codes below 400. */
int rp_hub_http_get(const char *url, const char *token, struct rp_buffer *out,
                    struct rp_hub_reply *reply) RP_MUST_USE;
/* Appends to the file from byte `from` on, which the request names as a range; when the server
 * sends all instead, the file is truncated first. *received counts the bytes of the file. More than
 * `most` bytes are an error. */
int rp_hub_http_download(const char *url, const char *token, int fd, uint64_t from, uint64_t most,
                         _Atomic uint64_t *received, struct rp_hub_reply *reply) RP_MUST_USE;

#endif
