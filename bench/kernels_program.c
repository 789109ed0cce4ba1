/* kernels_program.c - the program of a case: `repeats` repetitions of its operator, which rotate
 * among copies of its tensors, weights and pages. */
#include "backend/op_cost.h"
#include "base/memory.h"
#include "bench/kernels_internal.h"
#include "bench/random_pattern.h"
#include "bench/replay_time.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TENSORS_MAX       3u                /* tensors of one repetition */
#define ERROR_OUTPUTS_MAX ((size_t)1 << 22) /* GEMM outputs compared by rp_kernels_gemm_error */

static uint32_t copy_count(const struct kernels_bench *bench, uint64_t bytes, uint32_t max) {
    uint64_t copies = RP_CEIL_DIV(bench->cold_bytes, RP_MAX(bytes, 1u));
    return (uint32_t)RP_MAX(1u, RP_MIN(copies, max));
}

static float weight_scale(uint32_t k) { return 1.0f / sqrtf((float)k); }

void rp_kernels_weights_free(struct kernels_bench *bench) {
    for (uint32_t i = 0; i < bench->weight_count; i++)
        bench->backend->matrix_release(bench->device, &bench->weights[i]);
    bench->weight_count = 0;
}

int rp_kernels_weights_make(struct kernels_bench *bench, uint32_t n, uint32_t k,
                            struct rp_error *err) {
    struct rp_matrix shape = {.rows = n, .cols = k, .dtype = bench->config->dtype};
    rp_quant_describe(&shape, bench->config->scheme);
    uint64_t bytes = (uint64_t)n * k * rp_dtype_bytes(shape.dtype);
    uint32_t copies = copy_count(bench, bytes, KERNELS_WEIGHTS_MAX);
    rp_kernels_weights_free(bench);
    for (uint32_t i = 0; i < copies; i++) {
        struct rp_matrix *matrix = &bench->weights[i];
        *matrix = shape;
        int status =
            bench->backend->matrix_random(bench->device, matrix, i + 1, weight_scale(k), err);
        if (status != RP_OK)
            return status;
        bench->weight_count++;
    }
    return RP_OK;
}

/* ---- operators ------------------------------------------------------------------------------ */

struct emit {
    const struct kernels_bench *bench;
    const struct kernels_run *run;
    struct rp_program *program;
    int status;
};

static void add_tensor(struct emit *e, enum rp_dtype dtype, uint32_t cols) {
    if (e->status == RP_OK && rp_program_add_tensor(e->program, e->run->op_case->domain, dtype,
                                                    cols, "t%u", e->program->tensor_count) < 0)
        e->status = RP_STATUS_NO_MEMORY;
}

/* Adds one set of tensors: at most TENSORS_MAX, the same number in every set. */
static void add_tensors(struct emit *e) {
    const struct rp_model_config *shape = &e->bench->shape;
    enum rp_dtype dtype = e->bench->config->dtype;
    uint32_t q = shape->heads * shape->head_dim, kv = shape->kv_heads * shape->head_dim;
    switch (e->run->op_case->kind) {
    case KERNELS_GEMM:
        add_tensor(e, dtype, e->run->op_case->k);
        add_tensor(e, RP_DTYPE_F32, e->run->op_case->n);
        break;
    case KERNELS_NORM:
        add_tensor(e, RP_DTYPE_F32, shape->hidden);
        add_tensor(e, dtype, shape->hidden);
        break;
    case KERNELS_ADD_NORM:
        add_tensor(e, RP_DTYPE_F32, shape->hidden);
        add_tensor(e, RP_DTYPE_F32, shape->hidden);
        add_tensor(e, dtype, shape->hidden);
        break;
    case KERNELS_ACTIVATION:
        add_tensor(e, RP_DTYPE_F32, 2 * shape->intermediate);
        add_tensor(e, dtype, shape->intermediate);
        break;
    case KERNELS_ROPE:
    case KERNELS_KV_WRITE:
    case KERNELS_QKV_POST:
        add_tensor(e, RP_DTYPE_F32, q + 2 * kv);
        break;
    case KERNELS_ATTENTION:
        add_tensor(e, RP_DTYPE_F32, q);
        add_tensor(e, dtype, q);
        break;
    case KERNELS_SAMPLE:
    case KERNELS_SAMPLE_TOP:
        add_tensor(e, RP_DTYPE_F32, shape->vocab);
        break;
    }
}

static const struct rp_view nothing = {RP_NO_TENSOR, 0, 0};

static void add(struct emit *e, struct rp_op op, enum rp_op_kind kind, uint32_t repeat) {
    if (e->status != RP_OK)
        return;
    op.kind = kind;
    op.rows = e->run->op_case->domain;
    op.layer = (uint16_t)(repeat % e->run->sets);
    snprintf(op.name, sizeof op.name, "%s.%u", e->run->op_case->op, repeat);
    if (rp_program_add_op(e->program, &op) < 0)
        e->status = RP_STATUS_NO_MEMORY;
}

static void add_norm(struct emit *e, struct rp_view in, struct rp_view out, uint32_t repeat) {
    struct rp_op norm = {.in_count = 1, .in = {in}, .out = out, .vector = e->bench->norm_weight};
    norm.u.norm.eps = e->bench->shape.norm_eps;
    norm.u.norm.group = in.cols;
    add(e, norm, RP_OP_NORM, repeat);
}

static void add_rope(struct emit *e, struct rp_view x, uint32_t repeat) {
    struct rp_op rope = {.in_count = 1, .in = {x}, .out = x, .table = e->bench->rope_table};
    rope.u.rope.heads = x.cols / e->bench->shape.head_dim;
    rope.u.rope.head_dim = rope.u.rope.rotary_dim = e->bench->shape.head_dim;
    rope.u.rope.position_count = e->bench->rope_positions;
    add(e, rope, RP_OP_ROPE, repeat);
}

static void add_kv_write(struct emit *e, struct rp_view k, struct rp_view v, uint32_t repeat) {
    struct rp_op write = {.in_count = 2, .in = {k, v}, .out = nothing};
    write.u.kv_write.kv_heads = e->bench->shape.kv_heads;
    write.u.kv_write.head_dim = e->bench->shape.head_dim;
    add(e, write, RP_OP_KV_WRITE, repeat);
}

static void add_attention(struct emit *e, struct rp_view q, struct rp_view out, uint32_t repeat) {
    struct rp_op attention = {.in_count = 1, .in = {q}, .out = out};
    attention.u.attention.heads = e->bench->shape.heads;
    attention.u.attention.kv_heads = e->bench->shape.kv_heads;
    attention.u.attention.head_dim = e->bench->shape.head_dim;
    attention.u.attention.scale = 1.0f / sqrtf((float)e->bench->shape.head_dim);
    add(e, attention, RP_OP_ATTENTION, repeat);
}

static void add_qkv(struct emit *e, struct rp_view qkv, uint32_t repeat) {
    const struct rp_model_config *shape = &e->bench->shape;
    uint32_t q = shape->heads * shape->head_dim, kv = shape->kv_heads * shape->head_dim;
    struct rp_view k = {qkv.tensor, q, kv}, v = {qkv.tensor, q + kv, kv};
    if (e->run->op_case->kind != KERNELS_KV_WRITE) /* q and k together, as in the network */
        add_rope(e, (struct rp_view){qkv.tensor, 0, q + kv}, repeat);
    if (e->run->op_case->kind != KERNELS_ROPE)
        add_kv_write(e, k, v, repeat);
}

/* Adds one repetition, on its set of tensors. */
static void add_repetition(struct emit *e, uint32_t repeat, uint32_t copies) {
    uint32_t per_set = e->program->tensor_count / copies;
    int32_t first = (int32_t)(repeat % copies * per_set);
    struct rp_view t[TENSORS_MAX];
    for (uint32_t i = 0; i < TENSORS_MAX; i++)
        t[i] = i < per_set ? rp_view_all(e->program, first + (int32_t)i) : nothing;
    struct rp_op op = {.in_count = 1, .in = {t[0]}, .out = t[1]};
    switch (e->run->op_case->kind) {
    case KERNELS_GEMM:
        op.weight = &e->bench->weights[repeat % e->bench->weight_count];
        add(e, op, RP_OP_LINEAR, repeat);
        break;
    case KERNELS_NORM:
        add_norm(e, t[0], t[1], repeat);
        break;
    case KERNELS_ADD_NORM:
        rp_op_add_input(&op, t[1]);
        op.out = t[0];
        add(e, op, RP_OP_ADD, repeat);
        add_norm(e, t[0], t[2], repeat);
        break;
    case KERNELS_ACTIVATION:
        op.u.activation.fn = e->bench->shape.activation;
        add(e, op, RP_OP_ACTIVATION, repeat);
        break;
    case KERNELS_ROPE:
    case KERNELS_KV_WRITE:
    case KERNELS_QKV_POST:
        add_qkv(e, t[0], repeat);
        break;
    case KERNELS_ATTENTION:
        add_attention(e, t[0], t[1], repeat);
        break;
    case KERNELS_SAMPLE:
    case KERNELS_SAMPLE_TOP:
        op.u.sample.vocab = e->bench->shape.vocab;
        add(e, op, RP_OP_SAMPLE, repeat);
        break;
    }
}

/* ---- memory --------------------------------------------------------------------------------- */

static bool uses_pages(enum kernels_kind kind) {
    return kind == KERNELS_KV_WRITE || kind == KERNELS_QKV_POST || kind == KERNELS_ATTENTION;
}

/* Attention's plan is computed at the start of a step. */
static bool needs_start(const struct kernels_run *run) {
    return run->op_case->kind == KERNELS_ATTENTION;
}

/* Builds the program; repeats 0: only its tensors. */
static int make_program(struct kernels_bench *bench, const struct kernels_run *run,
                        uint32_t repeats, struct rp_program *program) {
    struct emit e = {bench, run, program, RP_OK};
    rp_program_init(program);
    /* Fused qkv_post stores only q, so a later repetition must not read the same k and v: each
     * repetition has its own tensor. */
    uint32_t copies =
        run->op_case->kind == KERNELS_QKV_POST ? RP_MAX(run->sets, repeats) : run->sets;
    for (uint32_t i = 0; i < copies; i++)
        add_tensors(&e);
    if (needs_start(run) && e.status == RP_OK) {
        struct rp_op begin = {.out = nothing, .rows = RP_ROWS_NONE};
        begin.kind = RP_OP_STEP_BEGIN;
        begin.layer = RP_LAYER_NONE;
        snprintf(begin.name, sizeof begin.name, "step_begin");
        if (rp_program_add_op(program, &begin) < 0)
            e.status = RP_STATUS_NO_MEMORY;
    }
    for (uint32_t i = 0; i < repeats; i++)
        add_repetition(&e, i, copies);
    program->sample_begin = program->op_count;
    return e.status;
}

/* Assigns arena offsets and returns the size of the arena. Tensors of a set do not overlap; tensors
 * of qkv_post beyond the first `sets` reuse their offsets. offsets may be NULL. */
static size_t assign_offsets(const struct rp_program *program, const struct kernels_run *run,
                             size_t *offsets) {
    bool rotates = run->op_case->kind == KERNELS_QKV_POST;
    size_t used = 0;
    for (uint32_t i = 0; i < program->tensor_count; i++) {
        const struct rp_tensor *t = &program->tensors[i];
        bool reused = rotates && i >= run->sets;
        if (offsets)
            offsets[i] = reused ? offsets[i % run->sets] : used;
        if (reused)
            continue;
        used += RP_ALIGN_UP((size_t)rp_program_rows(program, &run->bucket, t->rows) * t->cols *
                                rp_dtype_bytes(t->dtype),
                            256);
    }
    return used;
}

static int allocate(struct kernels_bench *bench, size_t bytes, unsigned char **out,
                    struct rp_error *err) {
    return rp_random_pattern_alloc(bench->backend, bench->device, bench->pattern, bytes, out, err);
}

static uint32_t sequences(const struct kernels_case *op_case) {
    return op_case->rows > KERNELS_DECODE_ROWS_MAX ? 1 : op_case->rows;
}

/* Average number of keys that a row of attention reads. */
static uint32_t mean_keys(const struct kernels_case *op_case) {
    return op_case->rows > KERNELS_DECODE_ROWS_MAX ? op_case->rows / 2 : op_case->context + 1;
}

/* Chooses the number of sets of tensors, or layers of pages, that exceeds the caches. */
static int choose_sets(struct kernels_bench *bench, struct kernels_run *run) {
    const struct kernels_case *op_case = run->op_case;
    struct rp_program program;
    run->sets = 1;
    int status = make_program(bench, run, 0, &program);
    uint64_t bytes = assign_offsets(&program, run, NULL);
    rp_program_deinit(&program);
    if (op_case->kind == KERNELS_ATTENTION)
        bytes = 2ull * sequences(op_case) * mean_keys(op_case) * bench->shape.kv_heads *
                bench->shape.head_dim * rp_dtype_bytes(bench->config->dtype);
    run->sets = copy_count(bench, bytes, KERNELS_SETS_MAX);
    return status;
}

static int make_pages(struct kernels_bench *bench, struct kernels_run *run, struct rp_error *err) {
    const struct rp_model_config *shape = &bench->shape;
    const struct kernels_case *op_case = run->op_case;
    uint32_t page_tokens = bench->info.page_tokens;
    uint32_t tokens =
        op_case->rows > KERNELS_DECODE_ROWS_MAX ? op_case->rows : op_case->context + 1;
    if (!rp_kv_layout_init(&run->kv, run->sets, shape->kv_heads, shape->head_dim, page_tokens,
                           bench->config->dtype))
        return rp_error_set(err, RP_STATUS_OVERFLOW, "KV pages are too large");
    size_t pages = 1 + (size_t)sequences(op_case) * RP_CEIL_DIV(tokens, page_tokens);
    int status = allocate(bench, pages * run->kv.page_stride, &run->pages, err);
    run->kv.base = run->pages;
    return status;
}

int rp_kernels_run_open(struct kernels_bench *bench, const struct kernels_case *op_case,
                        struct kernels_run *run, struct rp_error *err) {
    struct rp_program program;
    memset(run, 0, sizeof *run);
    run->op_case = op_case;
    run->bucket = (struct rp_bucket){.tokens = op_case->rows,
                                     .rows = sequences(op_case),
                                     .logit_rows = sequences(op_case),
                                     .decode = op_case->rows <= KERNELS_DECODE_ROWS_MAX};
    int status = choose_sets(bench, run);
    if (status == RP_OK)
        status = make_program(bench, run, 0, &program);
    if (status != RP_OK)
        return rp_error_set(err, status, "out of memory for a program");
    status = allocate(bench, assign_offsets(&program, run, NULL), &run->arena, err);
    rp_program_deinit(&program);
    if (status == RP_OK && uses_pages(op_case->kind))
        status = make_pages(bench, run, err);
    else if (status == RP_OK &&
             !rp_kv_layout_init(&run->kv, 1, bench->shape.kv_heads, bench->shape.head_dim,
                                bench->info.page_tokens, bench->config->dtype))
        status = rp_error_set(err, RP_STATUS_OVERFLOW, "KV pages are too large");
    return status == RP_OK ? bench->backend->synchronize(bench->device) : status;
}

static void sum_cost(const struct kernels_bench *bench, struct kernels_run *run,
                     const struct rp_program *program, uint32_t begin, uint32_t end) {
    memset(&run->cost, 0, sizeof run->cost);
    for (uint32_t i = begin; i < end; i++) {
        struct rp_cost cost = rp_op_cost(program, &program->ops[i], &run->bucket,
                                         bench->config->dtype, mean_keys(run->op_case));
        run->cost.bytes_read += cost.bytes_read;
        run->cost.bytes_written += cost.bytes_written;
        run->cost.flops += cost.flops;
    }
}

static void destroy_graphs(struct kernels_bench *bench, struct kernels_run *run) {
    bench->backend->graph_destroy(bench->device, run->graph);
    bench->backend->graph_destroy(bench->device, run->start);
    run->graph = run->start = NULL;
}

int rp_kernels_run_capture(struct kernels_bench *bench, struct kernels_run *run, uint32_t repeats,
                           struct rp_error *err) {
    const struct rp_backend *backend = bench->backend;
    enum kernels_kind kind = run->op_case->kind;
    struct rp_lower_options options = {.no_fusion =
                                           kind != KERNELS_ADD_NORM && kind != KERNELS_QKV_POST};
    struct rp_program program;
    destroy_graphs(bench, run);
    int status = make_program(bench, run, repeats, &program);
    size_t *offsets = rp_calloc(program.tensor_count + 1, sizeof *offsets);
    if (status != RP_OK || !offsets) {
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for a program");
        goto done;
    }
    assign_offsets(&program, run, offsets);
    uint32_t first = needs_start(run) ? 1 : 0;
    sum_cost(bench, run, &program, first, first + (program.op_count - first) / repeats);
    struct rp_bindings bindings = {run->arena, offsets, bench->view, &run->kv, 0, NULL};
    status = backend->capture(bench->device, &program, 0, program.op_count, &run->bucket, &bindings,
                              &options, false, &run->graph, err);
    if (status == RP_OK && first)
        status = backend->capture(bench->device, &program, 0, first, &run->bucket, &bindings,
                                  &options, false, &run->start, err);
    if (status == RP_OK) {
        run->repeats = repeats;
        struct rp_replay replay = {backend, bench->device, run->graph, run->start, repeats};
        rp_replay_kernels(&replay, run->kernel);
    }
done:
    rp_free(offsets);
    rp_program_deinit(&program);
    return status;
}

/* Runs the GEMM once and copies its outputs to `out`. */
static int compute_outputs(struct kernels_bench *bench, struct kernels_run *run, float *out,
                           size_t count, struct rp_error *err) {
    const struct rp_backend *backend = bench->backend;
    size_t in_bytes =
        (size_t)run->op_case->rows * run->op_case->k * rp_dtype_bytes(bench->config->dtype);
    int status = rp_kernels_run_capture(bench, run, 1, err);
    if (status != RP_OK)
        return status;
    if (backend->launch(bench->device, run->graph) != RP_OK ||
        backend->copy(bench->device, out, run->arena + RP_ALIGN_UP(in_bytes, 256),
                      count * sizeof *out) != RP_OK ||
        backend->synchronize(bench->device) != RP_OK)
        return rp_error_set(err, RP_STATUS_DEVICE, "%s", backend->last_error(bench->device));
    return RP_OK;
}

int rp_kernels_gemm_error(struct kernels_bench *bench, struct kernels_run *run, double *out_db,
                          struct rp_error *err) {
    size_t count = RP_MIN((size_t)run->op_case->rows * run->op_case->n, ERROR_OUTPUTS_MAX);
    struct rp_matrix quantized = bench->weights[0];
    struct rp_matrix plain = {
        .rows = quantized.rows, .cols = quantized.cols, .dtype = RP_DTYPE_BF16};
    float *got = rp_calloc(count, 2 * sizeof *got), *want = got + count;
    struct rp_quant_loss loss = {0};
    int status = got ? compute_outputs(bench, run, got, count, err)
                     : rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for GEMM outputs");
    if (status == RP_OK)
        status =
            bench->backend->matrix_random(bench->device, &plain, 1, weight_scale(plain.cols), err);
    if (status == RP_OK) {
        bench->weights[0] = plain;
        status = compute_outputs(bench, run, want, count, err);
        bench->weights[0] = quantized;
    }
    for (size_t i = 0; i < count && status == RP_OK; i++) {
        double difference = (double)got[i] - (double)want[i];
        loss.signal += (double)want[i] * (double)want[i];
        loss.noise += difference * difference;
    }
    *out_db = status == RP_OK ? rp_quant_sqnr_db(&loss) : 0;
    if (plain.data)
        bench->backend->matrix_release(bench->device, &plain);
    rp_free(got);
    return status;
}

void rp_kernels_run_close(struct kernels_bench *bench, struct kernels_run *run) {
    destroy_graphs(bench, run);
    if (run->arena)
        bench->backend->free(bench->device, run->arena, RP_MEMORY_DEVICE);
    if (run->pages)
        bench->backend->free(bench->device, run->pages, RP_MEMORY_DEVICE);
    run->arena = run->pages = NULL;
}
