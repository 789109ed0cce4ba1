/* Products on tensor cores: against f64, and bit for bit among tiles, batches and orders of work. */
#include "base/bf16.h"
#include "quant/matmul_internal_cuda.h"
#include "tests/support/gpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TOKENS_MAX 2304u

struct product {
    uint32_t max_rows, live, n, k;
    size_t in_stride, out_stride; /* 0: as narrow as can be */
    enum rp_dtype out_dtype;
    bool bias, accumulate, partials;
};

static struct {
    struct rp_gpu_step step;
    struct rp_cuda_limits limits;
    struct rp_arena memory;
    unsigned char *workspace;
    size_t workspace_bytes;
} env;

static int set_up(void **state) {
    (void)state;
    struct rp_step_config config = {.slot_count = 1,
                                    .pages_per_slot = 1,
                                    .row_capacity = 1,
                                    .token_capacity = TOKENS_MAX,
                                    .logit_row_capacity = TOKENS_MAX,
                                    .edit_capacity = 1,
                                    .prompt_ring_capacity = 64};
    rp_gpu_step_open(&env.step, &config);
    rp_gpu_limits(&env.limits);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    rp_gpu_step_close(&env.step);
    rp_arena_deinit(&env.memory);
    return 0;
}

static void free_buffers(void) {
    rp_gpu_free_all();
    env.workspace = NULL;
}

static uint32_t random_state = 1;
static float random_value(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return (float)(int32_t)random_state * 0x1p-31f;
}

static uint16_t *random_bf16(size_t count) {
    uint16_t *data = malloc(count * 2);
    for (size_t i = 0; i < count; i++)
        data[i] = rp_f32_to_bf16(random_value());
    return data;
}

/* Weights and tokens, on the host and on the device. */
struct data {
    uint16_t *weight, *in;
    float *bias, *old;
    struct rp_matrix matrix;
    void *in_device;
    float *bias_device;
};

static struct data make_data(const struct product *p) {
    size_t stride = p->in_stride ? p->in_stride : p->k;
    struct data d = {.weight = random_bf16((size_t)p->n * p->k),
                     .in = random_bf16(p->max_rows * stride)};
    d.bias = malloc(p->n * sizeof(float));
    for (uint32_t i = 0; i < p->n; i++)
        d.bias[i] = random_value();
    d.old = malloc((size_t)p->max_rows * p->n * sizeof(float));
    for (size_t i = 0; i < (size_t)p->max_rows * p->n; i++)
        d.old[i] = random_value() * 8;
    /* What lies past the live rows and between the rows is not a number. */
    for (size_t row = 0; row < p->max_rows; row++)
        for (size_t c = row < p->live ? p->k : 0; c < stride; c++)
            d.in[row * stride + c] = 0xFFFF;
    d.matrix = (struct rp_matrix){.rows = p->n, .cols = p->k, .dtype = RP_DTYPE_BF16};
    d.matrix.data = rp_gpu_upload(d.weight, (size_t)p->n * p->k * 2);
    d.in_device = rp_gpu_upload(d.in, p->max_rows * stride * 2);
    d.bias_device = rp_gpu_upload(d.bias, p->n * sizeof(float));
    return d;
}

static void free_data(struct data *d) {
    free(d->weight);
    free(d->in);
    free(d->bias);
    free(d->old);
}

static void set_live(uint32_t live) {
    env.step.host.counts->token_count = live;
    env.step.host.counts->logit_row_count = 0;
    rp_gpu_step_upload(&env.step);
}

/* Runs it `times` times and gives (max_rows, out_stride) as f32; rows past live must come back untouched. */
static float *run_product(const struct product *p, const struct data *d,
                          const struct rp_matmul_tile *tile, uint32_t segment, uint32_t times) {
    size_t out_stride = p->out_stride ? p->out_stride : p->n, count = p->max_rows * out_stride;
    size_t element = rp_dtype_bytes(p->out_dtype);
    if (!env.workspace) {
        env.workspace_bytes = rp_matmul_cuda_workspace_bytes(&env.limits, TOKENS_MAX, p->n);
        env.workspace = rp_gpu_zeroed(env.workspace_bytes);
    }
    float *result = malloc(count * sizeof(float));
    void *raw = malloc(count * element), *out;
    if (p->accumulate) {
        for (size_t row = 0; row < p->max_rows; row++)
            for (size_t c = 0; c < out_stride; c++)
                result[row * out_stride + c] =
                    row < p->live && c < p->n ? d->old[row * p->n + c] : NAN;
        out = rp_gpu_upload(result, count * element);
    } else {
        out = rp_gpu_poisoned(count * element);
    }
    struct rp_matmul_cuda op = {
        .rows = {.step = env.step.device, .rows = RP_ROWS_TOKEN, .max_rows = p->max_rows},
        .limits = env.limits,
        .weight = &d->matrix,
        .bias = p->bias ? d->bias_device : NULL,
        .in = d->in_device,
        .in_stride = p->in_stride ? p->in_stride : p->k,
        .out = {.data = out, .stride = out_stride, .dtype = p->out_dtype},
        .accumulate = p->accumulate,
        .partials_wanted = p->partials,
        .workspace = env.workspace,
        .workspace_bytes = env.workspace_bytes};
    struct rp_cuda_launch launch;
    struct rp_cuda_partials partials;
    struct rp_error err = {0};
    set_live(p->live);
    int status =
        tile ? rp_matmul_cuda_plan_tile(&op, tile, segment, &env.memory, &launch, &partials, &err)
             : rp_matmul_cuda_plan(&op, &env.memory, &launch, &partials, &err);
    if (status != RP_OK)
        fail_msg("(%u rows, %u, %u): %s", p->max_rows, p->n, p->k, err.text);
    for (uint32_t i = 0; i < times; i++)
        assert_int_equal(launch.run(launch.args, NULL), 0);
    rp_gpu_synchronize();
    if (partials.count > 0) {
        size_t bytes = partials.count * partials.split_stride * sizeof(float);
        float *all = malloc(bytes);
        rp_gpu_download(all, partials.data, bytes);
        for (size_t row = 0; row < p->max_rows; row++) {
            for (size_t c = 0; c < out_stride; c++) {
                float sum = NAN;
                if (row < p->live && c < p->n) {
                    sum = all[row * partials.row_stride + c];
                    for (uint32_t i = 1; i < partials.count; i++)
                        sum += all[i * partials.split_stride + row * partials.row_stride + c];
                    sum = p->bias ? sum + d->bias[c] : sum;
                }
                result[row * out_stride + c] = sum;
            }
        }
        free(all);
    } else {
        rp_gpu_download(raw, out, count * element);
        rp_to_f32(result, raw, p->out_dtype, count);
    }
    free(raw);
    for (size_t row = 0; row < p->max_rows; row++)
        for (size_t c = row < p->live ? p->n : 0; c < out_stride; c++)
            assert_true(isnan(result[row * out_stride + c]));
    rp_arena_reset(&env.memory);
    return result;
}

static void check_against_f64(const struct product *p, const struct data *d, const float *result) {
    size_t in_stride = p->in_stride ? p->in_stride : p->k;
    size_t out_stride = p->out_stride ? p->out_stride : p->n;
    double *column = malloc(p->k * sizeof(double));
    double difference = 0, size = 0;
    float *largest = calloc(p->live + 1, sizeof(float)),
          *worst = calloc(p->live + 1, sizeof(float));
    for (uint32_t c = 0; c < p->n; c++) {
        for (uint32_t i = 0; i < p->k; i++)
            column[i] = rp_bf16_to_f32(d->weight[(size_t)c * p->k + i]);
        for (uint32_t row = 0; row < p->live; row++) {
            double sum = p->bias ? d->bias[c] : 0;
            for (uint32_t i = 0; i < p->k; i++)
                sum += column[i] * rp_bf16_to_f32(d->in[row * in_stride + i]);
            if (p->accumulate)
                sum += d->old[(size_t)row * p->n + c];
            double got = result[row * out_stride + c];
            assert_false(isnan(got));
            difference += (got - sum) * (got - sum);
            size += sum * sum;
            largest[row] = fmaxf(largest[row], (float)fabs(sum));
            worst[row] = fmaxf(worst[row], (float)fabs(got - sum));
        }
    }
    double error = sqrt(difference / (size > 0 ? size : 1));
    if (error > (p->out_dtype == RP_DTYPE_F32 ? 1e-5 : 4e-3))
        fail_msg("(%u of %u rows, %u, %u): error %g", p->live, p->max_rows, p->n, p->k, error);
    for (uint32_t row = 0; row < p->live; row++)
        if (worst[row] > 8 * largest[row] / 256)
            fail_msg("row %u: %g beside %g", row, worst[row], largest[row]);
    free(column);
    free(largest);
    free(worst);
}

static void products_agree_with_f64(void **state) {
    (void)state;
    static const struct product products[] = {
        {1, 1, 64, 64, 0, 0, RP_DTYPE_F32, false, false, false},
        {1, 1, 1, 8, 0, 0, RP_DTYPE_F32, true, false, false},
        {3, 3, 65, 72, 80, 67, RP_DTYPE_F32, false, true, false},
        {7, 5, 127, 200, 0, 0, RP_DTYPE_BF16, true, false, false},
        {8, 8, 129, 1024, 0, 0, RP_DTYPE_F32, true, true, false},
        {8, 0, 129, 1024, 0, 0, RP_DTYPE_F32, true, true, false},
        {1, 1, 768, 4096, 0, 0, RP_DTYPE_F32, true, false, true},
        {17, 13, 333, 1096, 1104, 340, RP_DTYPE_F32, false, false, false},
        {32, 32, 4096, 512, 0, 0, RP_DTYPE_BF16, false, false, false},
        {48, 33, 200, 2048, 0, 0, RP_DTYPE_F32, true, false, true},
        {64, 64, 192, 640, 0, 0, RP_DTYPE_F32, false, true, false},
        {65, 65, 130, 1288, 0, 0, RP_DTYPE_F32, true, false, false},
        {128, 99, 1000, 520, 0, 0, RP_DTYPE_BF16, true, false, false},
        {130, 129, 200, 1640, 0, 201, RP_DTYPE_F32, true, true, false},
        {300, 257, 257, 328, 0, 0, RP_DTYPE_F32, false, false, false},
        {1100, 700, 136, 200, 0, 0, RP_DTYPE_BF16, false, false, false},
        {2048, 1025, 64, 320, 0, 0, RP_DTYPE_F32, true, false, false},
        {2048, 0, 64, 320, 0, 0, RP_DTYPE_F32, true, false, false},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(products); i++) {
        if (rp_gpu_is_tiny() && (size_t)products[i].n * products[i].k > 300000)
            continue;
        struct data d = make_data(&products[i]);
        float *result = run_product(&products[i], &d, NULL, 0, 1);
        check_against_f64(&products[i], &d, result);
        assert_true(rp_gpu_canaries_hold());
        free(result);
        free_data(&d);
        free_buffers();
    }
}

static const struct {
    uint32_t tokens, rows, boxes;
    bool eager;
} all_tiles[] = {
    {8, 64, 2, true},   {8, 64, 4, true},    {16, 64, 2, true},    {16, 64, 4, true},
    {32, 64, 2, true},  {32, 64, 4, true},   {8, 128, 2, true},    {16, 128, 2, true},
    {32, 128, 1, true}, {32, 128, 2, true},  {64, 128, 1, true},   {64, 128, 2, true},
    {64, 64, 2, true},  {128, 128, 1, true}, {128, 128, 1, false}, {192, 128, 1, false}};

static struct rp_matmul_tile tile_of(uint32_t tokens, uint32_t rows, uint32_t boxes, bool eager) {
    return (struct rp_matmul_tile){.tokens = tokens,
                                   .rows = rows,
                                   .boxes = boxes,
                                   .eager = eager,
                                   .shared_bytes = env.limits.shared_bytes_block};
}

/* (rows, n): how many rows of b differ from a's, which stand `shift` rows later there. */
static size_t rows_that_differ(const float *a, const float *b, uint32_t rows, uint32_t n) {
    size_t count = 0;
    for (uint32_t row = 0; row < rows; row++)
        count += memcmp(a + (size_t)row * n, b + (size_t)row * n, n * sizeof(float)) != 0;
    return count;
}

static void every_tile_and_order_gives_the_same_bits(void **state) {
    (void)state;
    static const struct {
        uint32_t rows, live, n, k, segment;
    } cases[] = {{300, 300, 1344, 2056, 512}, {200, 130, 1000, 1024, 128},
                 {64, 64, 4096, 960, 192},    {37, 37, 9000, 512, 512},
                 {130, 130, 200, 4096, 256},  {5, 5, 6144, 4096, 1024}};
    for (size_t c = 0; c < RP_ARRAY_COUNT(cases); c++) {
        struct product p = {.max_rows = cases[c].rows,
                            .live = cases[c].live,
                            .n = cases[c].n,
                            .k = cases[c].k,
                            .bias = true};
        bool tiny = rp_gpu_is_tiny();
        if (tiny && c > 1)
            continue;
        if (tiny) {
            p.live = p.max_rows = 72 - 32 * (uint32_t)c;
            p.n = 200;
        }
        struct data d = make_data(&p);
        float *first = NULL;
        for (size_t t = 0; t < RP_ARRAY_COUNT(all_tiles); t++) {
            for (int variant = 0; variant < 4; variant++) {
                if (tiny && variant % 2 != (int)(c + t) % 2)
                    continue;
                struct rp_matmul_tile tile = tile_of(all_tiles[t].tokens, all_tiles[t].rows,
                                                     all_tiles[t].boxes, all_tiles[t].eager);
                tile.order = variant % 2 ? RP_MATMUL_ORDER_WAVES : RP_MATMUL_ORDER_RUNS;
                tile.partials = variant == 2;
                tile.stages = variant == 3 ? 2 : 0;
                tile.flight_early = variant == 1;
                tile.flight = (uint32_t[]){3, 2, 0, 2}[variant]; /* two of two: no cap */
                float *result = run_product(&p, &d, &tile, cases[c].segment, tiny ? 1 : 3);
                if (!first) {
                    first = result;
                    continue;
                }
                size_t differ = rows_that_differ(first, result, p.live, p.n);
                if (differ)
                    fail_msg("case %zu: %u x %u tokens, variant %d: %zu rows differ", c, tile.rows,
                             tile.tokens, variant, differ);
                free(result);
            }
        }
        assert_true(rp_gpu_canaries_hold());
        free(first);
        free_data(&d);
        free_buffers();
    }
}

static void wide_tiles_of_one_segment_give_the_same_bits(void **state) {
    (void)state;
    struct product p = {.max_rows = 520, .live = 515, .n = 700, .k = 1032};
    struct data d = make_data(&p);
    struct rp_matmul_tile tile = tile_of(64, 64, 2, true);
    float *first = run_product(&p, &d, &tile, 1088, 1);
    for (int i = 0; i < 2; i++) {
        tile = tile_of(256, 128, 1, false);
        tile.order = i ? RP_MATMUL_ORDER_WAVES : RP_MATMUL_ORDER_RUNS;
        float *result = run_product(&p, &d, &tile, 1088, 1);
        assert_int_equal(rows_that_differ(first, result, p.live, p.n), 0);
        free(result);
    }
    free(first);
    free_data(&d);
    free_buffers();
}

/* The contract itself: each segment alone is a product of its columns; they are added in rising order. */
static void a_sum_is_its_segments_in_rising_order(void **state) {
    (void)state;
    struct product p = {.max_rows = 9, .live = 9, .n = 192, .k = 1000};
    const uint32_t segment = 256;
    struct data d = make_data(&p);
    struct rp_matmul_tile tile = tile_of(16, 64, 2, true);
    float *whole = run_product(&p, &d, &tile, segment, 1);
    float *sum = NULL;
    for (uint32_t begin = 0; begin < p.k; begin += segment) {
        struct product part = p;
        part.k = RP_MIN(segment, p.k - begin);
        struct data slice = make_data(&part);
        for (uint32_t row = 0; row < p.n; row++)
            memcpy(slice.weight + row * part.k, d.weight + row * p.k + begin, part.k * 2);
        for (uint32_t row = 0; row < p.live; row++)
            memcpy(slice.in + row * part.k, d.in + row * p.k + begin, part.k * 2);
        slice.matrix.data = rp_gpu_upload(slice.weight, (size_t)p.n * part.k * 2);
        slice.in_device = rp_gpu_upload(slice.in, (size_t)p.max_rows * part.k * 2);
        float *term = run_product(&part, &slice, &tile, segment, 1);
        for (size_t i = 0; sum && i < (size_t)p.live * p.n; i++)
            term[i] = sum[i] + term[i];
        free(sum);
        sum = term;
        free_data(&slice);
    }
    assert_int_equal(rows_that_differ(whole, sum, p.live, p.n), 0);
    free(whole);
    free(sum);
    free_data(&d);
    free_buffers();
}

static void a_row_does_not_depend_on_how_many_there_are_or_where_it_stands(void **state) {
    (void)state;
    static const uint32_t shapes[][2] = {{576, 2048}, {4096, 1032}};
    bool tiny = rp_gpu_is_tiny();
    for (size_t s = 0; s < RP_ARRAY_COUNT(shapes); s++) {
        struct product p = {.max_rows = 300, .live = 300, .n = shapes[s][0], .k = shapes[s][1]};
        if (tiny) {
            p.n = 136;
            p.k = 520;
        }
        struct data d = make_data(&p);
        unsigned char *in = d.in_device;
        float *all = run_product(&p, &d, NULL, 0, 1);
        for (uint32_t m = 1; m < 300; m += tiny ? 37 : m < 20 ? 1 : 7) {
            /* Rows [first, first + m) alone, in a bucket that is larger. */
            uint32_t first = m * 37 % (300 - m + 1);
            struct product some = p;
            some.max_rows = m < 8 ? m : (uint32_t)RP_ALIGN_UP(m, 8);
            some.max_rows = RP_MIN(some.max_rows, 300 - first);
            some.live = RP_MIN(m, some.max_rows);
            some.partials = m % 2;
            d.in_device = in + (size_t)first * p.k * 2;
            float *result = run_product(&some, &d, NULL, 0, 1);
            size_t differ = rows_that_differ(all + (size_t)first * p.n, result, some.live, p.n);
            if (differ)
                fail_msg("%zu of %u rows from %u on differ from the same among 300", differ, m,
                         first);
            free(result);
        }
        d.in_device = in;
        free(all);
        free_data(&d);
        free_buffers();
    }
}

static void a_hundred_runs_give_the_same_bits(void **state) {
    (void)state;
    bool tiny = rp_gpu_is_tiny();
    uint32_t n = tiny ? 256 : 4096;
    struct product p = {.max_rows = 40, .live = 40, .n = n, .k = tiny ? 1024 : n};
    struct data d = make_data(&p);
    struct rp_matmul_tile tile = tile_of(64, 64, 2, true);
    float *first = run_product(&p, &d, &tile, 512, 1);
    for (int i = 0; i < 4; i++) {
        float *again = run_product(&p, &d, &tile, 512, tiny ? 1 : 25);
        assert_int_equal(rows_that_differ(first, again, p.live, p.n), 0);
        free(again);
    }
    free(first);
    free_data(&d);
    free_buffers();
}

static void segments_are_a_property_of_the_matrix(void **state) {
    (void)state;
    for (uint32_t n = 1; n < 200000; n += n / 3 + 1) {
        for (uint32_t k = 8; k < 30000; k += k / 2 + 8) {
            uint32_t segment = rp_matmul_cuda_segment(n, k, false);
            assert_true(segment > 0 && segment % 64 == 0);
            assert_true(RP_CEIL_DIV(k, segment) <= 16);
        }
    }
}

/* Usage: [PATTERN of test names] */
int main(int argc, char **argv) {
    if (rp_gpu_skip_code())
        return 77;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_are_a_property_of_the_matrix),
        cmocka_unit_test(products_agree_with_f64),
        cmocka_unit_test(a_sum_is_its_segments_in_rising_order),
        cmocka_unit_test(every_tile_and_order_gives_the_same_bits),
        cmocka_unit_test(wide_tiles_of_one_segment_give_the_same_bits),
        cmocka_unit_test(a_row_does_not_depend_on_how_many_there_are_or_where_it_stands),
        cmocka_unit_test(a_hundred_runs_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
