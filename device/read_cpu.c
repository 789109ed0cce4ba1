#include "device/read_cpu.h"

#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_WIDE_LOADS 1
#else
#define HAS_WIDE_LOADS 0
#endif

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

typedef uint64_t (*read_range)(const unsigned char *data, size_t bytes);

static read_range widest(enum rp_cpu_isa isa) {
#if HAS_WIDE_LOADS
    return isa >= RP_ISA_AVX512 ? read_zmm : isa >= RP_ISA_AVX2 ? read_ymm : read_words;
#else
    (void)isa;
    return read_words;
#endif
}

void rp_read_cpu(const void *data, size_t bytes, bool four_streams, enum rp_cpu_isa isa,
                 const struct rp_cpu_worker *worker) {
    const size_t chunk = 4096;
    const unsigned char *base = data;
    read_range read = widest(isa);
    size_t begin, end;
    rp_cpu_share(worker, bytes, chunk, &begin, &end);
    uint64_t sink = 0;
    if (!four_streams) {
        sink = read(base + begin, end - begin);
    } else {
        size_t quarter = (end - begin) / 4 / chunk * chunk;
        for (size_t i = 0; i < quarter; i += chunk)
            for (size_t stream = 0; stream < 4; stream++)
                sink ^= read(base + begin + stream * quarter + i, chunk);
        sink ^= read(base + begin + 4 * quarter, end - begin - 4 * quarter);
    }
    volatile uint64_t used = sink; /* what was read must be used */
    (void)used;
}
