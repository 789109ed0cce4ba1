/* mask_reach.h - number of keys that tokens read under a mask program, for cost estimates.
 *
 * Counted by classifying runs of keys, not pair by pair: a block of 64 keys counts fully if any of
 * them may be visible, because it is read as a whole. Thread: any. Memory: none. */
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
    uint64_t keys;  /* per token */
    uint64_t pairs; /* (token, key) pairs; half of the pairs in partially visible blocks */
};
void rp_mask_reach(const struct rp_mask_reach_args *args, struct rp_mask_reach *out);

#endif
