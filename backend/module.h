/* module.h - which backend runs: the CPU's, which is linked in, or CUDA's, which is a module.
 *
 * libreprise_cuda.so is searched for in the program's directory; REPRISE_CUDA_MODULE, when it is
 * set, names the file instead. It is opened once and never closed. One `reprise` thus runs with and
 * without CUDA. Thread: one, while starting. */
#ifndef RP_BACKEND_MODULE_H
#define RP_BACKEND_MODULE_H

#include "device/device.h"

/* Index into the choices "auto|cpu|cuda" of --device. */
enum rp_device_choice { RP_DEVICE_CHOICE_AUTO, RP_DEVICE_CHOICE_CPU, RP_DEVICE_CHOICE_CUDA };

/* The module's table, or NULL: no file, a library that is missing, another version. */
const struct rp_backend *rp_backend_open_module(struct rp_error *err);
/* Where the module is looked for; "" when the program's folder is not known. */
void rp_backend_module_path(char *out, size_t size);

struct rp_backend_selection {
    const struct rp_backend *backend;
    struct rp_device *device; /* open, the caller's to close or to hand on */
    struct rp_device_info info;
    char reason[384]; /* "CUDA was found", "no CUDA: ..." or "as told" */
};

/* Opens the device. auto takes CUDA when its module and a GPU can be opened, else the CPU, and
 * says why in *reason; cuda fails when it cannot, with a hint. */
int rp_backend_select(enum rp_device_choice choice, const struct rp_device_config *config,
                      struct rp_backend_selection *out, struct rp_error *err) RP_MUST_USE;

/* RP_OK, or UNSUPPORTED with the first operator that the backend has no kernel for: before weights
 * go to the device, which takes minutes. */
int rp_backend_check_program(const struct rp_backend *backend, const struct rp_program *program,
                             struct rp_error *err) RP_MUST_USE;

#endif
