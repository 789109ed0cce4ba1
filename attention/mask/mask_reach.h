/* mask_reach.h - how much of the keys before them tokens read with a mask program: for costs.
 *
 * Counted by classifying runs of keys, not pair by pair: a block of 64 keys of which any may be
 * seen counts whole, as it is read whole. Thread: any. Memory: none. */
#ifndef RP_ATTENTION_MASK_REACH_H
#define RP_ATTENTION_MASK_REACH_H

#include "attention/mask/mask.h"

struct rp_mask_reach_args {
    const struct rp_mask *mask; /* of one layer */
    const int32_t *params;
    int32_t layer;
    uint32_t heads;
    uint32_t start, count; /* positions of the tokens, count at least 1 */
    uint32_t end;          /* keys are below it */
};
struct rp_mask_reach {
    uint64_t keys;  /* that a token of them reads */
    uint64_t pairs; /* of a token and a key; of blocks that tokens see in part, half */
};
void rp_mask_reach(const struct rp_mask_reach_args *args, struct rp_mask_reach *out);

#endif
