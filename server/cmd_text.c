#include "server/cmd_text.h"

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
            rp_error_set(err, status, "%s: cannot be tokenised: %s", path, rp_status_text(status));
    }
    rp_tokenizer_close(tokenizer);
    rp_buffer_deinit(&text);
    return status;
}
