/* pair_list.c - the named pairs: A lacks one feature of this engine, B has it. */
#include "bench/pair.h"

#include <string.h>

#define STEP(sequences, input)                                                                     \
    { RP_PAIR_STEP, sequences, input, 64, 0 }
#define OUTPUT(sequences, input, output)                                                           \
    { RP_PAIR_OUTPUT, sequences, input, output, 0 }
#define PROMPT(sequences, input, shared)                                                           \
    { RP_PAIR_PROMPT, sequences, input, 1, shared }

const struct rp_pair rp_pairs[] = {
    {"same", "identical sides: no difference must be found", "", "", STEP(1, 64), RP_PAIR_EQUAL,
     RP_PAIR_ANY},
    {"graph", "each kernel launched separately; captured graphs replayed", "--enforce-eager", "",
     STEP(1, 64), RP_PAIR_FASTER, RP_PAIR_ANY},
    {"fusion", "one kernel per operator; fused kernels", "--disable-fusion", "", STEP(1, 64),
     RP_PAIR_FASTER, RP_PAIR_ANY},
    {"run-ahead", "each step launched after the previous one was read; launched one step ahead",
     "--run-ahead 0", "--run-ahead 1", STEP(8, 64), RP_PAIR_FASTER, RP_PAIR_ANY},
    {"batching", "one sequence at a time; 16 at once", "--max-num-seqs 1", "--max-num-seqs 16",
     OUTPUT(16, 32, 64), RP_PAIR_FASTER, RP_PAIR_ANY},
    {"prefix-cache", "prompts of 512 tokens, 480 in common, without prefix cache; with it",
     "--no-enable-prefix-caching", "--enable-prefix-caching", PROMPT(8, 512, 480), RP_PAIR_FASTER,
     RP_PAIR_ANY},
    {"chunk", "prefill in chunks of 32 tokens; of 512", "--max-num-batched-tokens 32",
     "--max-num-batched-tokens 512", PROMPT(4, 512, 0), RP_PAIR_FASTER, RP_PAIR_ANY},
    {"swap", "a pool for 5 of 16 sequences: the others wait; are swapped in and out",
     "--num-gpu-blocks-override 41 --block-size 16 --swap-space 0",
     "--num-gpu-blocks-override 41 --block-size 16 --swap-space 1", OUTPUT(16, 32, 96),
     RP_PAIR_DEPENDS, RP_PAIR_ANY},
    {"dtype", "weights and KV pages in f32; in bf16", "--dtype float32", "--dtype bfloat16",
     STEP(1, 64), RP_PAIR_FASTER, RP_PAIR_ANY},
    {"kv-dtype", "KV pages in f32; in bf16, at 768 tokens", "--kv-cache-dtype float32",
     "--kv-cache-dtype bfloat16", STEP(4, 768), RP_PAIR_DEPENDS, RP_PAIR_ANY},
    {"page", "KV pages of 16 tokens; of 64, at 768 tokens", "--block-size 16", "--block-size 64",
     STEP(4, 768), RP_PAIR_DEPENDS, RP_PAIR_ANY},
    {"threads", "one worker; one per core", "--threads 1", "--threads 0", STEP(8, 64),
     RP_PAIR_FASTER, RP_PAIR_ONLY_CPU},
    {"numerics", "batch-invariant numerics; fast numerics, prefill", "--numerics invariant",
     "--numerics fast", PROMPT(4, 512, 0), RP_PAIR_FASTER, RP_PAIR_ONLY_GPU},
    {"stamps", "no launch timed; every launch of one step in 64", "--profile-every 0",
     "--profile-every 64", STEP(8, 64), RP_PAIR_EQUAL, RP_PAIR_ANY},
    {"recording",
     "no recording; events, step records, percentiles, idle times and request accounting",
     "--no-recording --profile-every 0", "--trace-seconds 60 --profile-every 0", STEP(8, 64),
     RP_PAIR_EQUAL, RP_PAIR_ANY},
    {"recording-nodes", "no recording; all of it, and the nodes of one step in 64",
     "--no-recording --profile-every 0", "--trace-seconds 60 --profile-every 64", STEP(8, 64),
     RP_PAIR_EQUAL, RP_PAIR_ANY},
    {"dependent-launch", "plain graph edges; programmatic dependent launch",
     "--no-dependent-launch", "", STEP(1, 64), RP_PAIR_FASTER, RP_PAIR_ONLY_GPU},
};
const uint32_t rp_pair_count = (uint32_t)RP_ARRAY_COUNT(rp_pairs);

const struct rp_pair *rp_pair_find(const char *name) {
    for (uint32_t i = 0; i < rp_pair_count; i++)
        if (strcmp(rp_pairs[i].name, name) == 0)
            return &rp_pairs[i];
    return NULL;
}

const char *rp_pair_measure_name(enum rp_pair_measure measure) {
    static const char *const names[] = {"ms/step", "output tokens/s", "prompt tokens/s"};
    return names[measure];
}
