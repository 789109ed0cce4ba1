/* Goal: the small operators on CUDA agree with ops_cpu.c, write nothing else, and give a row the
 * same bits at any position. */
#include "tests/gpu/ops_fixture.h"

static struct twin twin_placed(uint32_t n, size_t place, enum rp_dtype dtype) {
    return twin_random(LIVE_ROWS, MAX_ROWS, n, n + places[place].stride, places[place].offset,
                       dtype);
}

static void check_embed(uint32_t n, size_t place, enum rp_dtype dtype) {
    uint32_t vocab = 7; /* id 7 lies past it: the row of id 0 */
    float scale = place % 2 ? 64.0f : 1.0f, *row = make_host(n * 4ull);
    struct twin table = twin_random(vocab, vocab, n, n, places[place].offset, dtype);
    struct twin out =
        twin_make(MAX_ROWS, n, n + places[place].stride, places[place].offset, RP_DTYPE_F32);
    for (uint32_t r = 0; r < LIVE_ROWS; r++) {
        uint32_t id = (uint32_t)step.host.token_ids[r];
        size_t at = (id < vocab ? id : 0) * (size_t)n * rp_dtype_bytes(dtype);
        rp_to_f32(row, (unsigned char *)table.host.data + at, dtype, n);
        for (uint32_t c = 0; c < n; c++)
            twin_set(&out, r, c, row[c] * scale);
    }
    struct rp_embed_cuda args = {.rows = token_rows,
                                 .table = table.device.data,
                                 .dtype = dtype,
                                 .vocab = vocab,
                                 .hidden = n,
                                 .scale = scale,
                                 .out = out.device};
    assert_int_equal(rp_embed_cuda_run(&args, NULL), 0);
    assert_equal_twin(&out, LIVE_ROWS, true);
    end_case();
    rp_free_aligned(row);
}

static void test_embed_scales_the_rows_of_the_ids(void **state) {
    (void)state;
    EACH(s, sizes) EACH(d, dtypes) EACH(p, places) check_embed(sizes[s], p, dtypes[d]);
}

static void check_add(uint32_t n, size_t place, enum rp_dtype a_dtype, enum rp_dtype b_dtype) {
    struct twin a = twin_placed(n, place, a_dtype);
    struct twin b = twin_random(LIVE_ROWS, MAX_ROWS, n, n, 0, b_dtype);
    struct rp_add_args host = {a.host, b.host, a.host, n};
    struct rp_add_cuda args = {token_rows, a.device, b.device, a.device, n};
    rp_add_rows(&host, 0, LIVE_ROWS);
    assert_int_equal(rp_add_cuda_run(&args, NULL), 0);
    assert_equal_twin(&a, LIVE_ROWS, true);
    end_case();
}

static void test_add_takes_any_dtypes_and_may_work_in_place(void **state) {
    (void)state;
    EACH(s, sizes)
    EACH(a, dtypes) EACH(b, dtypes) EACH(p, places) check_add(sizes[s], p, dtypes[a], dtypes[b]);
}

static void test_gather_takes_the_tokens_of_the_logit_rows(void **state) {
    (void)state;
    EACH(s, sizes) EACH(p, places) {
        uint32_t n = sizes[s];
        struct twin in = twin_placed(n, p, RP_DTYPE_F32);
        struct twin out = twin_make(MAX_ROWS, n, n, 0, RP_DTYPE_F32);
        struct rp_gather_args host = {step.host, in.host, out.host, n};
        struct rp_gather_cuda args = {logit_rows, in.device, out.device, n};
        rp_gather_rows(&host, 0, LIVE_LOGIT_ROWS);
        assert_int_equal(rp_gather_cuda_run(&args, NULL), 0);
        assert_equal_twin(&out, LIVE_LOGIT_ROWS, true);
        end_case();
    }
}

/* cols columns in groups; in place where the dtypes agree and nothing is gathered. */
static void check_norm(uint32_t cols, uint32_t group, size_t place, enum rp_dtype in_dtype,
                       enum rp_dtype out_dtype, bool gather) {
    size_t stride = cols + places[place].stride, size = rp_dtype_bytes(in_dtype);
    uint32_t live = gather ? LIVE_LOGIT_ROWS : LIVE_ROWS;
    float weight_offset = place % 2 ? 1.0f : 0.0f;
    struct twin in = twin_random(LIVE_ROWS, MAX_ROWS, cols, stride, places[place].offset, in_dtype);
    struct twin other = twin_make(MAX_ROWS, cols, cols, 0, out_dtype);
    struct twin gathered = twin_make(MAX_ROWS, cols, cols, 0, in_dtype);
    struct twin weight = vector_random(group);
    struct twin *out = in_dtype == out_dtype && !gather ? &in : &other;
    for (uint32_t r = 0; r < live && gather; r++)
        memcpy((unsigned char *)gathered.host.data + r * cols * size,
               (unsigned char *)in.host.data + step.host.logit_tokens[r] * stride * size,
               cols * size);
    struct rp_norm_args host = {.in = gather ? gathered.host : in.host,
                                .out = out->host,
                                .weight = weight.host.data,
                                .cols = cols,
                                .group = group,
                                .eps = 1e-5f,
                                .weight_offset = weight_offset};
    struct rp_norm_cuda args = {.rows = gather ? logit_rows : token_rows,
                                .in = in.device,
                                .out = out->device,
                                .weight = weight.device.data,
                                .cols = cols,
                                .group = group,
                                .eps = 1e-5f,
                                .weight_offset = weight_offset,
                                .gather = gather};
    rp_norm_rows(&host, 0, live);
    assert_int_equal(rp_norm_cuda_run(&args, NULL), 0);
    assert_equal_twin(out, live, false);
    end_case();
}

static void test_norm_follows_the_cpu_for_every_size_stride_and_dtype(void **state) {
    (void)state;
    EACH(s, sizes)
    EACH(p, places)
    EACH(i, dtypes) EACH(o, dtypes) check_norm(sizes[s], sizes[s], p, dtypes[i], dtypes[o], false);
    EACH(p, places) {
        check_norm(16388, 16388, p, RP_DTYPE_F32, RP_DTYPE_BF16, false);
        check_norm(40001, 40001, p, RP_DTYPE_F32, RP_DTYPE_F32, false);
    }
}

static void test_norm_works_on_groups_of_columns(void **state) {
    (void)state;
    static const uint32_t groups[][2] = {{1, 5},   {7, 3},   {64, 9},  {128, 40},
                                         {256, 8}, {320, 3}, {4096, 2}};
    EACH(g, groups)
    EACH(p, places)
    EACH(i, dtypes)
    check_norm(groups[g][0] * groups[g][1], groups[g][0], p, dtypes[i], dtypes[i], false);
}

static void test_norm_gathers_the_logit_rows(void **state) {
    (void)state;
    EACH(s, sizes)
    EACH(p, places)
    EACH(o, dtypes) check_norm(sizes[s], sizes[s], p, RP_DTYPE_F32, dtypes[o], true);
}

/* residual += term or partials; out = norm(residual): by one launch, by two, and on the CPU. */
static void check_add_norm(uint32_t n, size_t place, uint32_t count, bool with_bias,
                           enum rp_dtype out_dtype) {
    size_t stride = n + places[place].stride;
    uint32_t offset = places[place].offset, part_rows = MAX_ROWS * RP_MAX(count, 1u);
    struct twin fused = twin_random(LIVE_ROWS, MAX_ROWS, n, stride, offset, RP_DTYPE_F32);
    struct twin apart = twin_make(MAX_ROWS, n, stride, offset, RP_DTYPE_F32);
    struct twin parts = twin_random(part_rows, part_rows, n, stride, offset, RP_DTYPE_F32);
    struct twin term = twin_make(MAX_ROWS, n, n, 0, RP_DTYPE_F32);
    struct twin out = twin_make(MAX_ROWS, n, n, 0, out_dtype);
    struct twin again = twin_make(MAX_ROWS, n, n, 0, out_dtype);
    struct twin weight = vector_random(n), bias = vector_random(n);
    memcpy(apart.host_base, fused.host_base, fused.bytes);
    twin_upload(&apart);
    sum_partials(&parts, count, with_bias ? &bias : NULL, &term);
    struct rp_add_norm_cuda args = {.rows = token_rows,
                                    .residual = fused.device,
                                    .term = term.device,
                                    .out = out.device,
                                    .weight = weight.device.data,
                                    .cols = n,
                                    .eps = 1e-6f,
                                    .weight_offset = 1.0f};
    if (count)
        args.partials = partials_of(&parts, count, with_bias ? &bias : NULL);
    struct rp_add_cuda add = {token_rows, apart.device, term.device, apart.device, n};
    struct rp_norm_cuda norm = {.rows = token_rows,
                                .in = apart.device,
                                .out = again.device,
                                .weight = weight.device.data,
                                .cols = n,
                                .group = n,
                                .eps = 1e-6f,
                                .weight_offset = 1.0f};
    struct rp_add_args add_host = {fused.host, term.host, fused.host, n};
    struct rp_norm_args norm_host = {fused.host, out.host, weight.host.data, n, n, 1e-6f, 1.0f};
    assert_int_equal(rp_add_norm_cuda_run(&args, NULL), 0);
    assert_int_equal(rp_add_cuda_run(&add, NULL), 0);
    assert_int_equal(rp_norm_cuda_run(&norm, NULL), 0);
    rp_add_rows(&add_host, 0, LIVE_ROWS);
    rp_norm_rows(&norm_host, 0, LIVE_ROWS);
    assert_equal_twin(&fused, LIVE_ROWS, true);
    assert_equal_twin(&out, LIVE_ROWS, false);
    twin_download(&out);
    twin_download(&again);
    twin_download(&apart);
    assert_memory_equal(out.host_base, again.host_base, out.bytes);
    assert_memory_equal(apart.host_base, fused.host_base, fused.bytes);
    end_case();
}

/* The last layer's: rows of tokens in, rows of logits out, and the residual is unchanged. */
static void check_add_gather_norm(uint32_t n, size_t place, uint32_t count, bool early) {
    size_t stride = n + places[place].stride;
    uint32_t offset = places[place].offset, part_rows = MAX_ROWS * count;
    struct twin residual = twin_random(LIVE_ROWS, MAX_ROWS, n, stride, offset, RP_DTYPE_F32);
    struct twin parts = twin_random(part_rows, part_rows, n, stride, offset, RP_DTYPE_F32);
    struct twin term = twin_make(MAX_ROWS, n, n, 0, RP_DTYPE_F32);
    struct twin sum = twin_make(MAX_ROWS, n, stride, offset, RP_DTYPE_F32);
    struct twin out = twin_make(MAX_ROWS, n, n, 0, RP_DTYPE_BF16);
    struct twin again = twin_make(MAX_ROWS, n, n, 0, RP_DTYPE_BF16);
    struct twin weight = vector_random(n), bias = vector_random(n);
    sum_partials(&parts, count, &bias, &term);
    struct rp_add_cuda add = {token_rows, residual.device, term.device, sum.device, n};
    struct rp_norm_cuda norm = {.rows = logit_rows,
                                .in = sum.device,
                                .out = again.device,
                                .weight = weight.device.data,
                                .cols = n,
                                .group = n,
                                .eps = 1e-6f,
                                .gather = true};
    struct rp_add_norm_cuda args = {.rows = logit_rows,
                                    .residual = residual.device,
                                    .out = out.device,
                                    .partials = partials_of(&parts, count, &bias),
                                    .weight = weight.device.data,
                                    .cols = n,
                                    .eps = 1e-6f,
                                    .behind_product = early,
                                    .gather = true};
    assert_int_equal(rp_add_cuda_run(&add, NULL), 0);
    assert_int_equal(rp_norm_cuda_run(&norm, NULL), 0);
    assert_int_equal(rp_add_norm_cuda_run(&args, NULL), 0);
    assert_equal_twin(&residual, LIVE_ROWS, true);
    twin_download(&out);
    twin_download(&again);
    assert_memory_equal(out.host_base, again.host_base, out.bytes);
    end_case();
}

static void test_add_norm_gathers_the_logit_rows(void **state) {
    (void)state;
    EACH(s, sizes)
    EACH(p, places) check_add_gather_norm(sizes[s], p, 1 + (s + p) % 4, (s + p) % 3 == 0);
    EACH(p, places) {
        check_add_gather_norm(4096, p, 4, p % 2);
        check_add_gather_norm(16388, p, 3, p % 2);
    }
}

static void test_add_norm_has_the_bits_of_add_and_norm(void **state) {
    (void)state;
    EACH(s, sizes) EACH(p, places) check_add_norm(sizes[s], p, 0, false, dtypes[(s + p) % 2]);
    for (uint32_t count = 1; count <= 14; count++) {
        EACH(p, places) check_add_norm(100, p, count, count % 2, dtypes[p % 2]);
        check_add_norm(4096, count % 5, count, count % 3 == 0, RP_DTYPE_BF16);
        check_add_norm(7, count % 5, count, false, RP_DTYPE_F32);
    }
    EACH(p, places) {
        check_add_norm(4096, p, 14, true, RP_DTYPE_F32);
        check_add_norm(8192, p, 4, false, RP_DTYPE_BF16);
        check_add_norm(16388, p, 3, true, RP_DTYPE_F32);
    }
}

static void test_rope_rotates_exactly_as_the_cpu(void **state) {
    (void)state;
    static const uint32_t shapes[][3] = {{1, 2, 2},    {3, 8, 8},   {40, 128, 128},
                                         {5, 128, 64}, {2, 30, 14}, {1, 12, 0}};
    EACH(s, shapes) EACH(d, dtypes) EACH(p, places) {
        uint32_t heads = shapes[s][0], dim = shapes[s][1], rotary = shapes[s][2], n = heads * dim;
        uint32_t positions = 20; /* position 25 lies past them */
        struct twin x = twin_placed(n, p, dtypes[d]);
        struct twin table = vector_random(positions * rotary + 1);
        struct rp_rope_args host = {step.host, x.host, table.host.data, heads,
                                    dim,       rotary, positions};
        struct rp_rope_cuda args = {token_rows, x.device, table.device.data, heads,
                                    dim,        rotary,   positions};
        rp_rope_rows(&host, 0, LIVE_ROWS);
        assert_int_equal(rp_rope_cuda_run(&args, NULL), 0);
        assert_equal_twin(&x, LIVE_ROWS, true);
        end_case();
    }
}

static void check_activation(uint32_t n, size_t place, uint32_t count, bool with_bias,
                             enum rp_dtype in_dtype, enum rp_dtype out_dtype,
                             enum rp_activation fn) {
    size_t stride = 2 * n + places[place].stride;
    uint32_t offset = places[place].offset, part_rows = MAX_ROWS * RP_MAX(count, 1u);
    struct twin parts = twin_random(part_rows, part_rows, 2 * n, stride, offset, RP_DTYPE_F32);
    struct twin in = twin_random(LIVE_ROWS, MAX_ROWS, 2 * n, stride, offset, in_dtype);
    struct twin out = twin_make(MAX_ROWS, n, n + places[place].stride, offset, out_dtype);
    struct twin bias = vector_random(2 * n);
    if (count)
        sum_partials(&parts, count, with_bias ? &bias : NULL, &in);
    struct rp_activation_args host = {in.host, out.host, n, fn};
    struct rp_activation_cuda args = {
        .rows = token_rows, .in = in.device, .out = out.device, .cols = n, .fn = fn};
    if (count)
        args.partials = partials_of(&parts, count, with_bias ? &bias : NULL);
    rp_activation_rows(&host, 0, LIVE_ROWS);
    assert_int_equal(rp_activation_cuda_run(&args, NULL), 0);
    assert_equal_twin(&out, LIVE_ROWS, false);
    end_case();
}

static void test_activation_follows_the_cpu_in_values_and_partials(void **state) {
    (void)state;
    static const enum rp_activation fns[] = {RP_ACTIVATION_SILU, RP_ACTIVATION_GELU_TANH};
    EACH(s, sizes)
    EACH(p, places)
    EACH(d, dtypes)
    check_activation(sizes[s], p, 0, false, dtypes[d], dtypes[(d + p) % 2], fns[(s + p) % 2]);
    for (uint32_t count = 1; count <= 14; count++)
        EACH(p, places)
    check_activation(p % 2 ? 100 : 7, p, count, count % 2, RP_DTYPE_F32, dtypes[count % 2],
                     fns[count % 2]);
    EACH(p, places)
    check_activation(14336, p, 4, false, RP_DTYPE_F32, RP_DTYPE_BF16, RP_ACTIVATION_SILU);
}

static void check_glu(uint32_t n, size_t place, enum rp_dtype out_dtype, enum rp_activation fn) {
    uint32_t offset = places[place].offset, stride = n + (uint32_t)places[place].stride;
    struct twin gate = twin_random(LIVE_ROWS, MAX_ROWS, n, stride, offset, RP_DTYPE_F32);
    struct twin up = twin_random(LIVE_ROWS, MAX_ROWS, n, stride + 4, offset, RP_DTYPE_F32);
    struct twin out = twin_make(MAX_ROWS, n, stride, offset, out_dtype);
    struct rp_glu_args host = {gate.host, up.host, out.host, n, fn, rp_gate_values};
    struct rp_glu_cuda args = {.rows = token_rows,
                               .gate = gate.device,
                               .up = up.device,
                               .out = out.device,
                               .cols = n,
                               .fn = fn};
    rp_glu_rows(&host, 0, LIVE_ROWS);
    assert_int_equal(rp_glu_cuda_run(&args, NULL), 0);
    assert_equal_twin(&out, LIVE_ROWS, false);
    end_case();
}

static void test_glu_of_separate_tensors_follows_the_cpu(void **state) {
    static const enum rp_activation fns[] = {RP_ACTIVATION_SILU, RP_ACTIVATION_GELU_TANH,
                                             RP_ACTIVATION_SIGMOID};
    (void)state;
    EACH(s, sizes)
    EACH(p, places)
    EACH(d, dtypes)
    check_glu(sizes[s], p, dtypes[d], fns[(s + p) % RP_ARRAY_COUNT(fns)]);
}

static void test_soft_cap_follows_the_cpu_and_may_work_in_place(void **state) {
    (void)state;
    EACH(s, sizes) EACH(p, places) {
        uint32_t n = sizes[s];
        struct twin x = twin_placed(n, p, RP_DTYPE_F32);
        struct twin other = twin_make(MAX_ROWS, n, n, 0, RP_DTYPE_F32);
        struct twin *out = s % 2 ? &x : &other;
        struct rp_soft_cap_args host = {x.host, out->host, n, 0.75f};
        struct rp_soft_cap_cuda args = {token_rows, x.device, out->device, n, 0.75f};
        for (uint32_t r = 0; r < LIVE_ROWS; r++)
            rp_soft_cap_cols(&host, r, 0, n);
        assert_int_equal(rp_soft_cap_cuda_run(&args, NULL), 0);
        assert_equal_twin(out, LIVE_ROWS, false);
        end_case();
    }
}

/* With a table of factors by position, past whose end its last one counts, and without. */
static void check_scale(uint32_t n, size_t place, enum rp_dtype in_dtype, enum rp_dtype out_dtype,
                        bool by_position) {
    struct twin x = twin_placed(n, place, in_dtype);
    struct twin other = twin_make(MAX_ROWS, n, n, 0, out_dtype), table = vector_random(2);
    struct twin *out = in_dtype == out_dtype && place % 2 ? &x : &other;
    struct rp_scale_args host = {.step = step.host,
                                 .in = x.host,
                                 .out = out->host,
                                 .table = by_position ? table.host.data : NULL,
                                 .cols = n,
                                 .position_count = 2,
                                 .factor = 0.3f};
    struct rp_scale_cuda args = {.rows = token_rows,
                                 .in = x.device,
                                 .out = out->device,
                                 .table = by_position ? table.device.data : NULL,
                                 .cols = n,
                                 .position_count = 2,
                                 .factor = 0.3f};
    rp_scale_rows(&host, 0, LIVE_ROWS);
    assert_int_equal(rp_scale_cuda_run(&args, NULL), 0);
    assert_equal_twin(out, LIVE_ROWS, true);
    end_case();
}

static void test_scale_has_the_bits_of_the_cpu(void **state) {
    (void)state;
    EACH(s, sizes)
    EACH(a, dtypes)
    EACH(b, dtypes) EACH(p, places) check_scale(sizes[s], p, dtypes[a], dtypes[b], (s + p) % 2);
}

/* groups of n columns; in place where the dtypes agree. */
static void check_layer_norm(uint32_t n, uint32_t groups, size_t place, enum rp_dtype in_dtype,
                             enum rp_dtype out_dtype, bool with_bias) {
    uint32_t cols = n * groups;
    struct twin in = twin_placed(cols, place, in_dtype);
    struct twin other = twin_make(MAX_ROWS, cols, cols, 0, out_dtype);
    struct twin weight = vector_random(cols), bias = vector_random(cols);
    struct twin *out = in_dtype == out_dtype ? &in : &other;
    struct rp_layer_norm_args host = {
        in.host, out->host, weight.host.data, with_bias ? bias.host.data : NULL, cols, n, 1e-5f};
    struct rp_layer_norm_cuda args = {
        token_rows, in.device, out->device, weight.device.data, with_bias ? bias.device.data : NULL,
        cols,       n,         1e-5f};
    rp_layer_norm_rows(&host, 0, LIVE_ROWS);
    assert_int_equal(rp_layer_norm_cuda_run(&args, NULL), 0);
    assert_equal_twin(out, LIVE_ROWS, false);
    end_case();
}

static void test_layer_norm_follows_the_cpu_for_every_size_group_and_dtype(void **state) {
    (void)state;
    static const uint32_t heads[] = {8, 13, 64, 160};
    EACH(s, sizes) {
        EACH(p, places) {
            check_layer_norm(sizes[s], 1, p, dtypes[s % 2], dtypes[p % 2], (s + p) % 2);
            check_layer_norm(sizes[s], 1, p, dtypes[p % 2], dtypes[s % 2], (s + p) % 2);
        }
    }
    EACH(h, heads) {
        EACH(p, places) check_layer_norm(heads[h], 5, p, RP_DTYPE_F32, RP_DTYPE_F32, p % 2);
    }
}

/* Row 4 of a batch, and a copy of it in a batch of its own. */
struct row_case {
    struct twin in, alone, all, one, weight;
};

static struct row_case make_row_case(uint32_t n) {
    struct row_case c;
    c.in = twin_random(LIVE_ROWS, MAX_ROWS, n, n, 0, RP_DTYPE_F32);
    c.alone = twin_make(1, n, n + 3, 1, RP_DTYPE_F32);
    c.all = twin_make(MAX_ROWS, n, n, 0, RP_DTYPE_F32);
    c.one = twin_make(1, n, n + 1, 0, RP_DTYPE_F32);
    c.weight = vector_random(n);
    for (uint32_t col = 0; col < n; col++)
        twin_set(&c.alone, 0, col, ((float *)c.in.host.data)[4 * (size_t)n + col]);
    twin_upload(&c.alone);
    return c;
}

static void end_row_case(struct row_case *c) {
    size_t n = c->all.cols;
    twin_download(&c->all);
    twin_download(&c->one);
    assert_memory_equal((float *)c->all.host.data + 4 * n, c->one.host.data, n * 4);
    end_case();
}

static void test_a_row_of_layer_norm_has_the_same_bits_in_every_batch(void **state) {
    (void)state;
    EACH(s, sizes) {
        uint32_t n = sizes[s];
        struct row_case c = make_row_case(n);
        struct rp_layer_norm_cuda batch = {
            token_rows, c.in.device, c.all.device, c.weight.device.data, NULL, n, n, 1e-5f};
        struct rp_layer_norm_cuda single = batch;
        single.rows.max_rows = 1;
        single.in = c.alone.device;
        single.out = c.one.device;
        assert_int_equal(rp_layer_norm_cuda_run(&batch, NULL), 0);
        assert_int_equal(rp_layer_norm_cuda_run(&single, NULL), 0);
        end_row_case(&c);
    }
}

static void test_activation_of_large_inputs_is_finite(void **state) {
    (void)state;
    static const float gates[4] = {-1e4f, -89.0f, -20.0f, 1e4f};
    struct twin in = twin_make(MAX_ROWS, 8, 8, 0, RP_DTYPE_F32);
    struct twin out = twin_make(MAX_ROWS, 4, 4, 0, RP_DTYPE_F32);
    for (uint32_t r = 0; r < LIVE_ROWS; r++)
        for (uint32_t c = 0; c < 8; c++)
            twin_set(&in, r, c, c < 4 ? gates[c] : 1.0f);
    twin_upload(&in);
    for (int fn = 0; fn < 2; fn++) {
        struct rp_activation_args host = {in.host, out.host, 4, (enum rp_activation)fn};
        struct rp_activation_cuda args = {.rows = token_rows,
                                          .in = in.device,
                                          .out = out.device,
                                          .cols = 4,
                                          .fn = (enum rp_activation)fn};
        rp_activation_rows(&host, 0, LIVE_ROWS);
        assert_int_equal(rp_activation_cuda_run(&args, NULL), 0);
        assert_equal_twin(&out, LIVE_ROWS, false);
    }
    end_case();
}

static void test_a_row_has_the_same_bits_in_every_batch_and_place(void **state) {
    (void)state;
    EACH(s, sizes) {
        uint32_t n = sizes[s];
        struct row_case c = make_row_case(n);
        struct rp_norm_cuda batch = {.rows = token_rows,
                                     .in = c.in.device,
                                     .out = c.all.device,
                                     .weight = c.weight.device.data,
                                     .cols = n,
                                     .group = n,
                                     .eps = 1e-5f};
        struct rp_norm_cuda single = batch;
        single.rows.max_rows = 1;
        single.in = c.alone.device;
        single.out = c.one.device;
        assert_int_equal(rp_norm_cuda_run(&batch, NULL), 0);
        assert_int_equal(rp_norm_cuda_run(&single, NULL), 0);
        end_row_case(&c);
    }
}

/* Few, some and many rows are computed by blocks of different shapes. */
static void check_shapes(uint32_t n, uint32_t partial_count) {
    static const uint32_t buckets[] = {1, 9, 32, 33, 256, 257};
    const uint32_t most = 257;
    struct twin parts = twin_random(most * RP_MAX(partial_count, 1u),
                                    most * RP_MAX(partial_count, 1u), n, n, 0, RP_DTYPE_F32);
    struct twin first = twin_random(most, most, n, n, 0, RP_DTYPE_F32), weight = vector_random(n);
    struct twin residual = twin_make(most, n, n, 0, RP_DTYPE_F32);
    struct twin out = twin_make(most, n, n, 0, RP_DTYPE_F32);
    unsigned char *wanted = make_host(n * 4ull), *wanted_out = make_host(n * 4ull);
    EACH(b, buckets) {
        memcpy(residual.host_base, first.host_base, first.bytes);
        twin_upload(&residual);
        struct rp_add_norm_cuda args = {.rows = token_rows,
                                        .residual = residual.device,
                                        .term = parts.device,
                                        .out = out.device,
                                        .weight = weight.device.data,
                                        .cols = n,
                                        .eps = 1e-6f};
        args.rows.max_rows = buckets[b];
        if (partial_count)
            args.partials = (struct rp_cuda_partials){.data = parts.device.data,
                                                      .count = partial_count,
                                                      .split_stride = most * (size_t)n,
                                                      .row_stride = n};
        assert_int_equal(rp_add_norm_cuda_run(&args, NULL), 0);
        twin_download(&residual);
        twin_download(&out);
        if (b == 0) {
            memcpy(wanted, residual.host_base, n * 4ull);
            memcpy(wanted_out, out.host_base, n * 4ull);
        }
        assert_memory_equal(residual.host_base, wanted, n * 4ull);
        assert_memory_equal(out.host_base, wanted_out, n * 4ull);
    }
    end_case();
    rp_free_aligned(wanted);
    rp_free_aligned(wanted_out);
}

static void test_a_row_has_the_same_bits_in_every_bucket(void **state) {
    (void)state;
    static const uint32_t counts[] = {0, 1, 4, 14};
    EACH(c, counts) {
        check_shapes(4096, counts[c]);
        check_shapes(3588, counts[c]);
        check_shapes(3999, counts[c]);
        check_shapes(5120, counts[c]);
    }
}

RP_GPU_TEST_MAIN(NULL, NULL, TEST(test_embed_scales_the_rows_of_the_ids),
                 TEST(test_add_takes_any_dtypes_and_may_work_in_place),
                 TEST(test_gather_takes_the_tokens_of_the_logit_rows),
                 TEST(test_norm_follows_the_cpu_for_every_size_stride_and_dtype),
                 TEST(test_norm_works_on_groups_of_columns), TEST(test_norm_gathers_the_logit_rows),
                 TEST(test_add_norm_has_the_bits_of_add_and_norm),
                 TEST(test_add_norm_gathers_the_logit_rows),
                 TEST(test_rope_rotates_exactly_as_the_cpu),
                 TEST(test_activation_follows_the_cpu_in_values_and_partials),
                 TEST(test_glu_of_separate_tensors_follows_the_cpu),
                 TEST(test_soft_cap_follows_the_cpu_and_may_work_in_place),
                 TEST(test_scale_has_the_bits_of_the_cpu),
                 TEST(test_layer_norm_follows_the_cpu_for_every_size_group_and_dtype),
                 TEST(test_a_row_of_layer_norm_has_the_same_bits_in_every_batch),
                 TEST(test_activation_of_large_inputs_is_finite),
                 TEST(test_a_row_has_the_same_bits_in_every_batch_and_place),
                 TEST(test_a_row_has_the_same_bits_in_every_bucket))
