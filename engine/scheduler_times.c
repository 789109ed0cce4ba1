/* How long steps take, by their size, and from that the tokens of a step with prompts. */
#include "engine/scheduler_internal.h"

/* A step's prompts take at least so many times as long as the part of it that is there without
 * them. Simulated with the costs of an H200, 512 answers of 1,000 tokens: 8 give a mean time to
 * the first token that is 4 % longer, and 1 % more tokens per second. */
#define PROMPT_SHARE 14

/* Prompts keep an eighth of config.step_tokens, however long steps take. */
#define LEAST_SHARE 8

uint32_t rp_sched_size_of(const struct rp_scheduler *scheduler, uint32_t tokens) {
    uint32_t size = 0;
    while (size + 1 < rp_sched_size_count(scheduler) &&
           rp_sched_size_tokens(scheduler, size) < tokens)
        size++;
    return size;
}

/* Mean time of a step of a size. One that has not run yet lies on the line between its neighbors
 * that have. Above all of them the next one is tried, as if it took no longer; below it is 0, so
 * that the limit of a step starts low. */
uint64_t rp_sched_size_time(const struct rp_scheduler *scheduler, uint32_t size) {
    const uint64_t *ns = scheduler->size_ns;
    uint32_t below = size, above = size, count = rp_sched_size_count(scheduler);
    while (below > 0 && ns[below] == 0)
        below--;
    while (above < count && ns[above] == 0)
        above++;
    if (ns[below] == 0 || below == size)
        return ns[below];
    if (above == count)
        return below + 1 == size ? ns[below] : UINT64_MAX;
    uint64_t step = rp_sched_size_tokens(scheduler, size) - rp_sched_size_tokens(scheduler, below);
    uint64_t span = rp_sched_size_tokens(scheduler, above) - rp_sched_size_tokens(scheduler, below);
    uint64_t more = ns[above] - RP_MIN(ns[below], ns[above]);
    return ns[below] + (span ? more / span * step : 0);
}

/* An exponential mean. The first value counts fully, one that was held up at most twice: a size
 * that seems slow is not chosen, and then never timed again. */
static void note(uint64_t *mean, uint64_t ns) {
    *mean = *mean ? *mean - *mean / 8 + RP_MIN(ns, 2 * *mean) / 8 : ns;
}

/* Tokens of a step that mostly computes prompts. */
static uint32_t base_tokens(const struct rp_scheduler *scheduler) {
    return RP_MIN(scheduler->config.step_tokens, scheduler->token_budget);
}

void rp_sched_step_took(struct rp_scheduler *scheduler, const struct rp_step_store *step,
                        uint64_t took_ns) {
    uint32_t decodes = step->row_count - step->chunk_count, prompt = step->token_count - decodes;
    note(&scheduler->size_ns[rp_sched_size_of(scheduler, step->token_count)], took_ns);
    if (prompt == 0 || prompt < base_tokens(scheduler) / 2)
        return;
    if (decodes <= prompt / 64 || !scheduler->prompt_token_ns)
        note(&scheduler->prompt_token_ns, took_ns / step->token_count);
    else if (decodes >= prompt / 16)
        note(&scheduler->decode_row_ns,
             (took_ns - RP_MIN(took_ns, prompt * scheduler->prompt_token_ns)) / decodes);
}

static uint64_t time_of(const struct rp_scheduler *scheduler, uint32_t tokens) {
    return rp_sched_size_time(scheduler, rp_sched_size_of(scheduler, tokens));
}

uint32_t rp_sched_bucket_below(const struct rp_scheduler *scheduler, uint32_t tokens) {
    uint32_t below = 0;
    for (uint32_t i = 0; i < scheduler->config.token_bucket_count; i++)
        if (scheduler->config.token_buckets[i] <= tokens)
            below = scheduler->config.token_buckets[i];
    return below;
}

/* The part of a step's time that is there without prompts: that of its decode rows, by steps of as
 * many tokens and by steps with prompts, or what a step of any size takes (the weights are read),
 * from the line through the times of `base` and half of it. */
static uint64_t fixed_ns(const struct rp_scheduler *scheduler, uint32_t base, uint32_t decodes) {
    uint64_t whole = time_of(scheduler, base), half = time_of(scheduler, base / 2);
    uint64_t line = whole == UINT64_MAX ? 0 : 2 * half - RP_MIN(2 * half, whole);
    uint64_t alone = RP_MAX(time_of(scheduler, decodes), scheduler->decode_row_ns * decodes);
    return RP_MAX(line, decodes ? alone : 0);
}

/* Largest size of at most `tokens` that takes no longer than config.step_ns_max. What is refused
 * seems a little faster each time, so that it is tried again. */
static uint32_t tokens_in_time(struct rp_scheduler *scheduler, uint32_t tokens, uint32_t least) {
    uint32_t size = rp_sched_size_of(scheduler, tokens);
    while (rp_sched_size_time(scheduler, size) > scheduler->config.step_ns_max) {
        if (size == 0 || rp_sched_size_tokens(scheduler, size - 1) < least)
            return least;
        scheduler->size_ns[size] -= scheduler->size_ns[size] / 256;
        size--;
    }
    return RP_MIN(tokens, rp_sched_size_tokens(scheduler, size));
}

uint32_t rp_sched_step_tokens(struct rp_scheduler *scheduler, uint32_t decodes) {
    const struct rp_scheduler_config *config = &scheduler->config;
    uint32_t base = base_tokens(scheduler), tokens = base;
    if (base == 0 || config->whole_prompts)
        return scheduler->token_budget;
    if (scheduler->prompt_token_ns) {
        uint64_t budget = (uint64_t)scheduler->token_budget * scheduler->prompt_token_ns;
        uint64_t wanted = RP_MIN(fixed_ns(scheduler, base, decodes), budget) * PROMPT_SHARE;
        tokens = (uint32_t)RP_MIN(wanted / scheduler->prompt_token_ns, scheduler->token_budget);
        tokens = RP_MAX(rp_sched_bucket_below(scheduler, tokens), base);
    }
    if (config->step_ns_max && decodes)
        tokens = tokens_in_time(scheduler, tokens, decodes + RP_CEIL_DIV(base, LEAST_SHARE));
    return RP_MIN(RP_MAX(tokens, decodes), scheduler->token_budget);
}
