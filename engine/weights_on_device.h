/* weights_on_device.h - moves a model's matrices to the device and back.
 *
 * Matrices of an opened model (rp_model_open) stream from file to device, a few in host memory at a
 * time. Where host and device share memory the repacked matrices stay with the model, which can be
 * prepared again. Otherwise they leave it: rp_weights_release empties the model.
 * Thread: the engine's. */
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
/* Frees the first `prepared` matrices on a device with separate memory, and removes them from the
 * model; does nothing where memory is shared. */
void rp_weights_release(const struct rp_backend *backend, struct rp_device *device,
                        struct rp_model *model, uint32_t prepared);

#endif
