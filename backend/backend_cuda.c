/* backend_cuda.c - a CUDA card as a device: the table that the module exports. */
#include "device/device.h"

const struct rp_backend *rp_backend_cuda_table(void) { return NULL; }
