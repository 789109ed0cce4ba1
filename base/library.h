/* library.h - shared libraries that an optional feature opens when it is used. */
#ifndef RP_BASE_LIBRARY_H
#define RP_BASE_LIBRARY_H

#include "base/base.h"

struct rp_library_symbol {
    const char *name;
    void *to; /* a function pointer's address */
};

/* Opens the library until the program ends and sets all function pointers. False when there is no
 * such library, or it lacks one of them; some may be set then. Thread: any, one at a time for the
 * same pointers. */
bool rp_library_load(const char *soname, const struct rp_library_symbol *symbols,
                     size_t count) RP_MUST_USE;

#endif
