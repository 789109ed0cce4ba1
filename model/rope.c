#include "model/rope.h"

#include <math.h>

/* Limit of head_dim in config.c. */
#define PAIRS_MAX 256

/* Llama 3: wavelengths that fit high_freq_factor times into the original context stay, those that
 * fit less than low_freq_factor times are stretched by factor, and between the two it fades
 * linearly. */
static double scale_llama3(const struct rp_model_config *config, double frequency) {
    double context = config->rope_original_max_position;
    double low = config->rope_low_freq_factor, high = config->rope_high_freq_factor;
    double turns = context * frequency / (2.0 * 3.14159265358979323846);
    double stretched = frequency / config->rope_factor;
    if (turns < low)
        return stretched;
    if (turns > high)
        return frequency;
    double smooth = (turns - low) / (high - low);
    return (1.0 - smooth) * stretched + smooth * frequency;
}

void rp_rope_frequencies(const struct rp_model_config *config, double *out_frequencies) {
    for (uint32_t i = 0; i < config->head_dim / 2; i++) {
        double frequency = pow(config->rope_theta, -2.0 * i / config->head_dim);
        switch (config->rope) {
        case RP_ROPE_DEFAULT:
            break;
        case RP_ROPE_LINEAR:
            frequency /= config->rope_factor;
            break;
        case RP_ROPE_LLAMA3:
            frequency = scale_llama3(config, frequency);
            break;
        case RP_ROPE_FACTORS:
            frequency /= (double)config->rope_factors[i];
            break;
        }
        out_frequencies[i] = frequency;
    }
}

void rp_rope_table_fill(const struct rp_model_config *config, uint32_t positions,
                        float *out_table) {
    double frequencies[PAIRS_MAX];
    uint32_t pairs = config->head_dim / 2;
    RP_ASSERT_CMP(pairs, <=, PAIRS_MAX);
    rp_rope_frequencies(config, frequencies);
    for (uint32_t position = 0; position < positions; position++)
        for (uint32_t i = 0; i < pairs; i++) {
            double angle = position * frequencies[i];
            *out_table++ = (float)cos(angle);
            *out_table++ = (float)sin(angle);
        }
}
