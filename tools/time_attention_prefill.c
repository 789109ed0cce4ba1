/* time_attention_prefill.c - times prefill attention, and the qkv_post kernel before it, in
 * captured graphs.
 *
 * Not part of the build. From the repository's root, after ./dev build:
 *   nvcc -O2 -I. tools/time_attention_prefill.c build/release/librp_cuda.a \
 *       build/release/librp_kvcache.a build/release/librp_device.a build/release/librp_base.a \
 *       -lxxhash -o time_attention_prefill
 *   ./time_attention_prefill [heads kv_heads head_dim page_tokens]      (32 8 128 64: Llama-3.1-8B)
 *
 * Attention: one causal prompt; TFLOP/s of the unmasked pairs, 4 * heads * dim * n * (n + 1) / 2.
 * qkv_post: microseconds per launch; launches have separate buffers that exceed the L2 in total. */
#include "attention/attention_internal_cuda.h"
#include "base/memory.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPEATS    9
#define TOKENS_MAX 16384u
#define BUFFERS    48u

static struct rp_step_view step;
static struct rp_attention_cuda_args call;
static uint32_t heads = 32, kv_heads = 8, head_dim = 128, page_tokens = 64;

static void check(cudaError_t error) {
    if (error != cudaSuccess) {
        fprintf(stderr, "%s\n", cudaGetErrorString(error));
        exit(1);
    }
}

static void *device(size_t bytes) {
    void *data = NULL;
    check(cudaMalloc(&data, bytes));
    check(cudaMemset(data, 0, bytes));
    return data;
}

/* Values with a softmax that is neither saturated nor uniform. */
static void *random_values(size_t count, enum rp_dtype dtype) {
    size_t size = dtype == RP_DTYPE_F32 ? 4 : 2, chunk = 1u << 20;
    unsigned char *data = device(count * size);
    static uint32_t values[1u << 20];
    uint32_t x = 12345;
    for (size_t i = 0; i < chunk; i++) {
        x = x * 1664525u + 1013904223u;
        /* sign, an exponent of 2^-1 or 2^0, some mantissa */
        uint32_t high = (x >> 31 << 15) | (0x3F00u + (x >> 24 & 0x7Fu)) | (x >> 23 & 1u) << 7;
        uint32_t low = (x << 8 >> 31 << 15) | (0x3F00u + (x >> 8 & 0x7Fu));
        values[i] = dtype == RP_DTYPE_F32 ? high << 16 : high << 16 | low;
    }
    for (size_t at = 0; at < count * size; at += chunk * 4)
        check(cudaMemcpy(data + at, values, RP_MIN(chunk * 4, count * size - at),
                         cudaMemcpyHostToDevice));
    return data;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Time in microseconds per launch of a graph with `count` launches: the median of REPEATS replays,
 * and their spread. */
static float time_graph(cudaStream_t stream, float *out_spread, uint32_t count) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float us[REPEATS];
    check(cudaStreamEndCapture(stream, &graph));
    check(cudaGraphInstantiate(&exec, graph, 0));
    check(cudaEventCreate(&begin));
    check(cudaEventCreate(&end));
    check(cudaGraphLaunch(exec, stream));
    for (int i = 0; i < REPEATS; i++) {
        check(cudaEventRecord(begin, stream));
        check(cudaGraphLaunch(exec, stream));
        check(cudaEventRecord(end, stream));
        check(cudaStreamSynchronize(stream));
        check(cudaEventElapsedTime(&us[i], begin, end));
        us[i] *= 1000.0f / (float)count;
    }
    qsort(us, REPEATS, sizeof *us, by_value);
    check(cudaGraphExecDestroy(exec));
    check(cudaGraphDestroy(graph));
    *out_spread = us[REPEATS - 1] - us[0];
    return us[REPEATS / 2];
}

/* A step with one prompt of `tokens` tokens, whose pages are in a scattered order. */
static void make_step(uint32_t tokens, uint32_t rows) {
    static uint32_t positions[TOKENS_MAX], token_rows[TOKENS_MAX];
    static struct rp_live_row live[TOKENS_MAX];
    struct rp_live_counts counts = {.row_count = rows, .token_count = tokens};
    for (uint32_t r = 0; r < rows; r++)
        live[r] = (struct rp_live_row){.slot = 0,
                                       .token_begin = r * (tokens / rows),
                                       .token_count = tokens / rows,
                                       .kv_begin = rows > 1 ? r * 7 : 0,
                                       .flags = rows > 1 ? RP_ROW_DECODE : RP_ROW_SAMPLE};
    for (uint32_t t = 0; t < tokens; t++) {
        positions[t] = rows > 1 ? t * 7 : t;
        token_rows[t] = rows > 1 ? t : 0;
    }
    check(cudaMemcpy(step.counts, &counts, sizeof counts, cudaMemcpyHostToDevice));
    check(cudaMemcpy(step.rows, live, rows * sizeof *live, cudaMemcpyHostToDevice));
    check(cudaMemcpy(step.positions, positions, tokens * 4, cudaMemcpyHostToDevice));
    check(cudaMemcpy(step.token_rows, token_rows, tokens * 4, cudaMemcpyHostToDevice));
}

static void open_step(void) {
    uint32_t pages = TOKENS_MAX / page_tokens + 1;
    uint32_t *slot = rp_calloc(RP_SLOT_PAGES + pages, 4);
    if (!slot)
        exit(1);
    step.config.token_capacity = TOKENS_MAX;
    step.slot_words = RP_SLOT_PAGES + pages;
    step.counts = device(sizeof *step.counts);
    step.rows = device(TOKENS_MAX * sizeof *step.rows);
    step.positions = device(TOKENS_MAX * 4);
    step.token_rows = device(TOKENS_MAX * 4);
    step.slots = device(step.slot_words * 4);
    for (uint32_t i = 0; i < pages; i++)
        slot[RP_SLOT_PAGES + i] = (i * 37u + 11) % pages;
    check(cudaMemcpy(step.slots, slot, step.slot_words * 4, cudaMemcpyHostToDevice));
    rp_free(slot);
}

static void plan(uint32_t tokens) {
    call.config.bucket = (struct rp_bucket){.tokens = tokens, .rows = 1};
    call.config.windows[0] = call.args.window;
    const struct rp_attention_plan_cuda plan = {
        .config = call.config,
        .workspace = call.workspace,
        .tile_queries = rp_attention_prefill_cuda_tile(&call.config),
        .pairs = rp_attention_prefill_cuda_pairs(&call.config)};
    check((cudaError_t)rp_attention_plan_cuda_run(&plan, NULL));
    check(cudaDeviceSynchronize());
}

static void bench_attention(cudaStream_t stream) {
    static const uint32_t sizes[] = {512, 2048, 8192, 16384};
    for (size_t i = 0; i < RP_ARRAY_COUNT(sizes); i++)
        for (uint32_t window = 0; window <= 1024; window += 1024) {
            double n = sizes[i], seen = n * (n + 1) / 2, spread_share;
            uint32_t count = sizes[i] > 4096 ? 5 : 20;
            float spread;
            if (window != 0 && n > window)
                seen -= (n - window) * (n - window + 1) / 2;
            call.args.window = window;
            make_step(sizes[i], 1);
            plan(sizes[i]);
            check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
            for (uint32_t c = 0; c < count; c++)
                check((cudaError_t)rp_attention_prefill_cuda_run(&call, stream));
            float us = time_graph(stream, &spread, count);
            spread_share = (double)(spread / us);
            printf("attention %5u tokens window %4u  %9.1f us  %6.1f TFLOP/s  (spread %.1f %%)\n",
                   sizes[i], window, (double)us, 4.0 * heads * head_dim * seen / (double)us * 1e-6,
                   spread_share * 100);
        }
}

static void bench_post(cudaStream_t stream) {
    static const uint32_t sizes[] = {1, 8, 32, 128, 2048};
    uint32_t columns = (heads + 2 * kv_heads) * head_dim;
    float *table = random_values((size_t)TOKENS_MAX * head_dim, RP_DTYPE_F32);
    float *norm = random_values(head_dim, RP_DTYPE_F32);
    float *partials = random_values((size_t)2048 * columns * 4, RP_DTYPE_F32);
    float *qkv = random_values((size_t)BUFFERS * 256 * columns, RP_DTYPE_F32);
    for (size_t i = 0; i < RP_ARRAY_COUNT(sizes); i++)
        for (uint32_t kind = 0; kind < 4; kind++) {
            static struct rp_qkv_post_cuda posts[BUFFERS];
            uint32_t rows = sizes[i], buffers = rows > 256 ? 6 : BUFFERS;
            float spread;
            make_step(rows, rows);
            check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
            for (uint32_t b = 0; b < BUFFERS; b++) {
                posts[b] = (struct rp_qkv_post_cuda){
                    .rows = {step, RP_ROWS_TOKEN, rows},
                    .kv = call.args.kv,
                    .qkv = {qkv + (size_t)(b % buffers) * rows * columns, columns, RP_DTYPE_F32},
                    .partials = {partials, NULL, kind % 2 ? 4 : 0, (size_t)rows * columns, columns},
                    .q_norm = kind / 2 ? norm : NULL,
                    .k_norm = kind / 2 ? norm : NULL,
                    .rope_table = table,
                    .heads = heads,
                    .kv_heads = kv_heads,
                    .head_dim = head_dim,
                    .rotary_dim = head_dim,
                    .position_count = TOKENS_MAX,
                    .eps = 1e-5f};
                check((cudaError_t)rp_qkv_post_cuda_run(&posts[b], stream));
            }
            float us = time_graph(stream, &spread, BUFFERS);
            printf("qkv_post %4u rows, %u partials%s  %7.2f us  (spread %.2f)\n", rows,
                   kind % 2 ? 4 : 0, kind / 2 ? ", norm" : "      ", (double)us, (double)spread);
        }
}

int main(int argc, char **argv) {
    cudaStream_t stream;
    if (argc == 5) {
        heads = (uint32_t)atoi(argv[1]);
        kv_heads = (uint32_t)atoi(argv[2]);
        head_dim = (uint32_t)atoi(argv[3]);
        page_tokens = (uint32_t)atoi(argv[4]);
    }
    check(cudaStreamCreate(&stream));
    open_step();
    struct rp_attention_args *args = &call.args;
    *args = (struct rp_attention_args){.step = step,
                                       .q_stride = (size_t)(heads + 2 * kv_heads) * head_dim,
                                       .out_stride = (size_t)heads * head_dim,
                                       .out_dtype = RP_DTYPE_BF16,
                                       .heads = heads,
                                       .kv_heads = kv_heads,
                                       .head_dim = head_dim,
                                       .scale = 0.05f};
    if (!rp_kv_layout_init(&args->kv, 1, kv_heads, head_dim, page_tokens, RP_DTYPE_BF16))
        return 1;
    args->kv.base =
        random_values(args->kv.page_stride / 2 * (TOKENS_MAX / page_tokens + 1), RP_DTYPE_BF16);
    args->q = random_values(TOKENS_MAX * args->q_stride, RP_DTYPE_F32);
    args->out = device(TOKENS_MAX * args->out_stride * 2);
    call.config.step = step;
    call.config.kv = args->kv;
    call.config.heads = heads;
    call.config.kv_heads = kv_heads;
    call.config.head_dim = head_dim;
    call.config.window_count = 1;
    struct cudaDeviceProp prop;
    check(cudaGetDeviceProperties(&prop, 0));
    call.config.limits.sm_count = (uint32_t)prop.multiProcessorCount;
    call.config.limits.compute_capability = (uint32_t)(prop.major * 10 + prop.minor);
    call.config.limits.shared_bytes_block = (uint32_t)prop.sharedMemPerBlockOptin;
    call.config.limits.dependent_launch = true;
    call.workspace.claims = device(RP_ATTENTION_CLAIMS * 4);
    call.workspace.plans[0].rows = device(sizeof(struct rp_attention_plan_row));
    call.workspace.plans[0].head = device(sizeof(struct rp_attention_plan_head));
    call.workspace.plans[0].tiles = device(TOKENS_MAX * sizeof(struct rp_attention_plan_tile));
    printf("%s: heads %u/%u, head dim %u, pages of %u\n", prop.name, heads, kv_heads, head_dim,
           page_tokens);
    bench_attention(stream);
    if (argc < 5)
        bench_post(stream);
    check(cudaDeviceSynchronize());
    return 0;
}
