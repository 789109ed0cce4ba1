#include "server/cli/cmd_load_options.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Used for a server that does not report its vocabulary: every common model has at least as
 * many. */
#define VOCABULARY_UNKNOWN 33333u
/* As `vllm bench serve`. */
#define INPUT_DEFAULT  1024u
#define OUTPUT_DEFAULT 128u

static const char *text_or_null(const char *text) { return text && *text ? text : NULL; }

struct rp_load_target rp_load_options_target(const struct rp_load_options *options) {
    return (struct rp_load_target){.base_url = options->base_url,
                                   .api = (enum rp_load_api)options->api,
                                   .model = text_or_null(options->model),
                                   .api_key = text_or_null(options->api_key),
                                   .temperature = options->temperature,
                                   .no_ignore_eos = !options->ignore_eos};
}

/* Lengths that were not given are the defaults, or shorter ones that fit the context; a context of
 * 0 is unknown. */
static void choose_lengths(const struct rp_load_options *options, uint32_t context,
                           struct rp_load_source *source) {
    uint32_t prefix = source->dataset == RP_LOAD_RANDOM ? options->prefix_len : 0;
    uint32_t room =
        context ? (uint32_t)((context - RP_MIN(prefix, context)) / (1 + options->range_ratio))
                : UINT32_MAX;
    uint32_t output =
        options->output_len ? options->output_len : RP_MAX(RP_MIN(OUTPUT_DEFAULT, room / 4), 1u);
    uint32_t left = room > output ? room - output : 1;
    uint32_t input = options->input_len ? options->input_len : RP_MIN(INPUT_DEFAULT, left);
    source->input = (struct rp_load_lengths){input, options->range_ratio};
    source->output = (struct rp_load_lengths){output, options->range_ratio};
    bool is_shorter = (!options->input_len && input < INPUT_DEFAULT) ||
                      (!options->output_len && output < OUTPUT_DEFAULT);
    bool is_trace = source->dataset == RP_LOAD_AZURE || source->dataset == RP_LOAD_MOONCAKE;
    if (is_shorter && !is_trace && input + output <= room)
        fprintf(stderr, "lengths: %u + %u tokens, which fit the server's context of %u\n", input,
                output, context);
}

int rp_load_options_source(const struct rp_load_options *options,
                           const struct rp_load_server *server, struct rp_load_source *out,
                           struct rp_error *err) {
    uint32_t vocab = server->vocab ? server->vocab : VOCABULARY_UNKNOWN;
    uint32_t context = options->max_context ? options->max_context : server->max_model_len;
    *out = (struct rp_load_source){
        .dataset = (enum rp_load_dataset)options->dataset,
        .path = text_or_null(options->dataset_path),
        .seed = options->seed,
        .vocab_begin = options->vocab_begin ? options->vocab_begin : vocab / 10,
        .vocab_end = options->vocab_end ? options->vocab_end : vocab - vocab / 10,
        .prefix_tokens = options->prefix_len,
        .max_context = context,
        .text_bytes_per_token = options->bytes_per_token,
        .arrival = RP_LOAD_GAMMA,
        .burstiness = options->burstiness,
        .length_scale = options->length_scale,
        .block_tokens = options->block_tokens,
        .page_tokens = options->page_tokens ? options->page_tokens : server->page_tokens};
    choose_lengths(options, context, out);
    bool is_text = out->dataset == RP_LOAD_SONNET || out->dataset == RP_LOAD_TEXT;
    if (out->dataset != RP_LOAD_RANDOM && !out->path)
        return rp_error_set(err, RP_STATUS_INVALID, "--dataset-path is missing");
    if (options->api == RP_LOAD_CHAT && !is_text)
        return rp_error_set(err, RP_STATUS_INVALID,
                            "--api chat requires text: --dataset-name sonnet or text");
    if (!is_text && out->vocab_begin >= out->vocab_end)
        return rp_error_set(err, RP_STATUS_INVALID, "--vocab-begin %u is not below --vocab-end %u",
                            out->vocab_begin, out->vocab_end);
    rp_load_source_fill(out);
    return RP_OK;
}

int rp_load_options_write(const char *path, const struct rp_buffer *text, struct rp_error *err) {
    if (text->failed)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    bool to_stdout = strcmp(path, "-") == 0;
    FILE *file = to_stdout ? stdout : fopen(path, "we");
    if (!file)
        return rp_error_set(err, RP_STATUS_IO, "%.200s: %s", path, strerror(errno));
    bool written = fwrite(text->data, 1, text->len, file) == text->len;
    if ((to_stdout ? fflush(file) : fclose(file)) != 0)
        written = false;
    return written ? RP_OK : rp_error_set(err, RP_STATUS_IO, "%.200s: cannot write", path);
}
