/* weights_on_device.h - a model's matrices on their way to the device and back.
 *
 * On the host's own memory the repacked matrices stay with the model, which can be prepared again. On a
 * card they leave it: rp_weights_release empties the model.
 * Thread: the engine's. */
#ifndef RP_ENGINE_WEIGHTS_ON_DEVICE_H
#define RP_ENGINE_WEIGHTS_ON_DEVICE_H

#include "device/device.h"

struct rp_model;

/* Repacks every matrix that a program reads, or makes random ones of those without data; a tied head is the embedding's, prepared once. *prepared
 * counts them, also when it fails, for release. progress may be NULL. */
int rp_weights_prepare(const struct rp_backend *backend, struct rp_device *device,
                       struct rp_model *model, uint32_t *prepared,
                       void (*progress)(void *ctx, const char *stage, uint32_t done,
                                        uint32_t total),
                       void *progress_ctx, struct rp_error *err) RP_MUST_USE;
/* Frees the first `prepared` matrices on a card, and takes them from the model; nothing where host and
 * device share memory. */
void rp_weights_release(const struct rp_backend *backend, struct rp_device *device,
                        struct rp_model *model, uint32_t prepared);

#endif
