/* cmd_load_options.h - flags of the commands that send load: target server, prompts, timeouts.
 * Names are those of `vllm bench serve` where it has the same option. Thread: one. */
#ifndef RP_SERVER_CMD_LOAD_OPTIONS_H
#define RP_SERVER_CMD_LOAD_OPTIONS_H

#include "base/buffer.h"
#include "bench/load/load_plan.h"
#include "bench/load/load_run.h"
#include "server/cli/flags.h"

struct rp_load_options {
    const char *base_url, *model, *api_key, *dataset_path;
    double temperature, timeout_s, range_ratio, length_scale, bytes_per_token, burstiness;
    uint32_t api, dataset, input_len, output_len, prefix_len, vocab_begin, vocab_end, max_context,
        block_tokens, page_tokens, max_concurrency;
    uint64_t seed;
    bool ignore_eos, warm_up;
};

/* The flags of struct rp_load_options as rows of a command's table; base: offsetof the struct in
 * the command's options. */
#define RP_LOAD_AT(base, field) ((base) + offsetof(struct rp_load_options, field))
/* clang-format off */
#define RP_LOAD_FLAGS(base)                                                                                          \
    {"base-url", RP_FLAG_TEXT, RP_LOAD_AT(base, base_url), "URL", 0, 0, "http://127.0.0.1:8000",                     \
     "any server with the OpenAI API"},                                                                                \
    {"api", RP_FLAG_CHOICE, RP_LOAD_AT(base, api), "completions|chat", 0, 0, "completions",                          \
     "endpoint; chat supports only text prompts, no token ids"},                                                            \
    {"model", RP_FLAG_TEXT, RP_LOAD_AT(base, model), "NAME", 0, 0, "", "default: the first model that the server lists"},  \
    {"api-key", RP_FLAG_TEXT, RP_LOAD_AT(base, api_key), "KEY", 0, 0, "", "sent as a bearer token"},                 \
    {"temperature", RP_FLAG_REAL, RP_LOAD_AT(base, temperature), "T", 0, 2, "0", "sampling temperature"},                 \
    {"ignore-eos", RP_FLAG_SWITCH, RP_LOAD_AT(base, ignore_eos), NULL, 0, 0, "true",                                 \
     "force the output length; --no-ignore-eos for a server without this field"},                        \
    {"timeout", RP_FLAG_REAL, RP_LOAD_AT(base, timeout_s), "SECONDS", 0.001, 86400, "600", "per-request timeout"},        \
    {"max-concurrency", RP_FLAG_UINT, RP_LOAD_AT(base, max_concurrency), "N", 0, 1000000, "0",                       \
     "maximum requests in flight; time waiting for it counts as latency; 0: no limit"},                                \
    {"dataset-name", RP_FLAG_CHOICE, RP_LOAD_AT(base, dataset), "random|sonnet|text|azure|mooncake", 0, 0, "random", \
     "prompts: random token ids, lines or pieces of a file, or lengths from a trace"},                                  \
    {"dataset-path", RP_FLAG_TEXT, RP_LOAD_AT(base, dataset_path), "FILE", 0, 0, "", "text or trace file"},       \
    {"seed", RP_FLAG_SIZE, RP_LOAD_AT(base, seed), "N", 0, 9007199254740992.0, "0",                                  \
     "for prompts and arrival times; use another one to avoid prefix cache hits"},                                  \
    {"input-len", RP_FLAG_UINT, RP_LOAD_AT(base, input_len), "N", 0, 1073741824.0, "0",                              \
     "prompt tokens; 0: 1024, or fewer if the server's context is shorter"},                                         \
    {"output-len", RP_FLAG_UINT, RP_LOAD_AT(base, output_len), "N", 0, 1073741824.0, "0",                            \
     "output tokens; 0: 128, or at most a quarter of the server's context"},                                         \
    {"range-ratio", RP_FLAG_REAL, RP_LOAD_AT(base, range_ratio), "R", 0, 0.999999, "0",                              \
     "input and output lengths are uniform in 1 +- R times the given ones"},                                                         \
    {"prefix-len", RP_FLAG_UINT, RP_LOAD_AT(base, prefix_len), "N", 0, 1073741824.0, "0",                            \
     "tokens shared by all prompts: in addition to the input (random), or part of it (sonnet)"},                             \
    {"bytes-per-token", RP_FLAG_REAL, RP_LOAD_AT(base, bytes_per_token), "B", 0.01, 1024, "4",                       \
     "estimate for text, whose tokens only the server can count"},                                                            \
    {"vocab-begin", RP_FLAG_UINT, RP_LOAD_AT(base, vocab_begin), "ID", 0, 2147483646.0, "0",                         \
     "smallest random id; 0: a tenth of the vocabulary, past most special tokens"},                                \
    {"vocab-end", RP_FLAG_UINT, RP_LOAD_AT(base, vocab_end), "ID", 0, 2147483647.0, "0",                             \
     "end of random ids; 0: nine tenths of the reported vocabulary, or 30000"},                                            \
    {"max-context", RP_FLAG_UINT, RP_LOAD_AT(base, max_context), "N", 0, 4294967295.0, "0",                          \
     "longer requests are skipped and counted; 0: as the server reports"},                                           \
    {"length-scale", RP_FLAG_REAL, RP_LOAD_AT(base, length_scale), "X", 0, 1e6, "0",                                 \
     "factor for a trace's lengths; 0: 1, or --block-tokens / 512"},                                          \
    {"block-tokens", RP_FLAG_UINT, RP_LOAD_AT(base, block_tokens), "N", 0, 1073741824.0, "0",                        \
     "mooncake: tokens per hash id; 0: 512 times --length-scale"},                                              \
    {"page-tokens", RP_FLAG_UINT, RP_LOAD_AT(base, page_tokens), "N", 0, 1073741824.0, "0",                          \
     "page size of the server's prefix cache; 0: as it reports, or 16"},                                                   \
    {"burstiness", RP_FLAG_REAL, RP_LOAD_AT(base, burstiness), "B", 0.01, 1e6, "1",                                  \
     "shape of the gaps between requests; 1: Poisson, less: bursts"},                                               \
    {"warm-up", RP_FLAG_SWITCH, RP_LOAD_AT(base, warm_up), NULL, 0, 0, "true",                                       \
     "exclude requests that began before the run settled; --no-warm-up: all count"}
/* clang-format on */

/* Borrows from options. */
struct rp_load_target rp_load_options_target(const struct rp_load_options *options);

/* Fills everything except count and arrival times; defaults come from the server's
 * self-description. RP_STATUS_INVALID names the flag. */
int rp_load_options_source(const struct rp_load_options *options,
                           const struct rp_load_server *server, struct rp_load_source *out,
                           struct rp_error *err) RP_MUST_USE;

/* Writes a report to a file; "-": to standard output. */
int rp_load_options_write(const char *path, const struct rp_buffer *text,
                          struct rp_error *err) RP_MUST_USE;

#endif
