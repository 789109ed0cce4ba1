/* fuse_internal.h - what the files of the fusion pass share. */
#ifndef RP_BACKEND_FUSE_INTERNAL_H
#define RP_BACKEND_FUSE_INTERNAL_H

#include "backend/fuse.h"

/* Why the row at hand does not match. */
struct rp_fuse_why {
    char text[RP_FUSED_WHY_MAX];
    bool is_rule; /* the operators are there and a rule forbids it; else they are not there */
};

/* Sets the text of a broken rule; returns false. */
bool rp_fuse_because(struct rp_fuse_why *why, const char *format, ...) RP_PRINTF(2, 3);

/* Why operator `at`, which is no member, must not see this member run after it; NULL: it may. */
const char *rp_fuse_in_the_way(const struct rp_fuse_input *input, const struct rp_fused_op *fused,
                               uint32_t member, uint32_t at);
/* The rules of order and memory of fuse.h. */
bool rp_fuse_in_order(const struct rp_fuse_input *input, const struct rp_fused_op *fused,
                      struct rp_fuse_why *why);
bool rp_fuse_in_place(const struct rp_fuse_input *input, const struct rp_fused_op *fused,
                      struct rp_fuse_why *why);

#endif
