#include "server/observe/kv_batch.h"

#include <string.h>

/* --- msgpack: what a batch needs of it, each value in its shortest form ---------------------- */

static void put_bytes(struct rp_buffer *out, uint8_t tag, uint64_t value, uint32_t bytes) {
    char text[9] = {(char)tag};
    for (uint32_t i = 0; i < bytes; i++)
        text[1 + i] = (char)(value >> (8 * (bytes - 1 - i)));
    rp_buffer_append(out, text, 1 + bytes);
}

static void put_uint(struct rp_buffer *out, uint64_t value) {
    if (value < 0x80)
        put_bytes(out, (uint8_t)value, 0, 0);
    else if (value <= UINT8_MAX)
        put_bytes(out, 0xcc, value, 1);
    else if (value <= UINT16_MAX)
        put_bytes(out, 0xcd, value, 2);
    else if (value <= UINT32_MAX)
        put_bytes(out, 0xce, value, 4);
    else
        put_bytes(out, 0xcf, value, 8);
}

static void put_array(struct rp_buffer *out, uint32_t count) {
    if (count < 16)
        put_bytes(out, (uint8_t)(0x90 | count), 0, 0);
    else if (count <= UINT16_MAX)
        put_bytes(out, 0xdc, count, 2);
    else
        put_bytes(out, 0xdd, count, 4);
}

static void put_map(struct rp_buffer *out, uint32_t count) { /* below 16 */
    put_bytes(out, (uint8_t)(0x80 | count), 0, 0);
}

static void put_text(struct rp_buffer *out, const char *text) { /* below 32 bytes */
    size_t len = strlen(text);
    put_bytes(out, (uint8_t)(0xa0 | len), 0, 0);
    rp_buffer_append(out, text, len);
}

static void put_nil(struct rp_buffer *out) { put_bytes(out, 0xc0, 0, 0); }

static void put_double(struct rp_buffer *out, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_bytes(out, 0xcb, bits, 8);
}

/* --- Events ---------------------------------------------------------------------------------- */

struct batch {
    const unsigned char *events;
    uint32_t count, page_tokens;
};

static const struct rp_kv_event *event_at(const struct batch *batch, uint32_t i) {
    return (const struct rp_kv_event *)(batch->events +
                                        (size_t)i * rp_kv_event_bytes(batch->page_tokens));
}

/* How many events from i on are written as one. */
static uint32_t run_length(const struct batch *batch, uint32_t i) {
    const struct rp_kv_event *last = event_at(batch, i);
    uint32_t end = i + 1;
    for (; end < batch->count; end++) {
        const struct rp_kv_event *next = event_at(batch, end);
        bool joins = next->is_stored == last->is_stored &&
                     (!next->is_stored || (next->has_parent && next->parent == last->hash));
        if (!joins)
            break;
        last = next;
    }
    return end - i;
}

static void put_hashes(const struct batch *batch, uint32_t first, uint32_t count,
                       struct rp_buffer *out) {
    put_text(out, "block_hashes");
    put_array(out, count);
    for (uint32_t i = 0; i < count; i++)
        put_uint(out, event_at(batch, first + i)->hash);
}

static void put_stored(const struct batch *batch, uint32_t first, uint32_t count,
                       struct rp_buffer *out) {
    const struct rp_kv_event *event = event_at(batch, first);
    put_map(out, 8);
    put_text(out, "type");
    put_text(out, "BlockStored");
    put_hashes(batch, first, count, out);
    put_text(out, "parent_block_hash");
    if (event->has_parent)
        put_uint(out, event->parent);
    else
        put_nil(out);
    put_text(out, "token_ids");
    put_array(out, count * batch->page_tokens);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t t = 0; t < batch->page_tokens; t++)
            put_uint(out, (uint32_t)event_at(batch, first + i)->tokens[t]);
    put_text(out, "block_size");
    put_uint(out, batch->page_tokens);
    put_text(out, "lora_id");
    put_nil(out);
    put_text(out, "medium");
    put_text(out, "GPU");
    put_text(out, "lora_name");
    put_nil(out);
}

static void put_removed(const struct batch *batch, uint32_t first, uint32_t count,
                        struct rp_buffer *out) {
    put_map(out, 3);
    put_text(out, "type");
    put_text(out, "BlockRemoved");
    put_hashes(batch, first, count, out);
    put_text(out, "medium");
    put_text(out, "GPU");
}

void rp_kv_batch_write(const void *events, uint32_t count, uint32_t page_tokens, bool cleared,
                       double unix_s, struct rp_buffer *out) {
    const struct batch batch = {events, count, page_tokens};
    uint32_t written = cleared;
    for (uint32_t i = 0; i < count; i += run_length(&batch, i))
        written++;
    put_array(out, 3);
    put_double(out, unix_s);
    put_array(out, written);
    if (cleared) {
        put_map(out, 1);
        put_text(out, "type");
        put_text(out, "AllBlocksCleared");
    }
    for (uint32_t i = 0; i < count;) {
        uint32_t length = run_length(&batch, i);
        if (event_at(&batch, i)->is_stored)
            put_stored(&batch, i, length, out);
        else
            put_removed(&batch, i, length, out);
        i += length;
    }
    put_uint(out, 0); /* data_parallel_rank */
}
