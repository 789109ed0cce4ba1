/* launch_cuda.c - the process-wide switch of dependent launch. */
#include "device/cuda_launch.h"

static bool allowed = true;

void rp_cuda_allow_dependent_launch(bool allow) { allowed = allow; }
bool rp_cuda_dependent_launch_allowed(void) { return allowed; }
