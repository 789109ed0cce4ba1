/* check_precision.c - compares the demo model's logits after prefill in one step with those of the
 * scalar f32 kernels: the effect of rounding weights, activations and pages to bf16, and of the
 * order of sums. */
#include "base/memory.h"
#include "bench/check_internal.h"
#include "bench/random_pattern.h"
#include "bench/step_internal.h"
#include "engine/weights_on_device.h"
#include "graphs/arena_plan.h"

#include <math.h>
#include <string.h>

#define PROMPT 32u

/* Reads the input of sampling: (logit rows, vocab) f32. */
static int read_logits(struct step_case *c, float *out, struct rp_error *err) {
    const struct rp_program *program = &c->program;
    size_t arena_bytes, *offsets = rp_calloc(program->tensor_count, sizeof *offsets);
    int32_t logits = RP_NO_TENSOR;
    int status = offsets ? rp_arena_plan(program, &c->bucket, false, offsets, &arena_bytes)
                         : RP_STATUS_NO_MEMORY;
    for (uint32_t i = program->sample_begin; i < program->op_count; i++)
        if (program->ops[i].kind == RP_OP_SAMPLE)
            logits = program->ops[i].in[0].tensor;
    if (status == RP_OK && logits == RP_NO_TENSOR)
        status = RP_STATUS_NOT_FOUND;
    if (status == RP_OK) {
        const struct rp_backend *backend = c->bench->backend;
        struct rp_device *device = c->bench->device;
        status = backend->copy(device, out, rp_graph_set_arena(c->graphs) + offsets[logits],
                               c->bench->model.config.vocab * sizeof *out);
        if (status == RP_OK)
            status = backend->synchronize(device);
    }
    rp_free(offsets);
    return status == RP_OK ? RP_OK
                           : rp_error_set(err, status, "logits: %s", rp_status_text(status));
}

static int run_prompt(struct step_bench *bench, float *out, struct rp_error *err) {
    struct step_case c;
    int status = rp_step_case_open(bench, 1, PROMPT, &c, err);
    if (status == RP_OK) {
        rp_step_case_write(&c);
        status = rp_step_case_launch(&c);
        status = status == RP_OK ? rp_step_case_wait(&c, c.step, err)
                                 : rp_step_device_failed(bench, err);
    }
    if (status == RP_OK)
        status = read_logits(&c, out, err);
    rp_step_case_close(&c);
    return status;
}

/* out: (vocab) */
static int logits_of(const struct rp_check_config *check, const struct rp_backend *backend,
                     bool scalar, enum rp_dtype dtype, float *out, struct rp_error *err) {
    const struct rp_bench_step_config config = {.prompt = true, .dtype = dtype};
    const struct rp_device_config device = {.threads = 1, .scalar_only = scalar};
    struct step_bench bench = {.config = &config, .backend = backend};
    int status = rp_model_load(check->model_dir, dtype, 0, NULL, NULL, &bench.model, err);
    if (status != RP_OK)
        return status;
    status = backend->open(&device, &bench.device, err);
    if (status == RP_OK) {
        backend->info(bench.device, &bench.info);
        bench.pattern = rp_random_pattern();
        status = bench.pattern ? rp_weights_prepare(backend, bench.device, &bench.model,
                                                    &bench.prepared, NULL, NULL, err)
                               : rp_check_no_memory(err);
        if (status == RP_OK)
            status = run_prompt(&bench, out, err);
        rp_weights_release(backend, bench.device, &bench.model, bench.prepared);
        backend->close(bench.device);
        rp_free_aligned(bench.pattern);
    }
    rp_model_deinit(&bench.model);
    return status;
}

/* The largest difference relative to the largest value; NAN when a value is not finite. */
static double distance(const float *values, const float *truth, uint32_t count) {
    double most = 0.0, largest = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        double difference = fabs((double)values[i] - (double)truth[i]);
        if (!isfinite(difference))
            return NAN;
        most = fmax(most, difference);
        largest = fmax(largest, fabs((double)truth[i]));
    }
    return most / largest;
}

int rp_check_precision(const struct rp_check_config *config, const struct rp_backend *backend,
                       struct rp_expectations *out, struct rp_error *err) {
    static const struct {
        const char *name;
        enum rp_dtype dtype;
    } types[] = {{"bf16", RP_DTYPE_BF16}, {"f32", RP_DTYPE_F32}};
    struct rp_model_config shape;
    int status = rp_model_config_load(config->model_dir, &shape, err);
    if (status != RP_OK)
        return status;
    float *truth = rp_calloc(2 * (size_t)shape.vocab, sizeof *truth);
    if (!truth)
        return rp_check_no_memory(err);
    float *values = truth + shape.vocab;
    status = logits_of(config, rp_backend_cpu(), true, RP_DTYPE_F32, truth, err);
    for (size_t i = 0; i < RP_ARRAY_COUNT(types) && status == RP_OK; i++) {
        status = logits_of(config, backend ? backend : rp_backend_cpu(), false, types[i].dtype,
                           values, err);
        struct rp_expectation *row =
            status == RP_OK ? rp_expectations_add(out, "precision.demo.%s", types[i].name) : NULL;
        if (row) {
            row->value = row->error = distance(values, truth, shape.vocab);
            row->direction = RP_EXPECT_LOWER;
            row->relative = 0.5; /* the order of sums depends on the CPU */
            row->absolute = 1e-6;
        } else if (status == RP_OK) {
            status = rp_check_no_memory(err);
        }
    }
    rp_free(truth);
    return status;
}
