/* kv_config.h - the value of --kv-events-config: vLLM's JSON object, with its keys and defaults. */
#ifndef RP_SERVER_KV_CONFIG_H
#define RP_SERVER_KV_CONFIG_H

#include "base/status.h"

#define RP_KV_TEXT_BYTES 256

struct rp_kv_config {
    bool enabled;                           /* enable_kv_cache_events, and publisher not "null" */
    char endpoint[RP_KV_TEXT_BYTES];        /* of the PUB socket */
    char replay_endpoint[RP_KV_TEXT_BYTES]; /* of the ROUTER socket; "": none */
    char topic[RP_KV_TEXT_BYTES];
    uint32_t buffer_steps;   /* batches kept for replays */
    uint32_t hwm;            /* batches that may wait for a slow subscriber */
    uint32_t max_queue_size; /* changes that may wait for the publisher */
};

/* NULL or "": not enabled. INVALID: names the key. */
int rp_kv_config_parse(const char *text, struct rp_kv_config *out,
                       struct rp_error *err) RP_MUST_USE;

#endif
