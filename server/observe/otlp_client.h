/* otlp_client.h - posts JSON to a collector over HTTP or HTTPS, one connection a post.
 *
 * TLS is OpenSSL's with the system's certificates (SSL_CERT_FILE names others). A certificate must
 * be valid for the host of the URL.
 * Thread: one at a time, which waits; any thread may set `stop_ns`, which ends a wait by then. Only
 * the resolution of a name can take longer. */
#ifndef RP_SERVER_OTLP_CLIENT_H
#define RP_SERVER_OTLP_CLIENT_H

#include "base/status.h"

#include <stdatomic.h>

enum { RP_OTLP_HOST_MAX = 253, RP_OTLP_BASE_MAX = 512, RP_OTLP_HEADERS_MAX = 4096 };

struct rp_otlp_url {
    bool https;
    char host[RP_OTLP_HOST_MAX + 1]; /* without brackets */
    char port[6];
    char base[RP_OTLP_BASE_MAX]; /* of the path, without a slash at its end: "" or "/otlp" */
};

/* INVALID: not http://HOST[:PORT][/PATH] or https://...; the text says what is wrong. */
int rp_otlp_url_parse(const char *text, struct rp_otlp_url *out, struct rp_error *err) RP_MUST_USE;
/* "key=value,key=value" (values percent-encoded), as OTEL_EXPORTER_OTLP_HEADERS has it, becomes
 * header lines. INVALID names the key. */
int rp_otlp_headers_parse(const char *text, char out[RP_OTLP_HEADERS_MAX],
                          struct rp_error *err) RP_MUST_USE;

struct rp_otlp_client {
    struct rp_otlp_url url;
    char headers[RP_OTLP_HEADERS_MAX]; /* lines to add to each post */
    void *tls;                         /* SSL_CTX; NULL: http */
    _Atomic uint64_t stop_ns;          /* rp_clock_ns; 0: no end */
};

/* Sets tls for an https URL. */
int rp_otlp_client_open(struct rp_otlp_client *client, struct rp_error *err) RP_MUST_USE;
void rp_otlp_client_close(struct rp_otlp_client *client); /* legal on a zeroed struct */

struct rp_otlp_answer {
    int status;             /* of HTTP; 0: none came */
    uint32_t retry_after_s; /* its Retry-After; UINT32_MAX: none */
};

/* Posts to base + path within timeout_ns. RP_OK: an answer came, whatever its status. IO: none,
 * *err says why. */
int rp_otlp_post(struct rp_otlp_client *client, const char *path, const char *body, size_t len,
                 uint64_t timeout_ns, struct rp_otlp_answer *out, struct rp_error *err) RP_MUST_USE;

#endif
