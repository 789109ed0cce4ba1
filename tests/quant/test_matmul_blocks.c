/* Goal: GEMMs on blocks follow matrix.h for every type: with f32 inputs, and 4-bit weights with
 * bf16 inputs, they have the bits of an f32 matrix of the same values, with 8-bit inputs the same
 * bits on every instruction set, and a row never depends on its batch. Method: random blocks in
 * matrices of mixed parts.
 *
 * `--dequantize TYPE IN OUT` writes the values of a file of blocks as f32 (tests/oracle). */
#include "base/bf16.h"
#include "base/memory.h"
#include "device/ops_simd.h"
#include "quant/matmul.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define M_MAX   99
#define N_MAX   130
#define K_MAX   800
#define PAD     3
#define WORKERS 3

static const uint32_t types[] = {
#define X(name, number, block, bytes) number,
    RP_BLOCK_TYPE_MAP(X)
#undef X
};

struct fixture {
    uint32_t n, k, seed;
    struct rp_matrix plain, packed, f32;
    float in[M_MAX * (K_MAX + PAD)];
    uint16_t half[M_MAX * (K_MAX + PAD)];
    float bias[N_MAX];
    float out[2][M_MAX * (N_MAX + PAD)];
    unsigned char *scratch;
    size_t scratch_bytes;
};

static uint32_t next_bits(struct fixture *f) {
    f->seed ^= f->seed << 13;
    f->seed ^= f->seed >> 17;
    f->seed ^= f->seed << 5;
    return f->seed;
}

static float next_value(struct fixture *f) { return (float)(int32_t)next_bits(f) * 0x1p-31f; }

static int setup(void **state) {
    struct fixture *f = rp_calloc(1, sizeof *f);
    *state = f;
    if (f)
        f->seed = 815;
    return f ? 0 : -1;
}

static void drop(struct fixture *f) {
    rp_matrix_deinit(&f->plain);
    rp_matrix_deinit(&f->packed);
    rp_matrix_deinit(&f->f32);
    rp_free_aligned(f->scratch);
    f->scratch = NULL;
}

static int teardown(void **state) {
    drop(*state);
    rp_free(*state);
    return 0;
}

/* f16 numbers of about 1/64 in place of random bits. */
static void set_scales(struct fixture *f, uint32_t type, unsigned char *block) {
    uint32_t at = type == RP_BLOCK_Q2_K ? 80 : type == RP_BLOCK_Q3_K ? 108 : 0;
    uint32_t count = type == RP_BLOCK_Q4_1 || type == RP_BLOCK_Q5_1 || type == RP_BLOCK_Q2_K ||
                             type == RP_BLOCK_Q4_K || type == RP_BLOCK_Q5_K
                         ? 2
                         : 1;
    if (type == RP_BLOCK_Q6_K)
        at = 208;
    if (type == RP_BLOCK_MXFP4) {
        block[0] = (unsigned char)(118 + next_bits(f) % 4);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        block[at + 2 * i] = (unsigned char)next_bits(f);
        block[at + 2 * i + 1] = (unsigned char)(0x24 + (next_bits(f) & 3));
        if (count == 1 && next_bits(f) % 5 == 0)
            block[at + 1] |= 0x80;
    }
}

static void fill(struct fixture *f, const struct rp_matrix_part *part, unsigned char *to) {
    struct rp_block_info info = rp_block_info(part->type);
    size_t blocks = (size_t)part->rows * f->k / info.values;
    for (size_t b = 0; b < blocks; b++, to += info.bytes) {
        float value = next_value(f) * 0.1f;
        uint16_t bits = part->type == RP_BLOCK_BF16 ? rp_f32_to_bf16(value)
                                                    : (uint16_t)(0x2400 | (next_bits(f) & 0x83FF));
        for (uint32_t i = 0; i < info.bytes; i++)
            to[i] = (unsigned char)(next_bits(f) >> 8);
        if (part->type == RP_BLOCK_F32)
            memcpy(to, &value, sizeof value);
        else if (info.values == 1)
            memcpy(to, &bits, sizeof bits);
        else
            set_scales(f, part->type, to);
    }
}

/* Three parts of the given types: rows n0, n1, n2. */
static void make(struct fixture *f, enum rp_matrix_input input, uint32_t k, const uint32_t n[3],
                 const uint32_t type[3]) {
    drop(f);
    f->k = k;
    f->n = n[0] + n[1] + n[2];
    f->plain =
        (struct rp_matrix){.rows = f->n, .cols = k, .dtype = RP_DTYPE_BLOCKS, .input = input};
    uint32_t row = 0;
    for (uint32_t i = 0; i < 3; i++)
        if (n[i]) {
            f->plain.parts[f->plain.part_count++] =
                (struct rp_matrix_part){.row_begin = row, .rows = n[i], .type = type[i]};
            row += n[i];
        }
    size_t bytes = rp_matrix_bytes(&f->plain);
    f->plain.data = rp_alloc_aligned(bytes, 64);
    for (uint32_t i = 0; i < f->plain.part_count; i++)
        fill(f, &f->plain.parts[i],
             (unsigned char *)f->plain.data + rp_matrix_part_offset(&f->plain, i));
    f->packed = f->plain;
    f->packed.data = rp_alloc_aligned(bytes, 64);
    memcpy(f->packed.data, f->plain.data, bytes);
    assert_int_equal(rp_matrix_prepare_cpu(&f->packed, RP_ISA_AVX2, NULL), RP_OK);
    f->f32 = (struct rp_matrix){.rows = f->n, .cols = k, .dtype = RP_DTYPE_F32};
    f->f32.data = rp_alloc_aligned((size_t)f->n * k * sizeof(float), 64);
    for (uint32_t i = 0; i < f->n; i++) {
        float again[K_MAX];
        rp_matrix_row_f32(&f->plain, i, (float *)f->f32.data + (size_t)i * k);
        rp_matrix_row_f32(&f->packed, i, again);
        assert_memory_equal(again, (float *)f->f32.data + (size_t)i * k, k * sizeof *again);
    }
    assert_int_equal(rp_matrix_prepare_cpu(&f->f32, RP_ISA_AVX2, NULL), RP_OK);
    f->scratch_bytes = rp_matmul_scratch_bytes(&f->plain, M_MAX);
    f->scratch = rp_alloc_aligned(f->scratch_bytes * WORKERS + 64, 64);
    memset(f->scratch, 0xFF, f->scratch_bytes * WORKERS);
    for (size_t i = 0; i < RP_ARRAY_COUNT(f->in); i++) {
        bool used = i % (k + PAD) < k;
        f->half[i] = rp_f32_to_bf16(used ? next_value(f) * 3 : NAN);
        f->in[i] = rp_bf16_to_f32(f->half[i]);
    }
    for (uint32_t i = 0; i < f->n; i++)
        f->bias[i] = next_value(f);
}

static struct rp_matmul_args args_of(struct fixture *f, const struct rp_matrix *weight,
                                     float *out) {
    bool half = rp_matrix_input_dtype(weight) == RP_DTYPE_BF16;
    return (struct rp_matmul_args){.weight = weight,
                                   .in = half ? (const void *)f->half : f->in,
                                   .out = out,
                                   .in_stride = f->k + PAD,
                                   .out_stride = f->n + PAD,
                                   .out_dtype = RP_DTYPE_F32,
                                   .scratch = f->scratch_bytes ? f->scratch : NULL,
                                   .scratch_bytes = f->scratch_bytes};
}

static void run(enum rp_cpu_isa isa, const struct rp_matmul_args *args, uint32_t m,
                uint32_t workers) {
    rp_matmul_fn fn = rp_matmul_select(isa, args->weight);
    for (uint32_t w = 0; w < workers; w++) {
        struct rp_cpu_worker worker = {.index = w, .count = workers};
        fn(args, m, &worker);
    }
}

static void expect_equal(struct fixture *f, uint32_t m, int isa, const char *what) {
    for (size_t row = 0; row < m; row++)
        for (size_t n = 0; n < f->n + PAD; n++) {
            size_t at = row * (f->n + PAD) + n;
            if (memcmp(&f->out[0][at], &f->out[1][at], sizeof(float)) != 0)
                fail_msg("%s: type %s isa %d k %u row %zu output %zu: %.9g and %.9g", what,
                         rp_block_info(f->plain.parts[0].type).name, isa, f->k, row, n,
                         (double)f->out[0][at], (double)f->out[1][at]);
        }
}

static const uint32_t rows_of[][3] = {{33, 0, 0}, {16, 48, 7}, {1, 17, 32}};

/* Each type as the first part, others behind it. */
#define FOR_TYPES(f, input, k256)                                                                  \
    for (uint32_t t = 0; t < RP_ARRAY_COUNT(types); t++)                                           \
        for (uint32_t s = 0; s < RP_ARRAY_COUNT(rows_of); s++)                                     \
            if (make(f, input, rp_block_info(types[t]).values == 256 || s > 0 ? (k256) : 288,      \
                     rows_of[s],                                                                   \
                     (uint32_t[]){types[t], types[(t + 5) % RP_ARRAY_COUNT(types)],                \
                                  types[(t + 9) % RP_ARRAY_COUNT(types)]}),                        \
                true)

static void test_f32_inputs_give_the_bits_of_an_f32_matrix_of_the_same_values(void **state) {
    struct fixture *f = *state;
    static const uint32_t batches[] = {1, 7, 99};
    FOR_TYPES(f, RP_INPUT_PLAIN, 512) {
        uint32_t m = batches[s];
        struct rp_matmul_args args = args_of(f, &f->f32, f->out[0]);
        memset(f->out, 0xFF, sizeof f->out);
        run(RP_ISA_AVX2, &args, m, 1);
        for (int isa = RP_ISA_SCALAR - 1; isa <= (int)rp_cpu_isa_detect(); isa++) {
            memset(f->out[1], 0xFF, sizeof f->out[1]);
            args = args_of(f, isa < RP_ISA_SCALAR ? &f->plain : &f->packed, f->out[1]);
            run((enum rp_cpu_isa)RP_MAX(isa, RP_ISA_SCALAR), &args, m, WORKERS);
            if (rp_cpu_isa_detect() != RP_ISA_SCALAR)
                expect_equal(f, m, isa, "f32");
        }
    }
}

static void check_rounding(struct fixture *f, uint32_t m) {
    double error = 0, norm = 0;
    struct rp_matmul_args args = args_of(f, &f->f32, f->out[1]);
    run(rp_cpu_isa_detect(), &args, m, 1);
    for (size_t row = 0; row < m; row++)
        for (size_t n = 0; n < f->n; n++) {
            size_t at = row * (f->n + PAD) + n;
            double want = (double)f->out[1][at], got = (double)f->out[0][at];
            error += (got - want) * (got - want);
            norm += want * want;
        }
    /* A rounding of 1/254 of the largest of 32 inputs, independent from one to the next. */
    if (!(sqrt(error / norm) < 2e-2))
        fail_msg("type %s: error %g", rp_block_info(f->plain.parts[0].type).name,
                 sqrt(error / norm));
}

static void
test_8_bit_inputs_give_the_same_bits_in_every_batch_team_and_instruction_set(void **state) {
    struct fixture *f = *state;
    FOR_TYPES(f, RP_INPUT_QUANTIZED, 768) {
        uint32_t m = s == 1 ? 99 : 15;
        struct rp_matmul_args args = args_of(f, &f->plain, f->out[0]);
        memset(f->out, 0xFF, sizeof f->out);
        run(RP_ISA_SCALAR, &args, s == 1 ? 3 : m, 1);
        m = s == 1 ? 3 : m;
        for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
            memset(f->out[1], 0xFF, sizeof f->out[1]);
            args = args_of(f, &f->packed, f->out[1]);
            run((enum rp_cpu_isa)isa, &args, m, WORKERS);
            expect_equal(f, m, isa, "8 bits");
            for (uint32_t row = 0; row < m; row++) { /* each row alone */
                struct rp_matmul_args one = args;
                one.in = f->half + row * (f->k + PAD);
                one.out = f->out[1] + row * (f->n + PAD);
                run((enum rp_cpu_isa)isa, &one, 1, 1);
            }
            expect_equal(f, m, isa, "a row alone");
            for (uint32_t row = 0; row + 2 <= m; row += 2) {
                struct rp_matmul_args two = args;
                two.in = f->half + row * (f->k + PAD);
                two.out = f->out[1] + row * (f->n + PAD);
                run((enum rp_cpu_isa)isa, &two, 2, 1);
            }
            expect_equal(f, m, isa, "two rows alone");
        }
        if (rp_cpu_isa_detect() != RP_ISA_SCALAR && s == 1) { /* more rows than a block */
            args.out = f->out[0];
            run(rp_cpu_isa_detect(), &args, 99, 2);
            memcpy(f->out[1], f->out[0], sizeof f->out[1]);
            args.in = f->half + 97 * (f->k + PAD);
            args.out = f->out[1] + 97 * (f->n + PAD);
            run(RP_ISA_AVX2, &args, 2, 1);
            expect_equal(f, 99, RP_ISA_AVX2, "the second block of rows");
        }
        check_rounding(f, m);
    }
}

static void test_bias_accumulation_and_activation_follow_the_product(void **state) {
    struct fixture *f = *state;
    static float sums[9 * (N_MAX + PAD)], gated[9 * (N_MAX + PAD)];
    const uint32_t n[3] = {48, 48, 0}, type[3] = {RP_BLOCK_Q4_K, RP_BLOCK_Q6_K, 0};
    for (int input = RP_INPUT_PLAIN; input <= RP_INPUT_QUANTIZED; input++) {
        make(f, (enum rp_matrix_input)input, 256, n, type);
        for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++) {
            struct rp_matmul_args args = args_of(f, &f->packed, sums);
            args.bias = f->bias;
            run((enum rp_cpu_isa)isa, &args, 9, 2);
            args.accumulate = true;
            args.out = f->out[0];
            memset(f->out, 0, sizeof f->out);
            run((enum rp_cpu_isa)isa, &args, 9, 2);
            args.accumulate = false;
            args.gated = true;
            args.fn = RP_ACTIVATION_SILU;
            args.out = gated;
            assert_true(rp_matmul_gates(&f->packed));
            run((enum rp_cpu_isa)isa, &args, 9, 2);
            for (size_t row = 0; row < 9; row++) {
                float *at = &sums[row * (f->n + PAD)], want[48];
                assert_memory_equal(at, &f->out[0][row * (f->n + PAD)], f->n * sizeof *at);
                rp_fast_ops_select((enum rp_cpu_isa)isa)
                    ->gate(RP_ACTIVATION_SILU, at, at + 48, 48, want, RP_DTYPE_F32);
                assert_memory_equal(want, &gated[row * (f->n + PAD)], sizeof want);
            }
        }
    }
}

static void test_panels_have_the_bytes_of_the_file(void **state) {
    struct fixture *f = *state;
    for (uint32_t t = 0; t < RP_ARRAY_COUNT(types); t++) {
        const uint32_t n[3] = {32, 16, 0}, type[3] = {types[t], types[t], 0};
        make(f, RP_INPUT_PLAIN, 256, n, type);
        assert_int_equal(rp_matrix_bytes(&f->packed), 48 * rp_blocks_row_bytes(types[t], 256));
        assert_int_equal(f->packed.layout, RP_LAYOUT_PANEL_16);
    }
}

static void test_scales_that_are_no_numbers_are_found(void **state) {
    struct fixture *f = *state;
    for (uint32_t t = 0; t < RP_ARRAY_COUNT(types); t++) {
        const uint32_t n[3] = {1, 0, 0}, type[3] = {types[t], 0, 0};
        struct rp_block_info info = rp_block_info(types[t]);
        size_t bad, found = 0;
        make(f, RP_INPUT_PLAIN, 512, n, type);
        unsigned char *data = f->plain.data;
        size_t blocks = 512 / info.values, last = (blocks - 1) * info.bytes;
        assert_true(rp_blocks_finite(types[t], data, blocks, &bad));
        for (uint32_t i = 0; i < info.bytes; i++) { /* bytes that make some field infinite */
            unsigned char before = data[last + i];
            data[last + i] = 0xFF;
            if (!rp_blocks_finite(types[t], data, blocks, &bad)) {
                found++;
                assert_int_equal(bad, blocks - 1);
            }
            data[last + i] = before;
        }
        if (types[t] != RP_BLOCK_F32 && types[t] != RP_BLOCK_BF16)
            assert_true(found >= 1 && found <= 2);
    }
}

static int dequantize(char **argv) {
    unsigned char block[RP_BLOCK_BYTES_MAX];
    float values[RP_BLOCK_VALUES_MAX];
    uint32_t type = (uint32_t)strtoul(argv[2], NULL, 10);
    struct rp_block_info info = rp_block_info(type);
    FILE *in = fopen(argv[3], "rb"), *out = fopen(argv[4], "wb");
    if (!in || !out || !info.name)
        return 1;
    while (fread(block, 1, info.bytes, in) == info.bytes) {
        rp_blocks_to_f32(type, block, 1, values);
        fwrite(values, sizeof *values, info.values, out);
    }
    fclose(in);
    return fclose(out) == 0 ? 0 : 1;
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "--dequantize") == 0)
        return dequantize(argv);
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_f32_inputs_give_the_bits_of_an_f32_matrix_of_the_same_values),
        TEST(test_8_bit_inputs_give_the_same_bits_in_every_batch_team_and_instruction_set),
        TEST(test_bias_accumulation_and_activation_follow_the_product),
        TEST(test_panels_have_the_bytes_of_the_file),
        TEST(test_scales_that_are_no_numbers_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
