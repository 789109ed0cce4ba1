/* load_url.h - splits http://host:port[/prefix] into its parts. Thread: any. */
#ifndef RP_BENCH_LOAD_URL_H
#define RP_BENCH_LOAD_URL_H

#include "base/status.h"

struct rp_load_url {
    char host[256];      /* name or address, without the brackets of IPv6 */
    char authority[272]; /* value of the Host field */
    char prefix[256];    /* part before /v1: "" or "/path" */
    uint16_t port;
};

/* A trailing slash and a trailing /v1 (the base URL of OpenAI clients) are dropped. https:
 * RP_STATUS_UNSUPPORTED; not a URL: RP_STATUS_INVALID. */
int rp_load_url_parse(const char *text, struct rp_load_url *out, struct rp_error *err) RP_MUST_USE;

#endif
