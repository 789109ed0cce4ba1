/* fuzz_safetensors.c - any bytes as a safetensors file.
 *
 * The first 8 bytes are the header's length, as in a file. A header that is accepted must cover the
 * data exactly. */
#include "model/safetensors.h"
#include "tests/fuzz/fuzz_input.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    struct rp_arena arena = {.limit_bytes = (size_t)64 << 20};
    struct rp_safetensor *tensors = NULL;
    uint32_t count = 0;
    uint64_t header_bytes = 0;
    for (size_t i = 8; len >= 8 && i-- > 0;)
        header_bytes = header_bytes << 8 | bytes[i];
    if (len < 8 || header_bytes > len - 8)
        return 0;
    uint64_t data_bytes = len - 8 - header_bytes;
    if (rp_safetensors_parse((const char *)bytes + 8, (size_t)header_bytes, data_bytes, "fuzz",
                             &arena, &tensors, &count, NULL) == RP_OK) {
        uint64_t covered = 0;
        for (uint32_t i = 0; i < count; i++) {
            RP_ASSERT(tensors[i].offset <= data_bytes);
            RP_ASSERT(tensors[i].bytes <= data_bytes - tensors[i].offset);
            covered += tensors[i].bytes;
        }
        RP_ASSERT_CMP(covered, ==, data_bytes);
    }
    rp_arena_deinit(&arena);
    return 0;
}
