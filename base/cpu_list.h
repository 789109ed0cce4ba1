/* cpu_list.h - sets of processors as text in the kernel's format: "0-3,8". */
#ifndef RP_BASE_CPU_LIST_H
#define RP_BASE_CPU_LIST_H

#include "base/status.h"

#include <sched.h>

#define RP_CPU_LIST_MAX 1024 /* bytes of text, with the NUL */

/* Parses a list, with a line end or without. INVALID, naming the place, for anything else: also an
 * empty list, a range that runs backwards, and numbers from CPU_SETSIZE on. */
int rp_cpu_list_parse(const char *text, cpu_set_t *out, struct rp_error *err) RP_MUST_USE;
/* Ends in "..." where the text is longer than out. */
void rp_cpu_list_format(const cpu_set_t *set, char *out, size_t size);

#endif
