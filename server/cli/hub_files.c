#include "server/cli/hub_files.h"

#include "base/base.h"
#include "base/buffer.h"
#include "base/memory.h"
#include "server/cli/hub_cache.h"
#include "text/json_file.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

/* More than any repository of one model. */
#define FILES_MAX 20000

static const char *const small_files[] = {"config.json",
                                          "generation_config.json",
                                          "tokenizer.json",
                                          "tokenizer_config.json",
                                          "tokenizer.model",
                                          "special_tokens_map.json",
                                          "added_tokens.json",
                                          "chat_template.jinja",
                                          "chat_template.json",
                                          "modules.json",
                                          "additional_chat_templates/*.jinja"};
#define INDEX "model.safetensors.index.json"

static int damaged(struct rp_error *err, const char *what) {
    return rp_error_set(err, RP_STATUS_FORMAT, "the hub's answer: %s", what);
}

static int parse_file(const json_t *json, struct rp_hub_file *out, struct rp_error *err) {
    const json_t *lfs = json_object_get(json, "lfs");
    const json_t *size = json_object_get(lfs ? lfs : json, "size");
    const char *sha256 = json_string_value(json_object_get(lfs, "sha256"));
    const char *blob = json_string_value(json_object_get(json, "blobId"));
    const char *hash = json_is_object(lfs) ? sha256 : blob;
    out->name = json_string_value(json_object_get(json, "rfilename"));
    if (!out->name || !rp_hub_path_ok(out->name))
        return rp_error_set(
            err, RP_STATUS_FORMAT,
            "the hub's answer: the file name \"%.80s\" cannot be one below a folder",
            out->name ? out->name : "");
    if (!json_is_integer(size) && json_is_object(lfs))
        size = json_object_get(json, "size");
    if (!json_is_integer(size) || json_integer_value(size) < 0 || !hash ||
        !rp_hub_is_hash(hash, json_is_object(lfs) ? 64 : 40))
        return rp_error_set(err, RP_STATUS_FORMAT, "the hub's answer: no size or no hash for %.80s",
                            out->name);
    out->bytes = (uint64_t)json_integer_value(size);
    snprintf(out->hash, sizeof out->hash, "%s", hash);
    return RP_OK;
}

int rp_hub_listing_parse(const char *text, size_t len, struct rp_hub_listing *out,
                         struct rp_error *err) {
    memset(out, 0, sizeof *out);
    int status = rp_json_text_load(text, len, "the hub's answer", &out->root, err);
    if (status != RP_OK)
        return status;
    const json_t *files = json_object_get(out->root, "siblings"), *file;
    const char *commit = json_string_value(json_object_get(out->root, "sha"));
    size_t i;
    if (!commit || !rp_hub_is_hash(commit, 40) || !json_is_array(files) ||
        json_array_size(files) > FILES_MAX)
        status = damaged(err, "no commit, or no list of files");
    else if (!(out->files = rp_calloc(json_array_size(files) + 1, sizeof *out->files)))
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    if (status == RP_OK) {
        memcpy(out->commit, commit, sizeof out->commit);
        json_array_foreach(files, i, file) {
            if (status == RP_OK)
                status = parse_file(file, &out->files[out->count++], err);
        }
    }
    if (status != RP_OK)
        rp_hub_listing_deinit(out);
    return status;
}

void rp_hub_listing_deinit(struct rp_hub_listing *listing) {
    rp_free(listing->files);
    json_decref(listing->root);
    memset(listing, 0, sizeof *listing);
}

struct rp_hub_file *rp_hub_listing_find(const struct rp_hub_listing *listing, const char *name) {
    for (size_t i = 0; i < listing->count; i++)
        if (strcmp(listing->files[i].name, name) == 0)
            return &listing->files[i];
    return NULL;
}

/* Marks what matches one of the patterns; their number of hits. */
static size_t mark(struct rp_hub_listing *listing, const char *pattern, int flags) {
    size_t hits = 0;
    for (size_t i = 0; i < listing->count; i++) {
        if (fnmatch(pattern, listing->files[i].name, flags) != 0)
            continue;
        listing->files[i].wanted = true;
        hits++;
    }
    return hits;
}

static int mark_list(struct rp_hub_listing *listing, const char *include, struct rp_error *err) {
    char pattern[256];
    for (const char *at = include; *at;) {
        size_t len = strcspn(at, ",");
        if (len >= sizeof pattern)
            return rp_error_set(err, RP_STATUS_INVALID, "--include: a pattern is too long");
        snprintf(pattern, sizeof pattern, "%.*s", (int)len, at);
        if (len && !mark(listing, pattern, 0))
            return rp_error_set(err, RP_STATUS_NOT_FOUND, "--include: no file matches \"%s\"",
                                pattern);
        at += len + (at[len] == ',');
    }
    return RP_OK;
}

/* One GGUF file, or the parts of one; several: the error lists them. */
static int choose_gguf(struct rp_hub_listing *listing, struct rp_error *err) {
    struct rp_buffer names;
    const struct rp_hub_file *one = NULL;
    size_t count = 0;
    rp_buffer_init(&names, 0);
    for (size_t i = 0; i < listing->count; i++) {
        const char *name = listing->files[i].name, *part = strstr(name, "-of-");
        size_t len = strlen(name);
        if (len < 6 || strcmp(name + len - 5, ".gguf") != 0 || strncmp(name, "mmproj", 6) == 0)
            continue;
        if (part && part - name >= 6 && strncmp(part - 6, "-00001", 6) != 0)
            continue;
        one = &listing->files[i];
        if (count++ < 12)
            rp_buffer_printf(&names, " %s", name);
    }
    int status = RP_OK;
    if (count == 0) {
        status = rp_error_set(err, RP_STATUS_UNSUPPORTED,
                              "this repository has neither safetensors nor GGUF files");
        rp_error_hint(err, "--include GLOB downloads other files");
    } else if (count > 1) {
        status = rp_error_set(err, RP_STATUS_INVALID, "%zu GGUF files:%.400s", count, names.data);
        rp_error_hint(err, "choose one with --include, for example --include '*Q4_K_M*'");
    } else {
        const char *part = strstr(one->name, "-00001-of-");
        size_t len = part ? (size_t)(part - one->name) + 1 : strlen(one->name) + 1;
        for (size_t i = 0; i < listing->count; i++)
            if (strncmp(listing->files[i].name, one->name, len) == 0)
                listing->files[i].wanted = true;
    }
    rp_buffer_deinit(&names);
    return status;
}

int rp_hub_files_choose(struct rp_hub_listing *listing, const char *include,
                        struct rp_hub_file **out_index, struct rp_error *err) {
    *out_index = NULL;
    if (*include)
        return mark_list(listing, include, err);
    for (size_t i = 0; i < RP_ARRAY_COUNT(small_files); i++)
        (void)mark(listing, small_files[i], FNM_PATHNAME);
    *out_index = rp_hub_listing_find(listing, INDEX);
    if (*out_index) {
        (*out_index)->wanted = true;
        return RP_OK;
    }
    if (mark(listing, "model.safetensors", 0) || mark(listing, "*.safetensors", FNM_PATHNAME))
        return RP_OK;
    return choose_gguf(listing, err);
}

int rp_hub_files_add_shards(struct rp_hub_listing *listing, const char *index, size_t len,
                            struct rp_error *err) {
    json_t *root = NULL;
    const char *key;
    json_t *value;
    int status = rp_json_text_load(index, len, INDEX, &root, err);
    if (status != RP_OK)
        return status;
    json_object_foreach(json_object_get(root, "weight_map"), key, value) {
        const char *name = json_string_value(value);
        struct rp_hub_file *file = name ? rp_hub_listing_find(listing, name) : NULL;
        if (file)
            file->wanted = true;
        else if (status == RP_OK)
            status = rp_error_set(err, RP_STATUS_FORMAT,
                                  INDEX ": %.80s is in %.80s, which the repository lacks", key,
                                  name ? name : "?");
    }
    if (status == RP_OK && json_object_size(json_object_get(root, "weight_map")) == 0)
        status = rp_error_set(err, RP_STATUS_FORMAT, INDEX ": weight_map is empty");
    json_decref(root);
    return status;
}
