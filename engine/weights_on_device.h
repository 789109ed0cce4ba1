/* weights_on_device.h - moves a model's matrices to the device and back.
 *
 * Matrices of an opened model (rp_model_open) stream from file to device, a few in host memory at a
 * time. Where host and device share memory the repacked matrices stay with the model, which can be
 * prepared again. Otherwise they leave it: rp_weights_release empties the model.
 *
 * Where the sizes are known before anything is read, the device memory of all matrices is reserved
 * first, and filled while another thread captures graphs, which need the addresses alone.
 * Thread: the engine's, except for rp_weights_fill. */
#ifndef RP_ENGINE_WEIGHTS_ON_DEVICE_H
#define RP_ENGINE_WEIGHTS_ON_DEVICE_H

#include "device/device.h"

struct rp_model;

/* Repacks or uploads every matrix that a program reads, or makes random ones where there is neither
 * data nor a file. *prepared counts the matrices done, also when it fails, for release. progress
 * may be NULL. */
int rp_weights_prepare(const struct rp_backend *backend, struct rp_device *device,
                       struct rp_model *model, uint32_t *prepared,
                       void (*progress)(void *ctx, const char *stage, uint32_t done,
                                        uint32_t total),
                       void *progress_ctx, struct rp_error *err) RP_MUST_USE;
/* Whether reserve and fill can take the place of prepare: matrices come from a file, none is of
 * BLOCKS (their parts and orders of columns are known once they are read), and the backend can. */
bool rp_weights_can_reserve(const struct rp_backend *backend, const struct rp_model *model);
/* Allocates zeroed device memory for every matrix; done when it returns. *prepared counts the
 * matrices that have theirs, also on failure, for rp_weights_release. */
int rp_weights_reserve(const struct rp_backend *backend, struct rp_device *device,
                       struct rp_model *model, uint32_t *prepared,
                       struct rp_error *err) RP_MUST_USE;

/* Fills the reserved matrices. Any thread; the engine's may capture and launch graphs meanwhile,
 * and then calls matrices_end. */
struct rp_weights_fill {
    const struct rp_backend *backend;
    struct rp_device *device;
    struct rp_model *model;
    /* Called by the filling thread after each matrix: `done` of `total` are filled. A status other
     * than RP_OK ends the fill and is returned. */
    int (*filled)(void *ctx, uint32_t done, uint32_t total);
    void *ctx;
    uint32_t done, total; /* set by rp_weights_fill */
};
int rp_weights_fill(struct rp_weights_fill *fill, struct rp_error *err) RP_MUST_USE;
/* Frees the first `prepared` matrices on a device with separate memory, and removes them from the
 * model; does nothing where memory is shared. */
void rp_weights_release(const struct rp_backend *backend, struct rp_device *device,
                        struct rp_model *model, uint32_t prepared);

#endif
