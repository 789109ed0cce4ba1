/* hub_files.h - which files of a model are needed. */
#ifndef RP_SERVER_HUB_FILES_H
#define RP_SERVER_HUB_FILES_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rp_hub_file {
    const char *name; /* in the repository; borrowed from the answer */
    char hash[65];    /* SHA-256 (64 digits) of a large file, else git's SHA-1 (40) */
    uint64_t bytes;
    bool wanted;
};

/* Files and commit of one revision. */
struct rp_hub_listing {
    json_t *root; /* owns the names */
    char commit[41];
    struct rp_hub_file *files;
    size_t count;
};

/* Reads the answer to /api/models/ID/revision/REVISION?blobs=true. FORMAT when it is not one: names
 * that leave the folder are refused as well. */
int rp_hub_listing_parse(const char *text, size_t len, struct rp_hub_listing *out,
                         struct rp_error *err) RP_MUST_USE;
void rp_hub_listing_deinit(struct rp_hub_listing *listing);
struct rp_hub_file *rp_hub_listing_find(const struct rp_hub_listing *listing, const char *name);

/* Marks what is wanted. include: patterns with commas between them; "": configuration, tokenizer,
 * templates, and the weights: model.safetensors, or what its index names (then *out_index is the
 * index, and the caller adds the shards by rp_hub_files_add_shards), or the only GGUF file (all
 * parts of a split). */
int rp_hub_files_choose(struct rp_hub_listing *listing, const char *include,
                        struct rp_hub_file **out_index, struct rp_error *err) RP_MUST_USE;
int rp_hub_files_add_shards(struct rp_hub_listing *listing, const char *index, size_t len,
                            struct rp_error *err) RP_MUST_USE;

#endif
