#include "engine/mask_pool.h"

#include "base/memory.h"

#include <string.h>

int rp_mask_pool_init(struct rp_mask_pool *pool, const struct rp_step_view *view) {
    uint32_t capacity = view->config.mask_capacity, table = 1;
    RP_ASSERT_CMP(capacity, >, 2 * view->config.row_capacity);
    while (table < 4 * capacity)
        table *= 2;
    *pool = (struct rp_mask_pool){.view = view,
                                  .entries = rp_calloc(capacity, sizeof *pool->entries),
                                  .by_key = rp_calloc(table, sizeof *pool->by_key),
                                  .table_mask = table - 1};
    return pool->entries && pool->by_key ? RP_OK : RP_STATUS_NO_MEMORY;
}

void rp_mask_pool_deinit(struct rp_mask_pool *pool) {
    rp_free(pool->entries);
    rp_free(pool->by_key);
}

/* Keys are serial numbers and states, so their low bits differ: Fibonacci hashing spreads them. */
static uint32_t *place_of(const struct rp_mask_pool *pool, uint64_t key) {
    return &pool->by_key[key * 0x9E3779B97F4A7C15u >> 32 & pool->table_mask];
}

static uint32_t *bits_of(const struct rp_mask_pool *pool, uint32_t index) {
    return (uint32_t *)pool->view->mask_inputs + index * rp_mask_words(&pool->view->config);
}

uint32_t rp_mask_pool_place(struct rp_mask_pool *pool, const struct rp_sample_hold *hold,
                            uint64_t step) {
    const struct rp_step_config *config = &pool->view->config;
    uint32_t *place = place_of(pool, hold->key), index = *place;
    if (hold->key && pool->entries[index].key == hold->key) {
        pool->entries[index].step = step;
        return index;
    }
    do {
        index = pool->next;
        pool->next = (index + 1) % config->mask_capacity;
        pool->new_count++;
    } while (pool->entries[index].step == step);
    memcpy(bits_of(pool, index), hold->allowed, RP_CEIL_DIV(config->vocab, 32) * 4);
    pool->entries[index] = (struct rp_mask_entry){.key = hold->key, .step = step};
    if (hold->key)
        *place = index;
    return index;
}

static int copy(const struct rp_mask_pool *pool, const struct rp_backend *backend,
                struct rp_device *device, uint32_t begin, uint32_t count) {
    size_t words = rp_mask_words(&pool->view->config);
    return count ? backend->copy(device, (uint32_t *)pool->view->masks + begin * words,
                                 bits_of(pool, begin), count * words * 4)
                 : RP_OK;
}

int rp_mask_pool_upload(struct rp_mask_pool *pool, const struct rp_backend *backend,
                        struct rp_device *device) {
    uint32_t capacity = pool->view->config.mask_capacity;
    uint32_t begin = (pool->next + capacity - pool->new_count) % capacity;
    uint32_t tail = RP_MIN(pool->new_count, capacity - begin), rest = pool->new_count - tail;
    pool->new_count = 0;
    if (pool->view->masks == pool->view->mask_inputs)
        return RP_OK;
    /* Masks between them that this step had placed before are copied once more. */
    int status = copy(pool, backend, device, begin, tail);
    return status == RP_OK ? copy(pool, backend, device, 0, rest) : status;
}
