#include "device/shared_library_cuda.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct search {
    const char *const *sonames;
    uint32_t count;
    rp_library_accept accept;
    void *ctx;
    char *path;
    size_t path_bytes;
    bool seen; /* one was loaded, whether accepted or not */
};

static void *try_file(struct search *search, const char *file) {
    struct link_map *map = NULL;
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return NULL;
    search->seen = true;
    if (search->accept && !search->accept(search->ctx, library)) {
        dlclose(library);
        return NULL;
    }
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name[0])
        file = map->l_name;
    snprintf(search->path, search->path_bytes, "%s", file);
    return library;
}

/* The folder may be a pattern of glob(3). */
static void *try_folder(struct search *search, const char *folder) {
    void *library = NULL;
    for (uint32_t i = 0; i < search->count && !library; i++) {
        char pattern[PATH_MAX];
        glob_t found = {0};
        if (snprintf(pattern, sizeof pattern, "%s/%s", folder, search->sonames[i]) >=
                (int)sizeof pattern ||
            glob(pattern, 0, NULL, &found) != 0)
            continue;
        for (size_t f = 0; f < found.gl_pathc && !library; f++)
            library = try_file(search, found.gl_pathv[f]);
        globfree(&found);
    }
    return library;
}

static void *try_environment(struct search *search, const char *variable, const char *below) {
    char folder[PATH_MAX];
    const char *root = getenv(variable);
    if (!root || !root[0] ||
        snprintf(folder, sizeof folder, "%s/%s", root, below) >= (int)sizeof folder)
        return NULL;
    return try_folder(search, folder);
}

static void *try_loader(struct search *search) {
    void *library = NULL;
    for (uint32_t i = 0; i < search->count && !library; i++)
        library = try_file(search, search->sonames[i]);
    return library;
}

#define SITE "lib/python3*/site-packages/nvidia/*/lib"

/* An interpreter in X/bin has its packages in X/lib. */
static void *try_beside_path(struct search *search) {
    const char *at = getenv("PATH");
    void *library = NULL;
    while (at && *at && !library) {
        size_t len = strcspn(at, ":");
        char folder[PATH_MAX];
        if (len > 4 && memcmp(at + len - 4, "/bin", 4) == 0 &&
            snprintf(folder, sizeof folder, "%.*s/" SITE, (int)len - 4, at) < (int)sizeof folder)
            library = try_folder(search, folder);
        at += len + (at[len] == ':');
    }
    return library;
}

void *rp_shared_library_open(const char *const *sonames, uint32_t count, rp_library_accept accept,
                             void *ctx, char *out_path, size_t path_bytes, struct rp_error *err) {
    static const char *const system_folders[] = {
        "/usr/local/cuda/lib64",
        "/usr/local/lib/python3*/dist-packages/nvidia/*/lib",
        "/usr/local/" SITE,
        "/usr/lib/python3/dist-packages/nvidia/*/lib",
        "/usr/" SITE,
        "/opt/conda/" SITE,
        "/opt/venv/" SITE,
    };
    struct search search = {sonames, count, accept, ctx, out_path, path_bytes, false};
    void *library = try_environment(&search, "CUDA_HOME", "lib64");
    if (!library)
        library = try_environment(&search, "CUDA_PATH", "lib64");
    if (!library)
        library = try_loader(&search);
    if (!library)
        library = try_folder(&search, system_folders[0]);
    if (!library)
        library = try_environment(&search, "VIRTUAL_ENV", SITE);
    if (!library)
        library = try_beside_path(&search);
    if (!library)
        library = try_environment(&search, "HOME", ".local/" SITE);
    for (size_t i = 1; i < RP_ARRAY_COUNT(system_folders) && !library; i++)
        library = try_folder(&search, system_folders[i]);
    if (!library) {
        rp_error_fill(err, RP_STATUS_NOT_FOUND,
                      search.seen ? "%s: found, but it does not work here" : "%s: not found",
                      sonames[0]);
        rp_error_hint(err, "CUDA_HOME may name the folder of the CUDA toolkit");
    }
    return library;
}
