#include "graphs/graph_set.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "graphs/arena_plan.h"

#include <string.h>

struct rp_graph_set {
    const struct rp_backend *backend;
    struct rp_device *device;
    struct rp_graph_entry *entries; /* smallest first: pick takes the first that fits */
    uint32_t count, failed;
    unsigned char *arena;
    size_t arena_bytes;
    bool poison, guarded;
    size_t *canaries; /* guarded: (canary_count) offsets into the arena, one after every tensor */
    uint32_t canary_count;
    bool eager;
    enum rp_replay_miss miss; /* of the last pick */
};

/* Larger by tokens, then by logit rows: the order of capture, backwards. */
static bool is_larger(const struct rp_bucket *a, const struct rp_bucket *b) {
    if (a->tokens != b->tokens)
        return a->tokens > b->tokens;
    if (a->logit_rows != b->logit_rows)
        return a->logit_rows > b->logit_rows;
    return !a->decode && b->decode; /* equal sizes: the decode set is the better fit */
}

int rp_graph_set_arena_bytes(const struct rp_graph_set_config *config, size_t *out_bytes,
                             struct rp_error *err) {
    size_t largest = 0;
    size_t *offsets = rp_calloc(config->program->tensor_count, sizeof *offsets);
    if (!offsets)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "graphs: no memory for the arena plan");
    for (uint32_t i = 0; i < config->bucket_count; i++) {
        size_t bytes;
        int status =
            rp_arena_plan(config->program, &config->buckets[i], config->guarded, offsets, &bytes);
        if (status != RP_OK) {
            rp_free(offsets);
            return rp_error_set(err, (enum rp_status)status, "graphs: arena of %u tokens: %s",
                                config->buckets[i].tokens, rp_status_text(status));
        }
        largest = RP_MAX(largest, bytes);
    }
    rp_free(offsets);
    *out_bytes = largest;
    return RP_OK;
}

static int capture_entry(struct rp_graph_set *set, const struct rp_graph_set_config *config,
                         struct rp_graph_entry *entry, size_t *offsets, struct rp_error *err) {
    const struct rp_program *program = config->program;
    uint64_t start = rp_clock_ns();
    int status =
        rp_arena_plan(program, &entry->bucket, config->guarded, offsets, &entry->arena_bytes);
    if (status != RP_OK)
        return rp_error_set(err, (enum rp_status)status, "arena plan: %s", rp_status_text(status));
    RP_ASSERT(entry->arena_bytes <= set->arena_bytes); /* carving agrees with counting */
    struct rp_bindings bindings = {.arena = set->arena,
                                   .tensor_offsets = offsets,
                                   .step = config->step,
                                   .kv = config->kv,
                                   .geometry = config->geometry};
    status =
        set->backend->capture(set->device, program, 0, program->sample_begin, &entry->bucket,
                              &bindings, &config->options, config->eager, &entry->forward, err);
    if (status != RP_OK)
        return status;
    bindings.stamp_base = set->backend->graph_launch_count(entry->forward);
    status = set->backend->capture(set->device, program, program->sample_begin, program->op_count,
                                   &entry->bucket, &bindings, &config->options, config->eager,
                                   &entry->sample, err);
    if (status != RP_OK) {
        set->backend->graph_destroy(set->device, entry->forward);
        entry->forward = NULL;
        return status;
    }
    entry->launches = set->backend->graph_launch_count(entry->forward) +
                      set->backend->graph_launch_count(entry->sample);
    struct rp_graph_info forward, sample;
    set->backend->graph_info(entry->forward, &forward);
    set->backend->graph_info(entry->sample, &sample);
    entry->graph_bytes = forward.bytes + sample.bytes;
    entry->nodes = forward.nodes + sample.nodes;
    entry->kernels = forward.kernels + sample.kernels;
    uint64_t parts[] = {rp_program_fingerprint(program), entry->bucket.tokens, entry->bucket.rows,
                        entry->bucket.logit_rows,        entry->bucket.decode, entry->launches};
    entry->fingerprint = rp_hash64(parts, sizeof parts, 0);
    entry->capture_ns = rp_clock_ns() - start;
    return RP_OK;
}

static void remember_canaries(struct rp_graph_set *set, const struct rp_program *program,
                              const struct rp_bucket *bucket, const size_t *offsets) {
    for (uint32_t i = 0; i < set->canary_count; i++) {
        size_t bytes = 0;
        bool ok = rp_tensor_bytes(program, &program->tensors[i], bucket, &bytes);
        RP_ASSERT(ok);
        set->canaries[i] = offsets[i] + bytes;
    }
}

/* Sorted copy of the buckets, smallest first. */
static void sort_entries(struct rp_graph_set *set, const struct rp_graph_set_config *config) {
    for (uint32_t i = 0; i < config->bucket_count; i++) {
        uint32_t at = i;
        for (; at > 0 && is_larger(&set->entries[at - 1].bucket, &config->buckets[i]); at--)
            set->entries[at] = set->entries[at - 1];
        memset(&set->entries[at], 0, sizeof set->entries[at]);
        set->entries[at].bucket = config->buckets[i];
    }
    set->count = config->bucket_count;
}

/* Largest first, as on devices whose capture grows a pool. A device error is sticky and ends it, as
 * does one of config->captured. */
static int capture_all(struct rp_graph_set *set, const struct rp_graph_set_config *config,
                       size_t *offsets, struct rp_error *err) {
    for (uint32_t i = set->count; i-- > 0;) {
        struct rp_graph_entry *entry = &set->entries[i];
        int status = capture_entry(set, config, entry, offsets, err);
        if (status == RP_STATUS_DEVICE)
            return status;
        if (status != RP_OK) {
            set->failed++;
            rp_log(RP_LOG_WARN, "graphs: bucket left out tokens=%u logit_rows=%u cause=\"%s\"",
                   entry->bucket.tokens, entry->bucket.logit_rows, err ? err->text : "");
            continue;
        }
        if (config->guarded)
            remember_canaries(set, config->program, &entry->bucket, offsets);
        if (config->captured) {
            status = config->captured(config->captured_ctx, set, entry, err);
            if (status != RP_OK)
                return status;
        }
        if (config->progress)
            config->progress(config->progress_ctx, "capture", set->count - i, set->count);
    }
    return set->failed == set->count ? RP_STATUS_NO_MEMORY : RP_OK;
}

int rp_graph_set_create(const struct rp_graph_set_config *config, struct rp_graph_set **out,
                        struct rp_error *err) {
    struct rp_error local = {0};
    size_t *offsets = NULL;
    struct rp_graph_set *set = rp_calloc(1, sizeof *set);
    int status = rp_error_set(err, RP_STATUS_NO_MEMORY, "graphs: out of memory");
    if (!set)
        return status;
    set->backend = config->backend;
    set->device = config->device;
    set->eager = config->eager;
    set->poison = config->poison;
    set->guarded = config->guarded;
    set->entries = rp_calloc(config->bucket_count, sizeof *set->entries);
    offsets = rp_calloc(config->program->tensor_count, sizeof *offsets);
    if (config->guarded) {
        RP_ASSERT(config->bucket_count ==
                  1); /* other buckets' tensors would lie over the canaries */
        set->canary_count = config->program->tensor_count;
        set->canaries = rp_calloc(set->canary_count, sizeof *set->canaries);
    }
    if (!set->entries || !offsets || (config->guarded && !set->canaries))
        goto fail;
    status = rp_graph_set_arena_bytes(config, &set->arena_bytes, err);
    if (status != RP_OK)
        goto fail;
    set->arena = set->backend->alloc(set->device, set->arena_bytes, RP_MEMORY_DEVICE);
    if (!set->arena) {
        status = rp_error_set(err, RP_STATUS_NO_MEMORY,
                              "graphs: no memory for an arena of %zu bytes", set->arena_bytes);
        rp_error_hint(err, "try a smaller --max-num-batched-tokens");
        goto fail;
    }
    sort_entries(set, config);
    status = capture_all(set, config, offsets, &local);
    if (status != RP_OK) {
        status =
            rp_error_set(err, local.status ? local.status : RP_STATUS_DEVICE,
                         set->failed == set->count ? "graphs: no bucket could be captured: %.400s"
                                                   : "graphs: %.400s",
                         local.text);
        goto fail;
    }
    if (config->guarded &&
        set->backend->fill(set->device, set->arena, RP_CANARY_BYTE, set->arena_bytes) != RP_OK) {
        status = rp_error_set(err, RP_STATUS_DEVICE, "graphs: the arena could not be filled");
        goto fail;
    }
    rp_free(offsets);
    *out = set;
    return RP_OK;
fail:
    rp_free(offsets);
    rp_graph_set_destroy(set);
    return status;
}

void rp_graph_set_destroy(struct rp_graph_set *set) {
    if (!set)
        return;
    /* A step's result is published before its last launch has returned. */
    (void)set->backend->synchronize(set->device);
    for (uint32_t i = 0; i < set->count; i++) {
        if (set->entries[i].forward)
            set->backend->graph_destroy(set->device, set->entries[i].forward);
        if (set->entries[i].sample)
            set->backend->graph_destroy(set->device, set->entries[i].sample);
    }
    if (set->arena)
        set->backend->free(set->device, set->arena, RP_MEMORY_DEVICE);
    rp_free(set->canaries);
    rp_free(set->entries);
    rp_free(set);
}

static bool holds(const struct rp_bucket *bucket, uint32_t tokens, uint32_t rows,
                  uint32_t logit_rows, bool decode_only) {
    return bucket->tokens >= tokens && bucket->rows >= rows && bucket->logit_rows >= logit_rows &&
           (decode_only || !bucket->decode);
}

struct rp_graph_entry *rp_graph_set_pick(struct rp_graph_set *set, uint32_t tokens, uint32_t rows,
                                         uint32_t logit_rows, bool decode_only) {
    set->miss = set->eager ? RP_MISS_ENFORCE_EAGER : RP_MISS_NONE;
    for (uint32_t i = 0; i < set->count; i++) {
        struct rp_graph_entry *entry = &set->entries[i];
        if (!holds(&entry->bucket, tokens, rows, logit_rows, decode_only))
            continue;
        if (entry->forward)
            return entry;
        if (!set->eager)
            set->miss = RP_MISS_CAPTURE_FAILED;
    }
    set->miss = RP_MISS_NO_GRAPH;
    return NULL;
}

enum rp_replay_miss rp_graph_set_miss(const struct rp_graph_set *set) { return set->miss; }

int rp_graph_set_launch_forward(struct rp_graph_set *set, struct rp_graph_entry *entry,
                                uint32_t tokens) {
    /* All bits set is a NaN in every float type. It would overwrite canaries. */
    if (set->poison && !set->guarded) {
        int status = set->backend->fill(set->device, set->arena, 0xFF, set->arena_bytes);
        if (status != RP_OK)
            return status;
    }
    rp_counter_add(&entry->replays, 1);
    rp_counter_add(&entry->padded_tokens, entry->bucket.tokens - tokens);
    return set->backend->launch(set->device, entry->forward);
}

int rp_graph_set_launch_sample(struct rp_graph_set *set, struct rp_graph_entry *entry) {
    return set->backend->launch(set->device, entry->sample);
}

int rp_graph_set_launch(struct rp_graph_set *set, struct rp_graph_entry *entry, uint32_t tokens) {
    int status = rp_graph_set_launch_forward(set, entry, tokens);
    return status == RP_OK ? rp_graph_set_launch_sample(set, entry) : status;
}

uint32_t rp_graph_set_count(const struct rp_graph_set *set) { return set->count; }

struct rp_graph_entry *rp_graph_set_entry(struct rp_graph_set *set, uint32_t index) {
    return &set->entries[index];
}

unsigned char *rp_graph_set_arena(struct rp_graph_set *set) { return set->arena; }

size_t rp_graph_set_arena_size(const struct rp_graph_set *set) { return set->arena_bytes; }

uint32_t rp_graph_set_failed(const struct rp_graph_set *set) { return set->failed; }

bool rp_graph_set_check(struct rp_graph_set *set) {
    unsigned char *copy = rp_alloc(set->arena_bytes);
    RP_ASSERT(copy); /* tests only */
    bool intact = set->backend->copy(set->device, copy, set->arena, set->arena_bytes) == RP_OK &&
                  set->backend->synchronize(set->device) == RP_OK;
    for (uint32_t i = 0; i < set->canary_count && intact; i++)
        for (uint32_t b = 0; b < RP_CANARY_BYTES; b++)
            intact = intact && copy[set->canaries[i] + b] == RP_CANARY_BYTE;
    rp_free(copy);
    return intact;
}
