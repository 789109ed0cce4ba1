/* Rejects common mistakes in place of a Hugging Face model directory, with the reason. */
#include "model/model.h"
#include "text/gguf.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static bool has_file(const char *dir, const char *name) {
    char path[PATH_MAX];
    struct stat info;
    int len = snprintf(path, sizeof path, "%s/%s", dir, name);
    return len > 0 && (size_t)len < sizeof path && stat(path, &info) == 0;
}

static bool has_gguf(const char *dir) {
    DIR *list = opendir(dir);
    const struct dirent *entry;
    bool found = false;
    while (list && !found && (entry = readdir(list)))
        found = rp_gguf_is_path(entry->d_name);
    if (list)
        closedir(list);
    return found;
}

static int refuse_folder(const char *path, struct rp_error *err) {
    int status = rp_error_set(err, RP_STATUS_INVALID, "%.200s: a directory with GGUF files", path);
    rp_error_hint(err, "give the path of one of them; of a split model, the first");
    return status;
}

/* "organization/name", as models are called on a hub. */
static bool is_hub_name(const char *path) {
    const char *slash = strchr(path, '/');
    return slash && slash != path && slash[1] && !strchr(slash + 1, '/') && path[0] != '.' &&
           path[0] != '~';
}

static int refuse_path(const char *path, struct rp_error *err) {
    int status = rp_error_set(err, RP_STATUS_NOT_FOUND, "%.200s: no such model directory", path);
    rp_error_hint(err, is_hub_name(path)
                           ? "`reprise pull ORG/NAME` downloads a model"
                           : "give the directory of a Hugging Face model: config.json, "
                             "model.safetensors, tokenizer.json");
    return status;
}

int rp_model_dir_check(const char *path, struct rp_error *err) {
    struct stat info;
    if (stat(path, &info) != 0)
        return refuse_path(path, err);
    if (!S_ISDIR(info.st_mode)) {
        if (rp_gguf_is_path(path))
            return RP_OK;
        return rp_error_set(err, RP_STATUS_INVALID, "%.200s: a file, not a model directory", path);
    }
    if (!has_file(path, "config.json")) {
        if (has_file(path, "adapter_config.json")) {
            int status = rp_error_set(err, RP_STATUS_UNSUPPORTED,
                                      "%.200s: a LoRA adapter, not a whole model", path);
            rp_error_hint(err, "merge it into its base model (merge_and_unload in peft) and give "
                               "the directory of the result");
            return status;
        }
        return has_gguf(path) ? refuse_folder(path, err) : RP_OK;
    }
    return RP_OK;
}
