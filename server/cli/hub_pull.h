/* hub_pull.h - downloads files of a listing into the cache (hub_cache.h): several at a time, each
 * into blobs/HASH.incomplete, which a later call continues; then it is checked, renamed, and linked
 * from the snapshot. */
#ifndef RP_SERVER_HUB_PULL_H
#define RP_SERVER_HUB_PULL_H

#include "server/cli/hub_cache.h"
#include "server/cli/hub_files.h"

struct rp_hub_pull {
    struct rp_hub_name name;
    const char *endpoint;                                      /* https://huggingface.co */
    const char *token;                                         /* "": none */
    char cache[RP_HUB_PATH_MAX / 4], dir[RP_HUB_PATH_MAX / 2]; /* the model's folder */
    uint32_t jobs;                                             /* downloads at a time */
    bool on_terminal, quiet;
};

/* Files and commit of the revision. */
int rp_hub_pull_list(const struct rp_hub_pull *pull, struct rp_hub_listing *out,
                     struct rp_error *err) RP_MUST_USE;
/* All wanted files; prints progress on standard error. */
int rp_hub_pull_files(const struct rp_hub_pull *pull, const struct rp_hub_listing *listing,
                      struct rp_error *err) RP_MUST_USE;
/* Where a file of the listing is in the snapshot. */
void rp_hub_pull_path(const struct rp_hub_pull *pull, const struct rp_hub_listing *listing,
                      const struct rp_hub_file *file, char *out, size_t size);
/* refs/REVISION becomes the commit. */
int rp_hub_pull_set_ref(const struct rp_hub_pull *pull, const struct rp_hub_listing *listing,
                        struct rp_error *err) RP_MUST_USE;

#endif
