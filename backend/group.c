#include "backend/group.h"

#include "backend/group_internal.h"
#include "base/memory.h"

#include <stdio.h>
#include <string.h>

/* --- memory ---------------------------------------------------------------------------------- */

static struct rp_group_block *block_at(const struct rp_device *group, const void *address) {
    for (uint32_t i = 0; i < group->block_count; i++) {
        const struct rp_group_block *block = &group->blocks[i];
        uintptr_t at = (uintptr_t)address, base = (uintptr_t)block->base[0];
        if (at >= base && at - base < block->bytes)
            return (struct rp_group_block *)(uintptr_t)block;
    }
    return NULL;
}

void *rp_group_address(struct rp_device *group, uint32_t rank, const void *address) {
    const struct rp_group_block *block = block_at(group, address);
    if (!block)
        return (void *)(uintptr_t)address;
    return block->base[rank] + ((const unsigned char *)address - block->base[0]);
}

/* A block of `bytes` on each rank, allocated or reserved. */
static void *new_block(struct rp_device *group, size_t bytes, enum rp_memory_kind kind,
                       bool reserves) {
    const struct rp_backend *member = group->member;
    struct rp_group_block block = {.bytes = RP_MAX(bytes, (size_t)1)};
    if (group->block_count == RP_GROUP_BLOCKS)
        return NULL;
    for (uint32_t rank = 0; rank < group->count; rank++) {
        struct rp_device *device = rp_group_rank(group, rank);
        block.base[rank] =
            reserves ? member->reserve(device, bytes) : member->alloc(device, bytes, kind);
        if (block.base[rank])
            continue;
        while (rank-- > 0)
            if (reserves)
                member->release(rp_group_rank(group, rank), block.base[rank]);
            else
                member->free(rp_group_rank(group, rank), block.base[rank], kind);
        return NULL;
    }
    group->blocks[group->block_count++] = block;
    return block.base[0];
}

static struct rp_group_block take_block(struct rp_device *group, void *base) {
    struct rp_group_block *block = block_at(group, base);
    RP_ASSERT(block && block->base[0] == base);
    const struct rp_group_block taken = *block;
    *block = group->blocks[--group->block_count];
    return taken;
}

/* Host memory that all ranks see at one address. */
static void *new_shared_block(struct rp_device *group, size_t bytes) {
    if (group->block_count == RP_GROUP_BLOCKS)
        return NULL;
    struct rp_group_block block = {.bytes = RP_MAX(bytes, (size_t)1), .is_shared = true};
    unsigned char *base = group->member->alloc(rp_group_rank(group, 0), bytes, RP_MEMORY_HOST);
    for (uint32_t rank = 0; rank < group->count; rank++)
        block.base[rank] = base;
    if (base)
        group->blocks[group->block_count++] = block;
    return base;
}

static void *group_alloc(struct rp_device *group, size_t bytes, enum rp_memory_kind kind) {
    return kind == RP_MEMORY_HOST ? new_shared_block(group, bytes)
                                  : new_block(group, bytes, kind, false);
}

static void free_results(struct rp_device *group, struct rp_group_results *results) {
    for (uint32_t rank = 1; rank < group->count; rank++)
        group->member->free(rp_group_rank(group, rank), results->blocks[rank], RP_MEMORY_HOST);
    *results = group->results[--group->result_count];
}

static void group_free(struct rp_device *group, void *ptr, enum rp_memory_kind kind) {
    if (!ptr)
        return;
    rp_group_wait(group);
    const struct rp_group_block block = take_block(group, ptr);
    if (block.is_shared) {
        for (uint32_t i = group->result_count; i-- > 0;) {
            uintptr_t at = (uintptr_t)group->results[i].results, base = (uintptr_t)block.base[0];
            if (at >= base && at - base < block.bytes)
                free_results(group, &group->results[i]);
        }
        group->member->free(rp_group_rank(group, 0), ptr, kind);
        return;
    }
    for (uint32_t rank = 0; rank < group->count; rank++)
        group->member->free(rp_group_rank(group, rank), block.base[rank], kind);
}

static void *group_reserve(struct rp_device *group, size_t bytes) {
    return new_block(group, bytes, RP_MEMORY_DEVICE, true);
}

static int group_commit(struct rp_device *group, void *base, size_t bytes) {
    const struct rp_group_block *block = block_at(group, base);
    int status = RP_OK;
    for (uint32_t rank = 0; rank < group->count && status == RP_OK; rank++)
        status = group->member->commit(rp_group_rank(group, rank), block->base[rank], bytes);
    return status;
}

static void group_release(struct rp_device *group, void *base) {
    rp_group_wait(group);
    const struct rp_group_block block = take_block(group, base);
    for (uint32_t rank = 0; rank < group->count; rank++)
        group->member->release(rp_group_rank(group, rank), block.base[rank]);
}

static size_t group_granule(struct rp_device *group) {
    return group->member->granule(rp_group_rank(group, 0));
}

/* The numbers of one rank, the one with the least free memory. Devices that share the host's memory
 * report all of it, and each rank has an equal part. */
static void group_memory(struct rp_device *group, struct rp_device_memory *out) {
    uint64_t count = 0;
    for (uint32_t rank = 0; rank < group->count; rank++) {
        struct rp_device_memory memory;
        group->member->memory(rp_group_rank(group, rank), &memory);
        count += memory.allocation_count;
        if (rank == 0 || memory.free_bytes < out->free_bytes)
            *out = memory;
    }
    out->allocation_count = count;
    if (!group->info.separate_memory) {
        out->total_bytes /= group->count;
        out->free_bytes /= group->count;
    }
}

static int group_copy(struct rp_device *group, void *to, const void *from, size_t bytes) {
    int status = RP_OK;
    const struct rp_group_block *block = block_at(group, to);
    uint32_t count = block && !block->is_shared ? group->count : 1;
    for (uint32_t rank = 0; rank < count && status == RP_OK; rank++)
        status = group->member->copy(rp_group_rank(group, rank), rp_group_address(group, rank, to),
                                     rp_group_address(group, rank, from), bytes);
    return status;
}

static int group_fill(struct rp_device *group, void *to, int byte, size_t bytes) {
    int status = RP_OK;
    for (uint32_t rank = 0; rank < group->count && status == RP_OK; rank++)
        status = group->member->fill(rp_group_rank(group, rank), rp_group_address(group, rank, to),
                                     byte, bytes);
    return status;
}

static int group_read(struct rp_device *group, const void *data, size_t bytes) {
    int status = RP_OK;
    for (uint32_t rank = 0; rank < group->count && status == RP_OK; rank++)
        status = group->member->read(rp_group_rank(group, rank),
                                     rp_group_address(group, rank, data), bytes);
    return status;
}

/* --- matrices -------------------------------------------------------------------------------- */

static int group_matrix_prepare(struct rp_device *group, struct rp_matrix *matrix,
                                struct rp_error *err) {
    uint32_t rank = rp_group_matrix_rank(group, matrix);
    return group->member->matrix_prepare(rp_group_rank(group, rank), matrix, err);
}

static int group_matrix_quantize(struct rp_device *group, const struct rp_matrix *values,
                                 uint32_t col, struct rp_matrix *matrix, struct rp_error *err) {
    uint32_t rank = rp_group_matrix_rank(group, matrix);
    return group->member->matrix_quantize(group->ranks[rank], values, col, matrix, err);
}

static void group_matrices_end(struct rp_device *group) {
    for (uint32_t rank = 0; rank < group->count; rank++)
        group->member->matrices_end(group->ranks[rank]);
}

static int group_matrix_random(struct rp_device *group, struct rp_matrix *matrix, uint64_t seed,
                               float scale, struct rp_error *err) {
    uint32_t rank = rp_group_matrix_rank(group, matrix);
    return group->member->matrix_random(rp_group_rank(group, rank), matrix,
                                        seed + ((uint64_t)rank << 32), scale, err);
}

static void group_matrix_release(struct rp_device *group, struct rp_matrix *matrix) {
    rp_group_wait(group);
    group->member->matrix_release(rp_group_rank(group, rp_group_matrix_rank(group, matrix)),
                                  matrix);
}

/* --- open and close -------------------------------------------------------------------------- */

static int group_open(const struct rp_device_config *config, struct rp_device **out,
                      struct rp_error *err) {
    (void)config;
    (void)out;
    return rp_error_set(err, RP_STATUS_UNSUPPORTED, "a group is opened by rp_group_open");
}

static void group_close(struct rp_device *group) {
    if (!group)
        return;
    if (group->result_count)
        rp_group_wait(group); /* the ranks write their results */
    while (group->result_count)
        free_results(group, &group->results[0]);
    for (uint32_t rank = 0; rank < group->count; rank++)
        rp_group_launcher_destroy(group->launchers[rank]);
    for (uint32_t rank = 0; rank < group->count; rank++)
        group->member->close(group->ranks[rank]);
    rp_free(group);
}

static void group_info(struct rp_device *group, struct rp_device_info *out) { *out = group->info; }

static void describe(struct rp_device *group) {
    struct rp_device_info *info = &group->info;
    char name[sizeof info->name];
    group->member->info(group->ranks[0], info);
    snprintf(name, sizeof name, "%u x %.80s", group->count, info->name);
    memcpy(info->name, name, sizeof name);
    info->ranks = group->count;
    if (!info->separate_memory)
        info->memory_bytes /= group->count;
    for (uint32_t rank = 0; rank < group->count; rank++)
        snprintf(group->behind[rank], sizeof group->behind[rank],
                 "the others wait for rank %u of %u", rank, group->count);
}

/* Where launching takes the driver's time, a thread for each rank past the first: the host's part
 * of a step of the 70B shape on two GPUs takes 15 to 40 us, not 44 to 79
 * (bench/results/2026-11-27_h200_group.md). */
static int start_launchers(struct rp_device *group, bool wanted, struct rp_error *err) {
    int status = RP_OK;
    if (!wanted && !group->info.separate_memory)
        return RP_OK;
    for (uint32_t rank = 1; rank < group->count && status == RP_OK; rank++)
        status = rp_group_launcher_create(group->member, group->ranks[rank], rank,
                                          &group->launchers[rank], err);
    return status;
}

static const struct rp_backend functions = {.abi = RP_BACKEND_ABI,
                                            .open = group_open,
                                            .close = group_close,
                                            .info = group_info,
                                            .alloc = group_alloc,
                                            .free = group_free,
                                            .copy = group_copy,
                                            .fill = group_fill,
                                            .synchronize = rp_group_synchronize,
                                            .reserve = group_reserve,
                                            .commit = group_commit,
                                            .release = group_release,
                                            .granule = group_granule,
                                            .memory = group_memory,
                                            .matrix_prepare = group_matrix_prepare,
                                            .matrix_random = group_matrix_random,
                                            .matrix_release = group_matrix_release,
                                            .capture = rp_group_capture,
                                            .graph_destroy = rp_group_graph_destroy,
                                            .graph_launch_count = rp_group_launch_count,
                                            .graph_launch_info = rp_group_launch_info,
                                            .graph_info = rp_group_graph_info,
                                            .launch = rp_group_launch,
                                            .wait_step = rp_group_wait_step,
                                            .wait_idle = rp_group_wait_idle,
                                            .progress = rp_group_progress,
                                            .last_replay_ns = rp_group_last_replay_ns,
                                            .last_error = rp_group_last_error,
                                            .inject_fault = rp_group_inject_fault,
                                            .rank_address = rp_group_rank_address};

int rp_group_open(const struct rp_backend *member, const struct rp_device_config *config,
                  const struct rp_backend **out_backend, struct rp_device **out,
                  struct rp_error *err) {
    *out_backend = member;
    if (config->ranks <= 1)
        return member->open(config, out, err);
    if (!member->join) {
        int status = rp_error_set(err, RP_STATUS_UNSUPPORTED,
                                  "--tensor-parallel-size %u: the %s backend has no groups of "
                                  "devices yet",
                                  config->ranks, member->name);
        rp_error_hint(err, "omit it, or use --device cpu");
        return status;
    }
    RP_ASSERT_CMP(config->ranks, <=, RP_GROUP_RANKS_MAX);
    struct rp_device *group = rp_calloc(1, sizeof *group);
    int status = group ? RP_OK : rp_error_set(err, RP_STATUS_NO_MEMORY, "group: out of memory");
    if (!group)
        return status;
    group->member = member;
    /* Its name is the member's: which kernels and formats there are depends on it. */
    group->table = functions;
    group->table.name = member->name;
    group->table.read = member->read ? group_read : NULL;
    group->table.matrix_quantize = member->matrix_quantize ? group_matrix_quantize : NULL;
    group->table.matrices_end = member->matrices_end ? group_matrices_end : NULL;
    while (group->count < config->ranks && status == RP_OK) {
        struct rp_device_config each = *config;
        each.ordinal += config->ranks_share_device ? 0 : group->count;
        status = member->open(&each, &group->ranks[group->count], err);
        group->count += status == RP_OK;
    }
    if (status == RP_OK)
        status = member->join(group->ranks, group->count, err);
    if (status == RP_OK) {
        describe(group);
        status = start_launchers(group, config->launch_threads, err);
    }
    if (status != RP_OK) {
        group_close(group);
        return status;
    }
    *out_backend = &group->table;
    *out = group;
    return RP_OK;
}
