#include "bench/bench_kernels.h"

#include "base/clock.h"
#include "base/memory.h"
#include "bench/kernels_internal.h"
#include "bench/membw.h"
#include "bench/random_pattern.h"
#include "bench/replay_time.h"
#include "model/rope.h"

#include <stdio.h>
#include <string.h>

#define MIB           ((uint64_t)1 << 20)
#define WARM_NS       16000000.0 /* a first replay shorter than this is repeated */
#define CASE_SECONDS  0.4
#define SQUARE        8192u  /* n = k of the large GEMM */
#define SQUARE_ROWS   1024u  /* minimum rows for it to be in the list */
#define POSITIONS_MAX 16384u /* maximum positions of the rope table */

/* ---- the list ------------------------------------------------------------------------------- */

struct list {
    struct kernels_case cases[RP_BENCH_KERNELS_MAX];
    uint32_t count;
    const struct rp_bench_kernels_config *config;
};

static void list_one(struct list *list, struct kernels_case op_case) {
    const char *only = list->config->only;
    if ((only && strncmp(op_case.op, only, strlen(only)) != 0) ||
        list->count == RP_BENCH_KERNELS_MAX)
        return;
    list->cases[list->count++] = op_case;
}

/* Adds a case for all row counts within the limits. */
static void list_rows(struct list *list, struct kernels_case op_case, uint32_t min, uint32_t max) {
    for (uint32_t i = 0; i < list->config->row_count; i++) {
        op_case.rows = list->config->rows[i];
        if (op_case.rows >= min && op_case.rows <= max)
            list_one(list, op_case);
    }
}

static void make_list(const struct kernels_bench *bench, struct list *list) {
    const struct rp_model_config *shape = &bench->shape;
    uint32_t q = shape->heads * shape->head_dim, kv = shape->kv_heads * shape->head_dim;
    uint32_t decode = KERNELS_DECODE_ROWS_MAX, any = UINT32_MAX;
    const enum rp_rows token = RP_ROWS_TOKEN, logit = RP_ROWS_LOGIT;
#define GEMM(name, rows, n, k, max)                                                                \
    list_rows(list, (struct kernels_case){name, KERNELS_GEMM, rows, n, k, 0, 0}, 1, max)
    GEMM("qkv", token, q + 2 * kv, shape->hidden, any);
    GEMM("o", token, shape->hidden, q, any);
    GEMM("gate_up", token, 2 * shape->intermediate, shape->hidden, any);
    GEMM("down", token, shape->hidden, shape->intermediate, any);
    GEMM("head", logit, shape->vocab, shape->hidden, decode);
#undef GEMM
    if (bench->info.separate_memory)
        list_rows(list, (struct kernels_case){"square", KERNELS_GEMM, token, SQUARE, SQUARE, 0, 0},
                  SQUARE_ROWS, any);
    static const struct {
        const char *op;
        enum kernels_kind kind;
    } small[] = {{"norm", KERNELS_NORM},
                 {"add+norm", KERNELS_ADD_NORM},
                 {"activation", KERNELS_ACTIVATION},
                 {"rope", KERNELS_ROPE},
                 {"kv_write", KERNELS_KV_WRITE},
                 {"rope+kv_write", KERNELS_QKV_POST}};
    for (size_t i = 0; i < RP_ARRAY_COUNT(small); i++)
        list_rows(list, (struct kernels_case){small[i].op, small[i].kind, token, 0, 0, 0, 0}, 1,
                  any);
    for (uint32_t i = 0; i < list->config->context_count; i++)
        list_rows(list,
                  (struct kernels_case){"attention", KERNELS_ATTENTION, token, 0, 0, 0,
                                        list->config->contexts[i]},
                  1, decode);
    list_rows(list, (struct kernels_case){"attention prompt", KERNELS_ATTENTION, token, 0, 0, 0, 0},
              decode + 1, any);
    list_rows(list, (struct kernels_case){"sample", KERNELS_SAMPLE, logit, 0, 0, 0, 0}, 1, decode);
    list_rows(list, (struct kernels_case){"sample top", KERNELS_SAMPLE_TOP, logit, 0, 0, 0, 0}, 1,
              decode);
}

/* ---- time ----------------------------------------------------------------------------------- */

static int device_failed(const struct kernels_bench *bench, struct rp_error *err) {
    return rp_error_set(err, RP_STATUS_DEVICE, "%s", bench->backend->last_error(bench->device));
}

static struct rp_replay replay_of(const struct kernels_bench *bench,
                                  const struct kernels_run *run) {
    return (struct rp_replay){bench->backend, bench->device, run->graph, run->start, run->repeats};
}

/* Captures enough repetitions for one sample, at least one per copy. */
static int fit_repeats(struct kernels_bench *bench, struct kernels_run *run, struct rp_error *err) {
    uint32_t copies =
        run->op_case->kind == KERNELS_GEMM ? RP_MAX(run->sets, bench->weight_count) : run->sets;
    uint32_t trial = RP_MIN(copies, 4u);
    int status = rp_kernels_run_capture(bench, run, trial, err);
    if (status != RP_OK)
        return status;
    struct rp_replay replay = replay_of(bench, run);
    double ns = rp_replay_ns(&replay, 1); /* the first replay loads the graph */
    if (ns < WARM_NS)
        ns = rp_replay_ns(&replay, 1);
    if (ns < 0)
        return device_failed(bench, err);
    uint32_t repeats = rp_replay_repeats(ns / trial, copies);
    return repeats == trial ? RP_OK : rp_kernels_run_capture(bench, run, repeats, err);
}

static int measure(struct kernels_bench *bench, struct kernels_run *run, double budget_ns,
                   struct rp_bench_kernel *out, struct rp_error *err) {
    struct rp_replay_times times;
    uint64_t begin = rp_clock_ns();
    int status = fit_repeats(bench, run, err);
    if (status != RP_OK)
        return status;
    struct rp_replay replay = replay_of(bench, run);
    if (rp_replay_measure(&replay, begin, budget_ns, &times) != RP_OK)
        return device_failed(bench, err);
    *out = (struct rp_bench_kernel){.op = run->op_case->op,
                                    .rows = run->op_case->rows,
                                    .context = run->op_case->context,
                                    .samples = times.samples,
                                    .repeats = run->repeats,
                                    .us_p50 = times.p50 * 1e-3,
                                    .us_p99 = times.p99 * 1e-3,
                                    .bytes = (double)run->cost.bytes_read +
                                             (double)run->cost.bytes_written,
                                    .flops = (double)run->cost.flops};
    memcpy(out->kernel, run->kernel, sizeof out->kernel);
    return RP_OK;
}

/* ---- the run -------------------------------------------------------------------------------- */

static int make_shared(struct kernels_bench *bench, struct rp_error *err) {
    const struct rp_bench_kernels_config *config = bench->config;
    const struct rp_model_config *shape = &bench->shape;
    for (uint32_t i = 0; i < config->row_count; i++)
        bench->rope_positions = RP_MAX(bench->rope_positions, config->rows[i] + 1);
    for (uint32_t i = 0; i < config->context_count; i++)
        bench->rope_positions = RP_MAX(bench->rope_positions, config->contexts[i] + 1);
    bench->rope_positions = RP_MIN(bench->rope_positions, POSITIONS_MAX);
    bench->norm_weight = rp_calloc(shape->hidden, sizeof *bench->norm_weight);
    bench->rope_table =
        rp_calloc((size_t)bench->rope_positions * shape->head_dim, sizeof *bench->rope_table);
    bench->pattern = rp_random_pattern();
    if (!bench->norm_weight || !bench->rope_table || !bench->pattern)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < shape->hidden; i++)
        bench->norm_weight[i] = 1.0f;
    rp_rope_table_fill(&shape->rope, shape->head_dim, bench->rope_positions, bench->rope_table);
    return rp_kernels_step_open(bench, err);
}

static int run_case(struct kernels_bench *bench, const struct kernels_case *op_case,
                    const struct kernels_case *before, double budget_ns,
                    struct rp_bench_kernel *out, struct rp_error *err) {
    struct kernels_run run = {0};
    int status = RP_OK;
    if (op_case->kind == KERNELS_GEMM &&
        (!before || before->n != op_case->n || before->k != op_case->k))
        status = rp_kernels_weights_make(bench, op_case->n, op_case->k, err);
    else if (op_case->kind != KERNELS_GEMM)
        rp_kernels_weights_free(bench);
    if (status == RP_OK && rp_kernels_step_set(bench, op_case) != RP_OK)
        status = device_failed(bench, err);
    if (status == RP_OK)
        status = rp_kernels_run_open(bench, op_case, &run, err);
    if (status == RP_OK)
        status = measure(bench, &run, budget_ns, out, err);
    /* Random 4-bit weights are no rounding of others. */
    bool with_error = bench->config->scheme != RP_QUANT_NONE &&
                      !rp_quant_scheme_has_blocks(bench->config->scheme);
    if (status == RP_OK && op_case->kind == KERNELS_GEMM && with_error)
        status = rp_kernels_gemm_error(bench, &run, &out->sqnr_db, err);
    rp_kernels_run_close(bench, &run);
    return status;
}

static void note_gemm(const struct kernels_case *op_case, const struct rp_bench_kernel *kernel,
                      struct rp_bench_kernels_result *out) {
    double rate = kernel->us_p50 > 0 ? kernel->flops / kernel->us_p50 * 1e6 : 0.0;
    if (op_case->kind != KERNELS_GEMM || rate <= out->gemm_flops)
        return;
    out->gemm_flops = rate;
    out->gemm_op = kernel->op;
    out->gemm_rows = kernel->rows;
}

/* Prefixes the error with the operator. */
static int name_failure(const struct kernels_case *op_case, int status, struct rp_error *err) {
    char text[384];
    if (!err)
        return status;
    snprintf(text, sizeof text, "%.383s", err->text);
    return rp_error_set(err, status, "%s, %u rows, context %u: %s", op_case->op, op_case->rows,
                        op_case->context, text);
}

static int run_list(struct kernels_bench *bench, const struct list *list, uint64_t begin_ns,
                    struct rp_bench_kernels_result *out, struct rp_error *err) {
    const struct rp_bench_kernels_config *config = bench->config;
    double max_seconds = config->case_seconds > 0 ? config->case_seconds : CASE_SECONDS;
    const struct kernels_case *before = NULL; /* the case whose weights are allocated */
    for (uint32_t i = 0; i < list->count; i++) {
        const struct kernels_case *op_case = &list->cases[i];
        double left = config->seconds * 1e9 - (double)(rp_clock_ns() - begin_ns);
        if (left <= 0) {
            out->skipped += list->count - i;
            break;
        }
        if (config->progress)
            config->progress(config->progress_ctx, op_case->op, op_case->rows);
        /* half of the time is setup */
        double budget = RP_MIN(left / (list->count - i), max_seconds * 1e9) / 2;
        struct rp_bench_kernel *kernel = &out->kernels[out->kernel_count];
        int status = run_case(bench, op_case, before, budget, kernel, err);
        before = bench->weight_count && status == RP_OK ? op_case : NULL;
        if (status == RP_STATUS_NO_MEMORY) {
            out->skipped++;
            continue;
        }
        if (status != RP_OK)
            return name_failure(op_case, status, err);
        note_gemm(op_case, kernel, out);
        out->kernel_count++;
    }
    return RP_OK;
}

int rp_bench_kernels(const struct rp_bench_kernels_config *config,
                     struct rp_bench_kernels_result *out, struct rp_error *err) {
    struct kernels_bench *bench = rp_calloc(1, sizeof *bench);
    struct list *list = rp_calloc(1, sizeof *list);
    uint64_t begin_ns = rp_clock_ns();
    int status = RP_OK;
    memset(out, 0, sizeof *out);
    if (!bench || !list) {
        rp_free(bench);
        rp_free(list);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    }
    bench->config = list->config = config;
    bench->backend = config->backend;
    bench->device = config->device;
    bench->backend->info(bench->device, &bench->info);
    bench->cold_bytes =
        config->cold_bytes ? config->cold_bytes : (bench->info.separate_memory ? 256u : 512u) * MIB;
    memcpy(out->device, bench->info.name, sizeof out->device);
    if (config->model)
        bench->shape = *config->model;
    else
        status = rp_model_shape(config->shape, &bench->shape, err);
    if (status == RP_OK) {
        out->read_bandwidth = rp_membw_device(bench->backend, bench->device, config->threads);
        status = make_shared(bench, err);
    }
    if (status == RP_OK) {
        make_list(bench, list);
        status = run_list(bench, list, begin_ns, out, err);
    }
    rp_kernels_weights_free(bench);
    rp_kernels_step_close(bench);
    rp_free(bench->norm_weight);
    rp_free(bench->rope_table);
    rp_free_aligned(bench->pattern);
    rp_free(bench);
    rp_free(list);
    out->seconds = (double)(rp_clock_ns() - begin_ns) * 1e-9;
    return status;
}
