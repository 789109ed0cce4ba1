/* graph_set.h - the captured steps: one forward and one sample graph per bucket, all in one arena.
 *
 *   plan     counts the arena over all buckets (the largest decides: graphs never run at once)
 *   create   carves and captures, largest bucket first; smaller ones alias the same bytes
 *   pick     the smallest captured bucket that holds a step
 *   launch   forward, then sample: two replays with no argument to change. The host may prepare what
 *            SAMPLE reads (late flags, device/step.h) between the two calls
 *
 * It captures a program and knows nothing of models or requests. A bucket whose capture fails is
 * left out, logged and counted; a step then runs in the next larger one.
 * Thread: the engine thread. Memory: all at create. */
#ifndef RP_GRAPHS_GRAPH_SET_H
#define RP_GRAPHS_GRAPH_SET_H

#include "device/device.h"
#include "metrics/event.h"
#include "metrics/metrics.h"

struct rp_graph_set;
struct rp_graph_entry;

struct rp_graph_set_config {
    const struct rp_backend *backend;
    struct rp_device *device;
    const struct rp_program *program; /* may be freed after create */
    const struct rp_bucket *buckets;  /* any order; copied */
    uint32_t bucket_count;
    struct rp_step_view step;
    const struct rp_kv_layout *kv;
    const struct rp_kv_geometry *geometry; /* rp_bindings.geometry */
    struct rp_lower_options options;
    bool eager;   /* --enforce-eager: every launch walks the lowered list */
    bool poison;  /* fill the arena with NaN before each step */
    bool guarded; /* tests, one bucket only: no tensor shares bytes, each has a canary after it */
    void (*progress)(void *ctx, const char *stage, uint32_t done, uint32_t total);
    void *progress_ctx;
    /* Called with each entry that was captured, for its first replay, which may still run while the
     * next one is captured; a status other than OK ends create. NULL: none. */
    int (*captured)(void *ctx, struct rp_graph_set *set, struct rp_graph_entry *entry,
                    struct rp_error *err);
    void *captured_ctx;
};

struct rp_graph_entry {
    struct rp_bucket bucket;
    struct rp_graph *forward, *sample;
    size_t arena_bytes;      /* of the shared arena that this bucket uses */
    size_t graph_bytes;      /* its own: argument blocks */
    uint32_t launches;       /* of the lowered forward and sample */
    uint32_t nodes, kernels; /* of the captured graphs */
    uint64_t capture_ns;
    uint64_t fingerprint;
    struct rp_counter replays, padded_tokens; /* since start; any thread may read them */
};

/* Bytes that the shared arena needs. */
int rp_graph_set_arena_bytes(const struct rp_graph_set_config *config, size_t *out_bytes,
                             struct rp_error *err) RP_MUST_USE;

int rp_graph_set_create(const struct rp_graph_set_config *config, struct rp_graph_set **out,
                        struct rp_error *err) RP_MUST_USE;
void rp_graph_set_destroy(struct rp_graph_set *set); /* waits for the device first */

/* decode_only: every row has one token, so a decode bucket may run it. NULL when nothing fits. */
struct rp_graph_entry *rp_graph_set_pick(struct rp_graph_set *set, uint32_t tokens, uint32_t rows,
                                         uint32_t logit_rows, bool decode_only);

/* Why a step in the entry that was picked last is no replay of the graphs of its size. */
enum rp_replay_miss rp_graph_set_miss(const struct rp_graph_set *set);

/* Asynchronous. Each forward must be followed by the sample of the same entry before the next
 * forward. tokens: the live ones, for the count of padded tokens. */
int rp_graph_set_launch_forward(struct rp_graph_set *set, struct rp_graph_entry *entry,
                                uint32_t tokens);
int rp_graph_set_launch_sample(struct rp_graph_set *set, struct rp_graph_entry *entry);
/* Both. */
int rp_graph_set_launch(struct rp_graph_set *set, struct rp_graph_entry *entry, uint32_t tokens);

uint32_t rp_graph_set_count(const struct rp_graph_set *set);
struct rp_graph_entry *rp_graph_set_entry(struct rp_graph_set *set, uint32_t index);
unsigned char *rp_graph_set_arena(struct rp_graph_set *set); /* device memory */
/* Bytes of the arena, all buckets. */
size_t rp_graph_set_arena_size(const struct rp_graph_set *set);
/* Buckets that could not be captured. */
uint32_t rp_graph_set_failed(const struct rp_graph_set *set);
/* guarded sets: false when a canary was overwritten. Waits for the device. */
bool rp_graph_set_check(struct rp_graph_set *set);

#endif
