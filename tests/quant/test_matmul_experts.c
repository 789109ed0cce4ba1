/* Goal: experts' GEMMs give each choice of each row the bits of that row's GEMM with that expert's
 * matrix alone, and write nothing else.
 * Method: every type of weights, layout and instruction set of this machine; experts without rows,
 * with one, and with more than a block; outputs poisoned with NaN inside guards. The GEMM itself is
 * tested in test_matmul.c. */
#include "base/bf16.h"
#include "base/memory.h"
#include "quant/matmul_experts.h"
#include "quant/rounding/quantize.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define EXPERTS 6u
#define K       144u
#define EACH    160u /* rows of an expert: gates and ups are 5 panels each */
#define TOKENS  131u
#define USED    3u
#define CHOICES (TOKENS * USED)

struct format {
    enum rp_dtype dtype;
    enum rp_scale_kind scales;
    enum rp_matrix_input input;
    uint32_t each, k; /* rows and columns of an expert */
    uint32_t type;    /* of BLOCKS */
};

static const struct format formats[] = {
    {RP_DTYPE_F32, RP_SCALE_NONE, RP_INPUT_PLAIN, EACH, K, 0},
    {RP_DTYPE_F32, RP_SCALE_NONE, RP_INPUT_PLAIN, 32, 17, 0},
    {RP_DTYPE_BF16, RP_SCALE_NONE, RP_INPUT_PLAIN, EACH, K, 0},
    {RP_DTYPE_BF16, RP_SCALE_NONE, RP_INPUT_PLAIN, 32, 33, 0},
    {RP_DTYPE_INT8, RP_SCALE_CHANNEL, RP_INPUT_PLAIN, EACH, K, 0},
    {RP_DTYPE_INT8, RP_SCALE_CHANNEL, RP_INPUT_QUANTIZED, EACH, K + 3, 0},
    {RP_DTYPE_FP8_E4M3, RP_SCALE_CHANNEL, RP_INPUT_QUANTIZED, EACH, K, 0},
    {RP_DTYPE_FP8_E4M3, RP_SCALE_CHANNEL, RP_INPUT_PLAIN, 32, K + 1, 0},
    {RP_DTYPE_FP8_E4M3, RP_SCALE_BLOCK_128, RP_INPUT_QUANTIZED, 256, 272, 0},
    {RP_DTYPE_BLOCKS, RP_SCALE_NONE, RP_INPUT_BF16, EACH, 160, RP_BLOCK_MXFP4},
    {RP_DTYPE_BLOCKS, RP_SCALE_NONE, RP_INPUT_BF16, 32, 288, RP_BLOCK_MXFP4},
    {RP_DTYPE_BLOCKS, RP_SCALE_NONE, RP_INPUT_QUANTIZED, 32, 64, RP_BLOCK_Q8_0},
};

struct fixture {
    const struct format *format;
    struct rp_matrix weight, alone[EXPERTS]; /* of all experts; copies, one each */
    unsigned char *in, *out, *scratch;
    int32_t order[EXPERTS + 1 + CHOICES];
    uint32_t tokens;
    uint32_t seed;
};

static struct fixture f;

static uint32_t next_bits(void) {
    f.seed = f.seed * 1664525u + 1013904223u;
    return f.seed >> 8;
}

static float next_value(void) { return (float)(next_bits() % 4096) / 2048.0f - 1.0f; }

static void put(void *to, size_t at, float value, enum rp_dtype dtype) {
    if (dtype == RP_DTYPE_F32)
        ((float *)to)[at] = value;
    else
        ((uint16_t *)to)[at] = rp_f32_to_bf16(value);
}

static struct rp_matrix matrix_of(const struct format *format, uint32_t rows) {
    struct rp_matrix matrix = {.rows = rows,
                               .cols = format->k,
                               .dtype = format->dtype,
                               .scale_kind = format->scales,
                               .input = format->input,
                               .part_count = format->dtype == RP_DTYPE_BLOCKS,
                               .parts = {{.rows = rows, .type = format->type}}};
    size_t scales = rp_matrix_scale_count(&matrix);
    matrix.data = rp_alloc_aligned(rp_matrix_bytes(&matrix), 64);
    matrix.scales = scales ? rp_alloc_aligned(scales * sizeof(float), 64) : NULL;
    assert_true(matrix.data && (!scales || matrix.scales));
    return matrix;
}

static void make_weights(const struct format *format, enum rp_cpu_isa isa, bool panels) {
    f.format = format;
    f.weight = matrix_of(format, format->each * EXPERTS);
    bool blocks = format->dtype == RP_DTYPE_BLOCKS;
    size_t values = blocks ? rp_matrix_bytes(&f.weight) : (size_t)f.weight.rows * f.weight.cols;
    uint32_t block = blocks ? rp_block_info(format->type).bytes : 1;
    for (size_t i = 0; i < values; i++)
        if (blocks) /* scales: 2^-9 to 2^-2, or of f16 */
            ((uint8_t *)f.weight.data)[i] =
                (uint8_t)(i % block == 0                                    ? 118 + next_bits() % 8
                          : i % block == 1 && format->type == RP_BLOCK_Q8_0 ? 0x20
                                                                            : next_bits());
        else if (rp_dtype_bytes(format->dtype) == 1) /* no NaN of FP8 */
            ((uint8_t *)f.weight.data)[i] = (uint8_t)(next_bits() & 0xBF);
        else
            put(f.weight.data, i, next_value(), format->dtype);
    for (size_t i = 0; i < rp_matrix_scale_count(&f.weight); i++)
        ((float *)(uintptr_t)f.weight.scales)[i] = 0.01f + (float)(next_bits() % 64) / 512.0f;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        struct rp_matrix part = rp_matrix_slice(&f.weight, e * format->each, format->each);
        f.alone[e] = matrix_of(format, format->each);
        memcpy(f.alone[e].data, part.data, rp_matrix_bytes(&part));
        if (part.scales)
            memcpy((void *)(uintptr_t)f.alone[e].scales, part.scales,
                   rp_matrix_scale_count(&part) * sizeof(float));
        if (panels)
            assert_int_equal(rp_matrix_prepare_cpu(&f.alone[e], isa, NULL), RP_OK);
    }
    if (panels)
        assert_int_equal(rp_matrix_prepare_cpu(&f.weight, isa, NULL), RP_OK);
}

/* Expert 1 has no rows, expert 4 has one of every token, the others what is left. */
static void make_order(uint32_t tokens) {
    uint32_t count = 0;
    f.tokens = tokens;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        f.order[e] = (int32_t)count;
        for (uint32_t t = 0; t < tokens; t++)
            for (uint32_t r = 0; r < USED; r++) {
                uint32_t at = t % 4, own = r == 0 ? 4 : r == 1 ? (t == 5 ? 3 : 5 * (at == 1)) : 2;
                if (own == e)
                    f.order[EXPERTS + 1 + count++] = (int32_t)(t * USED + r);
            }
    }
    f.order[EXPERTS] = (int32_t)count;
    assert_int_equal(count, tokens * USED);
}

static void free_all(void) {
    rp_matrix_deinit(&f.weight);
    for (uint32_t e = 0; e < EXPERTS; e++)
        rp_matrix_deinit(&f.alone[e]);
    rp_free(f.in);
    rp_free(f.out);
    rp_free_aligned(f.scratch);
    f.in = f.out = f.scratch = NULL;
}

static int teardown(void **state) {
    (void)state;
    free_all();
    return 0;
}

struct job {
    struct rp_expert_matmul_args args;
};

static void run_job(void *arg, uint64_t unused, const struct rp_cpu_worker *worker) {
    (void)unused;
    rp_expert_matmul(&((struct job *)arg)->args, worker);
}

static uint32_t expert_at(uint32_t position) {
    uint32_t e = 0;
    while ((uint32_t)f.order[e + 1] <= position)
        e++;
    return e;
}

/* The row's GEMM with the expert's own matrix, by one worker. */
static void alone(const struct rp_matmul_args *like, enum rp_cpu_isa isa, uint32_t expert,
                  size_t in_row, unsigned char *out) {
    struct rp_matmul_args args = *like;
    struct rp_cpu_worker worker = {0, 1, NULL};
    size_t size = rp_dtype_bytes(rp_matrix_input_dtype(&f.alone[expert]));
    args.weight = &f.alone[expert];
    if (args.bias)
        args.bias += expert * args.weight->rows;
    args.scratch_bytes = rp_matmul_scratch_bytes(args.weight, 1);
    args.scratch = args.scratch_bytes ? rp_alloc_aligned(args.scratch_bytes, 64) : NULL;
    args.in = f.in + in_row * args.in_stride * size;
    args.out = out;
    rp_matmul_select(isa, args.weight)(&args, 1, &worker);
    rp_free_aligned(args.scratch);
}

static float biases[EXPERTS * 256];

static void check(enum rp_cpu_isa isa, bool down, struct rp_cpu_team *team, uint32_t workers) {
    const struct format *format = f.format;
    uint32_t outputs = down ? format->each : format->each / 2;
    enum rp_dtype out_dtype = down ? RP_DTYPE_F32 : RP_DTYPE_BF16;
    size_t size = rp_dtype_bytes(out_dtype), stride = outputs + 5, choices = f.tokens * USED;
    size_t bytes = choices * stride * size;
    struct job job = {.args = {.gemm = {.weight = &f.weight,
                                        .in = f.in,
                                        .in_stride = format->k + 3,
                                        .out_stride = stride,
                                        .out_dtype = out_dtype,
                                        .bias = format->k % 2 ? NULL : biases,
                                        .gated = !down,
                                        .fn = format->each > 32 ? RP_ACTIVATION_SILU
                                                                : RP_ACTIVATION_SWIGLU_CLAMPED},
                               .experts = EXPERTS,
                               .order = f.order,
                               .in_divisor = down ? 0 : USED,
                               .by_choice = down,
                               .isa = isa}};
    job.args.gemm.scratch_bytes = rp_expert_matmul_scratch_bytes(&f.weight, f.tokens);
    job.args.gemm.scratch = f.scratch = rp_alloc_aligned(job.args.gemm.scratch_bytes * workers, 64);
    f.out = rp_alloc(bytes + 128);
    assert_true(f.out && f.scratch);
    job.args.gemm.out = f.out + 64;
    memset(f.out, 0xFF, bytes + 128);
    uint64_t id;
    assert_int_equal(rp_cpu_team_submit(team, run_job, &job, 0, &id), RP_OK);
    assert_true(rp_cpu_team_wait(team, id, UINT64_MAX));

    unsigned char *expected = rp_alloc(stride * size);
    assert_non_null(expected);
    for (uint32_t position = 0; position < choices; position++) {
        uint32_t choice = (uint32_t)f.order[EXPERTS + 1 + position];
        size_t row = down ? choice : position;
        struct rp_matmul_args like = job.args.gemm;
        memset(expected, 0xFF, stride * size);
        alone(&like, isa, expert_at(position), down ? position : choice / USED, expected);
        assert_memory_equal(f.out + 64 + row * stride * size, expected, stride * size);
    }
    for (size_t i = 0; i < 64; i++)
        assert_true(f.out[i] == 0xFF && f.out[64 + bytes + i] == 0xFF);
    rp_free(expected);
    rp_free(f.out);
    rp_free_aligned(f.scratch);
    f.out = f.scratch = NULL;
}

static void check_format(const struct format *format, enum rp_cpu_isa isa, bool panels,
                         struct rp_cpu_team *team, uint32_t workers) {
    static const uint32_t token_counts[] = {1, 2, 7, TOKENS};
    make_weights(format, isa, panels);
    enum rp_dtype dtype = rp_matrix_input_dtype(&f.weight);
    f.in = rp_alloc((size_t)CHOICES * (format->k + 3) * 4);
    assert_non_null(f.in);
    for (size_t i = 0; i < (size_t)CHOICES * (format->k + 3); i++)
        put(f.in, i, i % (format->k + 3) < format->k ? next_value() : NAN, dtype);
    for (size_t t = 0; t < RP_ARRAY_COUNT(token_counts); t++) {
        if (isa == RP_ISA_SCALAR && token_counts[t] == TOKENS && format->each > 32)
            continue; /* the reference is slow, and has no blocks */
        make_order(token_counts[t]);
        for (int down = 0; down < 2; down++)
            check(isa, down, team, workers);
    }
    free_all();
}

static void test_each_choice_has_the_bits_of_its_row_alone(void **state) {
    (void)state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(biases); i++)
        biases[i] = 4 * next_value();
    for (uint32_t workers = 1; workers <= 3; workers += 2) {
        struct rp_cpu_team *team;
        assert_int_equal(rp_cpu_team_create(workers, &team, NULL), RP_OK);
        for (size_t i = 0; i < RP_ARRAY_COUNT(formats); i++)
            for (int isa = RP_ISA_SCALAR; isa <= (int)rp_cpu_isa_detect(); isa++)
                check_format(&formats[i], (enum rp_cpu_isa)isa, isa != RP_ISA_SCALAR, team,
                             workers);
        rp_cpu_team_destroy(team);
    }
}

static void test_a_step_without_rows_writes_nothing(void **state) {
    (void)state;
    struct rp_cpu_worker worker = {0, 1, NULL};
    make_weights(&formats[0], RP_ISA_SCALAR, false);
    memset(f.order, 0, sizeof f.order);
    struct rp_expert_matmul_args args = {
        .gemm = {.weight = &f.weight}, .experts = EXPERTS, .order = f.order};
    rp_expert_matmul(&args, &worker);
}

static void test_slices_are_whole_rows_with_their_scales(void **state) {
    (void)state;
    make_weights(&formats[8], RP_ISA_SCALAR, false);
    struct rp_matrix part = rp_matrix_slice(&f.weight, 256, 128);
    assert_int_equal(part.rows, 128);
    for (uint32_t row = 0; row < 128; row += 31)
        for (uint32_t k = 0; k < part.cols; k += 17) {
            assert_true(rp_matrix_quantized(&part, row, k) ==
                        rp_matrix_quantized(&f.weight, 256 + row, k));
            assert_true(rp_matrix_scale(&part, row, k) == rp_matrix_scale(&f.weight, 256 + row, k));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_each_choice_has_the_bits_of_its_row_alone, teardown),
        cmocka_unit_test_teardown(test_a_step_without_rows_writes_nothing, teardown),
        cmocka_unit_test_teardown(test_slices_are_whole_rows_with_their_scales, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
