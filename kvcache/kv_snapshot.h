/* kv_snapshot.h - which places of the state pool hold snapshots: the recurrent state that a
 * sequence had after some of its tokens (device/step.h), found by the hash of those tokens.
 *
 *   FREE -> take -> PENDING -> keep -> KEPT -> evicted, or dropped -> FREE
 *
 * A pending snapshot is written by a step in flight and belongs to its sequence; it is kept, and
 * may be found, once logits without NaN have proven it clean. Kept ones are evicted, least recently
 * used first, but never in the step that one of its rows reads it in: steps run in stream order, so
 * nothing else has to be waited for. The hash is that of kv_prefix.h's chain after the last of the
 * tokens; whoever looks one up has compared all pages before.
 *
 * Thread: engine thread only. Memory: all at init. Errors: init only. */
#ifndef RP_KVCACHE_KV_SNAPSHOT_H
#define RP_KVCACHE_KV_SNAPSHOT_H

#include "base/hash.h"
#include "base/status.h"

#define RP_NO_SNAPSHOT UINT32_MAX

enum rp_kv_snapshot_state { RP_SNAPSHOT_FREE, RP_SNAPSHOT_PENDING, RP_SNAPSHOT_KEPT };

struct rp_kv_snapshot {
    struct rp_hash128 hash; /* valid when hashed */
    uint64_t salt;
    uint64_t used_step;    /* the last step that reads or writes it */
    uint32_t position;     /* tokens that it is the state after */
    uint32_t next;         /* free list, its sequence's pending list, or the hash bucket */
    uint32_t older, newer; /* kept ones, by their last use */
    enum rp_kv_snapshot_state state;
    bool hashed;
};

struct rp_kv_snapshots {
    struct rp_kv_snapshot *entries; /* (count) */
    uint32_t *buckets;              /* (bucket_mask + 1) */
    uint32_t count, bucket_mask;
    uint32_t free_first, oldest, newest;
    uint32_t kept, pending;
    uint64_t hits, evictions, saved; /* since init */
};

/* count 0 is legal: nothing is ever taken or found. */
int rp_kv_snapshots_init(struct rp_kv_snapshots *snapshots, uint32_t count,
                         struct rp_error *err) RP_MUST_USE;
void rp_kv_snapshots_deinit(struct rp_kv_snapshots *snapshots); /* legal on a zeroed struct */

/* A place for the state after `position` tokens, which step `step` writes, put before *list; when
 * none is free the least recently used one is evicted. RP_NO_SNAPSHOT: all are in use. */
uint32_t rp_kv_snapshots_take(struct rp_kv_snapshots *snapshots, uint32_t position, uint64_t step,
                              uint32_t *list);
/* The hash of the tokens of the pending ones in the list that are after `position`. */
void rp_kv_snapshots_name(struct rp_kv_snapshots *snapshots, uint32_t list, uint32_t position,
                          uint64_t salt, struct rp_hash128 hash);
/* Keeps those in the list that have a hash and are after at most `position` tokens; one whose hash
 * is there already is dropped, and counts as a use of the other. */
void rp_kv_snapshots_keep(struct rp_kv_snapshots *snapshots, uint32_t *list, uint32_t position);
/* Drops all of a list. */
void rp_kv_snapshots_drop(struct rp_kv_snapshots *snapshots, uint32_t *list);

/* The kept one with this hash, or RP_NO_SNAPSHOT. */
uint32_t rp_kv_snapshots_find(const struct rp_kv_snapshots *snapshots, uint64_t salt,
                              struct rp_hash128 hash);
/* A sequence begins with it in step `step`. */
void rp_kv_snapshots_use(struct rp_kv_snapshots *snapshots, uint32_t at, uint64_t step);
/* Nobody will find it any more. */
void rp_kv_snapshots_remove(struct rp_kv_snapshots *snapshots, uint32_t at);

/* NULL, or the name of what is broken. pending: snapshots in all lists. */
const char *rp_kv_snapshots_check(const struct rp_kv_snapshots *snapshots, uint32_t pending);

#endif
