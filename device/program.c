#include "device/program.h"

#include "base/hash.h"
#include "base/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *rp_dtype_name(enum rp_dtype dtype) {
    static const char *const names[] = {
        [RP_DTYPE_F32] = "f32",           [RP_DTYPE_BF16] = "bf16", [RP_DTYPE_F16] = "f16",
        [RP_DTYPE_FP8_E4M3] = "fp8_e4m3", [RP_DTYPE_INT8] = "int8", [RP_DTYPE_I32] = "i32",
        [RP_DTYPE_BLOCKS] = "blocks",
    };
    return (size_t)dtype < RP_ARRAY_COUNT(names) ? names[dtype] : "?";
}

uint32_t rp_dtype_bytes(enum rp_dtype dtype) {
    switch (dtype) {
    case RP_DTYPE_F32:
    case RP_DTYPE_I32:
        return 4;
    case RP_DTYPE_BF16:
    case RP_DTYPE_F16:
        return 2;
    case RP_DTYPE_FP8_E4M3:
    case RP_DTYPE_INT8:
        return 1;
    case RP_DTYPE_BLOCKS: /* no type of single values */
        return 0;
    }
    return 0;
}

const char *rp_op_kind_name(enum rp_op_kind kind) {
    static const char *const names[] = {
#define X(name, text) [RP_OP_##name] = text,
        RP_OP_KIND_MAP(X)
#undef X
    };
    return (size_t)kind < RP_ARRAY_COUNT(names) ? names[kind] : "?";
}

void rp_program_init(struct rp_program *program) {
    static const struct rp_domain domains[] = {
        [RP_ROWS_TOKEN] = {"tokens", RP_ROWS_TOKEN, 1, 0},
        [RP_ROWS_LOGIT] = {"logit rows", RP_ROWS_LOGIT, 1, 0},
        [RP_ROWS_NONE] = {"none", RP_ROWS_NONE, 1, 0},
    };
    memset(program, 0, sizeof *program);
    memcpy(program->domains, domains, sizeof domains);
    program->domain_count = RP_ARRAY_COUNT(domains);
}

void rp_program_deinit(struct rp_program *program) {
    rp_free(program->ops);
    rp_free(program->tensors);
    memset(program, 0, sizeof *program);
}

uint32_t rp_program_add_domain(struct rp_program *program, const char *name, enum rp_rows kind,
                               uint32_t factor, uint32_t extra) {
    uint32_t at = 0;
    for (; at < program->domain_count; at++)
        if (program->domains[at].kind == kind && program->domains[at].factor == factor &&
            program->domains[at].extra == extra)
            return at;
    RP_ASSERT_CMP(at, <, RP_DOMAINS_MAX);
    program->domains[program->domain_count++] = (struct rp_domain){name, kind, factor, extra};
    return at;
}

/* Room for one more element; false when memory is out. Counts stay far below 2^31: a network has a
 * few thousand operators. */
static bool grow(void **array, uint32_t count, uint32_t *capacity, size_t element_bytes) {
    if (count < *capacity)
        return true;
    uint32_t bigger = *capacity ? *capacity * 2 : 64;
    RP_ASSERT_CMP(bigger, <, INT32_MAX);
    void *moved = rp_realloc(*array, bigger * element_bytes);
    if (!moved)
        return false;
    *array = moved;
    *capacity = bigger;
    return true;
}

int32_t rp_program_add_tensor(struct rp_program *program, uint32_t rows, enum rp_dtype dtype,
                              uint32_t cols, const char *format, ...) {
    struct rp_tensor tensor;
    va_list args;
    memset(&tensor, 0, sizeof tensor);
    va_start(args, format);
    int len = vsnprintf(tensor.name, sizeof tensor.name, format, args);
    va_end(args);
    RP_ASSERT_CMP(len, <, (int)sizeof tensor.name);
    RP_ASSERT_CMP(cols, >, 0);
    RP_ASSERT_CMP(rows, <, program->domain_count);
    tensor.rows = rows;
    tensor.dtype = dtype;
    tensor.cols = cols;
    void *tensors = program->tensors;
    if (!grow(&tensors, program->tensor_count, &program->tensor_capacity, sizeof tensor))
        return RP_STATUS_NO_MEMORY;
    program->tensors = tensors;
    program->tensors[program->tensor_count] = tensor;
    return (int32_t)program->tensor_count++;
}

static void assert_view_inside(const struct rp_program *program, const struct rp_view *view) {
    if (view->tensor == RP_NO_TENSOR)
        return;
    RP_ASSERT_CMP(view->tensor, >=, 0);
    RP_ASSERT_CMP(view->tensor, <, program->tensor_count);
    RP_ASSERT_CMP(view->cols, >, 0);
    RP_ASSERT_CMP((uint64_t)view->col + view->cols, <=, program->tensors[view->tensor].cols);
}

int32_t rp_program_add_op(struct rp_program *program, const struct rp_op *op) {
    RP_ASSERT_CMP(op->kind, <, RP_OP_KIND_COUNT);
    RP_ASSERT_CMP(op->rows, <, program->domain_count);
    RP_ASSERT_CMP(op->in_count, <=, RP_OP_INPUTS_MAX);
    for (uint32_t i = 0; i < op->in_count; i++) {
        RP_ASSERT_CMP(op->in[i].tensor, !=, RP_NO_TENSOR);
        assert_view_inside(program, &op->in[i]);
    }
    assert_view_inside(program, &op->out);
    RP_ASSERT(op->kind != RP_OP_ALLREDUCE || memcmp(&op->in[0], &op->out, sizeof op->out) == 0);
    void *ops = program->ops;
    if (!grow(&ops, program->op_count, &program->op_capacity, sizeof *op))
        return RP_STATUS_NO_MEMORY;
    program->ops = ops;
    program->ops[program->op_count] = *op;
    return (int32_t)program->op_count++;
}

int32_t rp_program_add_state(struct rp_program *program, uint64_t bytes) {
    uint64_t at = program->state_bytes;
    if (bytes > INT32_MAX || at + bytes > INT32_MAX - RP_CACHE_LINE)
        return RP_STATUS_OVERFLOW;
    program->state_bytes = RP_ALIGN_UP(at + bytes, (uint64_t)RP_CACHE_LINE);
    return (int32_t)at;
}

void rp_op_add_input(struct rp_op *op, struct rp_view view) {
    RP_ASSERT_CMP(op->in_count, <, RP_OP_INPUTS_MAX);
    op->in[op->in_count++] = view;
}

/* Everything of an operator that is not an address, in a fixed order of 32-bit words. Words,
 * because structs have padding and a union's other members are garbage. */
struct words {
    uint32_t word[40];
    uint32_t count;
};

static void put(struct words *words, uint32_t word) {
    RP_ASSERT_CMP(words->count, <, RP_ARRAY_COUNT(words->word));
    words->word[words->count++] = word;
}

static void put_float(struct words *words, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put(words, bits);
}

static void put_view(struct words *words, const struct rp_view *view) {
    bool used = view->tensor != RP_NO_TENSOR;
    put(words, (uint32_t)view->tensor);
    put(words, used ? view->col : 0);
    put(words, used ? view->cols : 0);
}

/* At least two operands: programs without the others keep the fingerprint that they had. */
static void put_inputs(struct words *words, const struct rp_op *op) {
    static const struct rp_view none = {RP_NO_TENSOR, 0, 0};
    for (uint32_t i = 0; i < RP_MAX(op->in_count, 2u); i++)
        put_view(words, i < op->in_count ? &op->in[i] : &none);
}

static void put_experts(struct words *words, const struct rp_experts *experts) {
    put(words, experts->count);
    put(words, experts->used);
}

static void put_parameters(struct words *words, const struct rp_op *op) {
    switch (op->kind) {
    case RP_OP_EMBED:
        put_float(words, op->u.embed.scale);
        break;
    case RP_OP_NORM:
        put_float(words, op->u.norm.eps);
        put(words, op->u.norm.group);
        put_float(words, op->u.norm.weight_offset);
        break;
    case RP_OP_LINEAR:
        put(words, op->u.linear.bias);
        break;
    case RP_OP_ROPE:
        put(words, op->u.rope.heads);
        put(words, op->u.rope.head_dim);
        put(words, op->u.rope.rotary_dim);
        put(words, op->u.rope.position_count);
        break;
    case RP_OP_KV_WRITE:
        put(words, op->u.kv_write.kv_heads);
        put(words, op->u.kv_write.head_dim);
        break;
    case RP_OP_ATTENTION:
        put(words, op->u.attention.heads);
        put(words, op->u.attention.kv_heads);
        put(words, op->u.attention.head_dim);
        put_float(words, op->u.attention.scale);
        put(words, op->u.attention.window);
        if (op->u.attention.soft_cap != 0.0f)
            put_float(words, op->u.attention.soft_cap);
        if (op->u.attention.sinks)
            put(words, op->u.attention.sinks);
        if (op->u.attention.value_dim)
            put(words, op->u.attention.value_dim);
        if (op->u.attention.kv_back)
            put(words, op->u.attention.kv_back);
        break;
    case RP_OP_GLU:
    case RP_OP_ACTIVATION:
        put(words, (uint32_t)op->u.activation.fn);
        break;
    case RP_OP_SAMPLE:
        put(words, op->u.sample.vocab);
        break;
    case RP_OP_SOFT_CAP:
        put_float(words, op->u.soft_cap.cap);
        break;
    case RP_OP_SCALE:
        put_float(words, op->u.scale.factor);
        put(words, op->u.scale.position_count);
        break;
    case RP_OP_ALLREDUCE:
        put(words, (uint32_t)op->u.exchange.payload);
        break;
    case RP_OP_GROUP_NORM:
        put_float(words, op->u.group_norm.eps);
        put(words, op->u.group_norm.cols);
        break;
    case RP_OP_LAYER_NORM:
        put_float(words, op->u.layer_norm.eps);
        put(words, op->u.layer_norm.group);
        put(words, op->u.layer_norm.bias);
        break;
    case RP_OP_ROUTE:
        put_experts(words, &op->u.route.experts);
        put(words, (uint32_t)op->u.route.score);
        put(words, op->u.route.bias);
        put(words, op->u.route.renormalize);
        put(words, op->u.route.groups);
        put(words, op->u.route.groups_used);
        put(words, op->u.route.group_best);
        put_float(words, op->u.route.factor);
        if (op->u.route.scaled)
            put(words, op->u.route.scaled);
        break;
    case RP_OP_EXPERT_ORDER:
    case RP_OP_EXPERT_DOWN:
    case RP_OP_EXPERT_GATE_UP:
        put_experts(words, &op->u.experts.experts);
        if (op->kind == RP_OP_EXPERT_GATE_UP)
            put(words, (uint32_t)op->u.experts.fn);
        if (op->u.experts.bias)
            put(words, op->u.experts.bias);
        break;
    case RP_OP_EXPERT_SUM:
        put_experts(words, &op->u.expert_sum.experts);
        put(words, op->u.expert_sum.shared);
        put(words, op->u.expert_sum.gated);
        break;
    case RP_OP_HEAD_LINEAR:
        put(words, op->u.head_linear.heads);
        put(words, op->u.head_linear.in_step);
        put(words, op->u.head_linear.out_step);
        put(words, op->u.head_linear.copied);
        put(words, op->u.head_linear.copied_step);
        break;
    case RP_OP_CONV:
        put(words, op->u.conv.width);
        put(words, op->u.conv.gated);
        put(words, op->u.conv.silu);
        put(words, op->u.conv.state_offset);
        break;
    case RP_OP_GATED_DELTA:
        put(words, op->u.delta.key_heads);
        put(words, op->u.delta.value_heads);
        put(words, op->u.delta.key_dim);
        put(words, op->u.delta.value_dim);
        put(words, op->u.delta.state_offset);
        break;
    default: /* no parameters */
        break;
    }
}

/* Programs without further domains keep the fingerprint that they had. */
static void put_domain(struct words *words, const struct rp_domain *domain) {
    put(words, (uint32_t)domain->kind);
    if (domain->factor == 1 && domain->extra == 0)
        return;
    put(words, domain->factor);
    put(words, domain->extra);
}

uint64_t rp_program_fingerprint(const struct rp_program *program) {
    uint64_t hash = 0;
    for (uint32_t i = 0; i < program->tensor_count; i++) {
        const struct rp_tensor *tensor = &program->tensors[i];
        struct words words = {.count = 0};
        put_domain(&words, &program->domains[tensor->rows]);
        put(&words, (uint32_t)tensor->dtype);
        put(&words, tensor->cols);
        hash = rp_hash64(words.word, words.count * sizeof words.word[0], hash);
        hash = rp_hash64(tensor->name, strlen(tensor->name), hash);
    }
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct rp_op *op = &program->ops[i];
        struct words words = {.count = 0};
        put(&words, (uint32_t)op->kind);
        put_domain(&words, &program->domains[op->rows]);
        put(&words, op->layer);
        put_inputs(&words, op);
        put_view(&words, &op->out);
        put_parameters(&words, op);
        hash = rp_hash64(words.word, words.count * sizeof words.word[0], hash);
        hash = rp_hash64(op->name, strlen(op->name), hash);
        if (op->kind == RP_OP_ATTENTION && op->u.attention.mask_text)
            hash = rp_hash64(op->u.attention.mask_text, strlen(op->u.attention.mask_text), hash);
    }
    uint32_t counts[] = {program->tensor_count, program->op_count, program->sample_begin,
                         program->ranks};
    /* Without ranks: the fingerprint that programs had before there were any. */
    return rp_hash64(counts, program->ranks > 1 ? sizeof counts : sizeof counts - sizeof counts[0],
                     hash);
}

size_t rp_op_exchange_bytes(const struct rp_program *program, const struct rp_op *op,
                            const struct rp_bucket *bucket) {
    size_t rows = rp_program_rows(program, bucket, op->rows), row_bytes = sizeof(float);
    if (!rp_op_exchanges(op->kind))
        return 0;
    if (op->kind == RP_OP_ALLREDUCE)
        row_bytes = (size_t)op->out.cols * rp_dtype_bytes(op->u.exchange.payload);
    else if (op->kind == RP_OP_ALLGATHER)
        row_bytes = (size_t)op->in[0].cols * sizeof(float);
    return RP_ALIGN_UP(rows * row_bytes, RP_CACHE_LINE);
}

size_t rp_program_exchange_bytes(const struct rp_program *program, const struct rp_bucket *bucket) {
    size_t first = 0, second = 0;
    for (uint32_t i = 0; i < program->op_count; i++) {
        size_t bytes = rp_op_exchange_bytes(program, &program->ops[i], bucket);
        if (bytes > first) {
            second = first;
            first = bytes;
        } else if (bytes > second) {
            second = bytes;
        }
    }
    return first + second;
}
