#include "server/cli/cmd_text.h"

#include "base/buffer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define FILE_BYTES_MAX ((size_t)1 << 30)

static int read_text(const char *path, struct rp_buffer *out, struct rp_error *err) {
    FILE *in = fopen(path, "rb");
    char chunk[65536];
    size_t len;
    if (!in)
        return rp_error_set(err, RP_STATUS_IO, "%s: %s", path, strerror(errno));
    while ((len = fread(chunk, 1, sizeof chunk, in)) > 0)
        rp_buffer_append(out, chunk, len);
    bool failed = ferror(in) != 0;
    fclose(in);
    if (failed)
        return rp_error_set(err, RP_STATUS_IO, "%s: cannot be read", path);
    return out->failed ? rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: is too long", path) : RP_OK;
}

int rp_command_text(const char *dir, const char *path, struct rp_token_ids *out,
                    struct rp_error *err) {
    struct rp_tokenizer *tokenizer = NULL;
    struct rp_buffer text;
    rp_buffer_init(&text, FILE_BYTES_MAX);
    memset(out, 0, sizeof *out);
    int status = read_text(path, &text, err);
    if (status == RP_OK)
        status = rp_tokenizer_open(dir, &tokenizer, err);
    if (status == RP_OK) {
        struct rp_tokenizer_scratch *scratch = rp_tokenizer_scratch_create(tokenizer);
        struct rp_text_span span = {text.data ? text.data : "", text.len, false};
        status = scratch ? rp_tokenizer_encode(tokenizer, &span, 1, RP_ENCODE_ADD_SPECIAL, 0,
                                               scratch, out)
                         : RP_STATUS_NO_MEMORY;
        rp_tokenizer_scratch_destroy(scratch);
        if (status != RP_OK)
            rp_error_set(err, status, "%s: cannot be tokenized: %s", path, rp_status_text(status));
    }
    rp_tokenizer_close(tokenizer);
    rp_buffer_deinit(&text);
    return status;
}

int rp_command_text_windows(const struct rp_token_ids *ids, const struct rp_model_config *config,
                            uint64_t limit, struct rp_eval_text *out, struct rp_error *err) {
    bool bos = ids->count > 0 && (uint32_t)ids->ids[0] == config->bos_id;
    *out = (struct rp_eval_text){.ids = ids->ids + bos,
                                 .count = ids->count - bos,
                                 .bos = bos ? (int64_t)config->bos_id : -1};
    if (limit)
        out->count = (size_t)RP_MIN((uint64_t)out->count, limit);
    for (size_t i = 0; i < out->count; i++)
        if ((uint32_t)out->ids[i] >= config->vocab)
            return rp_error_set(err, RP_STATUS_FORMAT,
                                "token %d of the text is outside the model's vocabulary of %u",
                                out->ids[i], config->vocab);
    return RP_OK;
}
