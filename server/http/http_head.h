/* http_head.h - the header block of a request: what llhttp lets pass and we do not.
 *
 * Every byte up to the blank line goes through rp_head_scan before llhttp sees it. It refuses what
 * request smuggling is made of and what some version of llhttp accepts: lines that continue the one
 * before (obs-fold), bare CR, bare LF, control characters; and it counts bytes and fields, for
 * which llhttp has no limits. Then the fields are collected in struct rp_http_head.
 * Thread: loop. Memory: one buffer per connection, bounded by the limits. */
#ifndef RP_SERVER_HTTP_HEAD_H
#define RP_SERVER_HTTP_HEAD_H

#include "base/buffer.h"
#include "server/http_server.h"

#define RP_HTTP_HEADERS_MAX 128 /* limits.header_count is below */

/* What was wrong, in one word of the answer; RP_HEAD_MORE: no blank line yet. */
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
    bool any; /* a byte of this request has come */
};

/* Takes bytes until the blank line or an error; *out_used is how many belong to the block. */
enum rp_head_verdict rp_head_scan(struct rp_head_scan *scan, const struct rp_http_limits *limits,
                                  const char *bytes, size_t len, size_t *out_used);

struct rp_http_head {
    struct rp_buffer text; /* target, then name and value in turn, each with a NUL */
    struct rp_http_field {
        uint32_t name, value; /* offsets into text */
    } fields[RP_HTTP_HEADERS_MAX];
    uint32_t field_count;
    uint8_t collecting; /* 0 nothing, 1 target, 2 name, 3 value */
};

void rp_http_head_clear(struct rp_http_head *head);
void rp_http_head_deinit(struct rp_http_head *head);
/* Pieces as llhttp hands them out; false when memory is out. */
bool rp_http_head_target(struct rp_http_head *head, const char *bytes, size_t len);
bool rp_http_head_name(struct rp_http_head *head, const char *bytes, size_t len);
bool rp_http_head_value(struct rp_http_head *head, const char *bytes, size_t len);
/* The name's field is complete, whether or not a value came. */
bool rp_http_head_field_done(struct rp_http_head *head);
/* Ends the last piece. */
bool rp_http_head_finish(struct rp_http_head *head);

/* The value of the field (names compare without case), NULL when it is absent; *out_count (may be
 * NULL) says how often it occurs. */
const char *rp_http_head_find(const struct rp_http_head *head, const char *name,
                              uint32_t *out_count);
const char *rp_http_head_get_target(const struct rp_http_head *head);

/* Whether text can be a Host: host and optional port, no path, no user. */
bool rp_http_host_is_valid(const char *text, size_t len);
/* Whether it names this machine and nothing that a DNS answer decides: localhost or an address. */
bool rp_http_host_is_local(const char *text, size_t len);

#endif
