/* Goal: K and V are written to the pages of live tokens with the CPU's rounding, and nothing else
 * is written; the fused kernel between the qkv GEMM and attention equals norm, rope and kv_write.
 * Method: the CPU's operators on the same values, then the pages byte by byte. */
#include "tests/gpu/attention_fixture.h"

#include "device/ops_cuda.h"

#define POSITIONS 300u /* of the table of angles */

/* Two live rows, one of them over page borders, a decode row, a finished one, padding. */
static void add_rows(struct fixture *f) {
    fixture_begin(f);
    fixture_slot(f, 3)[RP_SLOT_FINISHED] = 1;
    fixture_add_row(f, 3, 0, 2, 0);
    fixture_add_row(f, 1, 3, 70, 0);
    fixture_add_row(f, 0, 131, 1, RP_ROW_DECODE);
    fixture_add_row(f, 2, 62, 5, RP_ROW_SAMPLE);
    fixture_add_padding(f, 3);
    /* Removes K and V that the fixture stored: here the kernel writes them. */
    memset(f->host.kv.base, 0xFF, f->pages_bytes);
    rp_gpu_step_upload(&f->step);
}

static const struct fixture_shape shapes[] = {
    {4, 2, 8, 16, 0, F32, F32, 200},    {4, 2, 20, 4, 0, BF16, F32, 200},
    {8, 2, 128, 64, 0, BF16, F32, 200}, {7, 1, 64, 32, 0, BF16, F32, 200},
    {2, 2, 96, 16, 0, F32, F32, 200},   {3, 3, 80, 16, 0, BF16, F32, 200},
    {2, 1, 256, 64, 0, BF16, F32, 200}, {8, 2, 128, 64, 0, INT8, F32, 200},
    {4, 2, 20, 4, 0, FP8, F32, 200},    {2, 1, 256, 16, 0, FP8, F32, 200},
    {3, 3, 98, 1, 0, INT8, F32, 200},   {7, 1, 64, 32, 0, FP8, F32, 200},
};

/* The pages on the GPU, against the host's; every byte. */
static void check_pages(struct fixture *f, bool exact) {
    unsigned char *got = rp_alloc(f->pages_bytes);
    assert_non_null(got);
    rp_gpu_download(got, f->call.args.kv.base, f->pages_bytes);
    size_t size = rp_dtype_bytes(f->shape.kv), count = f->pages_bytes / size;
    for (size_t i = 0; i < count; i++) {
        float x, y;
        if (memcmp(got + i * size, f->host.kv.base + i * size, size) == 0)
            continue;
        if (size == 1)
            fail_msg("%s: heads %u dim %u: byte %zu of the pages is %u instead of %u",
                     rp_dtype_name(f->shape.kv), f->shape.kv_heads, f->shape.head_dim, i, got[i],
                     f->host.kv.base[i]);
        rp_to_f32(&x, got + i * size, f->shape.kv, 1);
        rp_to_f32(&y, f->host.kv.base + i * size, f->shape.kv, 1);
        /* Rope subtracts values of about 1; the result may round to another bf16 value in the
         * page. */
        float limit =
            1e-6f * fmaxf(fabsf(y), 1.0f) + (f->shape.kv == F32 ? 0.0f : 0x1p-7f * fabsf(y));
        if (exact || !(fabsf(x - y) <= limit))
            fail_msg("heads %u dim %u: element %zu of the pages is %g instead of %g",
                     f->shape.kv_heads, f->shape.head_dim, i, (double)x, (double)y);
    }
    rp_free(got);
    assert_true(rp_gpu_canaries_hold());
}

static void test_live_tokens_are_stored_as_on_the_cpu_and_nothing_else_is(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++) {
        fixture_open(f, &shapes[i]);
        add_rows(f);
        uint32_t columns = f->shape.kv_heads * f->shape.head_dim, stride = 2 * columns + 3;
        size_t bytes = (size_t)FIXTURE_TOKENS * stride * sizeof(float);
        float *kv = rp_alloc(bytes);
        assert_non_null(kv);
        memset(kv, 0xFF, bytes);
        for (uint32_t t = 0; t < f->step.host.counts->token_count; t++)
            for (uint32_t c = 0; c < 2 * columns && f->step.host.token_rows[t] != RP_ROW_NONE; c++)
                kv[t * stride + c] = rp_test_value_of(5, 0, t, 0, c);
        struct rp_kv_write_args host = {.step = f->step.host,
                                        .kv = f->host.kv,
                                        .k = kv,
                                        .v = kv + columns,
                                        .k_stride = stride,
                                        .v_stride = stride,
                                        .layer = FIXTURE_LAYER,
                                        .table = f->host.table};
        struct rp_kv_write_cuda gpu = {
            .rows = {f->step.device, RP_ROWS_TOKEN, f->step.host.counts->token_count + 20},
            .write = host};
        rp_kv_write_range(&host, 0, f->step.host.counts->token_count);
        gpu.write.step = f->step.device;
        gpu.write.kv.base = f->call.args.kv.base;
        gpu.write.k = rp_gpu_upload(kv, bytes);
        gpu.write.v = gpu.write.k + columns;
        check_cuda(rp_kv_write_cuda_run(&gpu, NULL));
        check_pages(f, true);
        rp_free(kv);
    }
}

/* Rows of zeros, of denormals, of one large value, of halves between quantized values, with
 * infinities and NaN. */
static void fill_extreme(float *row, uint32_t token, uint32_t cols) {
    static const float largest[] = {0.0f,   0x1p-140f, 0x1p-101f, 0x1p-100f, 1e-20f, 448.0f,
                                    127.0f, 3e38f,     INFINITY,  NAN,       1.0f};
    float top = largest[token % RP_ARRAY_COUNT(largest)];
    for (uint32_t c = 0; c < cols; c++) {
        float x = rp_test_value_of(4, 0, token, 0, c);
        row[c] = token % 3 == 0 ? top * x : top == 127.0f ? rintf(x * 127.0f) + 0.5f : x * x * top;
        if (c == token % cols)
            row[c] = token % 2 ? -top : top;
        else if (!isfinite(top))
            row[c] = x;
    }
}

static void test_rows_of_extreme_values_have_the_quantized_values_of_the_cpu(void **state) {
    struct fixture *f = *state;
    for (int type = 0; type < 2; type++) {
        const struct fixture_shape shape = {4, 1, 64, 16, 0, type ? FP8 : INT8, F32, 200};
        fixture_open(f, &shape);
        add_rows(f);
        float *kv = rp_calloc((size_t)FIXTURE_TOKENS * 128, sizeof(float));
        assert_non_null(kv);
        for (uint32_t t = 0; t < f->step.host.counts->token_count; t++) {
            fill_extreme(kv + t * 128, t, 64);
            fill_extreme(kv + t * 128 + 64, t + 5, 64);
        }
        struct rp_kv_write_args host = {.step = f->step.host,
                                        .kv = f->host.kv,
                                        .k = kv,
                                        .v = kv + 64,
                                        .k_stride = 128,
                                        .v_stride = 128,
                                        .layer = FIXTURE_LAYER,
                                        .table = f->host.table};
        struct rp_kv_write_cuda gpu = {
            .rows = {f->step.device, RP_ROWS_TOKEN, f->step.host.counts->token_count},
            .write = host};
        rp_kv_write_range(&host, 0, f->step.host.counts->token_count);
        gpu.write.step = f->step.device;
        gpu.write.kv.base = f->call.args.kv.base;
        gpu.write.k = rp_gpu_upload(kv, (size_t)FIXTURE_TOKENS * 128 * sizeof(float));
        gpu.write.v = gpu.write.k + 64;
        check_cuda(rp_kv_write_cuda_run(&gpu, NULL));
        check_pages(f, true);
        rp_free(kv);
    }
}

struct post {
    struct rp_qkv_post_cuda gpu;
    uint32_t columns, segments;
    float *values; /* (FIXTURE_TOKENS, columns): the CPU's */
    float *norms;  /* q's and k's weight */
    float *table;
    size_t bytes;
};

/* padding: rows of the bucket past the step's; many rows have a separate kernel. */
static void open_post(struct fixture *f, struct post *post, uint32_t segments, bool norm,
                      uint32_t rotary_dim, uint32_t padding) {
    const struct fixture_shape *shape = &f->shape;
    uint32_t dim = shape->head_dim, half = rotary_dim / 2;
    memset(post, 0, sizeof *post);
    post->segments = segments;
    post->columns = (shape->heads + 2 * shape->kv_heads) * dim;
    post->bytes = (size_t)FIXTURE_TOKENS * post->columns * sizeof(float);
    post->values = rp_alloc(post->bytes);
    post->norms = rp_alloc(2 * dim * sizeof(float));
    post->table = rp_alloc((size_t)POSITIONS * half * 2 * sizeof(float));
    float *parts = rp_alloc(post->bytes * RP_MAX(segments, 1));
    float *bias = rp_alloc(post->columns * sizeof(float));
    assert_true(post->values && post->norms && post->table && parts && bias);
    for (uint32_t i = 0; i < 2 * dim; i++)
        post->norms[i] = 1.0f + 0.3f * rp_test_value_of(6, 0, i, 0, 0);
    for (uint32_t i = 0; i < POSITIONS * half; i++) {
        float angle = 3.0f * rp_test_value_of(7, 0, i, 0, 0);
        post->table[2 * i] = cosf(angle);
        post->table[2 * i + 1] = sinf(angle);
    }
    for (uint32_t c = 0; c < post->columns; c++)
        bias[c] = rp_test_value_of(8, 0, c, 0, 0);
    memset(post->values, 0xFF, post->bytes);
    memset(parts, 0xFF, post->bytes * RP_MAX(segments, 1));
    for (uint32_t t = 0; t < f->step.host.counts->token_count; t++)
        for (uint32_t c = 0; c < post->columns && f->step.host.token_rows[t] != RP_ROW_NONE; c++) {
            float sum = 0.0f;
            for (uint32_t s = 0; s < RP_MAX(segments, 1); s++) {
                float part = rp_test_value_of(9, s, t, 0, c);
                parts[((size_t)s * FIXTURE_TOKENS + t) * post->columns + c] = part;
                sum = s == 0 ? part : sum + part;
            }
            post->values[(size_t)t * post->columns + c] = segments != 0 ? sum + bias[c] : sum;
        }
    float *norms = rp_gpu_upload(post->norms, 2 * dim * sizeof(float));
    post->gpu = (struct rp_qkv_post_cuda){
        .rows = {f->step.device, RP_ROWS_TOKEN, f->step.host.counts->token_count + padding},
        .kv = f->call.args.kv,
        .qkv = {segments != 0 ? rp_gpu_poisoned(post->bytes)
                              : rp_gpu_upload(post->values, post->bytes),
                post->columns, F32},
        .partials = {rp_gpu_upload(parts, post->bytes * RP_MAX(segments, 1)),
                     rp_gpu_upload(bias, post->columns * sizeof(float)), segments,
                     (size_t)FIXTURE_TOKENS * post->columns, post->columns},
        .q_norm = norm ? norms : NULL,
        .k_norm = norm ? norms + dim : NULL,
        .rope_table = rp_gpu_upload(post->table, (size_t)POSITIONS * half * 2 * sizeof(float)),
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .head_dim = dim,
        .rotary_dim = rotary_dim,
        .position_count = POSITIONS,
        .layer = FIXTURE_LAYER,
        .table = f->host.table,
        .eps = 1e-5f,
        .weight_offset = norm ? 1.0f : 0.0f};
    rp_free(parts);
    rp_free(bias);
}

static void close_post(struct post *post) {
    rp_free(post->values);
    rp_free(post->norms);
    rp_free(post->table);
}

/* norm, rope and kv_write of the CPU, on post->values. */
static void post_on_cpu(struct fixture *f, struct post *post) {
    const struct rp_qkv_post_cuda *gpu = &post->gpu;
    uint32_t tokens = f->step.host.counts->token_count;
    struct rp_values q = {post->values, post->columns, F32}, k = q;
    k.data = post->values + gpu->heads * gpu->head_dim;
    for (int i = 0; i < 2; i++) {
        uint32_t heads = i == 0 ? gpu->heads : gpu->kv_heads;
        struct rp_norm_args norm = {.in = i == 0 ? q : k,
                                    .out = i == 0 ? q : k,
                                    .weight = post->norms + (size_t)i * gpu->head_dim,
                                    .cols = heads * gpu->head_dim,
                                    .group = gpu->head_dim,
                                    .eps = gpu->eps,
                                    .weight_offset = gpu->weight_offset};
        struct rp_rope_args rope = {f->step.host,  i == 0 ? q : k,  post->table, heads,
                                    gpu->head_dim, gpu->rotary_dim, POSITIONS};
        if (gpu->q_norm)
            rp_norm_rows(&norm, 0, tokens);
        rp_rope_rows(&rope, 0, tokens);
    }
    struct rp_kv_write_args write = {.step = f->step.host,
                                     .kv = f->host.kv,
                                     .k = k.data,
                                     .v = (float *)k.data + gpu->kv_heads * gpu->head_dim,
                                     .k_stride = post->columns,
                                     .v_stride = post->columns,
                                     .layer = FIXTURE_LAYER,
                                     .table = f->host.table};
    rp_kv_write_range(&write, 0, tokens);
}

static void check_q(struct fixture *f, const struct post *post) {
    float *got = rp_alloc(post->bytes);
    assert_non_null(got);
    rp_gpu_download(got, post->gpu.qkv.data, post->bytes);
    size_t cols = (size_t)post->gpu.heads * post->gpu.head_dim;
    for (uint32_t t = 0; t < FIXTURE_TOKENS; t++) {
        const float *row = got + (size_t)t * post->columns;
        bool is_live =
            t < f->step.host.counts->token_count && f->step.host.token_rows[t] != RP_ROW_NONE;
        if (is_live &&
            rp_relative_error(row, post->values + (size_t)t * post->columns, cols) > 1e-6)
            fail_msg("q of token %u differs", t);
        if (!is_live && !fixture_untouched((const unsigned char *)row, cols * sizeof(float)))
            fail_msg("q of dead token %u was written", t);
    }
    rp_free(got);
}

static void test_the_fused_kernel_is_norm_rope_and_kv_write(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++)
        for (uint32_t kind = 0; kind < 8; kind++) {
            uint32_t segments = kind % 2 == 0 ? 0 : kind == 1 ? 1 : 3;
            uint32_t rotary = kind / 4 % 2 == 0 ? shapes[i].head_dim : shapes[i].head_dim / 4 * 2;
            bool norm = kind / 2 % 2 == 1;
            struct post post;
            /* The norm's square root rounds differently, which may change a quantized value: the
             * next test covers those kinds. */
            if (norm && rp_dtype_bytes(shapes[i].kv) == 1)
                continue;
            fixture_open(f, &shapes[i]);
            add_rows(f);
            open_post(f, &post, segments, norm, rotary, 7);
            post_on_cpu(f, &post);
            check_cuda(rp_qkv_post_cuda_run(&post.gpu, NULL));
            /* Without the norm's square root nothing can round differently. */
            check_pages(f, !norm);
            check_q(f, &post);
            close_post(&post);
        }
}

/* norm, rope and kv_write of the GPU, on `values` there. */
static void post_on_gpu(const struct post *post, float *values, unsigned char *pages) {
    const struct rp_qkv_post_cuda *gpu = &post->gpu;
    for (int i = 0; i < 2; i++) {
        uint32_t heads = i == 0 ? gpu->heads : gpu->kv_heads;
        struct rp_values x = {values + (i == 0 ? 0 : gpu->heads * gpu->head_dim), post->columns,
                              F32};
        struct rp_norm_cuda norm = {.rows = gpu->rows,
                                    .in = x,
                                    .out = x,
                                    .weight = i == 0 ? gpu->q_norm : gpu->k_norm,
                                    .cols = heads * gpu->head_dim,
                                    .group = gpu->head_dim,
                                    .eps = gpu->eps,
                                    .weight_offset = gpu->weight_offset};
        struct rp_rope_cuda rope = {
            gpu->rows, x, gpu->rope_table, heads, gpu->head_dim, gpu->rotary_dim, POSITIONS};
        if (norm.weight)
            check_cuda(rp_norm_cuda_run(&norm, NULL));
        check_cuda(rp_rope_cuda_run(&rope, NULL));
    }
    struct rp_kv_write_cuda write = {
        .rows = gpu->rows,
        .write = {.step = gpu->rows.step,
                  .kv = gpu->kv,
                  .k = values + gpu->heads * gpu->head_dim,
                  .v = values + (gpu->heads + gpu->kv_heads) * gpu->head_dim,
                  .k_stride = post->columns,
                  .v_stride = post->columns,
                  .layer = gpu->layer,
                  .table = gpu->table}};
    write.write.kv.base = pages;
    check_cuda(rp_kv_write_cuda_run(&write, NULL));
}

/* The fused kernel against the separate ones; the step's rows are set. */
static void check_bits(struct fixture *f, uint32_t segments, bool norm, uint32_t rotary_dim,
                       uint32_t padding) {
    struct post post;
    open_post(f, &post, segments, norm, rotary_dim, padding);
    float *values = rp_gpu_upload(post.values, post.bytes);
    unsigned char *pages = rp_gpu_poisoned(f->pages_bytes);
    check_cuda(rp_qkv_post_cuda_run(&post.gpu, NULL));
    post_on_gpu(&post, values, pages);
    rp_gpu_download(f->host.kv.base, pages, f->pages_bytes);
    check_pages(f, true);
    rp_gpu_download(post.values, values, post.bytes);
    float *got = rp_alloc(post.bytes);
    assert_non_null(got);
    rp_gpu_download(got, post.gpu.qkv.data, post.bytes);
    for (uint32_t t = 0; t < f->step.host.counts->token_count; t++)
        if (f->step.host.token_rows[t] != RP_ROW_NONE)
            assert_memory_equal(got + (size_t)t * post.columns,
                                post.values + (size_t)t * post.columns,
                                (size_t)post.gpu.heads * post.gpu.head_dim * 4);
    rp_free(got);
    close_post(&post);
}

static void test_the_fused_kernel_has_the_bits_of_the_separate_ones(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(shapes); i++)
        for (uint32_t kind = 0; kind < 8; kind++) {
            fixture_open(f, &shapes[i]);
            add_rows(f);
            check_bits(f, kind / 2 % 2 * 3, kind % 2 == 1,
                       i % 2 == 0 ? shapes[i].head_dim : shapes[i].head_dim / 4 * 2,
                       kind < 4 ? 7 : 300);
        }
}

/* More tokens than the GPU computes at a time: two prompts, a finished row and a decode row between
 * them, and padding. */
static void test_the_fused_kernel_has_the_same_bits_for_many_tokens(void **state) {
    static const struct fixture_shape many[] = {
        {32, 8, 128, 64, 0, BF16, F32, 520}, {32, 8, 128, 64, 0, FP8, F32, 520},
        {30, 5, 64, 16, 0, INT8, F32, 520},  {40, 3, 96, 16, 0, BF16, F32, 520},
        {33, 7, 40, 16, 0, F32, F32, 520},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < RP_ARRAY_COUNT(many); i++)
        for (uint32_t kind = 0; kind < 4; kind++) {
            fixture_open(f, &many[i]);
            fixture_begin(f);
            fixture_slot(f, 3)[RP_SLOT_FINISHED] = 1;
            fixture_add_row(f, 1, 3, 511, 0);
            fixture_add_row(f, 3, 0, 2, 0);
            fixture_add_row(f, 0, 131, 1, RP_ROW_DECODE);
            fixture_add_row(f, 2, 62, 401 + kind, RP_ROW_SAMPLE);
            fixture_add_padding(f, 5);
            memset(f->host.kv.base, 0xFF, f->pages_bytes);
            rp_gpu_step_upload(&f->step);
            check_bits(f, 0, kind % 2 == 1,
                       kind / 2 == 0 ? many[i].head_dim : many[i].head_dim / 16 * 8, 9 * kind);
        }
}

RP_GPU_TEST_MAIN(NULL, NULL,
                 FIXTURE_TEST(test_live_tokens_are_stored_as_on_the_cpu_and_nothing_else_is),
                 FIXTURE_TEST(test_rows_of_extreme_values_have_the_quantized_values_of_the_cpu),
                 FIXTURE_TEST(test_the_fused_kernel_is_norm_rope_and_kv_write),
                 FIXTURE_TEST(test_the_fused_kernel_has_the_bits_of_the_separate_ones),
                 FIXTURE_TEST(test_the_fused_kernel_has_the_same_bits_for_many_tokens))
