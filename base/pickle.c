/* Containers are put on the unpickler's stack empty; an item is its key, its value, and the opcode
 * that moves both into the container below them. */
#include "base/pickle.h"

#include <string.h>

enum pickle_opcode {
    OP_PROTO = 0x80,
    OP_STOP = '.',
    OP_EMPTY_DICT = '}',
    OP_EMPTY_LIST = ']',
    OP_SETITEM = 's',
    OP_APPEND = 'a',
    OP_BINUNICODE = 'X',
    OP_BININT = 'J',
    OP_LONG1 = 0x8A,
    OP_BINFLOAT = 'G',
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89
};

static void put_op(struct rp_pickle *pickle, enum pickle_opcode op) {
    unsigned char byte = (unsigned char)op;
    rp_buffer_append(pickle->out, &byte, 1);
}

static void put_integer(struct rp_pickle *pickle, uint64_t value, uint32_t bytes) {
    unsigned char raw[8];
    for (uint32_t i = 0; i < bytes; i++)
        raw[i] = (unsigned char)(value >> (8 * i));
    rp_buffer_append(pickle->out, raw, bytes);
}

static void put_text(struct rp_pickle *pickle, const char *text) {
    size_t len = strlen(text);
    RP_ASSERT(len <= UINT32_MAX);
    put_op(pickle, OP_BINUNICODE);
    put_integer(pickle, len, 4);
    rp_buffer_append(pickle->out, text, len);
}

static void begin_item(struct rp_pickle *pickle, const char *key) {
    bool in_dict = pickle->depth > 0 && pickle->in_dict[pickle->depth - 1];
    RP_ASSERT(in_dict == (key != NULL));
    if (key)
        put_text(pickle, key);
}

static void end_item(struct rp_pickle *pickle) {
    if (pickle->depth > 0)
        put_op(pickle, pickle->in_dict[pickle->depth - 1] ? OP_SETITEM : OP_APPEND);
}

static void begin_container(struct rp_pickle *pickle, const char *key, bool dict) {
    begin_item(pickle, key);
    put_op(pickle, dict ? OP_EMPTY_DICT : OP_EMPTY_LIST);
    RP_ASSERT_CMP(pickle->depth, <, RP_PICKLE_DEPTH_MAX);
    pickle->in_dict[pickle->depth++] = dict;
}

static void end_container(struct rp_pickle *pickle, bool dict) {
    RP_ASSERT(pickle->depth > 0 && pickle->in_dict[pickle->depth - 1] == dict);
    pickle->depth--;
    end_item(pickle);
}

void rp_pickle_init(struct rp_pickle *pickle, struct rp_buffer *out) {
    *pickle = (struct rp_pickle){.out = out};
    put_op(pickle, OP_PROTO);
    put_integer(pickle, 2, 1);
}

void rp_pickle_finish(struct rp_pickle *pickle) {
    RP_ASSERT_CMP(pickle->depth, ==, 0);
    put_op(pickle, OP_STOP);
}

void rp_pickle_dict_begin(struct rp_pickle *pickle, const char *key) {
    begin_container(pickle, key, true);
}
void rp_pickle_dict_end(struct rp_pickle *pickle) { end_container(pickle, true); }
void rp_pickle_list_begin(struct rp_pickle *pickle, const char *key) {
    begin_container(pickle, key, false);
}
void rp_pickle_list_end(struct rp_pickle *pickle) { end_container(pickle, false); }

void rp_pickle_string(struct rp_pickle *pickle, const char *key, const char *utf8) {
    begin_item(pickle, key);
    put_text(pickle, utf8);
    end_item(pickle);
}

void rp_pickle_int(struct rp_pickle *pickle, const char *key, int64_t value) {
    begin_item(pickle, key);
    if (value >= INT32_MIN && value <= INT32_MAX) {
        put_op(pickle, OP_BININT);
        put_integer(pickle, (uint64_t)value, 4);
    } else {
        put_op(pickle, OP_LONG1);
        put_integer(pickle, 8, 1);
        put_integer(pickle, (uint64_t)value, 8);
    }
    end_item(pickle);
}

void rp_pickle_double(struct rp_pickle *pickle, const char *key, double value) {
    unsigned char raw[8];
    uint64_t bits;
    begin_item(pickle, key);
    put_op(pickle, OP_BINFLOAT);
    memcpy(&bits, &value, sizeof bits);
    for (int i = 0; i < 8; i++) /* big endian */
        raw[i] = (unsigned char)(bits >> (56 - 8 * i));
    rp_buffer_append(pickle->out, raw, sizeof raw);
    end_item(pickle);
}

void rp_pickle_bool(struct rp_pickle *pickle, const char *key, bool value) {
    begin_item(pickle, key);
    put_op(pickle, value ? OP_NEWTRUE : OP_NEWFALSE);
    end_item(pickle);
}
