/* mask_program.h - random mask programs with an independent evaluator: it walks the tree that the
 * text is generated from, computes in 64 bits, reports undefined results, and shares no code with
 * attention/mask. */
#ifndef RP_TESTS_SUPPORT_MASK_PROGRAM_H
#define RP_TESTS_SUPPORT_MASK_PROGRAM_H

#include "attention/mask/mask.h"

#define MASK_PROGRAM_NODES  256
#define MASK_PROGRAM_PARAMS 3

struct mask_program_node {
    uint8_t kind;
    bool is_float;
    uint8_t count;
    uint16_t child[3];
    int32_t i;
    float f;
};

struct mask_program {
    struct rp_mask_limits limits;
    struct rp_mask_param params[MASK_PROGRAM_PARAMS];
    uint32_t param_count, node_count;
    uint16_t conditions[2], rules[2];
    uint32_t condition_count, rule_count;
    struct mask_program_node nodes[MASK_PROGRAM_NODES];
    char text[RP_MASK_TEXT_MAX + 1];
};

uint64_t mask_random(uint64_t *seed, uint64_t below);

/* False: it is too large; try the next seed. */
bool mask_program_random(uint64_t *seed, const struct rp_mask_limits *limits,
                         struct mask_program *out);
/* Within the ranges, with more weight on the ends. */
void mask_program_random_params(const struct mask_program *program, uint64_t *seed,
                                int32_t *params);

/* *undefined is set when an integer leaves +-(2^31 - 1) or a divisor is 0. */
bool mask_program_sees(const struct mask_program *program, const struct rp_mask_pair *pair,
                       const int32_t *params, bool *undefined);
float mask_program_score(const struct mask_program *program, const struct rp_mask_pair *pair,
                         const int32_t *params, float score, bool *undefined);

#endif
