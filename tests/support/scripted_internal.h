/* scripted_internal.h - the script of one request, shared by the files of the scripted server. */
#ifndef RP_TESTS_SCRIPTED_INTERNAL_H
#define RP_TESTS_SCRIPTED_INTERNAL_H

#include "base/buffer.h"

#include <jansson.h>

#define SCRIPTED_NEVER UINT32_MAX

struct script {
    uint32_t number, tokens, cached, status;
    uint32_t reset, close, hang, error, garbage, longest;
    double ttft_ms, itl_ms, head_ms, slow_ms, stall_ms;
    bool drop, crlf, comments, interim, joined, no_usage, no_done, stop, role, empty, reasoning;
    bool has_head_ms, chat;
    uint32_t split, blank, fuzz;
    char body[16], raw[16], message[64];
};

void scripted_reset(struct script *script);
/* The script in a request's body; NULL: not JSON. */
void scripted_read(struct script *script, const json_t *root);
/* Changes a few bytes, the same for the same seed. */
void scripted_mutate(struct rp_buffer *bytes, uint32_t seed);

#endif
