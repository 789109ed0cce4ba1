/* kv_batch.h - a batch of changes of the prefix cache as vLLM writes it (0.24 and later), in
 * msgpack:
 *
 *   [seconds since 1970, [event, ...], 0]
 *   {"type": "BlockStored", "block_hashes": [...], "parent_block_hash": hash or nil,
 *    "token_ids": [...], "block_size": n, "lora_id": nil, "medium": "GPU", "lora_name": nil}
 *   {"type": "BlockRemoved", "block_hashes": [...], "medium": "GPU"}
 *   {"type": "AllBlocksCleared"}
 *
 * A hash is an unsigned integer of 64 bits. Pages that follow each other in a prompt, and removals,
 * share an event while they are neighbors in the batch. */
#ifndef RP_SERVER_KV_BATCH_H
#define RP_SERVER_KV_BATCH_H

#include "base/buffer.h"
#include "engine/observe/kv_events.h"

/* events: `count` of rp_kv_event_bytes(page_tokens) each. cleared: AllBlocksCleared comes first.
 * Appends; out->failed: memory is out. */
void rp_kv_batch_write(const void *events, uint32_t count, uint32_t page_tokens, bool cleared,
                       double unix_s, struct rp_buffer *out);

#endif
