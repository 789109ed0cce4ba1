/* fuzz_mask.c - any bytes as a mask program.
 *
 * What is refused says a column and a hint. What is accepted prints as a text that reads as itself,
 * has no behavior that is undefined anywhere in its limits, and its tiles are what its pairs
 * are. */
#include "attention/mask/mask.h"
#include "attention/mask/mask_source.h"
#include "tests/fuzz/fuzz_input.h"

#include <string.h>

static const struct rp_mask_limits limits = {.length = 2000, .heads = 5, .layers = 3};

static void check_text(const struct rp_mask *mask) {
    struct rp_mask *again = NULL;
    const char *text = rp_mask_text(mask);
    RP_ASSERT(rp_mask_parse(text, strlen(text), &limits, &again, NULL) == RP_OK);
    RP_ASSERT(strcmp(rp_mask_text(again), text) == 0);
    RP_ASSERT(rp_mask_is_causal(again) == rp_mask_is_causal(mask));
    rp_mask_free(again);
}

static void check_tile(const struct rp_mask *mask, const struct rp_mask_tile *tile,
                       const int32_t *params) {
    enum rp_mask_class class = rp_mask_classify(mask, tile, params);
    bool any = false, all = true, seen[64];
    float scores[64] = {0.0f};
    struct rp_mask_pair p = {.layer = tile->layer};
    for (p.h = tile->h_begin; p.h < tile->h_end; p.h++)
        for (p.q = tile->q_begin; p.q < tile->q_end; p.q++) {
            uint32_t count = (uint32_t)(tile->kv_end - tile->kv_begin);
            p.kv = tile->kv_begin;
            rp_mask_sees_keys(mask, &p, params, count, seen);
            rp_mask_score_keys(mask, &p, params, count, scores);
            for (; p.kv < tile->kv_end; p.kv++) {
                bool sees = rp_mask_sees(mask, &p, params);
                RP_ASSERT(sees == seen[p.kv - tile->kv_begin]);
                RP_ASSERT(!sees || p.kv <= p.q || !rp_mask_is_causal(mask));
                any |= sees;
                all &= sees;
            }
        }
    RP_ASSERT(class == (any && !all ? RP_MASK_PARTIAL : any ? RP_MASK_FULL : RP_MASK_SKIP));
}

static void check_program(const struct rp_mask *mask, uint32_t layer) {
    static const int32_t begins[] = {0, 57, 1000, 2040}; /* proofs go on to 2048 */
    int32_t params[RP_MASK_PARAMS_MAX];
    for (int ends = 0; ends < 2; ends++)
        for (size_t i = 0; i < RP_ARRAY_COUNT(begins); i++)
            for (size_t k = 0; k < RP_ARRAY_COUNT(begins); k++) {
                struct rp_mask_tile tile = {.q_begin = begins[i],
                                            .q_end = begins[i] + 5,
                                            .kv_begin = begins[k],
                                            .kv_end = begins[k] + 8,
                                            .h_begin = 0,
                                            .h_end = 5,
                                            .layer = (int32_t)layer};
                for (uint32_t p = 0; p < rp_mask_param_count(mask); p++)
                    params[p] = ends ? rp_mask_param(mask, p)->max : rp_mask_param(mask, p)->min;
                check_tile(mask, &tile, params);
            }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    struct rp_mask *mask = NULL, *layer = NULL;
    struct rp_error err = {.status = RP_OK};
    if (rp_mask_parse((const char *)bytes, len, &limits, &mask, &err) != RP_OK) {
        RP_ASSERT(strncmp(err.text, "column ", 7) == 0 && err.hint[0] != '\0');
        return 0;
    }
    check_text(mask);
    check_program(mask, 1);
    if (rp_mask_at_layer(mask, 2, &layer, &err) == RP_OK) {
        struct rp_buffer out;
        rp_buffer_init(&out, 0);
        rp_mask_source(layer, &out);
        rp_mask_print_tree(layer, &out);
        rp_buffer_deinit(&out);
        check_text(layer);
        check_program(layer, 2);
    }
    rp_mask_free(layer);
    rp_mask_free(mask);
    return 0;
}
