#include "kvcache/kv_snapshot.h"

#include "base/memory.h"

#include <string.h>

int rp_kv_snapshots_init(struct rp_kv_snapshots *snapshots, uint32_t count, struct rp_error *err) {
    memset(snapshots, 0, sizeof *snapshots);
    uint64_t buckets = 1;
    while (buckets < count)
        buckets *= 2;
    snapshots->entries = rp_calloc(RP_MAX(count, 1u), sizeof *snapshots->entries);
    snapshots->buckets = rp_calloc(buckets, sizeof *snapshots->buckets);
    if (!snapshots->entries || !snapshots->buckets) {
        rp_kv_snapshots_deinit(snapshots);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for a table of %u snapshots",
                            count);
    }
    snapshots->count = count;
    snapshots->bucket_mask = (uint32_t)(buckets - 1);
    snapshots->free_first = snapshots->oldest = snapshots->newest = RP_NO_SNAPSHOT;
    for (uint64_t i = 0; i < buckets; i++)
        snapshots->buckets[i] = RP_NO_SNAPSHOT;
    for (uint32_t i = count; i-- > 0;) {
        snapshots->entries[i].next = snapshots->free_first;
        snapshots->free_first = i;
    }
    return RP_OK;
}

void rp_kv_snapshots_deinit(struct rp_kv_snapshots *snapshots) {
    rp_free(snapshots->entries);
    rp_free(snapshots->buckets);
    memset(snapshots, 0, sizeof *snapshots);
}

static uint32_t *bucket_of(const struct rp_kv_snapshots *snapshots, struct rp_hash128 hash) {
    return &snapshots->buckets[hash.low & snapshots->bucket_mask];
}

static void unlink_use(struct rp_kv_snapshots *snapshots, uint32_t at) {
    const struct rp_kv_snapshot *entry = &snapshots->entries[at];
    if (entry->older == RP_NO_SNAPSHOT)
        snapshots->oldest = entry->newer;
    else
        snapshots->entries[entry->older].newer = entry->newer;
    if (entry->newer == RP_NO_SNAPSHOT)
        snapshots->newest = entry->older;
    else
        snapshots->entries[entry->newer].older = entry->older;
}

static void link_newest(struct rp_kv_snapshots *snapshots, uint32_t at) {
    struct rp_kv_snapshot *entry = &snapshots->entries[at];
    entry->older = snapshots->newest;
    entry->newer = RP_NO_SNAPSHOT;
    if (entry->older == RP_NO_SNAPSHOT)
        snapshots->oldest = at;
    else
        snapshots->entries[entry->older].newer = at;
    snapshots->newest = at;
}

static void release(struct rp_kv_snapshots *snapshots, uint32_t at) {
    struct rp_kv_snapshot *entry = &snapshots->entries[at];
    entry->state = RP_SNAPSHOT_FREE;
    entry->hashed = false;
    entry->next = snapshots->free_first;
    snapshots->free_first = at;
}

void rp_kv_snapshots_remove(struct rp_kv_snapshots *snapshots, uint32_t at) {
    struct rp_kv_snapshot *entry = &snapshots->entries[at];
    RP_ASSERT_CMP(entry->state, ==, RP_SNAPSHOT_KEPT);
    uint32_t *link = bucket_of(snapshots, entry->hash);
    while (*link != at)
        link = &snapshots->entries[*link].next;
    *link = entry->next;
    unlink_use(snapshots, at);
    snapshots->kept--;
    release(snapshots, at);
}

uint32_t rp_kv_snapshots_take(struct rp_kv_snapshots *snapshots, uint32_t position, uint64_t step,
                              uint32_t *list) {
    if (snapshots->free_first == RP_NO_SNAPSHOT) {
        uint32_t oldest = snapshots->oldest;
        if (oldest == RP_NO_SNAPSHOT || snapshots->entries[oldest].used_step == step)
            return RP_NO_SNAPSHOT;
        rp_kv_snapshots_remove(snapshots, oldest);
        snapshots->evictions++;
    }
    uint32_t at = snapshots->free_first;
    struct rp_kv_snapshot *entry = &snapshots->entries[at];
    snapshots->free_first = entry->next;
    *entry = (struct rp_kv_snapshot){
        .used_step = step, .position = position, .next = *list, .state = RP_SNAPSHOT_PENDING};
    *list = at;
    snapshots->pending++;
    return at;
}

void rp_kv_snapshots_name(struct rp_kv_snapshots *snapshots, uint32_t list, uint32_t position,
                          uint64_t salt, struct rp_hash128 hash) {
    for (; list != RP_NO_SNAPSHOT; list = snapshots->entries[list].next) {
        struct rp_kv_snapshot *entry = &snapshots->entries[list];
        if (entry->position != position)
            continue;
        entry->salt = salt;
        entry->hash = hash;
        entry->hashed = true;
    }
}

uint32_t rp_kv_snapshots_find(const struct rp_kv_snapshots *snapshots, uint64_t salt,
                              struct rp_hash128 hash) {
    uint32_t at = *bucket_of(snapshots, hash);
    while (at != RP_NO_SNAPSHOT && (!rp_hash128_equal(snapshots->entries[at].hash, hash) ||
                                    snapshots->entries[at].salt != salt))
        at = snapshots->entries[at].next;
    return at;
}

static void touch(struct rp_kv_snapshots *snapshots, uint32_t at) {
    unlink_use(snapshots, at);
    link_newest(snapshots, at);
}

static void keep(struct rp_kv_snapshots *snapshots, uint32_t at) {
    struct rp_kv_snapshot *entry = &snapshots->entries[at];
    uint32_t same = rp_kv_snapshots_find(snapshots, entry->salt, entry->hash);
    if (same != RP_NO_SNAPSHOT) {
        touch(snapshots, same);
        release(snapshots, at);
        return;
    }
    uint32_t *bucket = bucket_of(snapshots, entry->hash);
    entry->state = RP_SNAPSHOT_KEPT;
    entry->next = *bucket;
    *bucket = at;
    link_newest(snapshots, at);
    snapshots->kept++;
    snapshots->saved++;
}

void rp_kv_snapshots_keep(struct rp_kv_snapshots *snapshots, uint32_t *list, uint32_t position) {
    while (*list != RP_NO_SNAPSHOT) {
        uint32_t at = *list;
        struct rp_kv_snapshot *entry = &snapshots->entries[at];
        if (!entry->hashed || entry->position > position) {
            list = &entry->next;
            continue;
        }
        *list = entry->next;
        snapshots->pending--;
        keep(snapshots, at);
    }
}

void rp_kv_snapshots_drop(struct rp_kv_snapshots *snapshots, uint32_t *list) {
    while (*list != RP_NO_SNAPSHOT) {
        uint32_t at = *list;
        *list = snapshots->entries[at].next;
        snapshots->pending--;
        release(snapshots, at);
    }
}

void rp_kv_snapshots_use(struct rp_kv_snapshots *snapshots, uint32_t at, uint64_t step) {
    snapshots->entries[at].used_step = step;
    touch(snapshots, at);
    snapshots->hits++;
}

const char *rp_kv_snapshots_check(const struct rp_kv_snapshots *snapshots, uint32_t pending) {
    uint32_t states[3] = {0}, ordered = 0, chained = 0, free_count = 0, before = RP_NO_SNAPSHOT;
    for (uint32_t i = 0; i < snapshots->count; i++)
        states[snapshots->entries[i].state]++;
    for (uint32_t at = snapshots->oldest; at != RP_NO_SNAPSHOT && ordered <= snapshots->count;
         at = snapshots->entries[at].newer, ordered++) {
        if (snapshots->entries[at].older != before)
            return "the order of snapshots is broken";
        before = at;
    }
    for (uint32_t i = 0; i <= snapshots->bucket_mask; i++)
        for (uint32_t at = snapshots->buckets[i];
             at != RP_NO_SNAPSHOT && chained <= snapshots->count; at = snapshots->entries[at].next)
            chained++;
    for (uint32_t at = snapshots->free_first;
         at != RP_NO_SNAPSHOT && free_count <= snapshots->count; at = snapshots->entries[at].next)
        free_count++;
    if (before != snapshots->newest || ordered != states[RP_SNAPSHOT_KEPT] ||
        chained != states[RP_SNAPSHOT_KEPT] || snapshots->kept != states[RP_SNAPSHOT_KEPT])
        return "a kept snapshot is lost";
    if (pending != states[RP_SNAPSHOT_PENDING] || snapshots->pending != pending)
        return "a pending snapshot belongs to no sequence";
    return free_count == states[RP_SNAPSHOT_FREE] ? NULL : "a free snapshot is lost";
}
