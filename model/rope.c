#include "model/rope.h"

#include <math.h>

#define TWO_PI (2.0 * 3.14159265358979323846)

/* Llama 3: wavelengths that fit high_freq_factor times into the original context stay, those that
 * fit less than low_freq_factor times are stretched by factor, and between the two it fades
 * linearly. */
static double scale_llama3(const struct rp_rope *rope, double frequency) {
    double context = rope->original_max_position;
    double low = rope->low_freq_factor, high = rope->high_freq_factor;
    double turns = context * frequency / TWO_PI;
    double stretched = frequency / rope->factor;
    if (turns < low)
        return stretched;
    if (turns > high)
        return frequency;
    double smooth = (turns - low) / (high - low);
    return (1.0 - smooth) * stretched + smooth * frequency;
}

/* The pair, a fraction, whose angle turns `turns` times in the original context. */
static double pair_of_turns(const struct rp_rope *rope, uint32_t dim, double turns) {
    return dim * log(rope->original_max_position / (turns * TWO_PI)) / (2.0 * log(rope->theta));
}

/* YaRN (Peng et al. 2023): pairs that turn more than beta_fast times stay, those that turn less
 * than beta_slow times are stretched by factor, and it fades linearly in the pair's index. */
static void scale_yarn(const struct rp_rope *rope, uint32_t dim, double *frequencies) {
    double low = pair_of_turns(rope, dim, rope->beta_fast);
    double high = pair_of_turns(rope, dim, rope->beta_slow);
    if (!rope->whole_range) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, dim - 1.0);
    if (low == high)
        high += 0.001;
    for (uint32_t i = 0; i < dim / 2; i++) {
        double stretched = fmin(fmax((i - low) / (high - low), 0.0), 1.0);
        frequencies[i] =
            frequencies[i] * (1.0 - stretched) + frequencies[i] / rope->factor * stretched;
    }
}

void rp_rope_frequencies(const struct rp_rope *rope, uint32_t head_dim, uint32_t positions,
                         double *out_frequencies) {
    uint32_t pairs = rp_rope_pairs(rope, head_dim);
    const float *divisors =
        positions > rope->original_max_position ? rope->long_factor : rope->short_factor;
    for (uint32_t i = 0; i < pairs; i++) {
        double frequency = pow(rope->theta, -2.0 * i / (2.0 * pairs));
        if (rope->kind == RP_ROPE_LINEAR)
            frequency /= rope->factor;
        else if (rope->kind == RP_ROPE_LLAMA3)
            frequency = scale_llama3(rope, frequency);
        else if (rope->kind == RP_ROPE_LONGROPE)
            frequency /= (double)divisors[i];
        else if (rope->kind == RP_ROPE_PROPORTIONAL)
            frequency = i < rope->live_pairs ? frequency / rope->factor : 0.0;
        out_frequencies[i] = frequency;
    }
    if (rope->kind == RP_ROPE_YARN)
        scale_yarn(rope, 2 * pairs, out_frequencies);
}

void rp_rope_table_fill(const struct rp_rope *rope, uint32_t head_dim, uint32_t positions,
                        float *out_table) {
    double frequencies[RP_ROPE_PAIRS_MAX];
    double factor = rope->attention_factor > 0 ? rope->attention_factor : 1.0;
    uint32_t pairs = rp_rope_pairs(rope, head_dim);
    RP_ASSERT_CMP(pairs, <=, RP_ROPE_PAIRS_MAX);
    rp_rope_frequencies(rope, head_dim, positions, frequencies);
    for (uint32_t position = 0; position < positions; position++)
        for (uint32_t i = 0; i < pairs; i++) {
            double angle = position * frequencies[i];
            *out_table++ = (float)(factor * cos(angle));
            *out_table++ = (float)(factor * sin(angle));
        }
}

void rp_q_scale_table_fill(double beta, uint32_t original_max_position, uint32_t positions,
                           float *out_table) {
    for (uint32_t position = 0; position < positions; position++)
        out_table[position] = (float)(1.0 + beta * log(1.0 + position / original_max_position));
}
