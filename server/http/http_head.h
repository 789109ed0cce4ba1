/* http_head.h - the header block of a request, with stricter checks than llhttp's.
 *
 * Every byte up to the blank line goes through rp_head_scan before llhttp sees it. It rejects
 * inputs used for request smuggling that some version of llhttp accepts: continuation lines
 * (obs-fold), bare CR, bare LF, control characters; and it limits bytes and fields, for which
 * llhttp has no limits. The fields are then collected in struct rp_http_head.
 * Thread: loop. Memory: one buffer per connection, bounded by the limits. */
#ifndef RP_SERVER_HTTP_HEAD_H
#define RP_SERVER_HTTP_HEAD_H

#include "base/buffer.h"
#include "server/http_server.h"

#define RP_HTTP_HEADERS_MAX 128 /* limits.header_count is at most this */

/* Result of a scan and the status it leads to; RP_HEAD_MORE: no blank line yet. */
enum rp_head_verdict {
    RP_HEAD_MORE,
    RP_HEAD_DONE,
    RP_HEAD_BAD,        /* 400 */
    RP_HEAD_FOLDED,     /* 400 */
    RP_HEAD_TOO_LARGE,  /* 431 */
    RP_HEAD_TARGET_LONG /* 414 */
};

struct rp_head_scan {
    uint32_t bytes, fields, target;
    uint8_t state;
    bool any; /* a byte of this request has arrived */
};

/* For the trailers of a chunked body, which have the same fields and end, and no first line. */
void rp_head_scan_trailers(struct rp_head_scan *scan);
/* Consumes bytes up to the blank line or an error; *out_used is how many belong to the block. */
enum rp_head_verdict rp_head_scan(struct rp_head_scan *scan, const struct rp_http_limits *limits,
                                  const char *bytes, size_t len, size_t *out_used);

struct rp_http_head {
    struct rp_buffer text; /* target, then alternating names and values, each NUL-terminated */
    struct rp_http_field {
        uint32_t name, value; /* offsets into text */
    } fields[RP_HTTP_HEADERS_MAX];
    uint32_t field_count;
    uint8_t collecting; /* 0 nothing, 1 target, 2 name, 3 value */
};

void rp_http_head_clear(struct rp_http_head *head);
void rp_http_head_deinit(struct rp_http_head *head);
/* Fragments as delivered by llhttp; false when out of memory. */
bool rp_http_head_target(struct rp_http_head *head, const char *bytes, size_t len);
bool rp_http_head_name(struct rp_http_head *head, const char *bytes, size_t len);
bool rp_http_head_value(struct rp_http_head *head, const char *bytes, size_t len);
/* The current field is complete, with or without a value. */
bool rp_http_head_field_done(struct rp_http_head *head);
/* Ends the last fragment. */
bool rp_http_head_finish(struct rp_http_head *head);

/* The value of a field (names are case-insensitive), NULL when absent; *out_count (may be NULL) is
 * the number of occurrences. */
const char *rp_http_head_find(const struct rp_http_head *head, const char *name,
                              uint32_t *out_count);
const char *rp_http_head_get_target(const struct rp_http_head *head);

/* Whether text is a valid Host: host and optional port, no path, no user. */
bool rp_http_host_is_valid(const char *text, size_t len);
/* Whether it is localhost or an IP address, i.e. does not depend on DNS. */
bool rp_http_host_is_local(const char *text, size_t len);
/* Whether its name, without the port, is in a list of names separated by commas (NULL: empty). */
bool rp_http_host_is_listed(const char *text, size_t len, const char *list);

#endif
