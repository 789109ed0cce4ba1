/* cublaslt_search_cuda.c - times algorithms and picks the fastest.
 *
 * Each candidate is captured several times into one graph, on copies of the weights with twice the
 * size of L2 in total, so that launch overhead is hidden and weights come from memory, as in a
 * step. */
#include "quant/cublaslt/cublaslt_internal_cuda.h"

#include <string.h>

#define CANDIDATES    16
#define REPEATS_MAX   16
#define TARGET_US     300.0f /* of one replay */
#define REPLAYS       3
#define PATTERN_BYTES ((size_t)4 << 20)

struct search {
    struct rp_cublaslt *lt;
    const struct cublaslt_args *args;
    const unsigned char *in, *weights; /* random numbers; weights: `copies` of them */
    size_t weight_bytes;
    uint32_t copies;
    cudaEvent_t begin, end;
};

/* bf16 in +-1; as pairs they are f32 in +-1. */
static void fill_pattern(uint16_t *out, size_t count) {
    uint32_t state = 0x2545F491u;
    for (size_t i = 0; i < count; i++) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        uint32_t exponent = 126u - (uint32_t)__builtin_clz(state | 0x100u);
        out[i] = (uint16_t)((state & 0x80u) << 8 | exponent << 7 | (state & 0x7Fu));
    }
}

static bool fill_scratch(struct rp_cublaslt *lt) {
    uint16_t *pattern = rp_alloc(PATTERN_BYTES);
    bool good = pattern != NULL;
    if (good)
        fill_pattern(pattern, PATTERN_BYTES / sizeof *pattern);
    for (size_t at = 0; good && at < lt->scratch_bytes; at += PATTERN_BYTES)
        good = cudaMemcpy(lt->scratch + at, pattern, RP_MIN(PATTERN_BYTES, lt->scratch_bytes - at),
                          cudaMemcpyHostToDevice) == cudaSuccess;
    rp_free(pattern);
    return good;
}

/* Inputs, and weight copies to rotate through; when they do not fit, only the GEMM's own
 * weights. */
static bool make_inputs(struct search *search) {
    struct rp_cublaslt *lt = search->lt;
    const struct cublaslt_problem *p = &search->args->entry->problem;
    size_t element = rp_dtype_bytes((enum rp_dtype)p->dtype);
    size_t in_bytes = RP_ALIGN_UP(p->in_stride * p->m * element, 256);
    size_t cold = 2 * (size_t)lt->l2_bytes;
    search->weight_bytes = RP_ALIGN_UP((size_t)p->n * p->k * element, 256);
    search->copies = (uint32_t)(search->weight_bytes >= cold ? 0 : cold / search->weight_bytes + 1);
    size_t wanted = in_bytes + search->copies * search->weight_bytes;
    if (wanted > lt->scratch_bytes) {
        rp_cublaslt_trim(lt);
        if (cudaMalloc((void **)&lt->scratch, wanted) != cudaSuccess) {
            (void)cudaGetLastError(); /* not sticky */
            lt->scratch = NULL;
            return false;
        }
        lt->scratch_bytes = wanted;
        if (!fill_scratch(lt))
            return false;
    }
    search->in = lt->scratch;
    search->weights = lt->scratch + in_bytes;
    return true;
}

static bool launch(const struct search *search, const cublasLtMatmulAlgo_t *algorithm,
                   uint32_t turn) {
    const void *weight = search->copies
                             ? search->weights + turn % search->copies * search->weight_bytes
                             : search->args->weight;
    return rp_cublaslt_launch(search->args, weight, search->in, algorithm, search->lt->stream) ==
           CUBLAS_STATUS_SUCCESS;
}

/* Microseconds between the two events around what `graph` (or, when it is NULL, one launch) does;
 * negative when it failed. */
static float time_once(const struct search *search, const cublasLtMatmulAlgo_t *algorithm,
                       cudaGraphExec_t graph) {
    cudaStream_t stream = search->lt->stream;
    float ms = 0.0f;
    if (cudaEventRecord(search->begin, stream) != cudaSuccess)
        return -1.0f;
    if (graph ? cudaGraphLaunch(graph, stream) != cudaSuccess : !launch(search, algorithm, 0))
        return -1.0f;
    if (cudaEventRecord(search->end, stream) != cudaSuccess ||
        cudaEventSynchronize(search->end) != cudaSuccess ||
        cudaEventElapsedTime(&ms, search->begin, search->end) != cudaSuccess)
        return -1.0f;
    return ms * 1e3f;
}

static cudaGraphExec_t capture(const struct search *search, const cublasLtMatmulAlgo_t *algorithm,
                               uint32_t repeats) {
    cudaStream_t stream = search->lt->stream;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    bool good = true;
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess)
        return NULL;
    for (uint32_t i = 0; i < repeats; i++)
        good = launch(search, algorithm, i) && good;
    good = cudaStreamEndCapture(stream, &graph) == cudaSuccess && good;
    if (!good || cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess)
        exec = NULL;
    if (graph)
        (void)cudaGraphDestroy(graph);
    return exec;
}

/* Microseconds of one GEMM; negative when the algorithm does not run, or clearly is not the
 * best. */
static float time_algorithm(const struct search *search, const cublasLtMatmulAlgo_t *algorithm,
                            float best) {
    float first = time_once(search, algorithm, NULL), result = -1.0f;
    if (first >= 0.0f)
        first = time_once(search, algorithm, NULL); /* the first one loads the kernel */
    if (first < 0.0f || (best > 0.0f && first > 3.0f * best + 30.0f))
        return -1.0f;
    uint32_t repeats = (uint32_t)RP_MAX(2.0f, RP_MIN((float)REPEATS_MAX, TARGET_US / first));
    cudaGraphExec_t graph = capture(search, algorithm, repeats);
    if (!graph)
        return -1.0f;
    for (int replay = 0; replay <= REPLAYS; replay++) { /* one to warm up */
        float us = time_once(search, algorithm, graph);
        if (us < 0.0f)
            break;
        if (replay > 0 && (result < 0.0f || us < result))
            result = us;
    }
    (void)cudaGraphExecDestroy(graph);
    return result < 0.0f ? result : result / (float)repeats;
}

static int propose(struct rp_cublaslt *lt, const struct cublaslt_entry *entry,
                   cublasLtMatmulHeuristicResult_t *out) {
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const struct cublaslt_api *api = &lt->api;
    cublasLtMatmulPreference_t preference = NULL;
    int count = 0;
    uint64_t bytes = lt->workspace_bytes;
    uint32_t alignment = entry->problem.alignment;
    if (api->cublasLtMatmulPreferenceCreate(&preference))
        return 0;
    bool good = !api->cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
    for (size_t i = 0; i < RP_ARRAY_COUNT(alignments); i++)
        good = good && !api->cublasLtMatmulPreferenceSetAttribute(preference, alignments[i],
                                                                  &alignment, sizeof alignment);
    if (!good || api->cublasLtMatmulAlgoGetHeuristic(lt->handle, entry->desc, entry->weight,
                                                     entry->in, entry->out, entry->out, preference,
                                                     CANDIDATES, out, &count))
        count = 0;
    api->cublasLtMatmulPreferenceDestroy(preference);
    return count;
}

static void time_all(struct search *search, struct cublaslt_entry *entry,
                     const cublasLtMatmulHeuristicResult_t *candidates, int count) {
    float best = -1.0f;
    for (int i = 0; i < count; i++) {
        if (candidates[i].state != CUBLAS_STATUS_SUCCESS)
            continue;
        float us = time_algorithm(search, &candidates[i].algo, best);
        if (us <= 0.0f || (best > 0.0f && us >= best))
            continue;
        best = us;
        entry->algorithm = candidates[i].algo;
        entry->time_ns = (uint64_t)(us * 1e3f) + 1;
    }
}

int rp_cublaslt_search(struct rp_cublaslt *lt, struct cublaslt_entry *entry,
                       const struct cublaslt_args *args, struct rp_error *err) {
    cublasLtMatmulHeuristicResult_t candidates[CANDIDATES];
    struct search search = {.lt = lt, .args = args};
    memset(candidates, 0, sizeof candidates);
    int count = propose(lt, entry, candidates);
    if (count == 0 || candidates[0].state != CUBLAS_STATUS_SUCCESS)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "cuBLASLt: no algorithm for m %u, n %u, k %u, %s into %s",
                            entry->problem.m, entry->problem.n, entry->problem.k,
                            rp_dtype_name((enum rp_dtype)entry->problem.dtype),
                            rp_dtype_name((enum rp_dtype)entry->problem.out_dtype));
    /* the library's first proposal, when nothing can be timed */
    entry->algorithm = candidates[0].algo;
    bool timed = cudaEventCreate(&search.begin) == cudaSuccess;
    timed = timed && cudaEventCreate(&search.end) == cudaSuccess && make_inputs(&search);
    if (timed)
        time_all(&search, entry, candidates, count);
    if (search.begin)
        (void)cudaEventDestroy(search.begin);
    if (search.end)
        (void)cudaEventDestroy(search.end);
    cudaError_t error = cudaStreamSynchronize(lt->stream);
    if (error != cudaSuccess)
        return rp_error_set(err, RP_STATUS_DEVICE, "cuBLASLt: %s", cudaGetErrorString(error));
    return RP_OK;
}
