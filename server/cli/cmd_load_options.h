/* cmd_load_options.h - flags of the commands that send load: whom to, which prompts, how long they
 * may take. Names are those of `vllm bench serve` where it has the same thing. Thread: one. */
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
     "any server with OpenAI's API"},                                                                                \
    {"api", RP_FLAG_CHOICE, RP_LOAD_AT(base, api), "completions|chat", 0, 0, "completions",                          \
     "what to ask; chat takes text alone, no token ids"},                                                            \
    {"model", RP_FLAG_TEXT, RP_LOAD_AT(base, model), "NAME", 0, 0, "", "default: the first that the server lists"},  \
    {"api-key", RP_FLAG_TEXT, RP_LOAD_AT(base, api_key), "KEY", 0, 0, "", "sent as a bearer token"},                 \
    {"temperature", RP_FLAG_REAL, RP_LOAD_AT(base, temperature), "T", 0, 2, "0", "of the sampling"},                 \
    {"ignore-eos", RP_FLAG_SWITCH, RP_LOAD_AT(base, ignore_eos), NULL, 0, 0, "true",                                 \
     "force the output's length; --no-ignore-eos for a server that does not know the field"},                        \
    {"timeout", RP_FLAG_REAL, RP_LOAD_AT(base, timeout_s), "SECONDS", 0.001, 86400, "600", "of one request"},        \
    {"max-concurrency", RP_FLAG_UINT, RP_LOAD_AT(base, max_concurrency), "N", 0, 1000000, "0",                       \
     "requests in flight at most; what waits for it counts as latency; 0: no limit"},                                \
    {"dataset-name", RP_FLAG_CHOICE, RP_LOAD_AT(base, dataset), "random|sonnet|text|azure|mooncake", 0, 0, "random", \
     "prompts: random token ids, lines or pieces of a file, or a trace's lengths"},                                  \
    {"dataset-path", RP_FLAG_TEXT, RP_LOAD_AT(base, dataset_path), "FILE", 0, 0, "", "the text or the trace"},       \
    {"seed", RP_FLAG_SIZE, RP_LOAD_AT(base, seed), "N", 0, 9007199254740992.0, "0",                                  \
     "of prompts and times; another one where a server must not know the prompts"},                                  \
    {"input-len", RP_FLAG_UINT, RP_LOAD_AT(base, input_len), "N", 1, 1073741824.0, "1024", "prompt tokens"},         \
    {"output-len", RP_FLAG_UINT, RP_LOAD_AT(base, output_len), "N", 1, 1073741824.0, "128", "output tokens"},        \
    {"range-ratio", RP_FLAG_REAL, RP_LOAD_AT(base, range_ratio), "R", 0, 0.999999, "0",                              \
     "both lengths are uniform within 1 +- R times theirs"},                                                         \
    {"prefix-len", RP_FLAG_UINT, RP_LOAD_AT(base, prefix_len), "N", 0, 1073741824.0, "0",                            \
     "tokens that all prompts share: before the input's (random), or of them (sonnet)"},                             \
    {"bytes-per-token", RP_FLAG_REAL, RP_LOAD_AT(base, bytes_per_token), "B", 0.01, 1024, "4",                       \
     "of text, whose tokens the server alone can count"},                                                            \
    {"vocab-begin", RP_FLAG_UINT, RP_LOAD_AT(base, vocab_begin), "ID", 0, 2147483646.0, "0",                         \
     "random ids from here; 0: a tenth of the vocabulary, past most special tokens"},                                \
    {"vocab-end", RP_FLAG_UINT, RP_LOAD_AT(base, vocab_end), "ID", 0, 2147483647.0, "0",                             \
     "and below this; 0: nine tenths of what the server says, or 30000"},                                            \
    {"max-context", RP_FLAG_UINT, RP_LOAD_AT(base, max_context), "N", 0, 4294967295.0, "0",                          \
     "longer requests are left out and counted; 0: what the server says"},                                           \
    {"length-scale", RP_FLAG_REAL, RP_LOAD_AT(base, length_scale), "X", 0, 1e6, "0",                                 \
     "times a trace's lengths; 0: 1, or what --block-tokens makes of 512"},                                          \
    {"block-tokens", RP_FLAG_UINT, RP_LOAD_AT(base, block_tokens), "N", 0, 1073741824.0, "0",                        \
     "mooncake: tokens for each hash id; 0: 512 times --length-scale"},                                              \
    {"page-tokens", RP_FLAG_UINT, RP_LOAD_AT(base, page_tokens), "N", 0, 1073741824.0, "0",                          \
     "page of the server's prefix cache; 0: what it says, or 16"},                                                   \
    {"burstiness", RP_FLAG_REAL, RP_LOAD_AT(base, burstiness), "B", 0.01, 1e6, "1",                                  \
     "shape of the gaps between requests; 1: Poisson, below: bursts"},                                               \
    {"warm-up", RP_FLAG_SWITCH, RP_LOAD_AT(base, warm_up), NULL, 0, 0, "true",                                       \
     "leave out what began before the run had settled; --no-warm-up: all count"}
/* clang-format on */

/* Borrows from options. */
struct rp_load_target rp_load_options_target(const struct rp_load_options *options);

/* All but count and times; what the flags leave open is what the server says of itself.
 * RP_STATUS_INVALID names the flag. */
int rp_load_options_source(const struct rp_load_options *options,
                           const struct rp_load_server *server, struct rp_load_source *out,
                           struct rp_error *err) RP_MUST_USE;

/* What a report wrote, into a file; "-": to standard output. */
int rp_load_options_write(const char *path, const struct rp_buffer *text,
                          struct rp_error *err) RP_MUST_USE;

#endif
