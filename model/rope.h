/* rope.h - the angles of rotary position embedding, as a table.
 *
 *   angle(p, i) = p * f_i,  f_i = theta^(-2i / head_dim), scaled as the configuration says
 *   table[(p * pairs + i) * 2 + {0, 1}] = {cos, sin}(angle(p, i)),  pairs = head_dim / 2
 *
 * Computed in f64 and rounded once to f32. (transformers multiplies in f32: at position 131,071 its
 * angle is off by up to 2^-8 radians; ours is the exact one.)
 * Thread: any. */
#ifndef RP_MODEL_ROPE_H
#define RP_MODEL_ROPE_H

#include "model/model.h"

/* f_i for i in [0, head_dim / 2). */
void rp_rope_frequencies(const struct rp_model_config *config, double *out_frequencies);

/* table: (positions, head_dim / 2, {cos, sin}). */
void rp_rope_table_fill(const struct rp_model_config *config, uint32_t positions, float *out_table);

#endif
