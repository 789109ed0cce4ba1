/* http_gzip.h - gzip compression of whole answers, for clients that accept it. Thread: any. */
#ifndef RP_SERVER_HTTP_GZIP_H
#define RP_SERVER_HTTP_GZIP_H

#include "base/buffer.h"

/* Whether an Accept-Encoding field accepts gzip, by name or `*`, with a weight above 0. NULL: no
 * field. */
bool rp_http_accepts_gzip(const char *accept_encoding);
/* Appends the bytes compressed as gzip (RFC 1952). level: 1 (fast) to 9 (small). False: out of
 * memory, or out is full. */
bool rp_http_gzip(const char *bytes, size_t len, int level, struct rp_buffer *out);

#endif
