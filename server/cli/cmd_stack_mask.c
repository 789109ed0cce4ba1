/* cmd_stack_mask.c - the mask program of --attention-mask. */
#include "server/cli/cmd_stack.h"

#include "base/memory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char flag[] = "--attention-mask";

/* Reads up to RP_MASK_TEXT_MAX + 1 bytes: the parser reports a text that is too long. */
static int read_file(const char *path, char *out, size_t *out_bytes, struct rp_error *err) {
    FILE *file = fopen(path, "rb");
    if (!file)
        return rp_error_set(err, RP_STATUS_INVALID, "%s: %.200s: %s", flag, path, strerror(errno));
    *out_bytes = fread(out, 1, RP_MASK_TEXT_MAX + 1, file);
    bool failed = ferror(file) != 0;
    fclose(file);
    return failed ? rp_error_set(err, RP_STATUS_INVALID, "%s: %.200s cannot be read", flag, path)
                  : RP_OK;
}

/* Prefixes the parser's error with the flag's name. */
static int name_flag(struct rp_error *err) {
    struct rp_error said = *err;
    int status = rp_error_set(err, RP_STATUS_INVALID, "%s: %.480s", flag, said.text);
    if (*said.hint)
        rp_error_hint(err, "%s", said.hint);
    return status;
}

/* Parses the flag's text, or that of its file. */
static int parse(const char *text, const struct rp_mask_limits *limits, struct rp_mask **out,
                 struct rp_error *err) {
    size_t bytes = strlen(text);
    char *file = NULL;
    int status = RP_OK;
    if (*text == '@') {
        file = rp_alloc(RP_MASK_TEXT_MAX + 1);
        if (!file)
            return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", flag);
        status = read_file(text + 1, file, &bytes, err);
        text = file;
    }
    if (status == RP_OK && (status = rp_mask_parse(text, bytes, limits, out, err)) != RP_OK)
        status = name_flag(err);
    rp_free(file);
    return status;
}

int rp_stack_open_mask(const char *dir, const struct rp_engine_options *options,
                       struct rp_mask **out, enum rp_exit *out_code, struct rp_error *err) {
    struct rp_model_config config;
    *out = NULL;
    if (!options->attention_mask || !*options->attention_mask)
        return RP_OK;
    int status = rp_model_config_load(dir, &config, err);
    *out_code = RP_EXIT_MODEL;
    if (status != RP_OK)
        return status;
    const struct rp_mask_limits limits = rp_model_mask_limits(&config, options->max_model_len);
    status = parse(options->attention_mask, &limits, out, err);
    *out_code = RP_EXIT_USAGE;
    if (status != RP_OK || rp_mask_is_causal(*out) || options->allow_noncausal)
        return status;
    rp_mask_free(*out);
    *out = NULL;
    status = rp_error_set(err, RP_STATUS_INVALID,
                          "%s: the program lets a token attend to later positions", flag);
    rp_error_hint(err, "write `causal && (...)`, or add --allow-noncausal: each prompt is then "
                       "computed in one step");
    return status;
}
