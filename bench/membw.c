#include "bench/membw.h"

#include "base/clock.h"
#include "base/memory.h"
#include "device/cpu_isa.h"
#include "device/cpu_team.h"

#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_WIDE_LOADS 1
#else
#define HAS_WIDE_LOADS 0
#endif

struct read_job {
    const unsigned char *data;
    size_t bytes;
    uint64_t (*read)(const unsigned char *data, size_t bytes);
    uint64_t *sinks; /* one cache line per worker: what was read must be used */
};

static uint64_t read_words(const unsigned char *data, size_t bytes) {
    uint64_t sums[8] = {0};
    for (size_t i = 0; i + 64 <= bytes; i += 64) {
        uint64_t words[8];
        memcpy(words, data + i, sizeof words);
        for (int j = 0; j < 8; j++)
            sums[j] ^= words[j];
    }
    return sums[0] ^ sums[1] ^ sums[2] ^ sums[3] ^ sums[4] ^ sums[5] ^ sums[6] ^ sums[7];
}

#if HAS_WIDE_LOADS
__attribute__((target("avx512f"))) static uint64_t read_zmm(const unsigned char *data,
                                                            size_t bytes) {
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i + 256 <= bytes; i += 256) {
        a = _mm512_xor_si512(a, _mm512_loadu_si512(data + i));
        b = _mm512_xor_si512(b, _mm512_loadu_si512(data + i + 64));
        c = _mm512_xor_si512(c, _mm512_loadu_si512(data + i + 128));
        d = _mm512_xor_si512(d, _mm512_loadu_si512(data + i + 192));
    }
    a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
    return (uint64_t)_mm512_reduce_add_epi64(a);
}

__attribute__((target("avx2"))) static uint64_t read_ymm(const unsigned char *data, size_t bytes) {
    __m256i a = _mm256_setzero_si256(), b = a;
    for (size_t i = 0; i + 64 <= bytes; i += 64) {
        a = _mm256_xor_si256(a, _mm256_loadu_si256((const void *)(data + i)));
        b = _mm256_xor_si256(b, _mm256_loadu_si256((const void *)(data + i + 32)));
    }
    a = _mm256_xor_si256(a, b);
    return (uint64_t)_mm256_extract_epi64(a, 0) ^ (uint64_t)_mm256_extract_epi64(a, 1) ^
           (uint64_t)_mm256_extract_epi64(a, 2) ^ (uint64_t)_mm256_extract_epi64(a, 3);
}
#endif

/* Even passes read a worker's share as one stream, odd ones as four: which is faster depends on the
 * processor's prefetchers. */
static void read_share(void *arg0, uint64_t pass, const struct rp_cpu_worker *worker) {
    const struct read_job *job = arg0;
    const size_t chunk = 4096;
    size_t begin, end;
    rp_cpu_share(worker, job->bytes, chunk, &begin, &end);
    uint64_t sink = 0;
    if (pass % 2 == 0) {
        sink = job->read(job->data + begin, end - begin);
    } else {
        size_t quarter = (end - begin) / 4 / chunk * chunk;
        for (size_t i = 0; i < quarter; i += chunk)
            for (size_t stream = 0; stream < 4; stream++)
                sink ^= job->read(job->data + begin + stream * quarter + i, chunk);
        sink ^= job->read(job->data + begin + 4 * quarter, end - begin - 4 * quarter);
    }
    job->sinks[worker->index * 8] ^= sink;
}

double rp_membw_read(uint32_t threads, size_t bytes, uint32_t passes) {
    struct rp_cpu_team *team;
    double best = 0;
    if (rp_cpu_team_create(threads, &team, NULL) != RP_OK)
        return 0;
    struct read_job job = {.bytes = bytes, .read = read_words};
    unsigned char *data = rp_alloc_aligned(bytes, RP_CACHE_LINE);
    job.sinks = rp_calloc(rp_cpu_team_size(team), RP_CACHE_LINE);
    if (data && job.sinks) {
        memset(data, 1, bytes); /* pages that were never written would all be the zero page */
        job.data = data;
#if HAS_WIDE_LOADS
        enum rp_cpu_isa isa = rp_cpu_isa_detect();
        job.read = isa >= RP_ISA_AVX512 ? read_zmm : isa >= RP_ISA_AVX2 ? read_ymm : read_words;
#endif
        for (uint32_t pass = 0; pass < passes; pass++) {
            uint64_t number, begin = rp_clock_ns();
            if (rp_cpu_team_submit(team, read_share, &job, pass, &number) != RP_OK)
                break;
            rp_cpu_team_wait(team, number, UINT64_MAX);
            best = RP_MAX(best, (double)bytes * 1e9 / (double)(rp_clock_ns() - begin));
        }
    }
    rp_cpu_team_destroy(team);
    rp_free(job.sinks);
    rp_free_aligned(data);
    return best;
}

#define DEVICE_BYTES  ((size_t)2 << 30)
#define DEVICE_PASSES 8
#define DEVICE_READS  4 /* of a pass: one wait for all */

double rp_membw_device(const struct rp_backend *backend, struct rp_device *device,
                       uint32_t threads) {
    double best = 0.0;
    if (!backend->read)
        return rp_membw_read(threads, (size_t)512 << 20, 6);
    void *data = backend->alloc(device, DEVICE_BYTES, RP_MEMORY_DEVICE);
    if (!data)
        return 0.0;
    bool good = backend->fill(device, data, 0x3C, DEVICE_BYTES) == RP_OK &&
                backend->synchronize(device) == RP_OK;
    for (int pass = 0; pass <= DEVICE_PASSES && good; pass++) { /* one to warm up */
        uint64_t begin = rp_clock_ns();
        for (int i = 0; i < DEVICE_READS; i++)
            good = good && backend->read(device, data, DEVICE_BYTES) == RP_OK;
        good = good && backend->synchronize(device) == RP_OK;
        double ns = (double)(rp_clock_ns() - begin);
        double rate = DEVICE_READS * (double)DEVICE_BYTES / ns * 1e9;
        if (good && pass > 0)
            best = RP_MAX(best, rate);
    }
    backend->free(device, data, RP_MEMORY_DEVICE);
    return good ? best : 0.0;
}
