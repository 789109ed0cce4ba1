/* lowering.h - what the lowerings of all backends share: reading a program's operands. */
#ifndef RP_BACKEND_LOWERING_H
#define RP_BACKEND_LOWERING_H

#include "attention/attention.h"
#include "backend/fuse.h"
#include "base/memory.h"
#include "device/experts.h"
#include "device/ops.h"

/* Where the columns of a view lie in the arena; all zero for no tensor. */
struct rp_values rp_lowering_values(const struct rp_program *program,
                                    const struct rp_bindings *bindings, const struct rp_view *view);

/* Rows of the widest matrix of a linear. */
uint32_t rp_lowering_widest_linear(const struct rp_program *program);

/* RP_OK, or UNSUPPORTED when the input of a linear is not of the type that its weights need. */
int rp_lowering_check_input(const struct rp_program *program, const struct rp_op *linear,
                            struct rp_error *err);

/* The pages of a layer: their layout, the layer's place in them, and where its page table begins
 * among those of a slot. */
struct rp_layer_pages {
    struct rp_kv_layout kv;
    uint32_t layer, table;
};
struct rp_layer_pages rp_lowering_pages(const struct rp_bindings *bindings, uint32_t layer);

/* The arguments of an ATTENTION operator. */
struct rp_attention_args rp_lowering_attention(const struct rp_program *program,
                                               const struct rp_bindings *bindings,
                                               const struct rp_op *op);

/* The arguments of a ROUTE operator; bias and scales are the program's, in host memory. */
struct rp_route_args rp_lowering_route(const struct rp_program *program,
                                       const struct rp_bindings *bindings, const struct rp_op *op);

/* The info of a launch of the fused operator: the names of its members joined with '+', as far as
 * they fit. explain: with a copy of why_not in `memory`; false: memory is out. */
bool rp_lowering_describe(struct rp_launch_info *info, const struct rp_program *program,
                          const struct rp_fused_op *fused, const char *kernel, bool explain,
                          struct rp_arena *memory);

#endif
