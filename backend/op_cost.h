/* op_cost.h - bytes and operations of an operator, from its shapes alone: the roofline's two
 * numbers. Weights count once per launch (they are streamed), activations once read and once
 * written, K and V of attention kv_tokens per row. A multiply-add is two operations. Thread:
 * any. */
#ifndef RP_BACKEND_OP_COST_H
#define RP_BACKEND_OP_COST_H

#include "device/device.h"

struct rp_cost rp_op_cost(const struct rp_program *program, const struct rp_op *op,
                          const struct rp_bucket *bucket, enum rp_dtype kv_dtype,
                          uint32_t kv_tokens);

/* Weights that a GEMM reads, with their scales: of experts those that the bucket's choices touch
 * if each is equally likely. 0: no GEMM. */
uint64_t rp_op_weight_bytes(const struct rp_program *program, const struct rp_op *op,
                            const struct rp_bucket *bucket);

#endif
