/* Goal: tiles (quant/tiles.h) hold the weights of blocks of every type, rounded to bf16. Method:
 * random blocks, packed and read back; rows and columns past the matrix are zeros. */
#include "base/bf16.h"
#include "quant/matmul.h"
#include "quant/tiles.h"
#include "tests/support/random_blocks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROWS 37
#define COLS 1315

struct packed {
    struct rp_matrix rows, tiles;
};

static struct packed make(const uint32_t *types, uint32_t parts) {
    uint32_t seed = 815;
    struct packed p = {.rows = {.rows = ROWS, .cols = COLS, .dtype = RP_DTYPE_BLOCKS}};
    p.rows.part_count = parts;
    for (uint32_t i = 0; i < parts; i++) {
        uint32_t begin = ROWS / parts * i, end = i + 1 == parts ? ROWS : ROWS / parts * (i + 1);
        p.rows.parts[i] =
            (struct rp_matrix_part){.row_begin = begin, .rows = end - begin, .type = types[i]};
        if (types[i] == RP_BLOCK_NVFP4)
            p.rows.parts[i].factor = 0.02f;
    }
    unsigned char *at = malloc(rp_matrix_bytes(&p.rows));
    assert_non_null(at);
    p.rows.data = at;
    for (uint32_t i = 0; i < parts; i++) {
        struct rp_block_info info = rp_block_info(types[i]);
        size_t count = p.rows.parts[i].rows * (size_t)RP_CEIL_DIV((uint32_t)COLS, info.values);
        for (size_t b = 0; b < count; b++, at += info.bytes)
            random_block(types[i], at, &seed);
    }
    p.tiles = p.rows;
    p.tiles.layout = RP_LAYOUT_TILES;
    p.tiles.data = malloc(rp_matrix_bytes(&p.tiles));
    assert_non_null(p.tiles.data);
    assert_int_equal(rp_tiles_pack(&p.rows, p.tiles.data), RP_OK);
    return p;
}

static void drop(struct packed *p) {
    free(p->rows.data);
    free(p->tiles.data);
}

/* Relative difference of all weights of rows [begin, end). */
static double rounding(const struct packed *p, uint32_t begin, uint32_t end) {
    static float exact[COLS];
    double difference = 0, size = 0;
    for (uint32_t n = begin; n < end; n++) {
        rp_matrix_row_f32(&p->rows, n, exact);
        for (uint32_t k = 0; k < COLS; k++) {
            float value = rp_tiles_weight(&p->tiles, n, k);
            assert_true(value == rp_round_bf16(value));
            difference += pow((double)value - exact[k], 2);
            size += (double)exact[k] * exact[k];
        }
    }
    return sqrt(difference / size);
}

/* Two roundings of 2^-9 at most, each with an average of a third of its square. */
static void weights_of_every_type_are_rounded_to_bf16(void **state) {
    (void)state;
    for (size_t i = 0; i < RANDOM_BLOCK_TYPES; i++) {
        struct packed p = make(&random_block_types[i], 1);
        double error = rounding(&p, 0, ROWS);
        if (error > 2.8e-3)
            fail_msg("%s: %g", rp_block_info(random_block_types[i]).name, error);
        drop(&p);
    }
}

static void powers_of_two_as_scales_are_exact(void **state) {
    (void)state;
    const uint32_t type = RP_BLOCK_MXFP4;
    struct packed p = make(&type, 1);
    assert_true(rounding(&p, 0, ROWS) == 0);
    drop(&p);
}

static float value_of_half(uint32_t half) {
    uint32_t bits = half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A register as the GPU makes it: a word turned and masked. */
static uint32_t fp4_register(const uint32_t *words, uint32_t r) {
    uint32_t by = RP_TILE_FP4_ROTATIONS >> 4 * r & 15, word = words[r / 4];
    if (r % 4 == 3)
        word = (words[0] & RP_TILE_FP4_FIRST) | (words[1] & ~RP_TILE_FP4_FIRST);
    return (by ? word << by | word >> (32 - by) : word) & RP_TILE_FP4_MASK;
}

static void fp4_codes_become_registers_of_bf16(void **state) {
    (void)state;
    static const uint32_t types[2] = {RP_BLOCK_MXFP4, RP_BLOCK_NVFP4};
    for (uint32_t t = 0; t < 2; t++) {
        struct packed p = make(&types[t], 1);
        struct rp_tile_format format = rp_tile_format_of(types[t]);
        uint32_t groups = RP_TILE_COLS / format.group, tiles = RP_CEIL_DIV(COLS, RP_TILE_COLS);
        for (uint32_t n = 0; n < ROWS; n++)
            for (uint32_t k = 0; k < COLS; k++) {
                uint32_t in = n % RP_TILE_ROWS, at = k % RP_TILE_COLS, words[2];
                const unsigned char *tile =
                    (const unsigned char *)p.tiles.data +
                    (n / RP_TILE_ROWS * tiles + k / RP_TILE_COLS) * rp_tile_bytes(format);
                const unsigned char *codes = tile + rp_tile_scale_bytes(format.kind, format.group) +
                                             at / 64 * 512 + in / 8 * 256 +
                                             (in % 8 * 4 + k % 8 / 2) * 8;
                uint16_t scale;
                memcpy(&scale, tile + 2 * (in * groups + at / format.group), sizeof scale);
                memcpy(words, codes, sizeof words);
                uint32_t pair = fp4_register(words, at % 64 / 16 * 2 + k % 16 / 8);
                float value = value_of_half(pair >> 16 * (k % 2) & 0xFFFF) * 0x1p126f;
                assert_true(rp_round_bf16(value * value_of_half(scale)) ==
                            rp_tiles_weight(&p.tiles, n, k));
            }
        drop(&p);
    }
}

static void parts_have_panels_of_their_own(void **state) {
    (void)state;
    const uint32_t types[3] = {RP_BLOCK_Q6_K, RP_BLOCK_INT4 + 18, RP_BLOCK_Q8_0};
    struct packed p = make(types, 3);
    for (uint32_t i = 0; i < 3; i++) {
        const struct rp_matrix_part *part = &p.tiles.parts[i];
        assert_true(rounding(&p, part->row_begin, part->row_begin + part->rows) < 2.8e-3);
        assert_int_equal(rp_tiles_part_bytes(part, COLS),
                         11u * rp_tile_bytes(rp_tile_format_of(types[i])));
    }
    drop(&p);
}

/* Row 36 is the fifth of its panel. */
static void rows_past_the_last_are_zero(void **state) {
    (void)state;
    const uint32_t type = RP_BLOCK_Q8_0;
    struct packed p = make(&type, 1);
    p.tiles.rows = p.tiles.parts[0].rows = 48;
    for (uint32_t n = ROWS; n < 48; n++)
        for (uint32_t k = 0; k < 11 * RP_TILE_COLS; k++)
            assert_true(rp_tiles_weight(&p.tiles, n, k) == 0);
    drop(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_of_every_type_are_rounded_to_bf16),
        cmocka_unit_test(powers_of_two_as_scales_are_exact),
        cmocka_unit_test(fp4_codes_become_registers_of_bf16),
        cmocka_unit_test(parts_have_panels_of_their_own),
        cmocka_unit_test(rows_past_the_last_are_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
