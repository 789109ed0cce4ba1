/* json_body.h - a request body to a JSON tree, within limits. Depth is checked before the parser
 * recurses; the memory of the tree is counted while it grows (a body of "{},{},..." needs 77 times
 * its size); the same key twice, \u0000, a byte order mark and anything that is not UTF-8 are
 * refused. Where an error lies inside the value of a top-level field, `param` names the field.
 * Thread: any; a tree belongs to one thread at a time. Trees are freed with json_decref. */
#ifndef RP_SERVER_JSON_BODY_H
#define RP_SERVER_JSON_BODY_H

#include "server/http/http_error.h"
#include "server/http_server.h"

#include <jansson.h>

/* Routes jansson's memory through our counters. Before other threads, and while no tree is
 * alive. */
void rp_json_body_init(void);
/* An object, or NULL with *error: 400, 413 (too much memory) or 503 (too many large trees at
 * once). */
json_t *rp_json_body_parse(const char *body, size_t len, const struct rp_http_limits *limits,
                           struct rp_http_error *error);
/* Bytes of all trees; the most there were since the start or the last reset. Any thread. */
uint64_t rp_json_body_live_bytes(void);
uint64_t rp_json_body_peak_bytes(void);
void rp_json_body_reset_peak(void);

#endif
