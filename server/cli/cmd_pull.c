/* reprise pull org/name[@revision]: downloads a model into the Hugging Face cache. */
#include "base/base.h"
#include "base/buffer.h"
#include "server/cli/commands.h"
#include "server/cli/flags.h"
#include "server/cli/hub_http.h"
#include "server/cli/hub_pull.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INDEX_BYTES_MAX ((size_t)16 << 20)

struct pull_options {
    const char *include;
    uint32_t jobs;
    bool quiet;
};

static const struct rp_flag pull_flags[] = {
    {"include", RP_FLAG_TEXT, offsetof(struct pull_options, include), "GLOBS", 0, 0, "",
     "only files that match one of these patterns (commas between them), for example "
     "'*Q4_K_M.gguf'"},
    {"jobs", RP_FLAG_UINT, offsetof(struct pull_options, jobs), "N", 1, 16, "4",
     "downloads at a time"},
    {"quiet", RP_FLAG_SWITCH, offsetof(struct pull_options, quiet), NULL, 0, 0, NULL,
     "no progress on standard error"},
};

static const struct rp_command_spec pull_spec = {
    .name = "pull",
    .positionals = "ORG/NAME[@REVISION]",
    .positional_min = 1,
    .positional_max = 1,
    .summary =
        "Downloads a model from the Hugging Face hub into its cache, where\n"
        "`reprise serve ORG/NAME` finds it, and prints the folder. Fetches configuration,\n"
        "tokenizer and weights (safetensors, else the only GGUF file), and continues what an\n"
        "earlier call began. Environment: HF_TOKEN, HF_ENDPOINT, HF_HUB_CACHE, HF_HOME.",
    .flags = pull_flags,
    .flag_count = RP_ARRAY_COUNT(pull_flags),
};

/* HF_TOKEN, or the file that `hf auth login` writes. */
static void find_token(char *out, size_t size) {
    char path[RP_HUB_PATH_MAX] = "";
    const char *value = getenv("HF_TOKEN"), *home = getenv("HF_HOME");
    *out = '\0';
    if (!value || !*value)
        value = getenv("HUGGING_FACE_HUB_TOKEN");
    if (value && *value) {
        snprintf(out, size, "%s", value);
    } else {
        if ((value = getenv("HF_TOKEN_PATH")) && *value)
            snprintf(path, sizeof path, "%s", value);
        else if (home && *home)
            snprintf(path, sizeof path, "%s/token", home);
        else if ((home = getenv("XDG_CACHE_HOME")) && *home)
            snprintf(path, sizeof path, "%s/huggingface/token", home);
        else if ((home = getenv("HOME")) && *home)
            snprintf(path, sizeof path, "%s/.cache/huggingface/token", home);
        FILE *file = *path ? fopen(path, "r") : NULL;
        if (file) {
            out[fread(out, 1, size - 1, file)] = '\0';
            fclose(file);
        }
    }
    /* A header must not end early, or hold a second one. */
    out[strcspn(out, " \t\r\n")] = '\0';
}

static int read_whole(const char *path, struct rp_buffer *out, struct rp_error *err) {
    char piece[4096];
    FILE *file = fopen(path, "rb");
    for (size_t n; file && (n = fread(piece, 1, sizeof piece, file)) > 0;)
        rp_buffer_append(out, piece, n);
    bool ok = file && !ferror(file) && !out->failed;
    if (file)
        fclose(file);
    return ok ? RP_OK : rp_error_set(err, RP_STATUS_IO, "cannot read %.300s", path);
}

/* The index decides which shards are wanted, so it comes first. */
static int pull_index(const struct rp_hub_pull *pull, struct rp_hub_listing *listing,
                      struct rp_hub_file *index, struct rp_error *err) {
    struct rp_buffer text;
    char path[RP_HUB_PATH_MAX];
    struct rp_hub_pull silent = *pull;
    silent.quiet = true;
    silent.on_terminal = false;
    int status = rp_hub_pull_files(&silent, listing, err);
    if (status != RP_OK)
        return status;
    rp_hub_pull_path(pull, listing, index, path, sizeof path);
    rp_buffer_init(&text, INDEX_BYTES_MAX);
    status = read_whole(path, &text, err);
    if (status == RP_OK)
        status = rp_hub_files_add_shards(listing, text.data, text.len, err);
    rp_buffer_deinit(&text);
    return status;
}

static int pull_model(const struct rp_hub_pull *pull, const char *include, struct rp_error *err) {
    struct rp_hub_listing listing;
    struct rp_hub_file *index = NULL;
    int status = rp_hub_pull_list(pull, &listing, err);
    if (status != RP_OK)
        return status;
    status = rp_hub_files_choose(&listing, include, &index, err);
    if (status == RP_OK && index)
        status = pull_index(pull, &listing, index, err);
    if (status == RP_OK)
        status = rp_hub_pull_files(pull, &listing, err);
    if (status == RP_OK)
        status = rp_hub_pull_set_ref(pull, &listing, err);
    if (status == RP_OK)
        printf("%s/snapshots/%s\n", pull->dir, listing.commit);
    rp_hub_listing_deinit(&listing);
    return status;
}

int rp_cmd_pull(int argc, char **argv) {
    struct pull_options options = {.include = ""};
    const char *positionals[RP_POSITIONALS_MAX], *endpoint = getenv("HF_ENDPOINT");
    struct rp_error err = {0};
    static char url[512], token[1024];
    int status = rp_flags_parse(&pull_spec, argc, argv, &options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    struct rp_hub_pull pull = {.token = token,
                               .endpoint = url,
                               .jobs = options.jobs,
                               .quiet = options.quiet,
                               .on_terminal = isatty(STDERR_FILENO) == 1 && !options.quiet};
    snprintf(url, sizeof url, "%s", endpoint && *endpoint ? endpoint : "https://huggingface.co");
    for (size_t len = strlen(url); len && url[len - 1] == '/';)
        url[--len] = '\0';
    if (!rp_hub_name_parse(positionals[0], &pull.name)) {
        status = rp_error_set(&err, RP_STATUS_INVALID,
                              "%.200s is not ORG/NAME or ORG/NAME@REVISION", positionals[0]);
        return rp_fail(RP_EXIT_USAGE, &err);
    }
    if (!rp_hub_cache_dir(pull.cache, sizeof pull.cache)) {
        status = rp_error_set(&err, RP_STATUS_INVALID, "no place for the cache: set HF_HUB_CACHE");
        return rp_fail(RP_EXIT_USAGE, &err);
    }
    rp_hub_model_dir(pull.cache, pull.name.id, pull.dir, sizeof pull.dir);
    find_token(token, sizeof token);
    status = rp_hub_http_open(&err);
    if (status == RP_OK)
        status = pull_model(&pull, options.include, &err);
    return status == RP_OK ? RP_EXIT_OK : rp_fail(RP_EXIT_FAILURE, &err);
}
