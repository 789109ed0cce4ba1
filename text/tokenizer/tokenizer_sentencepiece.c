/* SentencePiece's tokenizer.model: a ModelProto in the wire format of protocol buffers (fields and
 * defaults: sentencepiece_model.proto). The file is not trusted: every length is checked, unknown
 * fields are skipped. tokenizer_config.json beside it has what transformers adds to it. */
#include "text/tokenizer/tokenizer_build.h"
#include "text/tokenizer/tokenizer_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum wire_type { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };
enum model_type { MODEL_UNIGRAM = 1, MODEL_BPE = 2, MODEL_WORD = 3, MODEL_CHAR = 4 };

struct wire {
    const unsigned char *at, *end;
    bool damaged;
};

/* `number` holds a varint or the bits of a fixed type, `bytes` a length-delimited value. */
struct field {
    uint32_t number;
    enum wire_type type;
    uint64_t value;
    struct wire bytes;
};

struct pieces {
    struct rp_tokenizer_text *tokens;
    float *scores;
    uint8_t *types;
    uint32_t count, capacity;
};

struct model_file {
    struct pieces pieces;
    uint64_t model_type;
    struct rp_tokenizer_text bos, eos;
    struct wire charsmap;
    bool whitespace_as_suffix, escape_whitespaces, denormalizes;
    bool add_dummy_prefix, remove_extra_whitespaces;
};

static uint64_t read_varint(struct wire *w) {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && w->at < w->end; shift += 7) {
        unsigned char byte = *w->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80))
            return value;
    }
    w->damaged = true;
    return 0;
}

static bool next_field(struct wire *w, struct field *out) {
    if (w->at >= w->end || w->damaged)
        return false;
    uint64_t tag = read_varint(w), len;
    *out = (struct field){.number = (uint32_t)(tag >> 3), .type = (enum wire_type)(tag & 7)};
    size_t left = (size_t)(w->end - w->at), fixed = out->type == WIRE_64 ? 8 : 4;
    switch (out->type) {
    case WIRE_VARINT:
        out->value = read_varint(w);
        break;
    case WIRE_64:
    case WIRE_32:
        w->damaged = w->damaged || left < fixed;
        if (w->damaged)
            return false;
        memcpy(&out->value, w->at, fixed);
        w->at += fixed;
        break;
    case WIRE_BYTES:
        len = read_varint(w);
        w->damaged = w->damaged || len > (size_t)(w->end - w->at);
        if (w->damaged)
            return false;
        out->bytes = (struct wire){.at = w->at, .end = w->at + len};
        w->at += len;
        break;
    default: /* groups, which the format has given up */
        w->damaged = true;
    }
    return !w->damaged;
}

static struct rp_tokenizer_text text_of(const struct wire *w) {
    return (struct rp_tokenizer_text){(const char *)w->at, (size_t)(w->end - w->at)};
}

static bool grow(void **array, size_t count, size_t size) {
    void *grown = rp_realloc(*array, count * size);
    if (grown)
        *array = grown;
    return grown != NULL;
}

static int add_piece(struct rp_tok_load *load, struct pieces *p, struct wire w) {
    struct rp_tokenizer_text text = {"", 0};
    float score = 0;
    uint64_t type = RP_TOKENIZER_NORMAL;
    struct field f;
    if (p->count == RP_TOKEN_ID_LIMIT)
        return rp_error_set(load->err, RP_STATUS_RANGE, "%s: more than %d pieces", load->file,
                            RP_TOKEN_ID_LIMIT);
    if (p->count == p->capacity) {
        p->capacity = RP_MAX(p->capacity * 2, 1024u);
        if (!grow((void **)&p->tokens, p->capacity, sizeof *p->tokens) ||
            !grow((void **)&p->scores, p->capacity, sizeof *p->scores) ||
            !grow((void **)&p->types, p->capacity, sizeof *p->types))
            return rp_tok_no_memory(load);
    }
    while (next_field(&w, &f)) {
        if (f.number == 1 && f.type == WIRE_BYTES)
            text = text_of(&f.bytes);
        else if (f.number == 2 && f.type == WIRE_32)
            memcpy(&score, &f.value, sizeof score);
        else if (f.number == 3 && f.type == WIRE_VARINT)
            type = f.value;
    }
    if (w.damaged || text.len == 0 || type < RP_TOKENIZER_NORMAL || type > RP_TOKENIZER_BYTE)
        return rp_error_set(load->err, RP_STATUS_FORMAT, "%s: piece %" PRIu32 " is damaged",
                            load->file, p->count);
    p->tokens[p->count] = text;
    p->scores[p->count] = score;
    p->types[p->count++] = (uint8_t)type;
    return RP_OK;
}

static void read_trainer(struct model_file *m, struct wire *w) {
    struct field f;
    while (next_field(w, &f)) {
        if (f.number == 3 && f.type == WIRE_VARINT)
            m->model_type = f.value;
        else if (f.number == 24 && f.type == WIRE_VARINT)
            m->whitespace_as_suffix = f.value != 0;
        else if (f.number == 46 && f.type == WIRE_BYTES)
            m->bos = text_of(&f.bytes);
        else if (f.number == 47 && f.type == WIRE_BYTES)
            m->eos = text_of(&f.bytes);
    }
}

static void read_normalizer(struct model_file *m, struct wire *w) {
    struct field f;
    while (next_field(w, &f)) {
        if (f.number == 2 && f.type == WIRE_BYTES)
            m->charsmap = f.bytes;
        else if (f.number == 3 && f.type == WIRE_VARINT)
            m->add_dummy_prefix = f.value != 0;
        else if (f.number == 4 && f.type == WIRE_VARINT)
            m->remove_extra_whitespaces = f.value != 0;
        else if (f.number == 5 && f.type == WIRE_VARINT)
            m->escape_whitespaces = f.value != 0;
    }
}

static void read_denormalizer(struct model_file *m, struct wire *w) {
    struct field f;
    while (next_field(w, &f))
        m->denormalizes =
            m->denormalizes || (f.number == 2 && f.type == WIRE_BYTES && f.bytes.at < f.bytes.end);
}

static int read_model(struct rp_tok_load *load, struct wire w, struct model_file *m) {
    struct field f;
    *m = (struct model_file){.model_type = MODEL_UNIGRAM,
                             .bos = {"<s>", 3},
                             .eos = {"</s>", 4},
                             .escape_whitespaces = true,
                             .add_dummy_prefix = true,
                             .remove_extra_whitespaces = true};
    while (next_field(&w, &f)) {
        if (f.type != WIRE_BYTES)
            continue;
        if (f.number == 1) {
            int status = add_piece(load, &m->pieces, f.bytes);
            if (status != RP_OK)
                return status;
            continue;
        }
        if (f.number == 2)
            read_trainer(m, &f.bytes);
        else if (f.number == 3)
            read_normalizer(m, &f.bytes);
        else if (f.number == 5)
            read_denormalizer(m, &f.bytes);
        w.damaged = w.damaged || f.bytes.damaged;
    }
    if (w.damaged || m->pieces.count == 0)
        return rp_error_set(load->err, RP_STATUS_FORMAT,
                            "%s: not a SentencePiece model, or damaged", load->file);
    return RP_OK;
}

static int check(struct rp_tok_load *load, const struct model_file *m, const char *class) {
    /* Others move ids or add tokens in code. */
    static const char *const classes[] = {"LlamaTokenizer",
                                          "LlamaTokenizerFast",
                                          "CodeLlamaTokenizer",
                                          "CodeLlamaTokenizerFast",
                                          "GemmaTokenizer",
                                          "GemmaTokenizerFast",
                                          "T5Tokenizer",
                                          "T5TokenizerFast",
                                          "InternLM2Tokenizer",
                                          "InternLM3Tokenizer",
                                          "PreTrainedTokenizerFast"};
    bool known = !class;
    for (size_t i = 0; i < RP_ARRAY_COUNT(classes) && !known; i++)
        known = strcmp(classes[i], class) == 0;
    const char *what = !known                        ? "tokenizer_class (only some classes are)"
                       : m->model_type == MODEL_WORD ? "model_type WORD"
                       : m->model_type == MODEL_CHAR ? "model_type CHAR"
                       : m->model_type != MODEL_UNIGRAM && m->model_type != MODEL_BPE ? "model_type"
                       : m->whitespace_as_suffix ? "treat_whitespace_as_suffix"
                       : !m->escape_whitespaces  ? "escape_whitespaces: false"
                       : m->denormalizes         ? "denormalizer_spec"
                                                 : NULL;
    if (!what)
        return RP_OK;
    int status = rp_error_set(load->err, RP_STATUS_UNSUPPORTED, "%s: %s%s%.60s is not supported",
                              load->file, what, known ? "" : " ", known ? "" : class);
    rp_error_hint(load->err, "save the tokenizer as tokenizer.json with transformers");
    return status;
}

static int32_t find_piece(const struct pieces *p, uint8_t type,
                          const struct rp_tokenizer_text *text) {
    for (uint32_t i = 0; i < p->count; i++)
        if (p->types[i] == type && (!text || (p->tokens[i].len == text->len &&
                                              !memcmp(p->tokens[i].text, text->text, text->len))))
            return (int32_t)i;
    return -1;
}

/* added_tokens_decoder: {"32000": {"content": ...}}, as entries of a tokenizer.json's added_tokens.
 * transformers does not normalize these. NULL: no memory. */
static json_t *added_tokens(const json_t *config) {
    json_t *list = json_array(), *decoder = json_object_get(config, "added_tokens_decoder"), *value;
    const char *key;
    json_object_foreach(decoder, key, value) {
        char *end;
        long id = strtol(key, &end, 10);
        json_t *copy = json_copy(value);
        if (*end || end == key || !json_is_object(value))
            id = -1; /* refused later */
        if (!list || !copy || json_object_set_new(copy, "id", json_integer(id)) != 0 ||
            json_object_set_new(copy, "normalized", json_false()) != 0 ||
            json_array_append_new(list, copy) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static bool flag(const json_t *config, const char *key, bool fallback) {
    const json_t *value = json_object_get(config, key);
    return json_is_boolean(value) ? json_is_true(value) : fallback;
}

static int fill(struct rp_tok_load *load, const struct model_file *m, const json_t *config) {
    const struct pieces *p = &m->pieces;
    const char *class = json_string_value(json_object_get(config, "tokenizer_class"));
    int status = check(load, m, class);
    if (status != RP_OK)
        return status;
    bool is_t5 = class && strncmp(class, "T5", 2) == 0;
    const struct rp_tokenizer_tables tables = {
        .source = load->file,
        .model = m->model_type == MODEL_BPE ? RP_TOKENIZER_SCORE_BPE : RP_TOKENIZER_UNIGRAM,
        .count = p->count,
        .tokens = p->tokens,
        .types = p->types,
        .scores = p->scores,
        .bos_id = find_piece(p, RP_TOKENIZER_CONTROL, &m->bos),
        .eos_id = find_piece(p, RP_TOKENIZER_CONTROL, &m->eos),
        .unk_id = find_piece(p, RP_TOKENIZER_UNKNOWN, NULL),
        .add_bos = flag(config, "add_bos_token", !is_t5),
        .add_eos = flag(config, "add_eos_token", is_t5),
        .add_space_prefix = flag(config, "add_prefix_space", m->add_dummy_prefix),
        .space_prefix_first_only = !flag(config, "legacy", true),
        .remove_extra_whitespaces = m->remove_extra_whitespaces,
        .charsmap = m->charsmap.at,
        .charsmap_len = (size_t)(m->charsmap.end - m->charsmap.at)};
    json_t *more = added_tokens(config);
    status = more ? rp_tok_fill(load, &tables, more) : rp_tok_no_memory(load);
    json_decref(more);
    return status;
}

int rp_tok_load_sentencepiece(struct rp_tok_load *load, const json_t *config) {
    struct model_file m;
    char *data = NULL;
    size_t len = 0;
    int status = rp_tok_read_file(load->file, &data, &len, load->err);
    if (status != RP_OK)
        return status;
    struct wire w = {.at = (const unsigned char *)data, .end = (const unsigned char *)data + len};
    status = read_model(load, w, &m);
    if (status == RP_OK)
        status = fill(load, &m, config);
    rp_free(m.pieces.tokens);
    rp_free(m.pieces.scores);
    rp_free(m.pieces.types);
    rp_free(data);
    return status;
}
