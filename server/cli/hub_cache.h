/* hub_cache.h - the cache that huggingface_hub and `reprise pull` share, and models by name.
 *
 *   models--org--name/refs/main              the commit that a branch or tag had
 *   models--org--name/snapshots/COMMIT/FILE  a link to ../../blobs/HASH
 *   models--org--name/blobs/HASH             SHA-256 of a large file, git's SHA-1 of a small one
 *   .locks/models--org--name/HASH.lock       held while the blob is written
 *
 * Thread: the calling one. Paths are at most RP_HUB_PATH_MAX long. */
#ifndef RP_SERVER_HUB_CACHE_H
#define RP_SERVER_HUB_CACHE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

#define RP_HUB_PATH_MAX 4096
#define RP_HUB_NAME_MAX 200

/* org/name[@revision] */
struct rp_hub_name {
    char id[RP_HUB_NAME_MAX]; /* org/name */
    char revision[RP_HUB_NAME_MAX];
};

/* False: not of that form. The revision is "main" where none is given. */
bool rp_hub_name_parse(const char *text, struct rp_hub_name *out);
/* Whether a name from a server can be a path below a folder: relative, without "..", controls and
 * backslashes. */
bool rp_hub_path_ok(const char *path);
/* Whether the text is `digits` lower-case hexadecimal digits. */
bool rp_hub_is_hash(const char *text, size_t digits);

/* HF_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub; false: no
 * variable leads to one. */
bool rp_hub_cache_dir(char *out, size_t size);
/* The folder of a model: CACHE/models--org--name. */
void rp_hub_model_dir(const char *cache, const char *id, char *out, size_t size);
/* The commit that the cache has for a branch, a tag, or the beginning of a commit (7 digits or
 * more); false: none, or several. */
bool rp_hub_find_commit(const char *model_dir, const char *revision, char out[41]);

/* `path`, a snapshot, becomes its GGUF file if it has no config.json and one such file (or the
 * first of a split). */
void rp_hub_snapshot_model(char *path, size_t size);

/* For commands that take a model: where *path does not exist and is org/name[@revision], it becomes
 * the snapshot in the cache (valid until the fourth call from now), or its only GGUF file. For
 * anything else RP_OK, and *path stays as it was; NOT_FOUND when the cache has no such model. */
int rp_model_locate(const char **path, struct rp_error *err) RP_MUST_USE;

#endif
