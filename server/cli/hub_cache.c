#include "server/cli/hub_cache.h"

#include "base/base.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define COMMIT_DIGITS     40
#define COMMIT_PREFIX_MIN 7

/* What the hub allows in the two parts of a name. */
static bool is_name_part(const char *text, size_t len) {
    if (len == 0 || text[0] == '.' || text[0] == '-')
        return false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') &&
            c != '-' && c != '_' && c != '.')
            return false;
    }
    return true;
}

bool rp_hub_path_ok(const char *path) {
    size_t len = strlen(path), begin = 0;
    if (len == 0 || len > 512)
        return false;
    for (size_t i = 0; i <= len; i++) {
        unsigned char c = (unsigned char)path[i];
        if (c != 0 && (c < 0x20 || c == 0x7F || c == '\\'))
            return false;
        if (c != '/' && c != 0)
            continue;
        size_t part = i - begin;
        if (part == 0 || (part == 1 && path[begin] == '.') ||
            (part == 2 && path[begin] == '.' && path[begin + 1] == '.'))
            return false;
        begin = i + 1;
    }
    return true;
}

bool rp_hub_is_hash(const char *text, size_t digits) {
    return strspn(text, "0123456789abcdef") == digits && text[digits] == '\0';
}

bool rp_hub_name_parse(const char *text, struct rp_hub_name *out) {
    const char *slash = strchr(text, '/'), *at = strchr(text, '@');
    size_t len = at ? (size_t)(at - text) : strlen(text);
    const char *revision = at ? at + 1 : "main";
    if (!slash || (at && at < slash) || len >= sizeof out->id ||
        strlen(revision) >= sizeof out->revision || !rp_hub_path_ok(revision) ||
        !is_name_part(text, (size_t)(slash - text)) ||
        !is_name_part(slash + 1, len - (size_t)(slash + 1 - text)))
        return false;
    snprintf(out->id, sizeof out->id, "%.*s", (int)len, text);
    snprintf(out->revision, sizeof out->revision, "%s", revision);
    return true;
}

/* The value of a variable that is set and not empty, or NULL. */
static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

bool rp_hub_cache_dir(char *out, size_t size) {
    const char *dir;
    if ((dir = variable("HF_HUB_CACHE")) || (dir = variable("HUGGINGFACE_HUB_CACHE")))
        snprintf(out, size, "%s", dir);
    else if ((dir = variable("HF_HOME")))
        snprintf(out, size, "%s/hub", dir);
    else if ((dir = variable("XDG_CACHE_HOME")))
        snprintf(out, size, "%s/huggingface/hub", dir);
    else if ((dir = variable("HOME")))
        snprintf(out, size, "%s/.cache/huggingface/hub", dir);
    return dir != NULL;
}

void rp_hub_model_dir(const char *cache, const char *id, char *out, size_t size) {
    const char *slash = strchr(id, '/');
    snprintf(out, size, "%s/models--%.*s--%s", cache, (int)(slash - id), id, slash + 1);
}

static bool is_dir(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* refs/REVISION holds a commit. */
static bool read_ref(const char *model_dir, const char *revision, char out[41]) {
    char path[RP_HUB_PATH_MAX], text[64] = "";
    snprintf(path, sizeof path, "%s/refs/%s", model_dir, revision);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    size_t len = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    while (len && (text[len - 1] == '\n' || text[len - 1] == ' '))
        text[--len] = '\0';
    if (!rp_hub_is_hash(text, COMMIT_DIGITS))
        return false;
    memcpy(out, text, COMMIT_DIGITS + 1);
    return true;
}

bool rp_hub_find_commit(const char *model_dir, const char *revision, char out[41]) {
    char path[RP_HUB_PATH_MAX];
    size_t len = strlen(revision), found = 0;
    if (read_ref(model_dir, revision, out)) {
        snprintf(path, sizeof path, "%s/snapshots/%s", model_dir, out);
        return is_dir(path);
    }
    if (len < COMMIT_PREFIX_MIN || strspn(revision, "0123456789abcdef") != len)
        return false;
    snprintf(path, sizeof path, "%s/snapshots", model_dir);
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (!rp_hub_is_hash(entry->d_name, COMMIT_DIGITS) ||
            strncmp(entry->d_name, revision, len) != 0)
            continue;
        memcpy(out, entry->d_name, COMMIT_DIGITS + 1);
        found++;
    }
    if (dir)
        closedir(dir);
    return found == 1;
}

void rp_hub_snapshot_model(char *path, size_t size) {
    char config[RP_HUB_PATH_MAX], name[256] = "";
    struct stat info;
    if ((size_t)snprintf(config, sizeof config, "%s/config.json", path) >= sizeof config ||
        stat(config, &info) == 0)
        return;
    DIR *dir = opendir(path);
    size_t count = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        size_t len = strlen(entry->d_name);
        const char *part = strstr(entry->d_name, "-of-");
        if (len < 6 || strcmp(entry->d_name + len - 5, ".gguf") != 0)
            continue;
        if (part && part - entry->d_name >= 6 && strncmp(part - 6, "-00001", 6) != 0)
            continue;
        snprintf(name, sizeof name, "%s", entry->d_name);
        count++;
    }
    if (dir)
        closedir(dir);
    size_t used = strlen(path);
    if (count == 1 && used + strlen(name) + 2 <= size)
        snprintf(path + used, size - used, "/%s", name);
}

int rp_model_locate(const char **path, struct rp_error *err) {
    static char found[4][RP_HUB_PATH_MAX];
    static unsigned turn;
    struct rp_hub_name name;
    struct stat info;
    char cache[RP_HUB_PATH_MAX / 2], model[RP_HUB_PATH_MAX - 128], commit[41];
    if (stat(*path, &info) == 0 || !rp_hub_name_parse(*path, &name) ||
        !rp_hub_cache_dir(cache, sizeof cache))
        return RP_OK;
    rp_hub_model_dir(cache, name.id, model, sizeof model);
    if (!rp_hub_find_commit(model, name.revision, commit)) {
        int status = rp_error_set(err, RP_STATUS_NOT_FOUND,
                                  "%.200s: no such model directory, and not in the cache %.200s",
                                  *path, cache);
        rp_error_hint(err, "`reprise pull %.200s` downloads it", *path);
        return status;
    }
    char *out = found[turn++ % RP_ARRAY_COUNT(found)];
    snprintf(out, RP_HUB_PATH_MAX, "%s/snapshots/%s", model, commit);
    rp_hub_snapshot_model(out, RP_HUB_PATH_MAX);
    *path = out;
    return RP_OK;
}
