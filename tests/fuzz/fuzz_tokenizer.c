/* fuzz_tokenizer.c - any bytes as a tokenizer.json and, after a NUL, as a tokenizer_config.json and
 * a text; or, after an M, as a tokenizer_config.json and, after a NUL, a tokenizer.model. A
 * tokenizer that loads gives ids below its vocabulary's size for any text, and decodes them to
 * valid UTF-8. */
#include "base/memory.h"
#include "base/utf8.h"
#include "tests/fuzz/fuzz_input.h"
#include "text/tokenizer/detokenizer.h"

#include <stdio.h>
#include <string.h>

static void check_decode(const struct rp_tokenizer *tok, const struct rp_token_ids *ids) {
    struct rp_detokenizer detok;
    struct rp_buffer out = {.data = NULL};
    rp_detokenizer_init(&detok, tok, false);
    for (size_t i = 0; i < ids->count; i++) {
        RP_ASSERT(ids->ids[i] >= 0 && (uint32_t)ids->ids[i] < rp_tokenizer_vocab_size(tok));
        RP_ASSERT(rp_tokenizer_token(tok, ids->ids[i]).known);
        RP_ASSERT(rp_detokenizer_push(&detok, ids->ids[i], &out) == RP_OK);
        RP_ASSERT(rp_utf8_valid(out.data, out.len));
    }
    RP_ASSERT(rp_detokenizer_finish(&detok, &out) == RP_OK);
    RP_ASSERT(rp_utf8_valid(out.data, out.len));
    rp_buffer_deinit(&out);
}

static void check_text(const struct rp_tokenizer *tok, struct rp_tokenizer_scratch *scratch,
                       struct fuzz_part text) {
    struct rp_token_ids ids = {.count = 0};
    struct rp_text_span span = {text.text, text.len, true};
    for (unsigned flags = 0; flags <= RP_ENCODE_ADD_SPECIAL; flags++) {
        ids.count = 0;
        int status = rp_tokenizer_encode(tok, &span, 1, flags, 4096, scratch, &ids);
        RP_ASSERT(status == RP_OK || status == RP_STATUS_RANGE || status == RP_STATUS_FORMAT);
        check_decode(tok, &ids);
    }
    rp_token_ids_deinit(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    static const char words[] = "Hello, w\xc3\xb6rld!\n  12345 a\xcc\x81 \xe2\x96\x81 <s> \xff x";
    struct fuzz_input input = fuzz_begin(bytes, len);
    bool is_model = len > 0 && bytes[0] == 'M';
    if (is_model)
        (void)fuzz_byte(&input);
    struct fuzz_part file = fuzz_until(&input, '\0'), config = file;
    if (is_model)
        file = (struct fuzz_part){input.bytes, input.len};
    else
        config = fuzz_until(&input, '\0');
    const char *name = is_model ? "tokenizer.model" : "tokenizer.json";
    struct rp_tokenizer *tok = NULL;
    struct rp_error err = {.status = RP_OK};
    char path[64];
    snprintf(path, sizeof path, "%s/%s", fuzz_dir(), name);
    fuzz_write(name, file.text, file.len);
    if (config.len)
        fuzz_write("tokenizer_config.json", config.text, config.len);
    else
        fuzz_remove("tokenizer_config.json");
    int status = rp_tokenizer_open(path, &tok, &err);
    if (status != RP_OK) {
        RP_ASSERT(!tok && err.status == status && err.text[0]);
        return 0;
    }
    struct rp_tokenizer_scratch *scratch = rp_tokenizer_scratch_create(tok);
    RP_ASSERT(scratch);
    RP_ASSERT(rp_tokenizer_bos(tok) < (int32_t)rp_tokenizer_vocab_size(tok));
    RP_ASSERT(rp_tokenizer_eos(tok) < (int32_t)rp_tokenizer_vocab_size(tok));
    check_text(tok, scratch, (struct fuzz_part){words, sizeof words - 1});
    check_text(tok, scratch, (struct fuzz_part){input.bytes, input.len});
    rp_tokenizer_scratch_destroy(scratch);
    rp_tokenizer_close(tok);
    return 0;
}
