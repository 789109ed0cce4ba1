/* nearest_name.h - what someone may have meant by a name that does not exist.
 * Thread: any. */
#ifndef RP_BASE_NEAREST_NAME_H
#define RP_BASE_NEAREST_NAME_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The name of `names` with the fewest characters added, dropped or replaced: at most three, and at
 * most half of `name` (of two characters: one). NULL when none is so near. Names longer than 64
 * bytes are near to nothing. */
const char *rp_nearest_name(const char *name, const char *const *names, uint32_t count);

#ifdef __cplusplus
}
#endif
#endif
