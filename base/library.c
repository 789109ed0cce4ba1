#include "base/library.h"

#include <dlfcn.h>
#include <string.h>

bool rp_library_load(const char *soname, const struct rp_library_symbol *symbols, size_t count) {
    void *handle = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return false;
    for (size_t i = 0; i < count; i++) {
        void *symbol = dlsym(handle, symbols[i].name);
        if (!symbol) {
            dlclose(handle);
            return false;
        }
        /* POSIX allows this conversion. */
        memcpy(symbols[i].to, &symbol, sizeof symbol);
    }
    return true;
}
