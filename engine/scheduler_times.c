/* How long steps take, by their size, and from that the tokens of a step with prompts. */
#include "engine/scheduler_internal.h"

/* Sizes of at most 1, 2, 4 and 8 tokens; token buckets begin at 16. */
enum { SMALL_SIZES = 4 };

/* A step with prompts takes at least so many times as long as its part that the prompts' tokens do
 * not change. */
#define PROMPT_SHARE 8

/* Prompts keep this share of config.step_tokens, however long steps take. */
#define LEAST_SHARE 8

uint32_t rp_sched_size_count(const struct rp_scheduler *scheduler) {
    return SMALL_SIZES + scheduler->config.token_bucket_count;
}

uint32_t rp_sched_size_tokens(const struct rp_scheduler *scheduler, uint32_t size) {
    const uint32_t *buckets = scheduler->config.token_buckets;
    return size < SMALL_SIZES ? RP_MIN(1u << size, buckets[0]) : buckets[size - SMALL_SIZES];
}

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

void rp_sched_size_took(struct rp_scheduler *scheduler, uint32_t tokens, uint64_t took_ns) {
    uint64_t *ns = &scheduler->size_ns[rp_sched_size_of(scheduler, tokens)];
    /* An exponential mean. The first step of a size counts fully, one that was held up at most
     * twice: a size that seems slow is not chosen, and then never timed again. */
    *ns = *ns ? *ns - *ns / 8 + RP_MIN(took_ns, 2 * *ns) / 8 : took_ns;
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

/* The part of a step's time that is there without prompts: that of its decode rows, which take at
 * least as long as as many tokens of a prompt, or what a step of any size takes (the weights are
 * read), from the line through those of `base` and half of it. */
static uint64_t fixed_ns(const struct rp_scheduler *scheduler, uint32_t base, uint64_t base_ns,
                         uint32_t decodes) {
    uint64_t alone = RP_MAX(time_of(scheduler, decodes), base_ns / base * decodes);
    uint64_t half = time_of(scheduler, base / 2);
    return RP_MAX(decodes ? alone : 0, 2 * half - RP_MIN(2 * half, base_ns));
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
    uint32_t base = RP_MIN(config->step_tokens, scheduler->token_budget), tokens = base;
    if (base == 0 || config->whole_prompts)
        return scheduler->token_budget;
    uint64_t base_ns = time_of(scheduler, base);
    if (base_ns && base_ns != UINT64_MAX) {
        uint64_t fixed = RP_MIN(fixed_ns(scheduler, base, base_ns, decodes), base_ns);
        uint64_t wanted = fixed * PROMPT_SHARE / RP_MAX(base_ns / base, 1u);
        tokens = (uint32_t)RP_MIN(RP_MAX(wanted, base), scheduler->token_budget);
        tokens = RP_MAX(rp_sched_bucket_below(scheduler, tokens), 1u);
    }
    if (config->step_ns_max && decodes)
        tokens = tokens_in_time(scheduler, tokens, decodes + RP_CEIL_DIV(base, LEAST_SHARE));
    return RP_MIN(RP_MAX(tokens, decodes), scheduler->token_budget);
}
