/* lowering.h - what the lowerings of all backends share: reading a program's operands. */
#ifndef RP_BACKEND_LOWERING_H
#define RP_BACKEND_LOWERING_H

#include "device/device.h"
#include "device/ops.h"

/* Where the columns of a view lie in the arena; all zero for no tensor. */
struct rp_values rp_lowering_values(const struct rp_program *program,
                                    const struct rp_bindings *bindings, const struct rp_view *view);

bool rp_lowering_same_view(const struct rp_view *a, const struct rp_view *b);

/* True when an operator from `at` on reads the tensor before somebody writes it anew. */
bool rp_lowering_is_read(const struct rp_program *program, uint32_t at, int32_t tensor);

/* linear, then add of its output to an f32 residual in place, when nobody else reads that output. */
bool rp_lowering_is_linear_add(const struct rp_program *program, uint32_t at, uint32_t end);

/* Rows of the widest matrix of a linear. */
uint32_t rp_lowering_widest_linear(const struct rp_program *program);

/* gate_up: what operator `at` gives goes through an activation. */
bool rp_lowering_feeds_activation(const struct rp_program *program, uint32_t at);

/* True when the first `rows` rows of these may have a byte in common. */
bool rp_lowering_overlap(const struct rp_values *a, const struct rp_values *b, size_t rows);

/* A gather and the norm that alone reads it. */
bool rp_lowering_is_gather_norm(const struct rp_program *program, uint32_t at, uint32_t end);

/* A sum into an f32 residual and the norm of its whole rows; or a gather between them, behind which nobody reads the
 * residual. How many operators these are, 2 or 3; 0: they are not there. */
uint32_t rp_lowering_add_norm(const struct rp_program *program, uint32_t at, uint32_t end);

/* A norm of whole f32 rows and a linear that alone reads it; what is normed is read again behind the linear, so
 * that it still lies there while the linear runs. */
bool rp_lowering_is_norm_linear(const struct rp_program *program, uint32_t at, uint32_t end);

/* [norm of q, norm of k,] rope of both, kv_write: columns of one f32 tensor, q then k then v. How many operators
 * these are; 0: they are not there. */
uint32_t rp_lowering_qkv_post(const struct rp_program *program, uint32_t at, uint32_t end);

/* Fills the info of a launch of ops [at, at + count): their names joined with '+', as far as they fit. */
void rp_lowering_name(struct rp_launch_info *info, const struct rp_program *program, uint32_t at,
                      uint32_t count, const char *kernel);

#endif
