/* tokenizer.json to tables. The file is not trusted: every id, count and reference in it is
 * checked, and what is wrong is refused with one line that names the file and the entry. */
#include "base/utf8.h"
#include "text/gguf.h"
#include "text/json_file.h"
#include "text/tokenizer/tokenizer_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The largest published tokenizer.json has 33 MB. */
#define FILE_BYTES_MAX ((size_t)256 << 20)
/* Ids may have gaps, but a small file must not request a large table. */
#define GAPS_FREE ((uint32_t)1 << 16)

struct rp_tok_quote rp_tok_quote(const char *text, size_t len) {
    struct rp_tok_quote quote;
    size_t used = 0;
    for (size_t i = 0; i < len && used < 60;) {
        int n = rp_utf8_decode(text + i, len - i, NULL);
        size_t step = n > 0 ? (size_t)n : 1;
        if (n <= 0 || (unsigned char)text[i] < 0x20)
            quote.text[used++] = '?';
        else
            for (size_t j = 0; j < step; j++)
                quote.text[used++] = text[i + j];
        i += step;
    }
    memcpy(quote.text + used, used >= 60 ? "..." : "", used >= 60 ? 4 : 1);
    return quote;
}

int rp_tok_no_memory(struct rp_tok_load *load) {
    return rp_error_set(load->err, RP_STATUS_NO_MEMORY, "%s: out of memory", load->file);
}

int rp_tok_blob_add(struct rp_tok_load *load, const char *text, size_t len,
                    struct rp_tok_slice *out) {
    struct rp_buffer *blob = &load->tok->blob;
    out->off = (uint32_t)blob->len;
    out->len = (uint32_t)len;
    rp_buffer_append(blob, text, len);
    return blob->failed ? rp_tok_no_memory(load) : RP_OK;
}

int rp_tok_json_bool(struct rp_tok_load *load, const char *where, const json_t *obj,
                     const char *key, bool fallback, bool *out) {
    const json_t *value = json_object_get(obj, key);
    *out = json_is_true(value) || (fallback && (!value || json_is_null(value)));
    if (!value || json_is_null(value) || json_is_boolean(value))
        return RP_OK;
    return rp_error_set(load->err, RP_STATUS_FORMAT, "%s: %s.%s must be true or false", load->file,
                        where, key);
}

int rp_tok_json_string(struct rp_tok_load *load, const char *where, const json_t *obj,
                       const char *key, const char **out, size_t *out_len) {
    const json_t *value = json_object_get(obj, key);
    *out = json_string_value(value);
    *out_len = json_string_length(value);
    if (*out)
        return RP_OK;
    return rp_error_set(load->err, RP_STATUS_FORMAT, "%s: %s.%s must be a string", load->file,
                        where, key);
}

int rp_tok_read_file(const char *path, char **out, size_t *out_len, struct rp_error *err) {
    struct stat info;
    char *data = NULL;
    size_t len = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return rp_error_set(err, errno == ENOENT ? RP_STATUS_NOT_FOUND : RP_STATUS_IO,
                            "cannot open %s: %s", path, strerror(errno));
    int status = RP_OK;
    if (fstat(fd, &info) < 0 || !S_ISREG(info.st_mode))
        status = rp_error_set(err, RP_STATUS_IO, "%s is not a file", path);
    else if ((uintmax_t)info.st_size > FILE_BYTES_MAX)
        status = rp_error_set(err, RP_STATUS_RANGE, "%s: larger than %zu MiB", path,
                              FILE_BYTES_MAX >> 20);
    else if (!(data = rp_alloc((size_t)info.st_size)))
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", path);
    while (status == RP_OK && len < (size_t)info.st_size) {
        ssize_t n = read(fd, data + len, (size_t)info.st_size - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            status = rp_error_set(err, RP_STATUS_IO, "cannot read %s: %s", path,
                                  n < 0 ? strerror(errno) : "it became shorter");
        else
            len += (size_t)n;
    }
    close(fd);
    if (status != RP_OK) {
        rp_free(data);
        return status;
    }
    *out = data;
    *out_len = len;
    return RP_OK;
}

/* `flags`: of jansson, beside the ones that are always meant. */
int rp_tok_read_json(const char *path, size_t flags, json_t **out, struct rp_error *err) {
    char *data = NULL;
    size_t len = 0;
    json_error_t error;
    bool no_memory;
    int status = rp_tok_read_file(path, &data, &len, err);
    if (status != RP_OK)
        return status;
    *out = rp_json_parse(data, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | flags, &error,
                         &no_memory);
    rp_free(data);
    if (no_memory)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", path);
    if (!*out)
        return rp_error_set(err, RP_STATUS_FORMAT, "%s: line %d: %s", path, error.line, error.text);
    if (json_is_object(*out))
        return RP_OK;
    json_decref(*out);
    *out = NULL;
    return rp_error_set(err, RP_STATUS_FORMAT, "%s: not a JSON object", path);
}

/* Checks an id and raises *limit above it. */
static int check_id(struct rp_tok_load *load, const char *where, const char *content,
                    const json_t *json, uint32_t *limit) {
    json_int_t id = json_integer_value(json);
    if (!json_is_integer(json) || id < 0 || id >= RP_TOKEN_ID_LIMIT)
        return rp_error_set(
            load->err, RP_STATUS_RANGE, "%s: %s: the id of \"%s\" must be an integer from 0 to %d",
            load->file, where, rp_tok_quote(content, strlen(content)).text, RP_TOKEN_ID_LIMIT - 1);
    *limit = RP_MAX(*limit, (uint32_t)id + 1);
    return RP_OK;
}

int rp_tok_tables_init(struct rp_tok_load *load, uint32_t limit, size_t count) {
    struct rp_tokenizer *tok = load->tok;
    tok->id_limit = limit;
    tok->entries = rp_arena_calloc(&tok->arena, limit, sizeof *tok->entries);
    if (!tok->entries || !rp_tok_map_init(&tok->content_map, &tok->arena, (uint32_t)count, false) ||
        !rp_tok_map_init(&tok->piece_map, &tok->arena, (uint32_t)count, true))
        return rp_tok_no_memory(load);
    for (int i = 0; i < 256; i++)
        tok->byte_ids[i] = -1;
    return RP_OK;
}

/* Makes the tables large enough for every id in the file. The vocabulary is an object, or Unigram's
 * array, whose places are the ids. */
static int size_tables(struct rp_tok_load *load, json_t *vocab, const json_t *added) {
    const char *key;
    json_t *value;
    uint32_t limit = 0;
    size_t i, count = json_object_size(vocab) + json_array_size(vocab) + json_array_size(added);
    int status;
    if (json_array_size(vocab) > RP_TOKEN_ID_LIMIT)
        return rp_error_set(load->err, RP_STATUS_RANGE, "%s: model.vocab: more than %d tokens",
                            load->file, RP_TOKEN_ID_LIMIT);
    limit = (uint32_t)json_array_size(vocab);
    json_object_foreach(vocab, key, value) {
        status = check_id(load, "model.vocab", key, value, &limit);
        if (status != RP_OK)
            return status;
    }
    json_array_foreach(added, i, value) {
        const char *content = json_string_value(json_object_get(value, "content"));
        if (!content)
            return rp_error_set(load->err, RP_STATUS_FORMAT,
                                "%s: added_tokens[%zu].content must be a string", load->file, i);
        status = check_id(load, "added_tokens", content, json_object_get(value, "id"), &limit);
        if (status != RP_OK)
            return status;
    }
    if (limit > GAPS_FREE && limit / 8 > count)
        return rp_error_set(load->err, RP_STATUS_RANGE,
                            "%s: the highest id is %" PRIu32 ", but there are only %zu tokens",
                            load->file, limit - 1, count);
    return rp_tok_tables_init(load, limit, count);
}

/* With ByteLevel: the bytes that the token's characters stand for. False: no text leads there. */
static bool piece_of(const char *content, size_t len, char *out, size_t *out_len) {
    *out_len = 0;
    for (size_t i = 0; i < len;) {
        uint32_t code = 0;
        int n = rp_utf8_decode(content + i, len - i, &code);
        int byte = n > 0 ? rp_tok_char_to_byte(code) : -1;
        if (byte < 0)
            return false;
        out[(*out_len)++] = (char)byte;
        i += (size_t)n;
    }
    return true;
}

int rp_tok_vocab_add(struct rp_tok_load *load, const char *where, const char *content, size_t len,
                     int32_t id, uint32_t flags) {
    struct rp_tokenizer *tok = load->tok;
    struct rp_tok_entry *e = &tok->entries[id];
    if (e->flags)
        return rp_error_set(load->err, RP_STATUS_FORMAT,
                            "%s: %s: \"%s\" and \"%s\" have the same id %" PRId32, load->file,
                            where, rp_tok_quote(content, len).text,
                            rp_tok_quote(rp_tok_ptr(tok, e->content), e->content.len).text, id);
    int status = rp_tok_blob_add(load, content, len, &e->content);
    if (status != RP_OK)
        return status;
    e->flags = RP_TOK_KNOWN | RP_TOK_MODEL | (flags & ~(uint32_t)RP_TOK_HAS_PIECE);
    (void)rp_tok_map_put(&tok->content_map, tok, id);
    if (len == 0 || !(flags & RP_TOK_HAS_PIECE))
        return RP_OK;
    e->piece = e->content;
    if (tok->byte_level) {
        char *piece = rp_alloc(len);
        size_t piece_len;
        if (!piece)
            return rp_tok_no_memory(load);
        bool mapped = piece_of(content, len, piece, &piece_len);
        if (mapped)
            status = rp_tok_blob_add(load, piece, piece_len, &e->piece);
        rp_free(piece);
        if (!mapped || status != RP_OK)
            return status;
        if (piece_len == 1)
            tok->byte_ids[(unsigned char)tok->blob.data[e->piece.off]] = id;
    }
    e->flags |= RP_TOK_HAS_PIECE;
    tok->piece_max = RP_MAX(tok->piece_max, e->piece.len);
    (void)rp_tok_map_put(&tok->piece_map, tok, id);
    return RP_OK;
}

int rp_tok_vocab_finish(struct rp_tok_load *load) {
    struct rp_tokenizer *tok = load->tok;
    if (tok->byte_level)
        return RP_OK;
    for (int byte = 0; byte < 256; byte++) {
        static const char hex[] = "0123456789ABCDEF";
        char name[6] = {'<', '0', 'x', hex[byte >> 4], hex[byte & 15], '>'};
        tok->byte_ids[byte] = rp_tok_map_find(&tok->content_map, tok, name, sizeof name);
    }
    if (tok->model != RP_TOK_BPE)
        return RP_OK;
    tok->char_ids = rp_arena_calloc(&tok->arena, 0x10000, sizeof *tok->char_ids);
    if (!tok->char_ids)
        return rp_tok_no_memory(load);
    for (uint32_t code = 0; code < 0x10000; code++) {
        char utf8[4];
        int n = rp_utf8_encode(code, utf8);
        tok->char_ids[code] = rp_tok_map_find(&tok->piece_map, tok, utf8, (size_t)n);
    }
    return RP_OK;
}

static int load_vocab(struct rp_tok_load *load, json_t *vocab) {
    const char *key;
    json_t *value;
    json_object_foreach(vocab, key, value) {
        int status = rp_tok_vocab_add(load, "model.vocab", key, strlen(key),
                                      (int32_t)json_integer_value(value), RP_TOK_HAS_PIECE);
        if (status != RP_OK)
            return status;
    }
    return rp_tok_vocab_finish(load);
}

/* Options that change the ids and that no current model uses. */
static int check_model(struct rp_tok_load *load, const json_t *model) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    if (!json_is_object(model))
        return rp_error_set(load->err, RP_STATUS_FORMAT, "%s: model must be an object", load->file);
    const json_t *type = json_object_get(model, "type");
    const char *name = json_string_value(type);
    if (name && strcmp(name, "Unigram") == 0)
        load->tok->model = RP_TOK_UNIGRAM;
    else if (name && strcmp(name, "WordPiece") == 0)
        load->tok->model = RP_TOK_WORDPIECE;
    else if (type ? !name || strcmp(name, "BPE") != 0 : !json_object_get(model, "merges"))
        return rp_error_set(
            load->err, RP_STATUS_UNSUPPORTED,
            "%s: model.type \"%s\" is not supported; BPE, Unigram and WordPiece are", load->file,
            name ? rp_tok_quote(name, strlen(name)).text : "?");
    if (load->tok->model == RP_TOK_UNIGRAM && !json_is_array(json_object_get(model, "vocab")))
        return rp_error_set(load->err, RP_STATUS_FORMAT, "%s: model.vocab must be an array",
                            load->file);
    if (load->tok->model == RP_TOK_UNIGRAM)
        return RP_OK;
    if (!json_is_object(json_object_get(model, "vocab")))
        return rp_error_set(load->err, RP_STATUS_FORMAT, "%s: model.vocab must be an object",
                            load->file);
    if (load->tok->model == RP_TOK_WORDPIECE)
        return RP_OK;
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
        return rp_error_set(load->err, RP_STATUS_UNSUPPORTED,
                            "%s: model.dropout is not supported: it makes ids random", load->file);
    for (size_t i = 0; i < RP_ARRAY_COUNT(affixes); i++) {
        const json_t *affix = json_object_get(model, affixes[i]);
        if (affix && !json_is_null(affix) && !(json_is_string(affix) && !json_string_length(affix)))
            return rp_error_set(load->err, RP_STATUS_UNSUPPORTED, "%s: model.%s is not supported",
                                load->file, affixes[i]);
    }
    return RP_OK;
}

static int load_model(struct rp_tok_load *load, const json_t *model) {
    struct rp_tokenizer *tok = load->tok;
    if (tok->model == RP_TOK_UNIGRAM)
        return rp_tok_load_unigram(load, model);
    if (tok->model == RP_TOK_WORDPIECE) {
        int loaded = load_vocab(load, json_object_get(model, "vocab"));
        return loaded != RP_OK ? loaded : rp_tok_load_wordpiece(load, model);
    }
    int status =
        rp_tok_json_bool(load, "model", model, "byte_fallback", false, &tok->byte_fallback);
    if (status == RP_OK)
        status = rp_tok_json_bool(load, "model", model, "fuse_unk", false, &tok->fuse_unk);
    if (status == RP_OK)
        status =
            rp_tok_json_bool(load, "model", model, "ignore_merges", false, &tok->ignore_merges);
    if (status == RP_OK)
        status = load_vocab(load, json_object_get(model, "vocab"));
    if (status != RP_OK)
        return status;
    const json_t *unk = json_object_get(model, "unk_token");
    tok->unk_id = -1;
    if (json_is_string(unk))
        tok->unk_id = rp_tok_map_find(&tok->content_map, tok, json_string_value(unk),
                                      json_string_length(unk));
    else if (unk && !json_is_null(unk))
        return rp_error_set(load->err, RP_STATUS_FORMAT, "%s: model.unk_token must be a string",
                            load->file);
    return rp_tok_merges_load(load, json_object_get(model, "merges"));
}

static int load_sections(struct rp_tok_load *load, const json_t *root) {
    struct rp_tokenizer *tok = load->tok;
    const json_t *model = json_object_get(root, "model");
    const json_t *added = json_object_get(root, "added_tokens");
    if (added && !json_is_null(added) && !json_is_array(added))
        return rp_error_set(load->err, RP_STATUS_FORMAT, "%s: added_tokens must be an array",
                            load->file);
    int status = check_model(load, model);
    rp_tok_classes_fill(tok->classes, tok->moves);
    if (status == RP_OK)
        status = rp_tok_config_normalizer(load, json_object_get(root, "normalizer"));
    if (status == RP_OK) /* before the vocabulary: it decides about byte_level */
        status = rp_tok_config_pre_tokenizer(load, json_object_get(root, "pre_tokenizer"));
    if (status == RP_OK && tok->byte_level && tok->model != RP_TOK_BPE)
        status = rp_error_set(load->err, RP_STATUS_UNSUPPORTED,
                              "%s: the pre-tokenizer ByteLevel is not supported with model.type "
                              "Unigram and WordPiece",
                              load->file);
    if (status == RP_OK)
        status = size_tables(load, json_object_get(model, "vocab"), added);
    if (status == RP_OK)
        status = load_model(load, model);
    if (status == RP_OK)
        status = rp_tok_config_added(load, added);
    if (status == RP_OK)
        status = rp_tok_config_post_processor(load, json_object_get(root, "post_processor"));
    if (status == RP_OK)
        status = rp_tok_config_decoder(load, json_object_get(root, "decoder"));
    if (status == RP_OK)
        status = rp_tok_decoder_apply(load);
    return status;
}

/* A token named in tokenizer_config.json: a string, or an object with "content". */
static int32_t named_token(const struct rp_tokenizer *tok, const json_t *root, const char *key) {
    const json_t *value = json_object_get(root, key);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    return json_is_string(value)
               ? rp_tokenizer_find(tok, json_string_value(value), json_string_length(value))
               : -1;
}

/* Ids of the names in tokenizer_config.json; those of a tokenizer.model stay where it has none. */
static void load_names(struct rp_tokenizer *tok, const json_t *config, bool is_model) {
    int32_t bos = named_token(tok, config, "bos_token"),
            eos = named_token(tok, config, "eos_token");
    if (bos >= 0 || !is_model)
        tok->bos_id = bos;
    if (eos >= 0 || !is_model)
        tok->eos_id = eos;
    if (is_model && tok->prefix_count)
        tok->prefix_ids[0] = tok->bos_id;
    if (is_model && tok->suffix_count)
        tok->suffix_ids[0] = tok->eos_id;
}

static bool is_file(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

/* The two files' names, for a directory, a tokenizer.json or a tokenizer.model. A directory's
 * tokenizer.model is read only if there is no tokenizer.json. */
static int file_names(const char *path, struct rp_buffer *file, struct rp_buffer *config) {
    struct stat info;
    size_t dir_len = strlen(path);
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        rp_buffer_printf(file, "%s/tokenizer.model", path);
        rp_buffer_append(file, "", 1);
        bool is_model = !file->failed && is_file(file->data);
        rp_buffer_clear(file);
        rp_buffer_printf(file, "%s/tokenizer.json", path);
        rp_buffer_append(file, "", 1);
        if (is_model && !file->failed && !is_file(file->data)) {
            rp_buffer_clear(file);
            rp_buffer_printf(file, "%s/tokenizer.model", path);
            rp_buffer_append(file, "", 1);
        }
        rp_buffer_printf(config, "%s/tokenizer_config.json", path);
    } else {
        while (dir_len > 0 && path[dir_len - 1] != '/')
            dir_len--;
        rp_buffer_puts(file, path);
        rp_buffer_append(file, "", 1);
        rp_buffer_append(config, path, dir_len);
        rp_buffer_puts(config, "tokenizer_config.json");
    }
    rp_buffer_append(config, "", 1);
    return file->failed || config->failed ? RP_STATUS_NO_MEMORY : RP_OK;
}

struct rp_tokenizer *rp_tok_create(void) {
    struct rp_tokenizer *tok = rp_calloc(1, sizeof *tok);
    if (!tok)
        return NULL;
    rp_buffer_init(&tok->blob, UINT32_MAX); /* slices hold 32-bit offsets */
    (void)rp_buffer_reserve(&tok->blob, 1); /* so that an empty slice points somewhere */
    tok->bos_id = tok->eos_id = -1;
    tok->classes = rp_arena_alloc(&tok->arena, 0x10000);
    tok->moves = tok->classes ? rp_arena_alloc(&tok->arena, 0x10000) : NULL;
    if (!tok->moves) {
        rp_tokenizer_close(tok);
        return NULL;
    }
    return tok;
}

static int load_file(struct rp_tok_load *load, const json_t *config) {
    size_t len = strlen(load->file);
    bool is_model = len >= 6 && strcmp(load->file + len - 6, ".model") == 0;
    json_t *root = NULL;
    int status;
    if (is_model) {
        status = rp_tok_load_sentencepiece(load, config);
    } else {
        status = rp_tok_read_json(load->file, 0, &root, load->err);
        if (status == RP_OK)
            status = load_sections(load, root);
        json_decref(root);
    }
    if (status == RP_STATUS_NOT_FOUND)
        rp_error_hint(load->err, "name a model directory, a tokenizer.json or a tokenizer.model");
    if (status == RP_OK)
        load_names(load->tok, config, is_model);
    return status;
}

int rp_tokenizer_open(const char *path, struct rp_tokenizer **out, struct rp_error *err) {
    struct rp_buffer file, config;
    json_t *names = NULL;
    if (rp_gguf_is_path(path))
        return rp_tok_open_gguf(path, out, err);
    rp_buffer_init(&file, 0);
    rp_buffer_init(&config, 0);
    *out = NULL;
    struct rp_tokenizer *tok = rp_tok_create();
    int status = tok ? file_names(path, &file, &config) : RP_STATUS_NO_MEMORY;
    if (status != RP_OK)
        (void)rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: out of memory", path);
    struct rp_tok_load load = {.tok = tok, .file = file.data, .err = err};
    /* model_max_length is 10^30 in many files, which is no integer to jansson. */
    if (status == RP_OK) {
        struct rp_error unread = {0};
        status = rp_tok_read_json(config.data, JSON_DECODE_INT_AS_REAL, &names, &unread);
        if (status == RP_STATUS_NOT_FOUND)
            status = RP_OK;
        else if (status != RP_OK && err)
            *err = unread;
    }
    if (status == RP_OK)
        status = load_file(&load, names);
    json_decref(names);
    rp_buffer_deinit(&file);
    rp_buffer_deinit(&config);
    if (status != RP_OK)
        rp_tokenizer_close(tok);
    else
        *out = tok;
    return status;
}
