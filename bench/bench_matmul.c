/* bench_matmul.c - rotates among enough copies of the weights to fill --cold-mb, so that no GEMM
 * finds its weights in a cache, as in a decode step. */
#include "bench/bench_matmul.h"

#include "base/bf16.h"
#include "base/clock.h"
#include "base/memory.h"
#include "bench/membw.h"
#include "quant/matmul.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    uint32_t m, n, k, threads, reps, cold_mb;
    enum rp_dtype dtype;
    enum rp_cpu_isa isa;
};

struct bench {
    struct options options;
    struct rp_cpu_team *team;
    struct rp_matrix *copies;
    uint32_t copy_count;
    struct rp_matmul_args args;
    rp_matmul_fn fn;
};

static void matmul_job(void *arg0, uint64_t rep, const struct rp_cpu_worker *worker) {
    const struct bench *bench = arg0;
    struct rp_matmul_args args = bench->args;
    args.weight = &bench->copies[rep % bench->copy_count];
    bench->fn(&args, bench->options.m, worker);
}

/* Small values of both signs; xorshift, seeded. */
static float next_value(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return (float)(int32_t)*state * 0x1p-32f;
}

static void fill(void *to, size_t count, enum rp_dtype dtype, uint32_t *state) {
    for (size_t i = 0; i < count; i++) {
        float value = next_value(state);
        if (dtype == RP_DTYPE_F32)
            ((float *)to)[i] = value;
        else
            ((uint16_t *)to)[i] = rp_f32_to_bf16(value);
    }
}

static bool parse(struct options *o, int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *text = argv[i + 1];
        uint32_t number = (uint32_t)strtoul(text, NULL, 10);
        if (strcmp(name, "--m") == 0)
            o->m = number;
        else if (strcmp(name, "--n") == 0)
            o->n = number;
        else if (strcmp(name, "--k") == 0)
            o->k = number;
        else if (strcmp(name, "--threads") == 0)
            o->threads = number;
        else if (strcmp(name, "--reps") == 0)
            o->reps = number;
        else if (strcmp(name, "--cold-mb") == 0)
            o->cold_mb = number;
        else if (strcmp(name, "--dtype") == 0)
            o->dtype = strcmp(text, "f32") == 0 ? RP_DTYPE_F32 : RP_DTYPE_BF16;
        else if (strcmp(name, "--isa") == 0) {
            for (int isa = RP_ISA_SCALAR; isa <= RP_ISA_AVX512_BF16; isa++)
                if (strcmp(text, rp_cpu_isa_name((enum rp_cpu_isa)isa)) == 0 && isa <= (int)o->isa)
                    o->isa = (enum rp_cpu_isa)isa;
        } else
            return false;
    }
    return argc % 2 == 1 && o->m && o->n && o->k && o->reps;
}

static bool make_inputs(struct bench *bench) {
    const struct options *o = &bench->options;
    size_t element = o->dtype == RP_DTYPE_F32 ? 4 : 2, bytes = (size_t)o->n * o->k * element;
    uint32_t state = 1;
    bench->copy_count = (uint32_t)RP_CEIL_DIV((size_t)o->cold_mb << 20, bytes);
    bench->copy_count = RP_MAX(bench->copy_count, 1u);
    bench->copies = rp_calloc(bench->copy_count, sizeof *bench->copies);
    void *in = rp_alloc_aligned((size_t)o->m * o->k * element, RP_CACHE_LINE);
    void *out = rp_alloc_aligned((size_t)o->m * o->n * sizeof(float), RP_CACHE_LINE);
    bench->args = (struct rp_matmul_args){
        .in = in, .out = out, .in_stride = o->k, .out_stride = o->n, .out_dtype = RP_DTYPE_F32};
    if (!bench->copies || !in || !out)
        return false;
    fill(in, (size_t)o->m * o->k, o->dtype, &state);
    for (uint32_t i = 0; i < bench->copy_count; i++) {
        struct rp_matrix *w = &bench->copies[i];
        *w = (struct rp_matrix){.rows = o->n, .cols = o->k, .dtype = o->dtype};
        w->data = rp_alloc_aligned(bytes, RP_CACHE_LINE);
        if (!w->data)
            return false;
        if (i == 0)
            fill(w->data, (size_t)o->n * o->k, o->dtype, &state);
        else
            memset(w->data, 0x11, bytes);
        if (rp_matrix_prepare_cpu(w, o->isa, NULL) != RP_OK)
            return false;
    }
    bench->fn = rp_matmul_select(o->isa, &bench->copies[0]);
    return true;
}

static int compare_ns(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static bool time_gemm(struct bench *bench) {
    const struct options *o = &bench->options;
    uint64_t *ns = rp_calloc(o->reps, sizeof *ns), job;
    if (!ns)
        return false;
    double read = rp_membw_read(o->threads, (size_t)512 << 20, 8);
    for (uint32_t rep = 0; rep < o->reps + 2; rep++) { /* two warm-up repetitions */
        uint64_t begin = rp_clock_ns();
        if (rp_cpu_team_submit(bench->team, matmul_job, bench, rep, &job) != RP_OK)
            break;
        rp_cpu_team_wait(bench->team, job, UINT64_MAX);
        if (rep >= 2)
            ns[rep - 2] = rp_clock_ns() - begin;
    }
    qsort(ns, o->reps, sizeof *ns, compare_ns);
    /* The larger of the readings before and after: the memory may be shared with other machines. */
    double after = rp_membw_read(o->threads, (size_t)512 << 20, 8);
    read = RP_MAX(read, after);
    double median = (double)ns[o->reps / 2], best = (double)ns[0];
    double bytes = (double)rp_matrix_bytes(&bench->copies[0]);
    double flops = 2.0 * o->m * o->n * o->k;
    printf("m=%u n=%u k=%u %s %s threads=%u: median %.1f us (best %.1f), %.2f GB/s (best %.2f) = "
           "%.0f%% (best %.0f%%) of %.2f, %.1f GFLOP/s (best %.1f)\n",
           o->m, o->n, o->k, o->dtype == RP_DTYPE_F32 ? "f32" : "bf16", rp_cpu_isa_name(o->isa),
           rp_cpu_team_size(bench->team), median / 1e3, best / 1e3, bytes / median, bytes / best,
           bytes / median * 1e11 / read, bytes / best * 1e11 / read, read / 1e9, flops / median,
           flops / best);
    rp_free(ns);
    return true;
}

int rp_bench_matmul(int argc, char **argv) {
    struct bench bench = {.options = {.m = 1,
                                      .n = 2048,
                                      .k = 2048,
                                      .reps = 200,
                                      .cold_mb = 512,
                                      .dtype = RP_DTYPE_BF16,
                                      .isa = rp_cpu_isa_detect()}};
    bool help = argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    if (help || !parse(&bench.options, argc, argv)) {
        fprintf(help ? stdout : stderr,
                "usage: reprise bench matmul [--m M] [--n N] [--k K] [--dtype bf16|f32] "
                "[--threads T] [--isa NAME] [--reps R] [--cold-mb MB]\n"
                "Times one GEMM of m rows and n columns over k with weights read from memory.\n");
        return help ? 0 : 2;
    }
    bool done = rp_cpu_team_create(bench.options.threads, &bench.team, NULL) == RP_OK &&
                make_inputs(&bench) && time_gemm(&bench);
    rp_cpu_team_destroy(bench.team);
    for (uint32_t i = 0; bench.copies && i < bench.copy_count; i++)
        rp_matrix_deinit(&bench.copies[i]);
    rp_free(bench.copies);
    rp_free_aligned(bench.args.out);
    rp_free_aligned((void *)(uintptr_t)bench.args.in);
    if (!done)
        fprintf(stderr, "error: out of memory or threads\n");
    return done ? 0 : 4;
}
