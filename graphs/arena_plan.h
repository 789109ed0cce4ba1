/* arena_plan.h - where the tensors of a program lie in the arena, from their lifetimes.
 *
 * A tensor lives from the first operator that touches it to the last, over forward and sample
 * together; what an operator reads lives until the next operator is done, because a backend may
 * fuse the two into one kernel; what EXPERT_SUM reads, until the second one after it is done.
 * Fusions that reach further check addresses (backend/fuse.h). Where a run of operators has two
 * branches, what they touch lives through the whole run: they may be computed at the same time.
 *
 * Two tensors may share bytes when their lives do not overlap. Larger tensors are placed first,
 * each at the lowest offset that is free for its whole life (greedy by size, as Pisarchyk and Lee
 * 2020 compare). Pure arithmetic: the same call counts (how large must the arena be?) and
 * carves.
 *
 * guarded: every tensor has its own bytes, followed by a canary; nothing is shared (debug). */
#ifndef RP_GRAPHS_ARENA_PLAN_H
#define RP_GRAPHS_ARENA_PLAN_H

#include "device/program.h"

#define RP_ARENA_ALIGN  256 /* bytes: the alignment of the largest vector and bulk copy */
#define RP_CANARY_BYTES 256
#define RP_CANARY_BYTE  0xA5

struct rp_lifetime {
    uint32_t first, last; /* operator indexes, inclusive; first > last: never used */
};

/* out: one per tensor of the program. */
void rp_program_lifetimes(const struct rp_program *program, const struct rp_bucket *bucket,
                          struct rp_lifetime *out);

/* Fills out_offsets (one per tensor, bytes) and *out_bytes, the arena size for this bucket.
 * OVERFLOW or NO_MEMORY. */
int rp_arena_plan(const struct rp_program *program, const struct rp_bucket *bucket, bool guarded,
                  size_t *out_offsets, size_t *out_bytes) RP_MUST_USE;

/* Bytes of one tensor in a bucket, without alignment; false on overflow. */
bool rp_tensor_bytes(const struct rp_program *program, const struct rp_tensor *tensor,
                     const struct rp_bucket *bucket, size_t *out);

#endif
