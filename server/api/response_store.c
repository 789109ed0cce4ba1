#include "server/api/response_store.h"

#include "base/hash.h"
#include "base/memory.h"

#include <string.h>

enum {
    NODE_BYTES = 96,    /* of a JSON value: its block, and its place in its list or object */
    OBJECT_BYTES = 256, /* of an object's table in addition */
    ENTRY_BYTES = 256,
    BUCKETS = 8192
};

struct entry {
    struct entry *newer, *older, *next; /* next: in its bucket */
    uint64_t owner, bytes;
    struct rp_stored_response response;
    char text[]; /* id, body */
};

struct rp_response_store {
    struct entry *newest, *oldest, *buckets[BUCKETS];
    uint64_t bytes, bytes_max;
};

struct rp_response_store *rp_response_store_create(uint64_t bytes_max) {
    struct rp_response_store *store = rp_calloc(1, sizeof *store);
    if (store)
        store->bytes_max = bytes_max;
    return store;
}

static struct entry **bucket_of(struct rp_response_store *store, const char *id, size_t len) {
    return &store->buckets[rp_hash64(id, len, 0) % BUCKETS];
}

static void unlink_entry(struct rp_response_store *store, struct entry *entry) {
    *(entry->newer ? &entry->newer->older : &store->newest) = entry->older;
    *(entry->older ? &entry->older->newer : &store->oldest) = entry->newer;
    entry->newer = entry->older = NULL;
}

static void link_newest(struct rp_response_store *store, struct entry *entry) {
    entry->older = store->newest;
    *(store->newest ? &store->newest->newer : &store->oldest) = entry;
    store->newest = entry;
}

static void drop(struct rp_response_store *store, struct entry *entry) {
    struct entry **at = bucket_of(store, entry->response.id, strlen(entry->response.id));
    while (*at != entry)
        at = &(*at)->next;
    *at = entry->next;
    unlink_entry(store, entry);
    store->bytes -= entry->bytes;
    json_decref(entry->response.items);
    rp_free(entry);
}

void rp_response_store_destroy(struct rp_response_store *store) {
    if (!store)
        return;
    while (store->oldest)
        drop(store, store->oldest);
    rp_free(store);
}

bool rp_response_store_is_on(const struct rp_response_store *store) { return store->bytes_max; }

uint64_t rp_response_store_bytes(const struct rp_response_store *store) { return store->bytes; }

/* Values that responses of one conversation share count for each of them. Recurses as deep as the
 * tree, whose parser limits the depth. */
static uint64_t tree_bytes(const json_t *value) {
    uint64_t bytes = NODE_BYTES + json_string_length(value);
    bytes += json_is_object(value) ? OBJECT_BYTES : 0;
    const char *key;
    size_t i, len;
    json_t *item;
    if (json_is_array(value))
        json_array_foreach(value, i, item) bytes += tree_bytes(item);
    json_object_keylen_foreach((json_t *)(uintptr_t)value, key, len, item) bytes +=
        len + tree_bytes(item);
    return bytes;
}

void rp_response_store_put(struct rp_response_store *store, uint64_t owner,
                           const struct rp_stored_response *response) {
    size_t id_len = strlen(response->id) + 1;
    uint64_t bytes = ENTRY_BYTES + id_len + response->len + tree_bytes(response->items);
    if (bytes > store->bytes_max)
        return;
    struct entry *entry = rp_alloc(sizeof *entry + id_len + response->len);
    if (!entry)
        return;
    while (store->bytes + bytes > store->bytes_max)
        drop(store, store->oldest);
    *entry = (struct entry){.owner = owner, .bytes = bytes, .response = *response};
    memcpy(entry->text, response->id, id_len);
    memcpy(entry->text + id_len, response->body, response->len);
    entry->response.id = entry->text;
    entry->response.body = entry->text + id_len;
    json_incref(entry->response.items);
    struct entry **bucket = bucket_of(store, entry->response.id, id_len - 1);
    entry->next = *bucket;
    *bucket = entry;
    link_newest(store, entry);
    store->bytes += bytes;
}

/* Marks it as used. */
static struct entry *find(struct rp_response_store *store, uint64_t owner, const char *id,
                          size_t len) {
    for (struct entry *entry = *bucket_of(store, id, len); entry; entry = entry->next) {
        if (entry->owner != owner || strlen(entry->response.id) != len ||
            memcmp(entry->response.id, id, len) != 0)
            continue;
        unlink_entry(store, entry);
        link_newest(store, entry);
        return entry;
    }
    return NULL;
}

const struct rp_stored_response *rp_response_store_find(struct rp_response_store *store,
                                                        uint64_t owner, const char *id,
                                                        size_t len) {
    const struct entry *entry = find(store, owner, id, len);
    return entry ? &entry->response : NULL;
}

bool rp_response_store_delete(struct rp_response_store *store, uint64_t owner, const char *id,
                              size_t len) {
    struct entry *entry = find(store, owner, id, len);
    if (entry)
        drop(store, entry);
    return entry != NULL;
}
