#include "engine/gpu_plan.h"

#include "device/step_cpu.h"
#include "engine/memory_plan.h"
#include "model/model.h"

#include <math.h>
#include <stdio.h>

/* An uploaded graph of 200 nodes was seen to take 0.56 MiB of an H200: 3 KiB a node. */
#define GRAPH_BYTES_PER_OP ((uint64_t)8 << 10)
/* Kernels loaded at their first launch, workspaces of GEMMs and attention: up to this
 * much, less on small GPUs. */
#define KERNELS_BYTES_MAX ((uint64_t)1 << 30)
#define KERNELS_SHARE     64
/* Upper limit of the share of a GPU's memory: the driver needs some for itself. */
#define UTILIZATION_MAX 0.98

static uint64_t slot_bytes(const struct rp_engine_config *config, const struct rp_model *model,
                           const struct rp_engine_layout *layout, uint32_t wanted_len) {
    struct rp_step_view view;
    const uint32_t tokens = RP_MAX(config->max_num_batched_tokens, config->max_num_seqs);
    const struct rp_step_config step = {.slot_count = config->max_num_seqs,
                                        .pages_per_slot =
                                            layout->geometry.groups.count *
                                            RP_CEIL_DIV(wanted_len, layout->kv.page_tokens),
                                        .row_capacity = config->max_num_seqs,
                                        .token_capacity = tokens,
                                        .logit_row_capacity = config->max_num_seqs,
                                        .edit_capacity = 1,
                                        .prompt_ring_capacity = 1,
                                        .vocab = model->config.vocab,
                                        .mask_capacity = rp_mask_capacity(config->max_num_seqs),
                                        .late_copies = true};
    return rp_step_state_carve(&step, NULL, &view);
}

static uint64_t taken(const struct rp_engine_layout *layout) {
    uint64_t sum = 0;
    for (int use = 0; use < RP_MEMORY_KV; use++)
        sum += layout->gpu.uses[use];
    return sum;
}

int rp_gpu_plan_no_room(const struct rp_engine_config *config,
                        const struct rp_engine_layout *layout, uint64_t pages,
                        struct rp_error *err) {
    const struct rp_gpu_bytes *gpu = &layout->gpu;
    char needed[16], pool[16], weights[16], activations[16], graphs[16], in_use[16], total[16];
    char allowed[16];
    uint64_t pool_bytes = pages * layout->kv.page_stride, sum = taken(layout) + pool_bytes;
    rp_format_bytes((double)(sum - gpu->uses[RP_MEMORY_CONTEXT]), needed);
    rp_format_bytes((double)pool_bytes, pool);
    rp_format_bytes((double)gpu->uses[RP_MEMORY_WEIGHTS], weights);
    rp_format_bytes((double)gpu->uses[RP_MEMORY_ACTIVATIONS], activations);
    rp_format_bytes((double)(gpu->uses[RP_MEMORY_GRAPHS] + gpu->uses[RP_MEMORY_WORKSPACE] +
                             gpu->uses[RP_MEMORY_SLOTS]),
                    graphs);
    rp_format_bytes((double)gpu->uses[RP_MEMORY_CONTEXT], in_use);
    rp_format_bytes((double)gpu->total, total);
    rp_format_bytes((double)gpu->limit, allowed);
    int status = rp_error_set(
        err, RP_STATUS_NO_MEMORY,
        "%s needed (weights %s, activations %s, graphs and slots %s, KV pool of %llu pages %s) and "
        "the GPU has %s, of which %s are in use already and --gpu-memory-utilization %.2f allows "
        "%s in all",
        needed, weights, activations, graphs, (unsigned long long)pages, pool, total, in_use,
        config->memory_utilization, allowed);
    double share = ceil((double)sum / (double)gpu->total * 100.0) / 100.0;
    uint64_t rest = gpu->total > taken(layout) ? gpu->total - taken(layout) : 0;
    if (config->page_count_override && pages > 2)
        rp_error_hint(err, "try --num-gpu-blocks-override %llu",
                      (unsigned long long)(rest / layout->kv.page_stride));
    else if (config->kv_cache_bytes && pages > 2)
        rp_error_hint(err, "try --kv-cache-memory-bytes %lluM", (unsigned long long)(rest >> 20));
    else if (share <= UTILIZATION_MAX && share > config->memory_utilization)
        rp_error_hint(err, "try --gpu-memory-utilization %.2f", share);
    else if (gpu->uses[RP_MEMORY_ACTIVATIONS] > gpu->total / 8)
        rp_error_hint(err, "try --max-num-batched-tokens %u",
                      RP_MAX(16u, config->max_num_batched_tokens / 4));
    else if (gpu->uses[RP_MEMORY_CONTEXT] > gpu->total / 8)
        rp_error_hint(err, "another process uses the GPU: `nvidia-smi` lists them");
    else
        rp_error_hint(err, "the model is too large for this GPU; try --dtype bfloat16 if it is "
                           "float32, or a smaller model");
    return status;
}

int rp_gpu_plan_estimate(const struct rp_engine_config *config, const struct rp_model *model,
                         const struct rp_program *program, const struct rp_device_memory *memory,
                         uint32_t wanted_len, struct rp_engine_layout *out, uint64_t *out_left,
                         struct rp_error *err) {
    struct rp_gpu_bytes *gpu = &out->gpu;
    uint64_t used = memory->total_bytes - memory->free_bytes;
    gpu->total = memory->total_bytes;
    gpu->limit = (uint64_t)((double)gpu->total * config->memory_utilization);
    gpu->uses[RP_MEMORY_CONTEXT] = used - RP_MIN(used, memory->allocated_bytes);
    gpu->uses[RP_MEMORY_WORKSPACE] = memory->allocated_bytes + out->exchange_bytes;
    gpu->uses[RP_MEMORY_WEIGHTS] = rp_model_weight_bytes(model);
    gpu->uses[RP_MEMORY_ACTIVATIONS] = out->arena_bytes;
    gpu->uses[RP_MEMORY_SLOTS] = slot_bytes(config, model, out, wanted_len);
    gpu->uses[RP_MEMORY_GRAPHS] =
        RP_MIN(KERNELS_BYTES_MAX, gpu->total / KERNELS_SHARE) +
        (uint64_t)out->buckets.count * program->op_count * GRAPH_BYTES_PER_OP;
    uint64_t sum = taken(out);
    *out_left = gpu->limit > sum ? gpu->limit - sum : 0;
    /* The padding page and one more, or nothing can run. */
    return *out_left < 2 * out->kv.page_stride ? rp_gpu_plan_no_room(config, out, 2, err) : RP_OK;
}
