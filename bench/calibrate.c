#include "bench/calibrate.h"

#include "base/bf16.h"
#include "base/checked.h"
#include "base/memory.h"
#include "graphs/arena_plan.h"

#include <math.h>
#include <string.h>

struct collector {
    struct rp_eval_run *run;
    struct rp_calibration *out;
    size_t *offsets;      /* (tensors) arena offsets */
    float *row;           /* (columns of the widest input) */
    uint64_t seen, every; /* tokens so far; one token of this many is sampled */
};

static enum rp_balance_site site_of(const struct rp_model *model, const struct rp_op *op) {
    int site = 0;
    while (rp_model_matrix(model, rp_balance_role((enum rp_balance_site)site), op->layer) !=
           op->weight)
        site++;
    RP_ASSERT(site < RP_BALANCE_SITES);
    return (enum rp_balance_site)site;
}

static bool is_layer_gemm(const struct rp_op *op) {
    return op->kind == RP_OP_LINEAR && op->layer != RP_LAYER_NONE;
}

static void read_row(const struct collector *t, const struct rp_view *in, uint32_t token) {
    const struct rp_tensor *tensor = &t->run->program.tensors[in->tensor];
    const unsigned char *from =
        rp_graph_set_arena(t->run->graphs) + t->offsets[in->tensor] +
        ((size_t)token * tensor->cols + in->col) * rp_dtype_bytes(tensor->dtype);
    for (uint32_t j = 0; j < in->cols; j++)
        t->row[j] = tensor->dtype == RP_DTYPE_F32
                        ? ((const float *)(const void *)from)[j]
                        : rp_bf16_to_f32(((const uint16_t *)(const void *)from)[j]);
}

static uint32_t site_index(const struct collector *t, const struct rp_op *op) {
    return op->layer * RP_BALANCE_SITES + (uint32_t)site_of(t->run->config.model, op);
}

static int collect_row(struct collector *t, const struct rp_op *op, uint32_t token,
                       struct rp_error *err) {
    struct rp_balance_sample *sample = &t->out->samples[site_index(t, op)];
    struct rp_quant_inputs *inputs = t->out->inputs ? &t->out->inputs[site_index(t, op)] : NULL;
    uint16_t *stored = inputs ? inputs->values + inputs->count++ * inputs->cols : NULL;
    RP_ASSERT(!inputs || inputs->count <= inputs->room);
    read_row(t, &op->in[0], token);
    for (uint32_t j = 0; j < sample->cols; j++) {
        uint16_t half = rp_f32_to_bf16(t->row[j]);
        if (!isfinite(rp_bf16_to_f32(half)))
            return rp_error_set(err, RP_STATUS_FORMAT, "%s: element %u of a row is not finite",
                                op->name, j);
        if (stored)
            stored[j] = half;
        sample->largest[j] = fmaxf(sample->largest[j], fabsf(t->row[j]));
    }
    if ((t->seen + token) % t->every == 0 && sample->rows < RP_CALIBRATE_ROWS)
        memcpy(sample->values + (size_t)sample->rows++ * sample->cols, t->row,
               sample->cols * sizeof *t->row);
    return RP_OK;
}

/* Collects the inputs of the step that just ended. */
static int collect_step(struct collector *t, uint32_t tokens, struct rp_error *err) {
    const struct rp_program *program = &t->run->program;
    int status = RP_OK;
    for (uint32_t i = 0; i < program->op_count; i++)
        for (uint32_t token = 0; is_layer_gemm(&program->ops[i]) && token < tokens; token++) {
            status = collect_row(t, &program->ops[i], token, err);
            if (status != RP_OK)
                return status;
        }
    t->seen += tokens;
    return status;
}

/* Allocates one site's rows; false: out of memory. */
static bool make_inputs(struct rp_quant_inputs *inputs, uint32_t cols, size_t room) {
    size_t bytes;
    *inputs = (struct rp_quant_inputs){.cols = cols, .room = room};
    if (!rp_mul_overflow(room, (size_t)cols * sizeof *inputs->values, &bytes))
        inputs->values = rp_alloc(bytes);
    return inputs->values != NULL;
}

static int make_samples(struct collector *t, size_t tokens, struct rp_error *err) {
    const struct rp_program *program = &t->run->program;
    uint32_t widest = 0, layers = t->run->config.model->config.layers;
    bool ok = true;
    *t->out = (struct rp_calibration){
        .layers = layers,
        .samples = rp_calloc((size_t)layers * RP_BALANCE_SITES, sizeof *t->out->samples)};
    if (tokens)
        t->out->inputs = rp_calloc((size_t)layers * RP_BALANCE_SITES, sizeof *t->out->inputs);
    ok = t->out->samples && (t->out->inputs || !tokens);
    for (uint32_t i = 0; i < program->op_count && ok; i++) {
        const struct rp_op *op = &program->ops[i];
        if (!is_layer_gemm(op))
            continue;
        struct rp_balance_sample *sample = &t->out->samples[site_index(t, op)];
        sample->cols = op->in[0].cols;
        sample->values = rp_calloc((size_t)RP_CALIBRATE_ROWS * sample->cols, sizeof(float));
        sample->largest = rp_calloc(sample->cols, sizeof(float));
        ok = sample->values && sample->largest &&
             (!tokens || make_inputs(&t->out->inputs[site_index(t, op)], sample->cols, tokens));
        widest = RP_MAX(widest, sample->cols);
    }
    t->row = rp_calloc(widest, sizeof *t->row);
    t->offsets = rp_calloc(program->tensor_count, sizeof *t->offsets);
    return ok && t->row && t->offsets
               ? RP_OK
               : rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory for sampled rows");
}

static int feed_window(struct collector *t, const int32_t *ids, uint32_t count,
                       struct rp_error *err) {
    const float *logits;
    int status = RP_OK;
    for (uint32_t at = 0; status == RP_OK && at < count; at += t->run->config.chunk) {
        uint32_t tokens = RP_MIN(t->run->config.chunk, count - at);
        status = rp_eval_run_feed(t->run, ids + at, tokens, at == 0, &logits, err);
        if (status == RP_OK)
            status = collect_step(t, tokens, err);
    }
    return status;
}

static int feed_text(struct collector *t, const struct rp_eval_text *text, struct rp_error *err) {
    uint32_t bos = text->bos >= 0, room = text->window - bos;
    int32_t *ids = rp_calloc(text->window, sizeof *ids);
    int status = ids ? RP_OK : rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    for (size_t at = 0; status == RP_OK && at < text->count; at += room) {
        uint32_t count = (uint32_t)RP_MIN((size_t)room, text->count - at);
        if (bos)
            ids[0] = (int32_t)text->bos;
        memcpy(ids + bos, text->ids + at, count * sizeof *ids);
        status = feed_window(t, ids, bos + count, err);
    }
    rp_free(ids);
    return status;
}

size_t rp_calibrate_tokens(const struct rp_eval_text *text) {
    size_t bos = text->bos >= 0;
    return text->count + bos * RP_CEIL_DIV(text->count, text->window - bos);
}

int rp_calibrate(struct rp_eval_run *run, const struct rp_eval_text *text, bool inputs,
                 struct rp_calibration *out, struct rp_error *err) {
    const struct rp_bucket bucket = {run->config.chunk, 1, run->config.chunk, false};
    struct collector t = {.run = run, .out = out, .every = text->count / RP_CALIBRATE_ROWS + 1};
    size_t bytes;
    RP_ASSERT(run->config.guarded && run->config.no_fusion);
    int status = make_samples(&t, inputs ? rp_calibrate_tokens(text) : 0, err);
    if (status == RP_OK)
        status = rp_arena_plan(&run->program, &bucket, true, t.offsets, &bytes);
    if (status == RP_OK)
        status = feed_text(&t, text, err);
    rp_free(t.row);
    rp_free(t.offsets);
    if (status != RP_OK)
        rp_calibration_deinit(out);
    return status;
}

void rp_calibration_deinit(struct rp_calibration *calibration) {
    for (uint32_t i = 0; calibration->samples && i < calibration->layers * RP_BALANCE_SITES; i++) {
        rp_free(calibration->samples[i].values);
        rp_free(calibration->samples[i].largest);
        if (calibration->inputs)
            rp_free(calibration->inputs[i].values);
    }
    rp_free(calibration->inputs);
    rp_free(calibration->samples);
    memset(calibration, 0, sizeof *calibration);
}
