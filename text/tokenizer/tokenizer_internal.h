/* tokenizer_internal.h - the tables of a tokenizer and the stages of encoding, private to
 * model/tokenizer*.c and text/tokenizer/detokenizer.c (and to their tests).
 *
 *   text --added tokens--> segments --normalizer--> --added tokens--> --steps--> pieces --BPE-->
 * ids
 *
 * With a ByteLevel pre-tokenizer the whole pipeline works on raw bytes: its byte-to-character map
 * is one to one, so the vocabulary is mapped back once at load instead of every text forth. */
#ifndef RP_TEXT_TOKENIZER_INTERNAL_H
#define RP_TEXT_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8

#include "base/base.h"
#include "base/buffer.h"
#include "base/memory.h"
#include "base/status.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_units.h"

#include <jansson.h>
#include <pcre2.h>
#include <string.h>

/* Fixed small tables: real files have at most three of each. */
#define RP_TOK_STEPS_MAX       16
#define RP_TOK_NORMALIZERS_MAX 16
#define RP_TOK_REPLACES_MAX    8
/* An added token is searched for at every position, so its length bounds the cost of a byte. */
#define RP_TOK_ADDED_LEN_MAX 1024

/* The blob can be read so far after any token. */
#define RP_TOK_BLOB_SLACK 16
/* "▁", which SentencePiece writes for a space. */
#define RP_TOK_MARKER "\xE2\x96\x81"

enum rp_tok_entry_flags {
    RP_TOK_KNOWN = 1,
    RP_TOK_SPECIAL = 2,
    RP_TOK_BYTE = 4,       /* one byte of a "<0x..>" token: joins its neighbors to a character */
    RP_TOK_WHOLE = 8,      /* its bytes are whole characters */
    RP_TOK_MODEL = 16,     /* in model.vocab */
    RP_TOK_HAS_PIECE = 32, /* can be produced from a piece: `piece` is set */
    RP_TOK_UNUSED = 64,    /* SentencePiece's types */
    RP_TOK_USER = 128,
};

/* Offsets into the blob. */
struct rp_tok_slice {
    uint32_t off, len;
};

struct rp_tok_entry {
    struct rp_tok_slice content; /* as the file spells it */
    struct rp_tok_slice bytes;   /* what it decodes to */
    struct rp_tok_slice piece;   /* the text that it stands for in the model's input */
    uint32_t flags;
};

/* Text to id: open addressing, at most half full. slot.id -1 is empty. */
struct rp_tok_map_slot {
    uint32_t hash;
    int32_t id;
};
struct rp_tok_map {
    struct rp_tok_map_slot *slots;
    uint32_t mask;
    bool by_piece; /* compares with `piece`, else with `content` */
};

/* (left id, right id) to rank and id: open addressing. key UINT64_MAX is empty. */
struct rp_tok_merge {
    uint64_t key;
    uint32_t rank;
    int32_t new_id;
};
struct rp_tok_merges {
    struct rp_tok_merge *slots;
    uint32_t mask, shift;
};

/* A merge as the file lists it; its place there is its rank. merged -1: a comment. */
struct rp_tok_rule {
    int32_t left, right, merged;
};

struct rp_tok_added {
    int32_t id;
    struct rp_tok_slice content;
    bool single_word, lstrip, rstrip, normalized, special;
};

/* A set of strings as a trie: leftmost-longest search. */
struct rp_tok_trie_edge {
    uint64_t key; /* node << 8 | byte; UINT64_MAX is empty */
    uint32_t child;
};
struct rp_tok_trie {
    struct rp_tok_trie_edge *edges;
    uint32_t mask, node_count;
    int32_t *values; /* per node: an index or -1 */
    bool first[256]; /* some string begins with this byte */
    /* What all begin with (of it, so much as fits), and a byte of that which is rare in texts. */
    char common[16];
    uint32_t common_len, anchor_at;
    unsigned char anchor;
    /* Bits for the hashes of the strings' first four bytes; all set when a string is shorter. */
    uint64_t heads[16];
};

enum rp_tok_normalizer_kind {
    RP_TOK_NFC,
    RP_TOK_NFD,
    RP_TOK_NFKC,
    RP_TOK_NFKD,
    RP_TOK_PREPEND,
    RP_TOK_REPLACE,
    RP_TOK_STRIP,
    RP_TOK_STRIP_ACCENTS,
    RP_TOK_LOWERCASE,
    RP_TOK_NMT,
    RP_TOK_BERT_CLEAN, /* the parts of BertNormalizer, with NFD and LOWERCASE */
    RP_TOK_BERT_CHINESE,
    RP_TOK_BERT_ACCENTS,
    RP_TOK_PRECOMPILED,   /* as the package tokenizers applies a charsmap: by graphemes */
    RP_TOK_SENTENCEPIECE, /* as SentencePiece does, with its rules for spaces */
};

/* SentencePiece's precompiled_charsmap: a double array of darts-clone, and what its values are
 * offsets into: strings that end with a NUL. */
struct rp_tok_charsmap {
    const uint32_t *units;
    size_t unit_count;
    const char *strings;
    size_t strings_len;
};
struct rp_tok_normalizer {
    enum rp_tok_normalizer_kind kind;
    const char *pattern;
    size_t pattern_len;
    pcre2_code *regex; /* or NULL: `pattern` is literal */
    const char *content;
    size_t content_len;
    bool left, right;                     /* STRIP */
    struct rp_tok_charsmap charsmap;      /* PRECOMPILED, SENTENCEPIECE */
    bool prefix, prefix_first_only, trim; /* SENTENCEPIECE */
};

enum rp_tok_behavior {
    RP_TOK_ISOLATED,
    RP_TOK_REMOVED,
    RP_TOK_MERGED_WITH_PREVIOUS,
    RP_TOK_MERGED_WITH_NEXT,
    RP_TOK_CONTIGUOUS,
};
enum rp_tok_prepend { RP_TOK_PREPEND_ALWAYS, RP_TOK_PREPEND_FIRST, RP_TOK_PREPEND_NEVER };
enum rp_tok_step_kind {
    RP_TOK_STEP_SCAN,    /* a pattern with a scanner of its own, Isolated */
    RP_TOK_STEP_REGEX,   /* any other pattern */
    RP_TOK_STEP_LITERAL, /* a string */
    RP_TOK_STEP_DIGITS,
    RP_TOK_STEP_PREFIX_SPACE,
    RP_TOK_STEP_METASPACE,
    RP_TOK_STEP_BYTE_MAP, /* bytes become ByteLevel's characters, for the steps after it */
};

/* End of the piece that begins at `pos`; `pos` < `len`. */
typedef size_t (*rp_tok_scan_fn)(const uint8_t *classes, const char *text, size_t len, size_t pos);

struct rp_tok_step {
    enum rp_tok_step_kind kind;
    rp_tok_scan_fn scan;
    pcre2_code *regex;
    const char *literal; /* also Metaspace's replacement */
    size_t literal_len;
    enum rp_tok_behavior behavior;
    bool invert;
    enum rp_tok_prepend prepend;
    bool split; /* Metaspace: cut before each replacement; Digits: each digit alone */
};

enum rp_tok_decoder_kind {
    RP_TOK_DECODER_NONE,       /* tokens joined by spaces */
    RP_TOK_DECODER_BYTE_LEVEL, /* bytes; invalid sequences as in a lossy conversion */
    RP_TOK_DECODER_SEQUENCE,   /* Replace, ByteFallback, Fuse, Strip */
    RP_TOK_DECODER_METASPACE,
    RP_TOK_DECODER_WORDPIECE, /* [0].pattern: prefix of continuations; else a space before */
};
struct rp_tok_replace {
    const char *pattern, *content;
    size_t pattern_len, content_len;
};
struct rp_tok_decoder {
    enum rp_tok_decoder_kind kind;
    struct rp_tok_replace replaces[RP_TOK_REPLACES_MAX]; /* Metaspace: [0].pattern */
    size_t replace_count;
    bool byte_fallback;
    bool fused;              /* after Fuse: rules apply to the text as a whole */
    bool drop_first_markers; /* Metaspace: the first token loses its markers */
    bool cleanup;            /* WordPiece: no space before punctuation and contractions */
    char strip_char;
    uint32_t strip_left;
    bool strip_markers; /* only one marker of a piece is stripped, and while there is no text yet */
};

/* Character classes of the scanners; one byte per code point below 0x10000. White space comes
 * first, the others are Unicode's general categories. */
enum rp_tok_class {
    RP_TOK_OTHER = 0, /* control, format, unassigned */
    RP_TOK_UPPER,     /* Lu, Lt */
    RP_TOK_LOWER,     /* Ll */
    RP_TOK_LETTER,    /* Lm, Lo */
    RP_TOK_MARK,      /* M */
    RP_TOK_NUMBER,    /* N */
    RP_TOK_SIGN,      /* P, S */
    RP_TOK_SPACE,
};

enum rp_tok_model { RP_TOK_BPE, RP_TOK_SCORE, RP_TOK_UNIGRAM, RP_TOK_WORDPIECE };

struct rp_tokenizer {
    enum rp_tok_model model;
    struct rp_arena arena; /* everything below that is not freed by name in rp_tokenizer_close */
    struct rp_buffer blob;
    struct rp_tok_entry *entries;
    uint32_t id_limit;
    struct rp_tok_map content_map; /* all tokens */
    struct rp_tok_map piece_map;   /* the model's */
    uint32_t piece_max;            /* the longest of them */
    struct rp_tok_merges merges;
    struct rp_tok_units units;
    struct rp_tok_trie pieces; /* UNIGRAM, WORDPIECE: to the id */
    double *scores;            /* UNIGRAM, by id */
    double min_score, max_score;
    bool float_scores; /* sums are rounded to floats, as SentencePiece does */
    uint32_t *ranks;   /* SCORE, by id: the lowest is joined first; equal scores have equal ranks */
    bool has_unused;   /* some piece has the type UNUSED */
    bool mapped_steps; /* pieces reach the model as ByteLevel's characters */
    uint32_t word_chars_max, continuation_node; /* WORDPIECE */
    bool has_continuations;
    struct rp_tok_added *added;
    uint32_t added_count;
    struct rp_tok_trie raw_trie;        /* added tokens found before the normalizer */
    struct rp_tok_trie normalized_trie; /* and after it */
    bool normalized_special;            /* the second set has special tokens */
    struct rp_tok_trie user_trie;       /* SentencePiece's own symbols, which stay as they are */
    struct rp_tok_normalizer normalizers[RP_TOK_NORMALIZERS_MAX];
    size_t normalizer_count;
    struct rp_tok_step steps[RP_TOK_STEPS_MAX];
    size_t step_count;
    struct rp_tok_decoder decoder;
    int32_t *prefix_ids, *suffix_ids; /* the post-processor's */
    size_t prefix_count, suffix_count;
    bool byte_level, byte_fallback, fuse_unk, ignore_merges;
    int32_t unk_id, bos_id, eos_id;
    int32_t byte_ids[256]; /* byte level: the byte's token; else: the "<0x..>" token; or -1 */
    int32_t *char_ids;     /* not byte level: token of each code point below 0x10000 */
    bool plain_symbols;    /* no merge has a byte token or the unknown one as a part */
    bool all_bytes;        /* every text has tokens, unknown characters those of their bytes */
    /* Where a text without pre-tokenizer may be cut because no merge reaches across. */
    bool cut_at_marker; /* before a marker that does not follow one of these bytes */
    bool joins_marker[256];
    /* pairs of bytes that a token from a merge has side by side: a bit for each second byte */
    uint8_t joins[256][32];
    uint8_t cuts[256][32]; /* pairs between which it may be cut, whatever is around */
    uint8_t *classes;
    /* For each code point below 0x10000 a bit for each normal form in which it moves. */
    uint8_t *moves;
};

/* A text in flight. allow[i] tells whether byte i may be part of a special token; NULL: all may. */
struct rp_tok_text {
    const char *data;
    size_t len;
    const uint8_t *allow;
};
struct rp_tok_text_buffer {
    struct rp_buffer text, allow;
};

/* Ids of a short piece that was seen before. len 0 is empty. */
#define RP_TOK_CACHE_KEY_MAX 16
#define RP_TOK_CACHE_IDS_MAX 3
struct rp_tok_cache_entry {
    uint64_t key[2];
    int32_t ids[RP_TOK_CACHE_IDS_MAX];
    uint8_t len, count;
    uint16_t pad;
};
/* Two ways of a set share a cache line; 16,384 entries are 512 KiB, which a core's L2 holds. */
#define RP_TOK_CACHE_SETS 8192

/* Which two units may stand side by side, as far as asked: 128 KiB. */
#define RP_TOK_PAIR_BITS 14

struct rp_tok_heap_entry {
    uint64_t key; /* rank << 32 | position */
    int32_t left, right;
};

/* UNIGRAM: the best path that ends at a position. id -1: none yet. */
struct rp_tok_best {
    double score;
    uint32_t begin, next;
    int32_t id;
};

struct rp_tokenizer_scratch {
    const struct rp_tokenizer *tok;
    struct rp_tok_text_buffer input;
    struct rp_tok_text_buffer normalized[2];
    struct rp_buffer step_text[RP_TOK_STEPS_MAX];
    struct rp_tok_cache_entry *cache;
    uint64_t *pairs;  /* 2^RP_TOK_PAIR_BITS */
    int32_t *symbols; /* ids; -1 once merged into the left one */
    uint32_t *prev, *next;
    size_t symbol_capacity, link_capacity;
    uint64_t *dead; /* a bit for each position of a long piece */
    size_t dead_capacity;
    struct rp_tok_heap_entry *heap;
    size_t heap_count, heap_capacity;
    struct rp_tok_best *best;
    size_t best_capacity;
    uint32_t *unused_cuts;     /* SCORE: by id, where the last pair that made it was cut */
    struct rp_buffer unmapped; /* a piece back from ByteLevel's characters */
    uint32_t *points;          /* code points under normalization */
    uint32_t *points_spare;
    size_t point_capacity;
    pcre2_match_data *match;
    pcre2_match_context *match_context;
    pcre2_jit_stack *jit_stack;
    uint64_t work; /* merge and heap operations so far, for the tests of linearity */
    /* The call in flight. */
    struct rp_token_ids *out;
    size_t out_max; /* count that *out must not pass; 0: any */
    int status;
};

/* Where parsing stands: the file for messages. */
struct rp_tok_load {
    struct rp_tokenizer *tok;
    const char *file;
    struct rp_error *err;
};

static inline const char *rp_tok_ptr(const struct rp_tokenizer *tok, struct rp_tok_slice slice) {
    return tok->blob.data + slice.off;
}

/* White_Space of Unicode, which is also what Rust's char::is_whitespace says. */
static inline bool rp_tok_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

/* tokenizer_table.c */
bool rp_tok_map_init(struct rp_tok_map *map, struct rp_arena *arena, uint32_t count, bool by_piece);
/* The id there already, or -1 when `id` was put in. */
int32_t rp_tok_map_put(struct rp_tok_map *map, const struct rp_tokenizer *tok, int32_t id);
int32_t rp_tok_map_find(const struct rp_tok_map *map, const struct rp_tokenizer *tok,
                        const char *text, size_t len);
bool rp_tok_merges_init(struct rp_tok_merges *merges, struct rp_arena *arena, uint32_t count);
void rp_tok_merges_put(struct rp_tok_merges *merges, int32_t left, int32_t right, uint32_t rank,
                       int32_t new_id);
static inline const struct rp_tok_merge *rp_tok_merges_find(const struct rp_tok_merges *merges,
                                                            int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    /* Fibonacci hashing: 2^64 divided by the golden ratio. */
    uint32_t i = (uint32_t)((key * 0x9E3779B97F4A7C15u) >> merges->shift);
    while (merges->slots[i].key != key) {
        if (merges->slots[i].key == UINT64_MAX)
            return NULL;
        i = (i + 1) & merges->mask;
    }
    return &merges->slots[i];
}
/* `text_bytes`: sum of the lengths to be put. */
bool rp_tok_trie_init(struct rp_tok_trie *trie, struct rp_arena *arena, size_t text_bytes);
void rp_tok_trie_put(struct rp_tok_trie *trie, const char *text, size_t len, int32_t value);
/* 0 when there is no such edge (node 0 is the root, no edge leads there). */
uint32_t rp_tok_trie_step(const struct rp_tok_trie *trie, uint32_t node, unsigned char byte);
static inline uint32_t rp_tok_trie_head(const char *text) {
    uint32_t word;
    memcpy(&word, text, sizeof word);
    return word * 0x9E3779B1u >> 22; /* 2^32 divided by the golden ratio */
}
/* ByteLevel's map: code point of a byte, and the byte of a code point or -1. */
uint32_t rp_tok_byte_to_char(unsigned char byte);
int rp_tok_char_to_byte(uint32_t code);

/* tokenizer_load.c */
/* `path`: a model directory or file; the result of closing it is the caller's. For both kinds of
 * files. */
struct rp_tokenizer *rp_tok_create(void);
int rp_tok_read_file(const char *path, char **out, size_t *out_len, struct rp_error *err);
int rp_tok_read_json(const char *path, size_t flags, json_t **out, struct rp_error *err);
/* The tables for ids below `limit` and `count` tokens. */
int rp_tok_tables_init(struct rp_tok_load *load, uint32_t limit, size_t count);
/* A token of the model; with `flags`. FORMAT: another has the id. Without RP_TOK_HAS_PIECE in
 * `flags` no text leads to it. The first of two with the same content is the one that is found. */
int rp_tok_vocab_add(struct rp_tok_load *load, const char *where, const char *content, size_t len,
                     int32_t id, uint32_t flags);
/* byte_ids from the "<0x..>" tokens, and char_ids; after the vocabulary. */
int rp_tok_vocab_finish(struct rp_tok_load *load);

/* tokenizer_models.c: model types of tokenizer.json other than BPE. */
int rp_tok_load_unigram(struct rp_tok_load *load, const json_t *model);
int rp_tok_load_wordpiece(struct rp_tok_load *load, const json_t *model);
/* The trie of all entries with a piece. */
int rp_tok_pieces_build(struct rp_tok_load *load);
/* WORDPIECE: after the trie; the prefix of continuations. */
void rp_tok_continuations(struct rp_tokenizer *tok, const char *prefix, size_t len);

/* tokenizer_build.c: fills an empty tokenizer from tables. `more`: entries as in added_tokens of
 * tokenizer.json, or NULL. */
struct rp_tokenizer_tables;
int rp_tok_fill(struct rp_tok_load *load, const struct rp_tokenizer_tables *tables, json_t *more);
/* tokenizer_sentencepiece.c: a tokenizer.model; `config` is tokenizer_config.json or NULL. */
int rp_tok_load_sentencepiece(struct rp_tok_load *load, const json_t *config);

/* Copies text into the blob. */
int rp_tok_blob_add(struct rp_tok_load *load, const char *text, size_t len,
                    struct rp_tok_slice *out);
/* For messages: at most 60 bytes of the text, on one line. */
struct rp_tok_quote {
    char text[68];
};
struct rp_tok_quote rp_tok_quote(const char *text, size_t len);
int rp_tok_no_memory(struct rp_tok_load *load);
/* obj[key]: `fallback` when it is absent or null, FORMAT when it is something else. */
int rp_tok_json_bool(struct rp_tok_load *load, const char *where, const json_t *obj,
                     const char *key, bool fallback, bool *out);
/* obj[key], a string: FORMAT when it is not there. */
int rp_tok_json_string(struct rp_tok_load *load, const char *where, const json_t *obj,
                       const char *key, const char **out, size_t *out_len);

/* tokenizer_config.c, tokenizer_post.c: the other sections of the file, NULL or null when absent.
 */
int rp_tok_config_normalizer(struct rp_tok_load *load, const json_t *json);
int rp_tok_config_pre_tokenizer(struct rp_tok_load *load, const json_t *json);
int rp_tok_config_decoder(struct rp_tok_load *load, const json_t *json);
int rp_tok_config_post_processor(struct rp_tok_load *load, const json_t *json);
/* tokenizer_added.c: after the model and the normalizer. */
int rp_tok_config_added(struct rp_tok_load *load, const json_t *json);

/* tokenizer_pattern.c: appends what PCRE2 runs in place of an Oniguruma pattern. With `shared`
 * each large class is there once: shorter and slower. RANGE: too long all the same. */
int rp_tok_pattern_rewrite(struct rp_tok_load *load, const char *where, const char *pattern,
                           size_t len, bool shared, struct rp_buffer *out);
/* tokenizer_regex.c: compiles a pattern written for Oniguruma's Ruby syntax. */
int rp_tok_regex_compile(struct rp_tok_load *load, const char *where, const char *pattern,
                         size_t len, pcre2_code **out);
/* 1 with [*start, *end), 0 for no match at or after `from`, a negative status. `text` is UTF-8. */
int rp_tok_regex_match(const pcre2_code *regex, struct rp_tokenizer_scratch *scratch,
                       const char *text, size_t len, size_t from, size_t *start, size_t *end);

/* tokenizer_scan.c: the patterns that have a scanner, for the tests; and the scanner of a pattern,
 * or NULL. */
struct rp_tok_scanner {
    const char *name, *pattern;
    rp_tok_scan_fn scan;
};
#define RP_TOK_SCANNERS 9
extern const struct rp_tok_scanner rp_tok_scanners[RP_TOK_SCANNERS];
rp_tok_scan_fn rp_tok_scan_find(const char *pattern, size_t len);
extern const char rp_tok_gpt2_pattern[];
void rp_tok_classes_fill(uint8_t classes[0x10000], uint8_t moves[0x10000]);

/* tokenizer_normalize.c: *out points into the scratch or to *in. */
int rp_tok_normalize(const struct rp_tokenizer *tok, struct rp_tokenizer_scratch *scratch,
                     const struct rp_tok_text *in, bool at_start, struct rp_tok_text *out);
/* For the normalizers in other files. allow -1: nothing is tracked. */
void rp_tok_text_append(struct rp_tok_text_buffer *out, const char *data, size_t len, int allow);
void rp_tok_text_copy(struct rp_tok_text_buffer *out, const struct rp_tok_text *in, size_t begin,
                      size_t end);
/* Whether all of [begin, end) may be part of a special token; -1: nothing is tracked. */
int rp_tok_text_allow(const struct rp_tok_text *in, size_t begin, size_t end);

/* tokenizer_fold.c: from RP_TOK_STRIP to RP_TOK_BERT_ACCENTS. */
void rp_tok_fold(const struct rp_tok_normalizer *n, const struct rp_tok_text *in,
                 struct rp_tok_text_buffer *out);

/* tokenizer_charsmap.c: the bytes of base64, at most `len`; false: it is none. */
bool rp_tok_base64_decode(const char *text, size_t len, char *out, size_t *out_len);
/* Checks the bytes, which are copied into the arena. */
int rp_tok_charsmap_open(struct rp_tok_load *load, const char *where, const void *bytes, size_t len,
                         struct rp_tok_charsmap *out);
void rp_tok_charsmap_apply(const struct rp_tok_normalizer *n, const struct rp_tok_text *in,
                           struct rp_tok_text_buffer *out);
void rp_tok_sentencepiece_apply(const struct rp_tokenizer *tok, const struct rp_tok_normalizer *n,
                                const struct rp_tok_text *in, bool at_start,
                                struct rp_tok_text_buffer *out);

/* tokenizer_split.c: cuts a text into pieces and encodes them; sets scratch->status on failure.
 * `at_start`: the text begins where the whole input begins. */
void rp_tok_split(struct rp_tokenizer_scratch *scratch, const char *text, size_t len,
                  bool at_start);

/* tokenizer_merges.c, tokenizer_units.c, tokenizer_nodes.c: the section model.merges. */
int rp_tok_merges_load(struct rp_tok_load *load, const json_t *merges);
struct rp_tokenizer_text;
int rp_tok_merges_build(struct rp_tok_load *load, const struct rp_tokenizer_text *merges,
                        size_t count);
int rp_tok_units_build(struct rp_tok_load *load, const struct rp_tok_rule *rules, uint32_t count);
int rp_tok_nodes_build(struct rp_tok_load *load);
/* The ids of text[0, *end) into `out` (room for `len`) and their number. *end < len: there is a
 * character that no token has. `dead`: len / 64 + 1 words, all zero. */
size_t rp_tok_units_encode(struct rp_tokenizer_scratch *scratch, const char *text, size_t len,
                           uint64_t *dead, int32_t *out, size_t *end);

/* tokenizer_bpe.c: the symbols that merging starts from, at most one for each byte; and merging of
 * a few, in place, the new number. rp_tok_merge_few needs no more than RP_TOK_MERGE_FEW. */
#define RP_TOK_MERGE_FEW (2 * RP_TOK_IRREGULAR_MAX)
size_t rp_tok_symbols(const struct rp_tokenizer *tok, int32_t *symbols, const char *text,
                      size_t len);
size_t rp_tok_symbol_count(const struct rp_tokenizer *tok, const char *text, size_t len);
size_t rp_tok_merge_few(const struct rp_tokenizer *tok, int32_t *ids, size_t count);

bool rp_tok_reserve_symbols(struct rp_tokenizer_scratch *s, size_t count);
bool rp_tok_reserve_links(struct rp_tokenizer_scratch *s, size_t count);
bool rp_tok_reserve_heap(struct rp_tokenizer_scratch *s, size_t count);
void rp_tok_heap_push(struct rp_tokenizer_scratch *s, struct rp_tok_heap_entry entry);
struct rp_tok_heap_entry rp_tok_heap_pop(struct rp_tokenizer_scratch *s);

/* tokenizer_unigram.c, tokenizer_wordpiece.c, tokenizer_score.c: encode a piece; `len` > 0. */
void rp_tok_unigram_encode(struct rp_tokenizer_scratch *s, const char *text, size_t len);
void rp_tok_wordpiece_encode(struct rp_tokenizer_scratch *s, const char *text, size_t len);
void rp_tok_score_encode(struct rp_tokenizer_scratch *s, const char *text, size_t len);
/* tokenizer_unigram.c: the tokens of characters that no piece has. */
void rp_tok_emit_unknown(struct rp_tokenizer_scratch *s, const char *text, size_t len);
/* tokenizer_score.c: notes which bytes are neighbors in a piece; then sets where texts are cut. */
void rp_tok_learn_joins(struct rp_tokenizer *tok, const char *text, size_t len);
void rp_tok_set_cuts(struct rp_tokenizer *tok);
/* A piece of SCORE and UNIGRAM is no longer than this: every position may be compared with it. */
#define RP_TOK_PIECE_LEN_MAX 1024

/* tokenizer_pieces.c: encodes one piece. */
void rp_tok_bpe_encode(struct rp_tokenizer_scratch *scratch, const char *text, size_t len);
/* tokenizer_bpe.c: without looking it up; `len` > 0. */
void rp_tok_bpe_merge(struct rp_tokenizer_scratch *scratch, const char *text, size_t len);
/* The end of *out; NULL after a failure, which is then in scratch->status. */
int32_t *rp_tok_emit_reserve(struct rp_tokenizer_scratch *scratch, size_t count);
static inline void rp_tok_emit(struct rp_tokenizer_scratch *scratch, int32_t id) {
    int32_t *end = rp_tok_emit_reserve(scratch, 1);
    if (end) {
        *end = id;
        scratch->out->count++;
    }
}

/* detokenizer.c: fills `bytes` and the flags of every entry from the decoder. */
int rp_tok_decoder_apply(struct rp_tok_load *load);

/* tokenizer_gguf.c: rp_tokenizer_open of a GGUF file. */
int rp_tok_open_gguf(const char *path, struct rp_tokenizer **out, struct rp_error *err) RP_MUST_USE;

#endif
