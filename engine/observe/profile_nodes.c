#include "engine/observe/profile_nodes.h"

#include "backend/op_cost.h"
#include "base/memory.h"
#include "quant/matrix.h"

#include <stdio.h>
#include <string.h>

static struct rp_cost cost_of(const struct rp_program *program, const struct rp_op *op,
                              uint32_t tokens, uint32_t logit_rows, enum rp_dtype kv_dtype,
                              uint32_t kv) {
    const struct rp_bucket bucket = {
        .tokens = tokens, .rows = tokens, .logit_rows = logit_rows, .decode = true};
    return rp_op_cost(program, op, &bucket, kv_dtype, kv);
}

static double bytes_of(const struct rp_cost *cost) {
    return (double)cost->bytes_read + (double)cost->bytes_written;
}

static void describe_op(const struct rp_program *program, const struct rp_op *op,
                        enum rp_dtype kv_dtype, struct rp_profile_op *out) {
    struct rp_cost none = cost_of(program, op, 0, 0, kv_dtype, 0);
    struct rp_cost token = cost_of(program, op, 1, 0, kv_dtype, 0);
    struct rp_cost logit = cost_of(program, op, 0, 1, kv_dtype, 0);
    struct rp_cost kv = cost_of(program, op, 1, 0, kv_dtype, 1);
    *out = (struct rp_profile_op){.kind = op->kind,
                                  .rows = program->domains[op->rows].kind,
                                  .layer = op->layer,
                                  .n = op->out.cols,
                                  .bytes_fixed = bytes_of(&none),
                                  .bytes_per_token = bytes_of(&token) - bytes_of(&none),
                                  .bytes_per_logit = bytes_of(&logit) - bytes_of(&none),
                                  .bytes_per_kv = bytes_of(&kv) - bytes_of(&token),
                                  .flops_per_token = (double)(token.flops - none.flops),
                                  .flops_per_logit = (double)(logit.flops - none.flops),
                                  .flops_per_pair = (double)(kv.flops - token.flops)};
    memcpy(out->name, op->name, sizeof out->name);
    if (op->kind == RP_OP_LINEAR) {
        out->n = op->weight->rows;
        out->k = op->weight->cols;
    } else if (op->kind == RP_OP_ATTENTION) {
        out->heads = op->u.attention.heads;
        out->kv_heads = op->u.attention.kv_heads;
        out->head_dim = op->u.attention.head_dim;
        out->window = op->u.attention.window;
        out->mask = op->u.attention.mask;
    }
}

static void describe_graph(const struct rp_backend *backend, const struct rp_graph *graph,
                           struct rp_profile_bucket *bucket) {
    uint32_t count = backend->graph_launch_count(graph);
    bool prepared = false; /* by the launch before */
    for (uint32_t i = 0; i < count; i++) {
        struct rp_launch_info info;
        backend->graph_launch_info(graph, i, &info);
        struct rp_profile_node *node = &bucket->nodes[bucket->count];
        *node = (struct rp_profile_node){.op_count = info.op_count, .kernel = info.kernel};
        memcpy(node->ops, info.ops, sizeof node->ops);
        node->repeated = info.prepares ||
                         (i > 0 && !prepared && info.op_count && node[-1].ops[0] == info.ops[0]);
        prepared = info.prepares;
        bucket->count++;
    }
}

int rp_profile_nodes_make(const struct rp_backend *backend, const struct rp_program *program,
                          struct rp_graph_set *graphs, enum rp_dtype kv_dtype,
                          struct rp_profile_nodes *out) {
    size_t total = 0, used = 0;
    memset(out, 0, sizeof *out);
    out->op_count = program->op_count;
    out->bucket_count = rp_graph_set_count(graphs);
    for (uint32_t i = 0; i < out->bucket_count; i++)
        total += rp_graph_set_entry(graphs, i)->launches;
    out->ops = rp_calloc(out->op_count, sizeof *out->ops);
    out->buckets = rp_calloc(out->bucket_count, sizeof *out->buckets);
    out->all = rp_calloc(total, sizeof *out->all);
    if (!out->ops || !out->buckets || !out->all) {
        rp_profile_nodes_deinit(out);
        return RP_STATUS_NO_MEMORY;
    }
    for (uint32_t i = 0; i < out->op_count; i++)
        describe_op(program, &program->ops[i], kv_dtype, &out->ops[i]);
    for (uint32_t i = 0; i < out->bucket_count; i++) {
        const struct rp_graph_entry *entry = rp_graph_set_entry(graphs, i);
        struct rp_profile_bucket *bucket = &out->buckets[i];
        bucket->bucket = entry->bucket;
        if (!entry->forward)
            continue;
        bucket->nodes = out->all + used;
        describe_graph(backend, entry->forward, bucket);
        bucket->forward_count = bucket->count;
        describe_graph(backend, entry->sample, bucket);
        RP_ASSERT_CMP(bucket->count, ==, entry->launches);
        used += bucket->count;
        out->nodes_max = RP_MAX(out->nodes_max, bucket->count);
    }
    return RP_OK;
}

void rp_profile_nodes_deinit(struct rp_profile_nodes *nodes) {
    rp_free(nodes->ops);
    rp_free(nodes->buckets);
    rp_free(nodes->all);
    memset(nodes, 0, sizeof *nodes);
}

static double op_bytes(const struct rp_profile_op *op, const struct rp_profile_demand *work) {
    return op->bytes_fixed + op->bytes_per_token * (double)work->tokens +
           op->bytes_per_logit * (double)work->logit_rows +
           op->bytes_per_kv * (double)work->kv_read;
}

void rp_profile_node_cost(const struct rp_profile_nodes *nodes, const struct rp_profile_node *node,
                          const struct rp_profile_demand *work, double *out_bytes,
                          double *out_flops) {
    *out_bytes = *out_flops = 0.0;
    for (uint32_t i = 0; i < node->op_count && !node->repeated; i++) {
        const struct rp_profile_op *op = &nodes->ops[node->ops[i]];
        *out_bytes += op_bytes(op, work);
        *out_flops += op->flops_per_token * (double)work->tokens +
                      op->flops_per_logit * (double)work->logit_rows +
                      op->flops_per_pair * (double)work->kv_pairs;
    }
}

const struct rp_profile_op *rp_profile_node_attention(const struct rp_profile_nodes *nodes,
                                                      const struct rp_profile_node *node) {
    for (uint32_t i = 0; i < node->op_count; i++)
        if (nodes->ops[node->ops[i]].kind == RP_OP_ATTENTION)
            return &nodes->ops[node->ops[i]];
    return NULL;
}

/* layer.17.attn.qkv -> attn.qkv */
static const char *without_layer(const char *name) {
    static const char prefix[] = "layer.";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return name;
    const char *rest = name + sizeof prefix - 1;
    size_t digits = strspn(rest, "0123456789");
    return digits && rest[digits] == '.' ? rest + digits + 1 : name;
}

void rp_profile_node_name(const struct rp_profile_nodes *nodes, const struct rp_profile_node *node,
                          bool layers, char out[RP_PROFILE_NAME_MAX]) {
    const size_t room = RP_PROFILE_NAME_MAX - 36; /* for the next kernel */
    size_t len = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < node->op_count; i++) {
        const char *name = nodes->ops[node->ops[i]].name;
        /* The layer of a launch is written once, before its first operator. */
        if (!layers || (i && nodes->ops[node->ops[i - 1]].layer == nodes->ops[node->ops[i]].layer))
            name = without_layer(name);
        size_t more = strlen(name) + (i > 0);
        if (len + more >= room - 2) {
            memcpy(out + len, "+~", 3);
            len += 2;
            break;
        }
        snprintf(out + len, room - len, "%s%s", i ? "+" : "", name);
        len += more;
    }
    if (node->op_count == 0)
        snprintf(out, RP_PROFILE_NAME_MAX, "%.60s", node->kernel);
    else if (node->repeated)
        snprintf(out + len, RP_PROFILE_NAME_MAX - len, " (%.30s)", node->kernel);
}

void rp_profile_node_shape(const struct rp_profile_nodes *nodes, const struct rp_profile_node *node,
                           char out[48]) {
    const struct rp_profile_demand one = {1, 1, 1, 1};
    const struct rp_profile_op *most = NULL;
    out[0] = '\0';
    for (uint32_t i = 0; i < node->op_count; i++) {
        const struct rp_profile_op *op = &nodes->ops[node->ops[i]];
        if (!most || op_bytes(op, &one) > op_bytes(most, &one) || op->heads)
            most = op;
    }
    if (most && most->heads)
        snprintf(out, 48, "%u/%u x %u", most->heads, most->kv_heads, most->head_dim);
    else if (most && most->k)
        snprintf(out, 48, "%u x %u", most->n, most->k);
    else if (most && most->n)
        snprintf(out, 48, "%u", most->n);
}

uint16_t rp_profile_node_layer(const struct rp_profile_nodes *nodes,
                               const struct rp_profile_node *node) {
    for (uint32_t i = 0; i < node->op_count; i++)
        if (nodes->ops[node->ops[i]].layer != RP_LAYER_NONE)
            return nodes->ops[node->ops[i]].layer;
    return RP_LAYER_NONE;
}
