/* time_attention_masks.c - times attention with masks: prefill and decode with windows, caps and
 * mask programs, in captured graphs.
 *
 * Not part of the build. From the repository's root, after ./dev build:
 *   nvcc -O2 -I. tools/time_attention_masks.c build/release/lib{rp_cuda,rp_attention,rp_kvcache,rp_device,rp_base}.a \
 *       -lxxhash -o time_attention_masks
 *   ./time_attention_masks                        (32 query heads, 8 KV heads, head dim 128, pages of 64)
 *
 * Prefill: TFLOP/s of the unmasked pairs, 4 * heads * dim each; decode: GB/s of the unmasked keys.
 * Medians of nine replays. */
#include "attention/attention_internal_cuda.h"
#include "attention/mask/mask_source.h"
#include "attention/program/attention_program_cuda.h"
#include "base/memory.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPEATS     9
#define TOKENS_MAX  32768u
#define ROWS_MAX    32u
#define HEADS       32u
#define KV_HEADS    8u
#define HEAD_DIM    128u
#define PAGE_TOKENS 64u
#define LAYERS      8u

static struct rp_step_view step;
static struct rp_kv_layout kv;
static struct rp_nvrtc *nvrtc;
static struct rp_cuda_limits limits;
static float *q;
static void *out;

static void check(int error) {
    if (error != 0) {
        fprintf(stderr, "%s\n", cudaGetErrorString((cudaError_t)error));
        exit(1);
    }
}

static void *device(size_t bytes) {
    void *data = NULL;
    check((int)cudaMalloc(&data, bytes));
    check((int)cudaMemset(data, 0, bytes));
    return data;
}

/* Approximately normal, as q and k of a model are after their norms. */
static void *random_values(size_t count, enum rp_dtype dtype) {
    size_t size = dtype == RP_DTYPE_F32 ? 4 : 2, chunk = 1u << 20;
    unsigned char *data = device(count * size);
    static uint32_t values[1u << 20];
    static uint16_t halves[1u << 20];
    uint32_t x = 12345;
    for (size_t i = 0; i < chunk; i++) {
        float sum = 0;
        for (int k = 0; k < 4; k++) {
            x = x * 1664525u + 1013904223u;
            sum += (float)(int32_t)x * 0x1p-31f;
        }
        sum *= 0.87f;
        memcpy(&values[i], &sum, 4);
        halves[i] = (uint16_t)(values[i] >> 16);
    }
    for (size_t at = 0; at < count; at += chunk)
        check((int)cudaMemcpy(data + at * size, size == 4 ? (void *)values : (void *)halves,
                              RP_MIN(chunk, count - at) * size, cudaMemcpyHostToDevice));
    return data;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Rows of `count` tokens each, the last of `length`. */
static void make_step(uint32_t rows, uint32_t count, uint32_t length) {
    static uint32_t positions[TOKENS_MAX], token_rows[TOKENS_MAX];
    static struct rp_live_row live[ROWS_MAX];
    struct rp_live_counts counts = {.row_count = rows, .token_count = rows * count};
    for (uint32_t r = 0; r < rows; r++) {
        live[r] = (struct rp_live_row){.slot = r,
                                       .token_begin = r * count,
                                       .token_count = count,
                                       .kv_begin = length - count,
                                       .flags = count == 1 ? RP_ROW_DECODE : RP_ROW_SAMPLE};
        for (uint32_t i = 0; i < count; i++) {
            positions[r * count + i] = length - count + i;
            token_rows[r * count + i] = r;
        }
    }
    check((int)cudaMemcpy(step.counts, &counts, sizeof counts, cudaMemcpyHostToDevice));
    check((int)cudaMemcpy(step.rows, live, rows * sizeof *live, cudaMemcpyHostToDevice));
    check((int)cudaMemcpy(step.positions, positions, rows * count * 4, cudaMemcpyHostToDevice));
    check((int)cudaMemcpy(step.token_rows, token_rows, rows * count * 4, cudaMemcpyHostToDevice));
}

static void open_step(void) {
    uint32_t per_slot = TOKENS_MAX / PAGE_TOKENS, pages = 4096;
    uint32_t words = RP_SLOT_PAGES + per_slot;
    uint32_t *slots = rp_calloc((size_t)ROWS_MAX * words, 4);
    if (!slots)
        exit(1);
    step.config = (struct rp_step_config){.slot_count = ROWS_MAX,
                                          .pages_per_slot = per_slot,
                                          .row_capacity = ROWS_MAX,
                                          .token_capacity = TOKENS_MAX};
    step.slot_words = words;
    step.counts = device(sizeof *step.counts);
    step.rows = device(ROWS_MAX * sizeof *step.rows);
    step.positions = device(TOKENS_MAX * 4);
    step.token_rows = device(TOKENS_MAX * 4);
    step.slots = device((size_t)ROWS_MAX * words * 4);
    for (uint32_t r = 0; r < ROWS_MAX; r++)
        slots[r * words + RP_SLOT_MASK_PARAMS] = 1024; /* for the one program with a parameter */
    for (uint32_t r = 0; r < ROWS_MAX; r++)
        for (uint32_t i = 0; i < per_slot; i++)
            slots[r * words + RP_SLOT_PAGES + i] = ((i * ROWS_MAX + r) * 1237u + 11) % pages;
    check((int)cudaMemcpy(step.slots, slots, (size_t)ROWS_MAX * words * 4, cudaMemcpyHostToDevice));
    rp_free(slots);
    if (!rp_kv_layout_init(&kv, LAYERS, KV_HEADS, HEAD_DIM, PAGE_TOKENS, RP_DTYPE_BF16))
        exit(1);
    kv.base = random_values(kv.page_stride / 2 * pages, RP_DTYPE_BF16);
    q = random_values((size_t)TOKENS_MAX * HEADS * HEAD_DIM, RP_DTYPE_F32);
    out = device((size_t)TOKENS_MAX * HEADS * HEAD_DIM * 2);
}

static float time_launches(const struct rp_cuda_launch *launches, uint32_t count, uint32_t times) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float us[REPEATS];
    check((int)cudaStreamCreate(&stream));
    check((int)cudaEventCreate(&begin));
    check((int)cudaEventCreate(&end));
    check((int)cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t t = 0; t < times; t++)
        for (uint32_t i = 0; i < count; i++)
            check(launches[i].run(launches[i].args, stream));
    check((int)cudaStreamEndCapture(stream, &graph));
    check((int)cudaGraphInstantiate(&exec, graph, 0));
    check((int)cudaGraphLaunch(exec, stream));
    for (int i = 0; i < REPEATS; i++) {
        check((int)cudaEventRecord(begin, stream));
        check((int)cudaGraphLaunch(exec, stream));
        check((int)cudaEventRecord(end, stream));
        check((int)cudaStreamSynchronize(stream));
        check((int)cudaEventElapsedTime(&us[i], begin, end));
        us[i] *= 1000.0f / (float)times;
    }
    qsort(us, REPEATS, sizeof *us, by_value);
    check((int)cudaGraphExecDestroy(exec));
    check((int)cudaGraphDestroy(graph));
    check((int)cudaStreamDestroy(stream));
    return us[REPEATS / 2];
}

/* text NULL: the built-in causal mask with window and cap. */
static void measure(const char *name, const char *text, uint32_t window, float cap, uint32_t rows,
                    uint32_t count, uint32_t length, double pairs) {
    struct rp_attention_cuda_config config = {.limits = limits, .step = step, .kv = kv};
    struct rp_arena memory = {0};
    struct rp_cuda_launch plans[RP_ATTENTION_PLANS_MAX],
        launches[LAYERS * RP_ATTENTION_LAUNCHES_MAX];
    struct rp_mask *mask = NULL;
    struct rp_attention_program *program = NULL;
    struct rp_error err = {0};
    uint32_t plan_count, launch_count = 0, layers = count == 1 ? LAYERS : 1;
    int status = RP_OK;
    config.heads = HEADS;
    config.kv_heads = KV_HEADS;
    config.head_dim = HEAD_DIM;
    config.bucket = (struct rp_bucket){
        .tokens = rows * count, .rows = rows, .logit_rows = rows, .decode = count == 1};
    config.windows[0] = window;
    config.window_count = 1;
    if (text) {
        const struct rp_mask_limits mask_limits = {TOKENS_MAX, HEADS, LAYERS};
        struct rp_buffer source;
        rp_buffer_init(&source, 0);
        status = rp_mask_parse(text, strlen(text), &mask_limits, &mask, &err);
        if (status == RP_OK) {
            rp_mask_source(mask, &source);
            rp_buffer_append(&source, "", 1);
            status = rp_attention_program_open(nvrtc, &config, source.data, &program, &err);
        }
        rp_buffer_deinit(&source);
    }
    config.programs[0] = program;
    config.masks[0] = mask;
    config.workspace_bytes = rp_attention_cuda_workspace_bytes(&config);
    config.workspace = device(config.workspace_bytes);
    make_step(rows, count, length);
    if (status == RP_OK)
        status = rp_attention_cuda_plan(&config, &memory, plans, &plan_count, &err);
    for (uint32_t layer = 0; layer < layers && status == RP_OK; layer++) {
        const struct rp_attention_args args = {.step = step,
                                               .kv = kv,
                                               .q = q,
                                               .out = out,
                                               .q_stride = HEADS * HEAD_DIM,
                                               .out_stride = HEADS * HEAD_DIM,
                                               .out_dtype = RP_DTYPE_BF16,
                                               .heads = HEADS,
                                               .kv_heads = KV_HEADS,
                                               .head_dim = HEAD_DIM,
                                               .layer = layer,
                                               .window = window,
                                               .soft_cap = cap,
                                               .mask = mask,
                                               .scale = 0.08838834764f};
        uint32_t more = 0;
        status =
            rp_attention_cuda_lower(&config, &args, &memory, launches + launch_count, &more, &err);
        /* A mixed bucket also has a kernel for decode rows; this step has none. */
        launch_count += count == 1 ? more : 1;
    }
    if (status != RP_OK) {
        printf("%-34s %s\n", name, err.text);
        return;
    }
    for (uint32_t i = 0; i < plan_count; i++)
        check(plans[i].run(plans[i].args, NULL));
    check((int)cudaDeviceSynchronize());
    float plan_us = time_launches(plans, plan_count, 8);
    float us = time_launches(launches, launch_count, count == 1 ? 4 : 5) / (float)layers;
    double tflops = pairs * 4 * HEADS * HEAD_DIM / (double)us * 1e-6;
    double gbs = pairs * 4 * KV_HEADS * HEAD_DIM / (double)us * 1e-3;
    printf("%-34s %2u x %5u: %9.1f us, %7.1f %s, plan %5.1f us\n", name, rows, length, (double)us,
           count == 1 ? gbs : tflops, count == 1 ? "GB/s" : "TFLOP/s", (double)plan_us);
    fflush(stdout);
    rp_attention_program_close(program);
    rp_mask_free(mask);
    rp_arena_deinit(&memory);
    check((int)cudaFree(config.workspace));
}

static double window_pairs(double n, double window) {
    double all = n * (n + 1) / 2;
    return n > window ? all - (n - window) * (n - window + 1) / 2 : all;
}

int main(void) {
    struct rp_error err = {0};
    struct cudaDeviceProp prop;
    double causal = window_pairs(8192, 8192), wide = window_pairs(16384, 1024);
    if (rp_nvrtc_open(getenv("REPRISE_CACHE_DIR"), &nvrtc, &err) != RP_OK)
        printf("%s\n", err.text);
    check((int)cudaGetDeviceProperties(&prop, 0));
    limits = (struct rp_cuda_limits){.sm_count = (uint32_t)prop.multiProcessorCount,
                                     .compute_capability = (uint32_t)(prop.major * 10 + prop.minor),
                                     .shared_bytes_block = (uint32_t)prop.sharedMemPerBlockOptin,
                                     .dependent_launch = true};
    open_step();
    measure("causal", NULL, 0, 0, 1, 2048, 2048, window_pairs(2048, 2048));
    measure("causal", NULL, 0, 0, 1, 8192, 8192, causal);
    measure("soft cap 50", NULL, 0, 50, 1, 8192, 8192, causal);
    measure("window 1024", NULL, 1024, 0, 1, 8192, 8192, window_pairs(8192, 1024));
    measure("window 1024", NULL, 1024, 0, 1, 16384, 16384, wide);
    measure("causal", NULL, 0, 0, 1, 1, 32768, 32768);
    measure("window 256", NULL, 256, 0, 1, 1, 32767, 256);
    measure("causal", NULL, 0, 0, 32, 1, 4096, 32 * 4096);
    if (nvrtc) {
        measure("program: causal", "causal", 0, 0, 1, 2048, 2048, window_pairs(2048, 2048));
        measure("program: causal", "causal", 0, 0, 1, 8192, 8192, causal);
        measure("program: soft_cap(50)", "causal; soft_cap(50)", 0, 0, 1, 8192, 8192, causal);
        measure("program: alibi", "causal; alibi", 0, 0, 1, 8192, 8192, causal);
        measure("program: sliding_window(1024)", "causal && sliding_window(1024)", 0, 0, 1, 16384,
                16384, wide);
        measure("program: window w or sink 4",
                "param w = 1024 in 1..8192; causal && (sliding_window(w) || sink(4))", 0, 0, 1,
                16384, 16384, wide);
        measure("program: causal", "causal", 0, 0, 1, 1, 32768, 32768);
        measure("program: sliding_window(256)", "causal && sliding_window(256)", 0, 0, 1, 1, 32767,
                256);
        measure("program: causal", "causal", 0, 0, 32, 1, 4096, 32 * 4096);
        measure("program: sliding_window(256)", "causal && sliding_window(256)", 0, 0, 32, 1, 4095,
                32 * 256);
    }
    rp_nvrtc_close(nvrtc);
    return 0;
}
