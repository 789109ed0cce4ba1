/* check_programs.c - counts the nodes of every captured bucket and fingerprints all of them. */
#include "base/hash.h"
#include "base/memory.h"
#include "bench/check_internal.h"

#include <stdio.h>
#include <string.h>

int rp_check_no_memory(struct rp_error *err) {
    return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
}

struct rp_engine_config rp_check_engine_config(const struct rp_check_config *config) {
    return (struct rp_engine_config){.backend = rp_backend_cpu(),
                                     .device = {.threads = 1, .slow_share = config->slow_share},
                                     .queue_capacity = 64,
                                     .kv_cache_bytes = (uint64_t)32 << 20,
                                     .kv_dtype = RP_MODEL_DTYPE_AUTO,
                                     .run_ahead = true,
                                     .plant_node = config->plant_node,
                                     .plant_allocation = config->plant_allocation};
}

struct rp_model_config rp_check_shape(enum rp_family family) {
    struct rp_model_config shape = {.family = family,
                                    .architecture = "LlamaForCausalLM",
                                    .hidden = 64,
                                    .intermediate = 128,
                                    .layers = 3,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .head_dim = 16,
                                    .vocab = 512,
                                    .max_position = 512,
                                    .norm_eps = 1e-6f,
                                    .rope = {.theta = 10000},
                                    .file_dtype = RP_DTYPE_BF16,
                                    .bos_id = 1,
                                    .eos_ids = {2},
                                    .eos_count = 1};
    if (family == RP_FAMILY_QWEN2)
        shape.qkv_bias = true;
    else if (family == RP_FAMILY_MISTRAL)
        shape.window = 32;
    else if (family == RP_FAMILY_QWEN3) {
        shape.qk_norm = RP_QK_NORM_HEAD;
        shape.tied = true;
    }
    return shape;
}

static bool add_rows(const struct rp_engine *engine, const char *model, bool fused,
                     struct rp_expectations *out) {
    const char *how = fused ? "fused" : "unfused";
    uint64_t all = 0;
    for (uint32_t i = 0; i < rp_engine_graph_count(engine); i++) {
        struct rp_engine_graph graph;
        rp_engine_graph(engine, i, &graph);
        const struct rp_bucket *bucket = &graph.bucket;
        struct rp_expectation *row =
            bucket->decode
                ? rp_expectations_add(out, "nodes.%s.%s.decode.%u", model, how, bucket->rows)
                : rp_expectations_add(out, "nodes.%s.%s.mixed.%u.%u", model, how, bucket->tokens,
                                      bucket->logit_rows);
        if (!row)
            return false;
        row->value = graph.nodes;
        uint64_t parts[] = {graph.captured, graph.nodes, graph.kernels, graph.launches,
                            graph.fingerprint};
        all = rp_hash64(parts, sizeof parts, all);
    }
    struct rp_expectation *row = rp_expectations_add(out, "fingerprint.%s.%s", model, how);
    if (!row)
        return false;
    snprintf(row->text, sizeof row->text, "%016llx", (unsigned long long)all);
    return true;
}

int rp_check_programs(const struct rp_check_config *config, const struct rp_backend *backend,
                      struct rp_expectations *out, struct rp_error *err) {
    const struct rp_model_config qwen2 = rp_check_shape(RP_FAMILY_QWEN2),
                                 qwen3 = rp_check_shape(RP_FAMILY_QWEN3),
                                 mistral = rp_check_shape(RP_FAMILY_MISTRAL);
    const struct {
        const char *name;
        struct rp_engine_run_model model;
        uint32_t sequences, tokens; /* 0: the defaults of `serve` */
    } cases[] = {
        {"demo", {.dir = config->model_dir, .dtype = RP_MODEL_DTYPE_AUTO}, 0, 0},
        {"qwen2", {.shape = &qwen2, .dtype = RP_DTYPE_BF16}, 16, 64},
        {"qwen3", {.shape = &qwen3, .dtype = RP_DTYPE_BF16}, 16, 64},
        {"mistral", {.shape = &mistral, .dtype = RP_DTYPE_F32}, 16, 64},
    };
    for (size_t i = 0; i < 2 * RP_ARRAY_COUNT(cases); i++) {
        struct rp_engine_config engine = rp_check_engine_config(config);
        struct rp_engine_run run;
        engine.backend = backend ? backend : engine.backend;
        engine.max_num_seqs = cases[i / 2].sequences;
        engine.max_num_batched_tokens = cases[i / 2].tokens;
        engine.no_fusion = i % 2 == 1;
        int status = rp_engine_run_open(&cases[i / 2].model, &engine, &run, err);
        if (status == RP_OK && !add_rows(run.engine, cases[i / 2].name, !engine.no_fusion, out))
            status = rp_check_no_memory(err);
        rp_engine_run_close(&run);
        if (status != RP_OK)
            return status;
    }
    return RP_OK;
}
