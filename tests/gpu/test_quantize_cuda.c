/* Goal: a GPU quantizes rows to 8 bits bit for bit like rp_quantize_row, alone and inside the
 * operators that produce the rows: norm, gathered norm, sum and norm, activation, glu, norm and
 * glu; and embed reads quantized rows back. Method: the same operator without quantization gives
 * bf16 rows, which the host quantizes; columns past a row's, rows that are not live, and an unused
 * output are unchanged. */
#include "device/quantize_row.h"
#include "tests/gpu/ops_fixture.h"

#define SOME_ROWS 40 /* where kernels change shape */
#define MANY_ROWS 300

static const enum rp_dtype kinds[] = {RP_DTYPE_INT8, RP_DTYPE_FP8_E4M3};

/* Quantized values and scales on the GPU, all bytes 0xFF. */
struct quantized_buffer {
    struct rp_cuda_quantized quantized;
    uint32_t rows;
};

static struct quantized_buffer quantize_row(uint32_t rows, uint32_t cols, enum rp_dtype dtype) {
    uint32_t stride = (uint32_t)RP_ALIGN_UP(cols, 16u) + (cols % 3 == 0 ? 16 : 0);
    struct rp_cuda_quantized quantized = {.data = rp_gpu_poisoned((size_t)rows * stride),
                                          .scales = rp_gpu_poisoned(rows * sizeof(float)),
                                          .stride = stride,
                                          .dtype = dtype};
    return (struct quantized_buffer){quantized, rows};
}

/* The quantized values are those of the first `live` rows of `rows`, whose host copy has the GPU's
 * result; the rest is unchanged. */
static void assert_quantized(const struct quantized_buffer *buffer, const struct twin *rows,
                             uint32_t live) {
    uint32_t stride = buffer->quantized.stride, cols = rows->cols;
    size_t bytes = (size_t)buffer->rows * stride, size = rp_dtype_bytes(rows->host.dtype);
    unsigned char *seen = make_host(bytes), *want = make_host(bytes);
    float *scales = make_host(buffer->rows * sizeof *scales);
    uint16_t *row = make_host(cols * sizeof *row);
    float *wanted = make_host(buffer->rows * sizeof *wanted);
    memset(want, 0xFF, bytes);
    memset(wanted, 0xFF, buffer->rows * sizeof *wanted);
    rp_gpu_download(seen, buffer->quantized.data, bytes);
    rp_gpu_download(scales, buffer->quantized.scales, buffer->rows * sizeof *scales);
    for (uint32_t r = 0; r < live; r++) {
        const unsigned char *from =
            (const unsigned char *)rows->host.data + r * rows->host.stride * size;
        for (uint32_t c = 0; c < cols; c++)
            row[c] = rows->host.dtype == RP_DTYPE_BF16
                         ? ((const uint16_t *)(const void *)from)[c]
                         : rp_f32_to_bf16(((const float *)(const void *)from)[c]);
        wanted[r] = rp_quantize_row(row, RP_DTYPE_BF16, cols, buffer->quantized.dtype,
                                    want + (size_t)r * stride);
    }
    for (size_t i = 0; i < bytes; i++)
        if (seen[i] != want[i])
            fail_msg("row %zu, column %zu of %u: code %02x, not %02x, of %s", i / stride,
                     i % stride, cols, seen[i], want[i], rp_dtype_name(buffer->quantized.dtype));
    for (uint32_t r = 0; r < buffer->rows; r++)
        if (memcmp(&scales[r], &wanted[r], sizeof *scales) != 0 &&
            !(isnan(scales[r]) && isnan(wanted[r]) && r < live))
            fail_msg("row %u of %u columns: scale %.9g, not %.9g", r, cols, scales[r], wanted[r]);
    rp_free_aligned(seen);
    rp_free_aligned(want);
    rp_free_aligned(scales);
    rp_free_aligned(row);
    rp_free_aligned(wanted);
}

enum row_kind { ROW_ZERO, ROW_DENORMAL, ROW_LEAST, ROW_HUGE, ROW_NAN, ROW_INFINITE, ROW_TIES };
#define ROW_KINDS (ROW_TIES + 1)

/* A rare row. TIES: the largest value gives a factor of 1, all others are halfway between two
 * quantized values. */
static void fill_row(struct twin *t, uint32_t row, enum row_kind kind, enum rp_dtype dtype) {
    for (uint32_t c = 0; c < t->cols; c++) {
        float value = random_float();
        switch (kind) {
        case ROW_ZERO:
            value = c % 2 ? -0.0f : 0.0f;
            break;
        case ROW_DENORMAL:
            value *= 0x1p-130f;
            break;
        case ROW_LEAST:
            value = c ? value * 0x1p-102f : -0x1p-100f;
            break;
        case ROW_HUGE:
            value *= 0x1p126f;
            break;
        case ROW_NAN:
            value = c == t->cols / 2 ? NAN : value;
            break;
        case ROW_INFINITE:
            value = c == t->cols - 1 ? -INFINITY : value;
            break;
        case ROW_TIES:
            if (dtype == RP_DTYPE_INT8)
                value = c ? (float)(c % 250) / 2 - 62 : 127.0f;
            else
                value = c == 0       ? -448.0f
                        : c % 3 == 0 ? (float)(c % 40) * 0x1p-10f
                        : c % 3 == 1 ? -(float)(16 + c % 16) * 8.0f
                                     : (float)(16 + c % 16) * 0x1p-3f;
            break;
        }
        twin_set(t, row, c, value);
    }
}

static void check_quantize(uint32_t n, size_t place, uint32_t max_rows, enum rp_dtype in_dtype,
                           enum rp_dtype dtype, uint32_t turn) {
    struct twin in = twin_random(LIVE_ROWS, max_rows, n, n + places[place].stride,
                                 places[place].offset, in_dtype);
    for (uint32_t r = 0; r < LIVE_ROWS; r++)
        if ((r + turn) % (ROW_KINDS + 2) < ROW_KINDS)
            fill_row(&in, r, (enum row_kind)((r + turn) % (ROW_KINDS + 2)), dtype);
    twin_upload(&in);
    struct quantized_buffer buffer = quantize_row(max_rows, n, dtype);
    struct rp_quantize_cuda args = {.rows = token_rows,
                                    .in = in.device,
                                    .cols = n,
                                    .quantized = buffer.quantized,
                                    .behind_product = turn % 2 > 0};
    args.rows.max_rows = max_rows;
    assert_int_equal(rp_quantize_cuda_run(&args, NULL), 0);
    assert_quantized(&buffer, &in, LIVE_ROWS);
    assert_equal_twin(&in, LIVE_ROWS, true);
    end_case();
}

static void test_rows_become_the_quantized_values_that_the_host_makes(void **state) {
    (void)state;
    uint32_t turn = 0;
    EACH(s, sizes)
    EACH(p, places)
    EACH(d, dtypes) EACH(k, kinds) {
        check_quantize(sizes[s], p, MAX_ROWS, dtypes[d], kinds[k], turn);
        turn += 5;
    }
}

static void test_many_and_long_rows_become_the_same_quantized_values(void **state) {
    (void)state;
    static const uint32_t many[] = {33, 4096, 8200}, longer[] = {28672, 32768, 32775, 70001};
    EACH(k, kinds) EACH(d, dtypes) {
        EACH(m, many) check_quantize(many[m], m % 3, MANY_ROWS, dtypes[d], kinds[k], (uint32_t)m);
        EACH(l, longer) check_quantize(longer[l], l, MAX_ROWS, dtypes[d], kinds[k], (uint32_t)l);
    }
}

/* The operator under test without and with quantized values: also into `out`, or not at all. */
static void check_given(const struct twin *plain, const struct twin *out, bool given,
                        const struct quantized_buffer *buffer, uint32_t live) {
    struct twin copy = *plain;
    unsigned char *seen = make_host(out->bytes);
    twin_download(&copy);
    assert_quantized(buffer, plain, live);
    rp_gpu_download(seen, out->device_base, out->bytes);
    if (given)
        assert_memory_equal(seen, plain->host_base, out->bytes);
    for (size_t i = 0; i < out->bytes && !given; i++)
        assert_int_equal(seen[i], 0xFF);
    rp_free_aligned(seen);
}

struct norm_case {
    uint32_t n;
    size_t place;
    uint32_t max_rows;
    enum rp_dtype out_dtype, dtype;
    bool gather, given;
};

static void check_norm(const struct norm_case *c) {
    uint32_t live = c->gather ? LIVE_LOGIT_ROWS : LIVE_ROWS, n = c->n;
    struct twin in = twin_random(LIVE_ROWS, c->max_rows, n, n + places[c->place].stride,
                                 places[c->place].offset, RP_DTYPE_F32);
    struct twin plain = twin_make(c->max_rows, n, n, 0, c->out_dtype);
    struct twin out = twin_make(c->max_rows, n, n, 0, c->out_dtype);
    struct twin weight = vector_random(n);
    struct quantized_buffer buffer = quantize_row(c->max_rows, n, c->dtype);
    struct rp_norm_cuda args = {.rows = c->gather ? logit_rows : token_rows,
                                .in = in.device,
                                .out = plain.device,
                                .weight = weight.device.data,
                                .cols = n,
                                .group = n,
                                .eps = 1e-5f,
                                .weight_offset = c->place % 2 ? 1.0f : 0.0f,
                                .gather = c->gather};
    for (uint32_t col = 0; col < n; col++) /* a row whose quantized values are all zero */
        twin_set(&in, 0, col, 0.0f);
    twin_upload(&in);
    args.rows.max_rows = c->max_rows;
    assert_int_equal(rp_norm_cuda_run(&args, NULL), 0);
    args.out = c->given ? out.device : (struct rp_values){NULL, 0, c->out_dtype};
    args.quantized = buffer.quantized;
    assert_int_equal(rp_norm_cuda_run(&args, NULL), 0);
    check_given(&plain, &out, c->given, &buffer, live);
    end_case();
}

static void test_norm_gives_the_quantized_values_of_its_output(void **state) {
    (void)state;
    uint32_t turn = 0;
    EACH(s, sizes) EACH(p, places) EACH(k, kinds) for (int gather = 0; gather < 2; gather++) {
        struct norm_case c = {sizes[s], p,          MAX_ROWS,     dtypes[turn % 3 == 0 ? 0 : 1],
                              kinds[k], gather > 0, turn % 2 == 0};
        check_norm(&c);
        turn++;
    }
    static const uint32_t more[][2] = {{4096, MANY_ROWS}, {256, MANY_ROWS},  {8192, MAX_ROWS},
                                       {16384, MAX_ROWS}, {16388, MAX_ROWS}, {40001, MAX_ROWS}};
    EACH(m, more) EACH(k, kinds) {
        struct norm_case c = {more[m][0], 0, more[m][1], RP_DTYPE_BF16, kinds[k], false, k == 0};
        check_norm(&c);
    }
}

struct add_norm_case {
    uint32_t n;
    size_t place;
    uint32_t count, max_rows; /* count: of partials; 0: a term */
    enum rp_dtype dtype;
    bool gather, early, given;
};

static void check_add_norm(const struct add_norm_case *c) {
    uint32_t n = c->n, live = c->gather ? LIVE_LOGIT_ROWS : LIVE_ROWS;
    uint32_t part_rows = MAX_ROWS * RP_MAX(c->count, 1u);
    size_t stride = n + places[c->place].stride;
    uint32_t offset = places[c->place].offset;
    struct twin residual = twin_random(LIVE_ROWS, c->max_rows, n, stride, offset, RP_DTYPE_F32);
    struct twin second = twin_make(c->max_rows, n, stride, offset, RP_DTYPE_F32);
    /* Rows that are not live may be read too, before the count is known. */
    struct twin parts =
        twin_random(part_rows, part_rows + SOME_ROWS, n, stride, offset, RP_DTYPE_F32);
    struct twin term = twin_make(c->max_rows, n, n, 0, RP_DTYPE_F32);
    struct twin plain = twin_make(c->max_rows, n, n, 0, RP_DTYPE_BF16);
    struct twin out = twin_make(c->max_rows, n, n, 0, RP_DTYPE_BF16);
    struct twin weight = vector_random(n), bias = vector_random(n);
    struct quantized_buffer buffer = quantize_row(c->max_rows, n, c->dtype);
    memcpy(second.host_base, residual.host_base, residual.bytes);
    twin_upload(&second);
    sum_partials(&parts, c->count, NULL, &term);
    struct rp_add_norm_cuda args = {.rows = c->gather ? logit_rows : token_rows,
                                    .residual = residual.device,
                                    .term = term.device,
                                    .out = plain.device,
                                    .weight = weight.device.data,
                                    .cols = n,
                                    .eps = 1e-6f,
                                    .behind_product = c->early,
                                    .gather = c->gather};
    args.rows.max_rows = c->max_rows;
    if (c->count)
        args.partials = partials_of(&parts, c->count, c->place % 2 ? &bias : NULL);
    assert_int_equal(rp_add_norm_cuda_run(&args, NULL), 0);
    args.residual = second.device;
    args.out = c->given ? out.device : (struct rp_values){NULL, 0, RP_DTYPE_BF16};
    args.quantized = buffer.quantized;
    assert_int_equal(rp_add_norm_cuda_run(&args, NULL), 0);
    check_given(&plain, &out, c->given, &buffer, live);
    twin_download(&residual);
    twin_download(&second);
    assert_memory_equal(residual.host_base, second.host_base, residual.bytes);
    end_case();
}

static void test_add_norm_gives_the_quantized_values_of_its_output(void **state) {
    (void)state;
    uint32_t turn = 0;
    EACH(s, sizes) EACH(p, places) for (uint32_t count = 0; count < 4; count += 1 + count) {
        struct add_norm_case c = {.n = sizes[s],
                                  .place = p,
                                  .count = count,
                                  .max_rows = MAX_ROWS,
                                  .dtype = kinds[turn % 2],
                                  .gather = count > 0 && turn % 3 == 0,
                                  .early = turn % 5 == 0,
                                  .given = turn % 4 == 0};
        check_add_norm(&c);
        turn++;
    }
    static const uint32_t more[][3] = {
        {4096, 4, MAX_ROWS},  {4096, 14, MAX_ROWS}, {4096, 4, SOME_ROWS}, {3900, 3, SOME_ROWS},
        {4096, 2, MANY_ROWS}, {4096, 0, MANY_ROWS}, {8192, 3, MAX_ROWS},  {16388, 2, MAX_ROWS}};
    EACH(m, more) EACH(k, kinds) {
        struct add_norm_case c = {.n = more[m][0],
                                  .count = more[m][1],
                                  .max_rows = more[m][2],
                                  .dtype = kinds[k],
                                  .early = k == 0};
        check_add_norm(&c);
        c.gather = c.count > 0;
        check_add_norm(&c);
    }
}

static void check_activation(uint32_t n, size_t place, uint32_t count, uint32_t max_rows,
                             enum rp_activation fn, enum rp_dtype dtype) {
    size_t stride = 2 * n + places[place].stride;
    uint32_t offset = places[place].offset, part_rows = MAX_ROWS * RP_MAX(count, 1u);
    struct twin parts = twin_random(part_rows, part_rows, 2 * n, stride, offset, RP_DTYPE_F32);
    struct twin in = twin_random(LIVE_ROWS, max_rows, 2 * n, stride, offset, dtypes[place % 2]);
    struct twin plain = twin_make(max_rows, n, n, 0, RP_DTYPE_BF16);
    struct twin out = twin_make(max_rows, n, n, 0, RP_DTYPE_BF16);
    struct quantized_buffer buffer = quantize_row(max_rows, n, dtype);
    struct rp_activation_cuda args = {
        .rows = token_rows, .in = in.device, .out = plain.device, .cols = n, .fn = fn};
    bool given = n % 2 == 0;
    args.rows.max_rows = max_rows;
    if (count)
        args.partials = partials_of(&parts, count, NULL);
    assert_int_equal(rp_activation_cuda_run(&args, NULL), 0);
    args.out = given ? out.device : (struct rp_values){NULL, 0, RP_DTYPE_BF16};
    args.quantized = buffer.quantized;
    assert_int_equal(rp_activation_cuda_run(&args, NULL), 0);
    check_given(&plain, &out, given, &buffer, LIVE_ROWS);
    end_case();
}

static void test_activation_gives_the_quantized_values_of_its_output(void **state) {
    (void)state;
    EACH(s, sizes) EACH(p, places) {
        enum rp_activation fn = (s + p) % 2 ? RP_ACTIVATION_SILU : RP_ACTIVATION_GELU_TANH;
        check_activation(sizes[s], p, 0, MAX_ROWS, fn, kinds[s % 2]);
        check_activation(sizes[s], p, 1 + (uint32_t)p, MAX_ROWS, fn, kinds[(s + p) % 2]);
    }
    static const uint32_t more[][2] = {{14336, MANY_ROWS}, {28672, MAX_ROWS}, {33000, MAX_ROWS}};
    EACH(m, more)
    EACH(k, kinds) check_activation(more[m][0], 0, 0, more[m][1], RP_ACTIVATION_SILU, kinds[k]);
}

struct glu_case {
    uint32_t n, group; /* group 0: no norm */
    size_t place;
    uint32_t max_rows;
    enum rp_activation fn;
    enum rp_dtype in_dtype, dtype;
};

/* With a norm the plain values are those of its own kernel, in place, and of glu's. */
static void check_glu(const struct glu_case *c) {
    uint32_t n = c->n, offset = places[c->place].offset;
    size_t stride = n + places[c->place].stride;
    struct twin gate = twin_random(LIVE_ROWS, c->max_rows, n, stride + 8, offset, c->in_dtype);
    struct twin up = twin_random(LIVE_ROWS, c->max_rows, n, stride, offset, c->in_dtype);
    struct twin normed = twin_make(c->max_rows, n, stride, offset, c->in_dtype);
    struct twin plain = twin_make(c->max_rows, n, n, 0, RP_DTYPE_BF16);
    struct twin out = twin_make(c->max_rows, n, n, 0, RP_DTYPE_BF16);
    struct twin alone = twin_make(c->max_rows, n, n, 0, RP_DTYPE_BF16);
    struct twin weight = vector_random(RP_MAX(c->group, 1u));
    struct quantized_buffer buffer = quantize_row(c->max_rows, n, c->dtype);
    struct rp_glu_cuda args = {.rows = token_rows,
                               .gate = gate.device,
                               .up = up.device,
                               .out = plain.device,
                               .cols = n,
                               .fn = c->fn};
    struct rp_norm_cuda norm = {.rows = token_rows,
                                .in = normed.device,
                                .out = normed.device,
                                .weight = weight.device.data,
                                .cols = n,
                                .group = c->group,
                                .eps = 1e-6f,
                                .weight_offset = n % 3 ? 1.0f : 0.0f};
    bool given = n % 8 == 0;
    norm.rows.max_rows = args.rows.max_rows = c->max_rows;
    memcpy(normed.host_base, up.host_base, up.bytes);
    twin_upload(&normed);
    if (c->group) {
        assert_int_equal(rp_norm_cuda_run(&norm, NULL), 0);
        args.up = normed.device;
    }
    assert_int_equal(rp_glu_cuda_run(&args, NULL), 0);
    args.up = up.device;
    args.norm.weight = norm.weight;
    args.norm.group = c->group;
    args.norm.eps = norm.eps;
    args.norm.weight_offset = norm.weight_offset;
    args.out = alone.device;
    assert_int_equal(rp_glu_cuda_run(&args, NULL), 0);
    args.out = given ? out.device : (struct rp_values){NULL, 0, RP_DTYPE_BF16};
    args.quantized = buffer.quantized;
    assert_int_equal(rp_glu_cuda_run(&args, NULL), 0);
    check_given(&plain, &out, given, &buffer, LIVE_ROWS);
    check_given(&plain, &alone, true, &buffer, LIVE_ROWS);
    assert_equal_twin(&up, LIVE_ROWS, true);
    end_case();
}

static void test_glu_gives_the_quantized_values_of_its_output(void **state) {
    (void)state;
    static const enum rp_activation fns[] = {RP_ACTIVATION_SILU, RP_ACTIVATION_GELU_TANH,
                                             RP_ACTIVATION_SIGMOID};
    EACH(s, sizes) EACH(p, places) {
        struct glu_case c = {sizes[s],      0,           p, MAX_ROWS, fns[(s + p) % 3],
                             dtypes[p % 2], kinds[s % 2]};
        check_glu(&c);
    }
    /* columns, columns of a group, rows */
    static const uint32_t more[][3] = {
        {4096, 0, MANY_ROWS},   {12288, 0, MAX_ROWS},   {20000, 0, MAX_ROWS}, {4096, 128, MAX_ROWS},
        {4096, 128, MANY_ROWS}, {8192, 128, MAX_ROWS},  {384, 96, MAX_ROWS},  {60, 4, SOME_ROWS},
        {2560, 20, MANY_ROWS},  {16384, 128, SOME_ROWS}};
    EACH(m, more) EACH(k, kinds) {
        struct glu_case c = {more[m][0], more[m][1], 0, more[m][2], fns[k], RP_DTYPE_F32, kinds[k]};
        check_glu(&c);
    }
}

static void test_embed_reads_rows_of_quantized_values(void **state) {
    (void)state;
    enum { VOCAB = 7 }; /* id 7 lies past it: the row of id 0 */
    EACH(s, sizes) EACH(k, kinds) {
        uint32_t n = sizes[s];
        float factor = s % 2 ? 3.7f : 1.0f, scales[VOCAB];
        unsigned char *quantized = make_host((size_t)VOCAB * n);
        struct twin out = twin_make(MAX_ROWS, n, n + (uint32_t)s % 4, 0, RP_DTYPE_F32);
        float *values = make_host(n * sizeof *values);
        for (uint32_t id = 0; id < VOCAB; id++) {
            for (uint32_t c = 0; c < n; c++)
                values[c] = random_float();
            scales[id] =
                rp_quantize_row(values, RP_DTYPE_F32, n, kinds[k], quantized + id * (size_t)n);
        }
        for (uint32_t r = 0; r < LIVE_ROWS; r++) {
            uint32_t id = (uint32_t)step.host.token_ids[r];
            id = id < VOCAB ? id : 0;
            for (uint32_t c = 0; c < n; c++)
                twin_set(&out, r, c,
                         rp_quantized_to_f32(quantized, kinds[k], id * (size_t)n + c) * scales[id] *
                             factor);
        }
        struct rp_embed_cuda args = {.rows = token_rows,
                                     .table = rp_gpu_upload(quantized, (size_t)VOCAB * n),
                                     .scales = rp_gpu_upload(scales, sizeof scales),
                                     .dtype = kinds[k],
                                     .vocab = VOCAB,
                                     .hidden = n,
                                     .scale = factor,
                                     .out = out.device};
        assert_int_equal(rp_embed_cuda_run(&args, NULL), 0);
        assert_equal_twin(&out, LIVE_ROWS, true);
        end_case();
        rp_free_aligned(quantized);
        rp_free_aligned(values);
    }
}

RP_GPU_TEST_MAIN(NULL, NULL, TEST(test_rows_become_the_quantized_values_that_the_host_makes),
                 TEST(test_many_and_long_rows_become_the_same_quantized_values),
                 TEST(test_norm_gives_the_quantized_values_of_its_output),
                 TEST(test_add_norm_gives_the_quantized_values_of_its_output),
                 TEST(test_glu_gives_the_quantized_values_of_its_output),
                 TEST(test_activation_gives_the_quantized_values_of_its_output),
                 TEST(test_embed_reads_rows_of_quantized_values))
