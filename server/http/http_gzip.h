/* http_gzip.h - whole answers, compressed for clients that ask for it. Thread: any. */
#ifndef RP_SERVER_HTTP_GZIP_H
#define RP_SERVER_HTTP_GZIP_H

#include "base/buffer.h"

/* Whether an Accept-Encoding field takes gzip: named, or by `*`, with a weight above 0. NULL: no
 * field. */
bool rp_http_accepts_gzip(const char *accept_encoding);
/* Appends gzip (RFC 1952) of the bytes. level: 1 fast to 9 small. False: memory is out, or out is
 * full. */
bool rp_http_gzip(const char *bytes, size_t len, int level, struct rp_buffer *out);

#endif
