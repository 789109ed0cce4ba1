/* reprise list: the models in the Hugging Face cache, and which of them can be served. */
#include "base/base.h"
#include "base/buffer.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "model/model.h"
#include "server/cli/commands.h"
#include "server/cli/flags.h"
#include "server/cli/hub_cache.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Folders inside a snapshot are read so deep. */
#define DEPTH_MAX 8

struct list_options {
    bool json;
};

static const struct rp_flag list_flags[] = {
    {"json", RP_FLAG_SWITCH, offsetof(struct list_options, json), NULL, 0, 0, NULL, "as JSON"},
};

static const struct rp_command_spec list_spec = {
    .name = "list",
    .positionals = "",
    .positional_min = 0,
    .positional_max = 0,
    .summary =
        "Lists the models in the Hugging Face cache (HF_HUB_CACHE, HF_HOME): name, revision,\n"
        "size, format, and whether they can be served. Reads no weights.",
    .flags = list_flags,
    .flag_count = RP_ARRAY_COUNT(list_flags),
};

struct snapshot {
    char id[RP_HUB_NAME_MAX], revision[RP_HUB_NAME_MAX], path[RP_HUB_PATH_MAX];
    uint64_t bytes;
    bool has_safetensors, has_gguf, is_broken; /* broken: a link leads nowhere */
    struct rp_error err;
};

struct listing {
    bool json;
    size_t count;
    struct rp_buffer out;
    struct rp_json writer;
};

struct names {
    char **all;
    size_t count, capacity;
};

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* What is in a folder, in order; without what memory is too short for. */
static void read_names(const char *path, struct names *out) {
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.')
            continue;
        if (out->count == out->capacity) {
            size_t capacity = RP_MAX(2 * out->capacity, (size_t)64);
            char **grown = rp_realloc(out->all, capacity * sizeof *grown);
            if (!grown)
                break;
            out->all = grown;
            out->capacity = capacity;
        }
        out->all[out->count] = rp_strdup(entry->d_name);
        out->count += out->all[out->count] != NULL;
    }
    if (dir)
        closedir(dir);
    if (out->count)
        qsort(out->all, out->count, sizeof *out->all, by_name);
}

static void free_names(struct names *names) {
    for (size_t i = 0; i < names->count; i++)
        rp_free(names->all[i]);
    rp_free(names->all);
}

static bool ends_with(const char *text, const char *end) {
    size_t len = strlen(text), n = strlen(end);
    return len > n && strcmp(text + len - n, end) == 0;
}

static void measure(struct snapshot *s, const char *dir_path, int depth) {
    DIR *dir = opendir(dir_path);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char path[RP_HUB_PATH_MAX];
        struct stat info;
        if (entry->d_name[0] == '.' ||
            (size_t)snprintf(path, sizeof path, "%s/%s", dir_path, entry->d_name) >= sizeof path)
            continue;
        if (stat(path, &info) != 0) {
            s->is_broken = true;
        } else if (S_ISDIR(info.st_mode)) {
            if (depth < DEPTH_MAX)
                measure(s, path, depth + 1);
        } else {
            s->bytes += (uint64_t)info.st_size;
            s->has_safetensors = s->has_safetensors || ends_with(path, ".safetensors");
            s->has_gguf = s->has_gguf || ends_with(path, ".gguf");
        }
    }
    if (dir)
        closedir(dir);
}

/* The branch or tag that has the commit, or its first digits. */
static void name_revision(const char *model_dir, const char *commit, struct snapshot *s) {
    char refs[RP_HUB_PATH_MAX];
    snprintf(s->revision, sizeof s->revision, "%.12s", commit);
    snprintf(refs, sizeof refs, "%s/refs", model_dir);
    DIR *dir = opendir(refs);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char found[41];
        if (entry->d_name[0] != '.' && rp_hub_find_commit(model_dir, entry->d_name, found) &&
            strcmp(found, commit) == 0 &&
            (!strcmp(entry->d_name, "main") || rp_hub_is_hash(s->revision, 12)))
            snprintf(s->revision, sizeof s->revision, "%.100s", entry->d_name);
    }
    if (dir)
        closedir(dir);
}

/* RP_OK: the configuration is of a supported family and the weights are there. */
static int can_serve(struct snapshot *s) {
    struct rp_model_config config;
    char path[RP_HUB_PATH_MAX];
    snprintf(path, sizeof path, "%s", s->path);
    rp_hub_snapshot_model(path, sizeof path);
    if (s->is_broken || !(s->has_safetensors || s->has_gguf))
        return rp_error_set(&s->err, RP_STATUS_NOT_FOUND, "%s",
                            s->is_broken ? "incomplete: `reprise pull` continues it"
                                         : "no weights");
    int status = rp_model_dir_check(path, &s->err);
    if (status == RP_OK)
        status = rp_model_config_load(path, &config, &s->err);
    return status;
}

static void print(struct listing *l, struct snapshot *s) {
    bool served = can_serve(s) == RP_OK;
    const char *format = s->has_safetensors ? "safetensors" : s->has_gguf ? "gguf" : "-";
    if (l->json) {
        rp_json_object_begin(&l->writer, NULL);
        rp_json_string(&l->writer, "name", s->id);
        rp_json_string(&l->writer, "revision", s->revision);
        rp_json_string(&l->writer, "path", s->path);
        rp_json_uint(&l->writer, "bytes", s->bytes);
        rp_json_string(&l->writer, "format", format);
        rp_json_bool(&l->writer, "served", served);
        if (!served)
            rp_json_string(&l->writer, "reason", s->err.text);
        rp_json_object_end(&l->writer);
    } else {
        const char *reason = s->err.text; /* without the path, which begins the message */
        size_t len = strlen(s->path);
        if (strncmp(reason, s->path, len) == 0)
            reason += len + strspn(reason + len, "/: ");
        rp_buffer_printf(&l->out, "%-44s %-14s %8.2f GB  %-11s  %s%.120s\n", s->id, s->revision,
                         (double)s->bytes * 1e-9, format,
                         served ? "yes" : "no: ", served ? "" : reason);
    }
    l->count++;
}

static void list_model(struct listing *l, const char *cache, const char *folder) {
    char model_dir[RP_HUB_PATH_MAX / 2], path[RP_HUB_PATH_MAX];
    const char *org = folder + strlen("models--"), *split = strstr(org, "--");
    snprintf(model_dir, sizeof model_dir, "%s/%s", cache, folder);
    snprintf(path, sizeof path, "%s/snapshots", model_dir);
    struct names commits = {0};
    read_names(path, &commits);
    for (size_t i = 0; i < commits.count; i++) {
        static struct snapshot s;
        const char *commit = commits.all[i];
        memset(&s, 0, sizeof s);
        if (rp_hub_is_hash(commit, 40)) {
            snprintf(s.id, sizeof s.id, "%.*s%s%s", (int)(split ? split - org : 150), org,
                     split ? "/" : "", split ? split + 2 : "");
            snprintf(s.path, sizeof s.path, "%.3900s/%s", path, commit);
            measure(&s, s.path, 0);
            name_revision(model_dir, commit, &s);
            print(l, &s);
        }
    }
    free_names(&commits);
}

int rp_cmd_list(int argc, char **argv) {
    struct list_options options = {.json = false};
    struct listing l = {.count = 0};
    const char *positionals[RP_POSITIONALS_MAX];
    char cache[RP_HUB_PATH_MAX / 4];
    struct rp_error err = {0};
    int status = rp_flags_parse(&list_spec, argc, argv, &options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    if (!rp_hub_cache_dir(cache, sizeof cache)) {
        status = rp_error_set(&err, RP_STATUS_INVALID, "no place of the cache: set HF_HUB_CACHE");
        return rp_fail(RP_EXIT_USAGE, &err);
    }
    l.json = options.json;
    rp_buffer_init(&l.out, 0);
    rp_json_init(&l.writer, &l.out);
    if (l.json)
        rp_json_array_begin(&l.writer, NULL);
    struct names models = {0};
    read_names(cache, &models);
    for (size_t i = 0; i < models.count; i++)
        if (strncmp(models.all[i], "models--", 8) == 0)
            list_model(&l, cache, models.all[i]);
    free_names(&models);
    if (l.json)
        rp_json_array_end(&l.writer);
    printf("%.*s%s", (int)l.out.len, l.out.len ? l.out.data : "", l.json ? "\n" : "");
    if (!l.count && !l.json)
        printf("no models in %s; `reprise pull ORG/NAME` downloads one\n", cache);
    rp_buffer_deinit(&l.out);
    return fflush(stdout) == 0 ? RP_EXIT_OK : RP_EXIT_FAILURE;
}
