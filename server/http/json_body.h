/* json_body.h - parses a request body to a JSON tree, within limits. Depth is checked before the
 * parser recurses; the memory of the tree is counted while it grows (a body of "{},{},..." needs 77
 * times its size); duplicate keys, a byte order mark and invalid UTF-8 are rejected. U+0000 is
 * allowed in texts for the model, because an answer that contains it must be accepted in the next
 * request; elsewhere it is rejected, so that names and patterns are C strings. For an error inside
 * the value of a top-level field, `param` names the field.
 * Thread: any; a tree belongs to one thread at a time. Trees are freed with json_decref. */
#ifndef RP_SERVER_JSON_BODY_H
#define RP_SERVER_JSON_BODY_H

#include "server/http/http_error.h"
#include "server/http_server.h"

#include <jansson.h>

/* Installs counting allocators for jansson. Call before other threads start and while no tree
 * exists. */
void rp_json_body_init(void);
/* Returns an object, or NULL with *error: 400, 413 (too much memory) or 503 (too many large trees
 * at once). */
json_t *rp_json_body_parse(const char *body, size_t len, const struct rp_http_limits *limits,
                           struct rp_http_error *error);
/* The same for an object inside a text for the model, such as the arguments of a call: U+0000 is
 * allowed in all of its strings. */
json_t *rp_json_object_parse(const char *text, size_t len, const struct rp_http_limits *limits,
                             struct rp_http_error *error);
/* Bytes of all trees; their peak since the start or the last reset. Any thread. */
uint64_t rp_json_body_live_bytes(void);
uint64_t rp_json_body_peak_bytes(void);
void rp_json_body_reset_peak(void);

#endif
