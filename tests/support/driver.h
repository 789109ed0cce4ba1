/* driver.h - runs steps of a model without engine and scheduler: tests write the packets.
 *
 * Slot s owns pages 1 + s * pages_per_slot ..., written into its page tables when the driver opens:
 * one table, or with `groups` one for each group of layers, each of pages_per_slot entries.
 * Every slot starts greedy with nothing written; of recurrent state there are as many places for
 * snapshots as slots, all NaN. One driver owns the model's weights preparation.
 *
 *   rp_driver_open -> (rp_driver_row ...)+ -> rp_driver_run -> rp_driver_result / rp_driver_logits
 *
 * Errors are assertions. */
#ifndef RP_TESTS_SUPPORT_DRIVER_H
#define RP_TESTS_SUPPORT_DRIVER_H

#include "device/device.h"
#include "graphs/graph_set.h"
#include "kvcache/kv_geometry.h"
#include "model/model.h"

struct rp_driver_config {
    const struct rp_backend *backend; /* NULL: the CPU's */
    uint32_t slots, pages_per_slot, page_tokens, threads;
    uint32_t ranks; /* above 1: a group; the model is divided among them */
    const struct rp_bucket *buckets;
    uint32_t bucket_count;
    enum rp_dtype kv_dtype;
    uint32_t stamp_capacity; /* 0: no stamps */
    bool scalar_only, no_fusion, eager, poison, guarded, no_dependent_launch, ranks_share_device;
    bool launch_threads;
    bool short_steps_here;
    bool groups;                              /* pages of layers by their windows (kv_geometry.h) */
    void (*edit)(struct rp_program *program); /* NULL, or: changes the program before capture */
    bool free_program;                        /* overwrite and free the program after capture */
};

struct rp_driver {
    struct rp_driver_config config;
    struct rp_model *model;
    const struct rp_backend *backend;
    struct rp_device *device;
    struct rp_program program;
    struct rp_graph_set *graphs;
    struct rp_step_view view;
    struct rp_kv_geometry geometry;
    struct rp_kv_layout kv;
    unsigned char *state, *rings;
    uint32_t prepared;
    size_t *logits_offsets; /* one per graph entry */
    float *logits;          /* (logit rows, logits_cols) of the last run, if requested */
    uint32_t logits_cols;   /* the vocabulary, padded in a group */
    uint64_t logits_step;
    uint64_t step;
    struct rp_graph_entry *entry; /* of the last run */
    uint32_t row_count, token_count, logit_row_count, edit_count, prompt_cursor;
    uint32_t packet_flags; /* rp_packet_flags of the following steps */
    bool decode_only;
};

/* Prepares the weights of *model for the device, once per model. On the CPU a prepared model may be
 * opened again; weights in a GPU's memory are not copied back. */
void rp_driver_open(struct rp_driver *driver, struct rp_model *model,
                    const struct rp_driver_config *config);
void rp_driver_close(struct rp_driver *driver);

/* Adds a slot edit to the step being written. */
void rp_driver_edit(struct rp_driver *driver, uint32_t slot, uint32_t field, uint32_t index,
                    uint32_t value);
void rp_driver_edit_float(struct rp_driver *driver, uint32_t slot, uint32_t field, float value);
/* Adds a row: tokens != NULL: prompt tokens; NULL: a decode row (count 1). */
void rp_driver_row(struct rp_driver *driver, uint32_t slot, const int32_t *tokens, uint32_t count,
                   bool sample);
/* Runs the step in the smallest bucket that holds it, or in `entry` when not NULL. */
void rp_driver_run(struct rp_driver *driver, struct rp_graph_entry *entry);
const struct rp_row_result *rp_driver_result(const struct rp_driver *driver, uint32_t row);
/* The same in two halves, for steps in flight: at most RP_STEP_RING_ENTRIES - 1 of them. Submit
 * returns the step's number. */
uint64_t rp_driver_submit(struct rp_driver *driver, struct rp_graph_entry *entry);
void rp_driver_wait(struct rp_driver *driver, uint64_t step);
const struct rp_row_result *rp_driver_result_of(const struct rp_driver *driver, uint64_t step,
                                                uint32_t row);
/* The stamps of a step that was read, one per launch of its bucket. */
const struct rp_node_stamp *rp_driver_stamps_of(const struct rp_driver *driver, uint64_t step);
/* (vocab) f32 of logit row i of the last run, copied from the device; overwritten by the next. */
const float *rp_driver_logits(struct rp_driver *driver, uint32_t logit_row);

#endif
