/* rope.h - the angles of rotary position embedding, as a table.
 *
 *   angle(p, i) = p * f_i,  f_i = theta^(-2i / rotary_dim), scaled as the configuration says
 *   table[(p * pairs + i) * 2 + {0, 1}] = a * {cos, sin}(angle(p, i)),  pairs = rotary_dim / 2
 *
 * a is the attention factor of yarn and longrope, else 1. Computed in f64 and rounded once to f32.
 * (transformers multiplies in f32: at position 131,071 its angle is off by up to 2^-8 radians; ours
 * is the exact one.)
 * longrope has two sets of frequencies, for sequences within the original context and for longer
 * ones. A sequence that grew from the one into the other would have keys of both in its pages. So
 * the table chooses by the longest sequence that it can serve: a token's value then depends neither
 * on how long its sequence becomes nor on how it was cut into chunks.
 * Thread: any. */
#ifndef RP_MODEL_ROPE_H
#define RP_MODEL_ROPE_H

#include "model/model.h"

static inline uint32_t rp_rope_pairs(const struct rp_rope *rope, uint32_t head_dim) {
    return (rope->rotary_dim ? rope->rotary_dim : head_dim) / 2;
}

/* f_i for i in [0, pairs); positions: rows of the table. */
void rp_rope_frequencies(const struct rp_rope *rope, uint32_t head_dim, uint32_t positions,
                         double *out_frequencies);

/* table: (positions, pairs, {cos, sin}). */
void rp_rope_table_fill(const struct rp_rope *rope, uint32_t head_dim, uint32_t positions,
                        float *out_table);

/* table: (positions) 1 + beta * ln(1 + floor(p / original_max_position)). */
void rp_q_scale_table_fill(double beta, uint32_t original_max_position, uint32_t positions,
                           float *out_table);

#endif
