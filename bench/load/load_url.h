/* load_url.h - http://host:port[/prefix] to its parts. Thread: any. */
#ifndef RP_BENCH_LOAD_URL_H
#define RP_BENCH_LOAD_URL_H

#include "base/status.h"

struct rp_load_url {
    char host[256];      /* a name or an address, without the brackets of IPv6 */
    char authority[272]; /* as it belongs into the Host field */
    char prefix[256];    /* what comes before /v1: "" or "/path" */
    uint16_t port;
};

/* A closing slash and a closing /v1 (the base URL of OpenAI's clients) are left out. https is
 * refused: RP_STATUS_UNSUPPORTED; whatever is no URL: RP_STATUS_INVALID. */
int rp_load_url_parse(const char *text, struct rp_load_url *out, struct rp_error *err) RP_MUST_USE;

#endif
