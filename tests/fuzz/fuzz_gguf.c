/* fuzz_gguf.c - any bytes as a GGUF file.
 *
 * What is accepted lies in the file, and every key can be read as every type. */
#include "tests/fuzz/fuzz_input.h"
#include "text/gguf.h"

#include <string.h>

static void read_key(const struct rp_gguf *gguf, const char *name) {
    struct rp_gguf_text text, *texts;
    uint32_t number, count;
    double real;
    bool flag;
    float *floats;
    int32_t *ints;
    bool is_number = rp_gguf_u32(gguf, name, &number, NULL) == RP_OK;
    RP_ASSERT(rp_gguf_f64(gguf, name, &real, NULL) == RP_OK || !is_number);
    RP_ASSERT(rp_gguf_bool(gguf, name, &flag, NULL) != RP_OK || !is_number);
    if (rp_gguf_string(gguf, name, &text, NULL) == RP_OK)
        RP_ASSERT(!memchr(text.text, 0, text.len) || text.len > 0); /* reads every byte */
    if (rp_gguf_strings(gguf, name, &texts, &count, NULL) == RP_OK)
        rp_free(texts);
    if (rp_gguf_floats(gguf, name, &floats, &count, NULL) == RP_OK)
        rp_free(floats);
    if (rp_gguf_ints(gguf, name, &ints, &count, NULL) == RP_OK)
        rp_free(ints);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    struct rp_gguf gguf = {.name = "fuzz"};
    bool is_short = false;
    uint64_t begin = 0;
    gguf.arena.limit_bytes = (size_t)64 << 20;
    if (rp_gguf_parse(&gguf, bytes, len, len, &begin, &is_short, NULL) == RP_OK) {
        RP_ASSERT(!is_short);
        for (uint32_t i = 0; i < gguf.tensor_count; i++) {
            const struct rp_gguf_tensor *tensor = &gguf.tensors[i];
            RP_ASSERT(rp_gguf_find_tensor(&gguf, tensor->name) == tensor);
            RP_ASSERT(tensor->bytes == 0 || begin + tensor->offset + tensor->bytes <= len);
        }
        for (uint32_t i = 0; i < gguf.key_count; i++)
            read_key(&gguf, gguf.keys[i].name);
    }
    rp_arena_deinit(&gguf.arena);
    return 0;
}
