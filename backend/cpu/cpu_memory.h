/* cpu_memory.h - how much host memory may still be allocated.
 * Thread: any. */
#ifndef RP_BACKEND_CPU_MEMORY_H
#define RP_BACKEND_CPU_MEMORY_H

#include "base/base.h"

/* Bytes that may still be allocated: by the machine, and by the limit of the control group. */
uint64_t rp_cpu_memory_room(void);
/* The same by the control group alone; UINT64_MAX: no limit. root: where its files lie. */
uint64_t rp_cpu_group_room(const char *root);

#endif
