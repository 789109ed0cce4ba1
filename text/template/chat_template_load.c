/* The templates of a model directory and the special tokens that they may write. */
#include "text/gguf.h"
#include "text/json_file.h"
#include "text/template/chat_template.h"
#include "text/template/template_internal.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A template directory has a few files; more are ignored. */
#define TEMPLATES_MAX 32

struct named_template {
    char *name;
    struct rp_chat_template *tmpl;
};

struct rp_chat_templates {
    struct rp_tmem mem;
    struct rp_value tokens; /* dict */
    struct named_template items[TEMPLATES_MAX];
    size_t count;
    char source[160];
};

struct load {
    struct rp_chat_templates *set;
    const char *dir;
    struct rp_error *err;
};

static int add_template(struct load *load, const char *name, const char *source, const char *text,
                        size_t len) {
    struct rp_chat_templates *set = load->set;
    if (set->count == TEMPLATES_MAX)
        return rp_error_set(load->err, RP_STATUS_RANGE, "%s: more than %d chat templates",
                            load->dir, TEMPLATES_MAX);
    struct named_template *item = &set->items[set->count];
    item->name = rp_strdup(name);
    if (!item->name)
        return rp_error_set(load->err, RP_STATUS_NO_MEMORY, "%s: out of memory", source);
    int status = rp_chat_template_compile(text, len, source, &item->tmpl, NULL, load->err);
    if (status != RP_OK) {
        rp_free(item->name);
        return status;
    }
    if (set->count++ == 0)
        snprintf(set->source, sizeof set->source, "%s", source);
    return RP_OK;
}

/* NOT_FOUND is not an error of the model. */
static int add_file(struct load *load, const char *dir, const char *file, const char *name) {
    int fd;
    uint64_t bytes;
    int status = rp_model_file_open(dir, file, &fd, &bytes, load->err);
    if (status != RP_OK)
        return status;
    if (bytes > RP_CHAT_TEMPLATE_BYTES_MAX) {
        close(fd);
        return rp_error_set(load->err, RP_STATUS_RANGE, "%s: longer than %zu bytes", file,
                            RP_CHAT_TEMPLATE_BYTES_MAX);
    }
    char *text = rp_alloc((size_t)bytes);
    if (!text)
        status = rp_error_set(load->err, RP_STATUS_NO_MEMORY, "%s: out of memory", file);
    else if (rp_model_file_read(fd, text, bytes, 0) != (int64_t)bytes)
        status = rp_error_set(load->err, RP_STATUS_IO, "%s: cannot be read", file);
    else
        status = add_template(load, name, file, text, (size_t)bytes);
    rp_free(text);
    close(fd);
    return status;
}

/* additional_chat_templates/NAME.jinja, in order of their names. */
static int add_directory(struct load *load) {
    char path[4096], file[300], names[TEMPLATES_MAX][256];
    size_t count = 0;
    snprintf(path, sizeof path, "%s/additional_chat_templates", load->dir);
    DIR *dir = opendir(path);
    if (!dir)
        return RP_OK;
    for (struct dirent *entry; (entry = readdir(dir)) && count < TEMPLATES_MAX;) {
        size_t len = strlen(entry->d_name);
        if (len > 6 && strcmp(entry->d_name + len - 6, ".jinja") == 0 && entry->d_name[0] != '.')
            snprintf(names[count++], sizeof names[0], "%.*s", (int)(len - 6), entry->d_name);
    }
    closedir(dir);
    for (size_t i = 1; i < count; i++) /* a handful */
        for (size_t k = i; k > 0 && strcmp(names[k - 1], names[k]) > 0; k--) {
            char swap[256];
            memcpy(swap, names[k], sizeof swap);
            memcpy(names[k], names[k - 1], sizeof swap);
            memcpy(names[k - 1], swap, sizeof swap);
        }
    int status = RP_OK;
    for (size_t i = 0; i < count && status == RP_OK; i++) {
        snprintf(file, sizeof file, "additional_chat_templates/%s.jinja", names[i]);
        status = add_file(load, load->dir, file, names[i]);
    }
    return status;
}

/* A string, or a list of {name, template}. */
static int add_json(struct load *load, const json_t *value, const char *file) {
    const json_t *item;
    size_t i;
    char source[300];
    if (json_is_string(value))
        return add_template(load, "default", file, json_string_value(value),
                            json_string_length(value));
    if (!json_is_array(value))
        return rp_error_set(load->err, RP_STATUS_FORMAT,
                            "%s: chat_template must be a string or a list", file);
    json_array_foreach(value, i, item) {
        const json_t *text = json_object_get(item, "template");
        const char *name = json_string_value(json_object_get(item, "name"));
        char shown[200];
        if (!name || !json_is_string(text))
            return rp_error_set(load->err, RP_STATUS_FORMAT,
                                "%s: chat_template[%zu] must have a name and a template", file, i);
        snprintf(source, sizeof source, "%s chat_template \"%s\"", file,
                 rp_text_for_message(shown, sizeof shown, name));
        int status =
            add_template(load, name, source, json_string_value(text), json_string_length(text));
        if (status != RP_OK)
            return status;
    }
    return RP_OK;
}

/* "<s>" or {"content": "<s>", ...}; NULL for null and other things. */
static const json_t *token_text(const json_t *value) {
    if (json_is_object(value))
        value = json_object_get(value, "content");
    return json_is_string(value) ? value : NULL;
}

static struct rp_value trusted(struct rp_tmem *mem, const json_t *text) {
    size_t len = json_string_length(text);
    char *copy = rp_tmem_alloc(mem, len + 1);
    if (!copy)
        return rp_value_none();
    memcpy(copy, json_string_value(text), len);
    return rp_value_str(copy, len, false);
}

/* Every *_token of the file that is not known yet, and the list of additional ones. */
static void take_tokens(struct rp_chat_templates *set, const json_t *root) {
    struct rp_tmem *mem = &set->mem;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)root, key, value) {
        size_t len = strlen(key), i;
        const json_t *text = token_text(value), *item;
        bool list = strcmp(key, "additional_special_tokens") == 0 && json_is_array(value);
        if (!list && (len < 6 || strcmp(key + len - 6, "_token") != 0 || !text))
            continue;
        if (rp_tdict_get_text(set->tokens.u.dict, key, len))
            continue;
        char *name = rp_arena_strndup(&mem->arena, key, len);
        struct rp_value token = list ? rp_tseq_make(mem, RP_VALUE_LIST, 0) : trusted(mem, text);
        if (!name || mem->failed) {
            mem->failed = true;
            return;
        }
        if (list)
            json_array_foreach(value, i, item) if (token_text(item))
                rp_tseq_add(mem, token.u.seq, trusted(mem, token_text(item)));
        rp_tdict_put(mem, set->tokens.u.dict, rp_value_str(name, len, false), token);
    }
}

/* Reads a JSON file that may be absent: tokens out of it, and its template when there is none
 * yet. */
static int take_json_file(struct load *load, const char *file, bool tokens) {
    json_t *root = NULL;
    int status = rp_json_file_load(load->dir, file, &root, load->err);
    if (status == RP_STATUS_NOT_FOUND)
        return RP_OK;
    if (status != RP_OK)
        return status;
    if (tokens)
        take_tokens(load->set, root);
    const json_t *value = json_object_get(root, "chat_template");
    if (load->set->count == 0 && value && !json_is_null(value))
        status = add_json(load, value, file);
    json_decref(root);
    return status;
}

static int add_override(struct load *load, const char *override) {
    if (strstr(override, "{{") || strstr(override, "{%"))
        return add_template(load, "default", "--chat-template", override, strlen(override));
    bool absolute = override[0] == '/';
    int status = add_file(load, absolute ? "/" : ".", override + absolute, "default");
    if (status == RP_STATUS_NOT_FOUND)
        rp_error_hint(load->err, "--chat-template takes a file, or text that holds {{ or {%%");
    return status;
}

/* The token that a key of the metadata names by its id. */
static int take_gguf_token(struct load *load, const struct rp_gguf *gguf,
                           const struct rp_gguf_text *tokens, uint32_t count, const char *key,
                           const char *name) {
    struct rp_tmem *mem = &load->set->mem;
    uint32_t id = UINT32_MAX;
    int status = rp_gguf_u32(gguf, key, &id, load->err);
    if (status != RP_OK || id >= count)
        return status; /* the tokenizer refuses ids that no token has */
    char *copy = rp_arena_strndup(&mem->arena, tokens[id].text, tokens[id].len);
    if (copy)
        rp_tdict_put(mem, load->set->tokens.u.dict, rp_value_str(name, strlen(name), false),
                     rp_value_str(copy, tokens[id].len, false));
    else
        mem->failed = true;
    return RP_OK;
}

/* tokenizer.chat_template and tokenizer.chat_template.NAME. */
static int take_gguf_templates(struct load *load, const struct rp_gguf *gguf) {
    static const char prefix[] = "tokenizer.chat_template";
    int status = RP_OK;
    for (uint32_t i = 0; i < gguf->key_count && status == RP_OK; i++) {
        const char *name = gguf->keys[i].name, *rest = name + sizeof prefix - 1;
        struct rp_gguf_text text = {NULL, 0};
        if (strncmp(name, prefix, sizeof prefix - 1) != 0 || (*rest && *rest != '.'))
            continue;
        status = rp_gguf_string(gguf, name, &text, load->err);
        if (status == RP_OK && text.len > RP_CHAT_TEMPLATE_BYTES_MAX)
            status = rp_gguf_refuse(gguf, RP_STATUS_RANGE, prefix, "is too long", load->err);
        if (status == RP_OK)
            status =
                add_template(load, *rest ? rest + 1 : "default", gguf->name, text.text, text.len);
    }
    return status;
}

static int fill_gguf(struct load *load, const char *override) {
    static const char *const tokens_of[][2] = {
        {"tokenizer.ggml.bos_token_id", "bos_token"},
        {"tokenizer.ggml.eos_token_id", "eos_token"},
        {"tokenizer.ggml.unknown_token_id", "unk_token"},
        {"tokenizer.ggml.padding_token_id", "pad_token"},
    };
    struct rp_gguf gguf;
    struct rp_gguf_text *tokens = NULL;
    uint32_t count = 0;
    int status = rp_gguf_open(&gguf, load->dir, load->err);
    if (status != RP_OK)
        return status;
    status = rp_gguf_strings(&gguf, "tokenizer.ggml.tokens", &tokens, &count, load->err);
    for (size_t i = 0; i < RP_ARRAY_COUNT(tokens_of) && status == RP_OK; i++)
        status = take_gguf_token(load, &gguf, tokens, count, tokens_of[i][0], tokens_of[i][1]);
    if (status == RP_OK)
        status = override ? add_override(load, override) : take_gguf_templates(load, &gguf);
    rp_free(tokens);
    rp_gguf_close(&gguf);
    return status;
}

static int fill_directory(struct load *load, const char *override) {
    int status = RP_OK;
    if (override) {
        status = add_override(load, override);
    } else {
        status = add_file(load, load->dir, "chat_template.jinja", "default");
        if (status == RP_STATUS_NOT_FOUND)
            status = RP_OK;
        if (status == RP_OK)
            status = add_directory(load);
    }
    if (status == RP_OK)
        status = take_json_file(load, "chat_template.json", false);
    if (status == RP_OK)
        status = take_json_file(load, "tokenizer_config.json", true);
    if (status == RP_OK)
        status = take_json_file(load, "special_tokens_map.json", true);
    return status;
}

static int fill(struct load *load, const char *override) {
    bool is_gguf = rp_gguf_is_path(load->dir);
    int status = is_gguf ? fill_gguf(load, override) : fill_directory(load, override);
    if (status == RP_OK && load->set->mem.failed)
        status = rp_error_set(load->err, RP_STATUS_NO_MEMORY, "%s: out of memory", load->dir);
    if (status == RP_OK && load->set->count == 0) {
        status = rp_error_set(load->err, RP_STATUS_NOT_FOUND, "%s: no chat template: %s", load->dir,
                              is_gguf ? "no key tokenizer.chat_template"
                                      : "neither chat_template.jinja nor chat_template in "
                                        "tokenizer_config.json");
        rp_error_hint(load->err, "name one with --chat-template FILE, or use /v1/completions");
    }
    return status;
}

int rp_chat_templates_open(const char *model_dir, const char *override,
                           struct rp_chat_templates **out, struct rp_error *err) {
    struct rp_error own = {.status = RP_OK};
    struct rp_chat_templates *set = rp_calloc(1, sizeof *set);
    struct load load = {set, model_dir, err ? err : &own};
    *out = NULL;
    if (!set)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", model_dir);
    set->mem.arena.limit_bytes = (size_t)64 << 20;
    set->tokens = rp_tdict_make(&set->mem, RP_VALUE_DICT);
    int status = set->mem.failed
                     ? rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", model_dir)
                     : fill(&load, override);
    if (status != RP_OK)
        rp_chat_templates_close(set);
    else
        *out = set;
    return status;
}

void rp_chat_templates_close(struct rp_chat_templates *set) {
    if (!set)
        return;
    for (size_t i = 0; i < set->count; i++) {
        rp_free(set->items[i].name);
        rp_chat_template_destroy(set->items[i].tmpl);
    }
    rp_arena_deinit(&set->mem.arena);
    rp_free(set);
}

const struct rp_chat_template *rp_chat_templates_find(const struct rp_chat_templates *set,
                                                      const char *name) {
    for (size_t i = 0; i < set->count; i++)
        if (strcmp(set->items[i].name, name) == 0)
            return set->items[i].tmpl;
    return NULL;
}

const struct rp_chat_template *rp_chat_templates_pick(const struct rp_chat_templates *set,
                                                      bool have_tools) {
    const struct rp_chat_template *tmpl = NULL;
    if (have_tools)
        tmpl = rp_chat_templates_find(set, "tool_use");
    if (!tmpl)
        tmpl = rp_chat_templates_find(set, "default");
    return tmpl ? tmpl : set->items[0].tmpl;
}

const char *rp_chat_templates_source(const struct rp_chat_templates *set) { return set->source; }

bool rp_chat_templates_content_parts(const struct rp_chat_templates *set) {
    for (size_t i = 0; i < set->count; i++)
        if (set->items[i].tmpl->content_parts)
            return true;
    return false;
}

const struct rp_value *rp_chat_templates_token(const struct rp_chat_templates *set,
                                               struct rp_value name) {
    return rp_tdict_get(set->tokens.u.dict, name);
}
