#include "backend/cpu/cpu_exchange.h"

#include "base/bf16.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

struct rp_cpu_exchange_op rp_cpu_exchange_op(struct rp_device *device, const struct rp_op *op,
                                             struct rp_values in, struct rp_values out, size_t at) {
    struct rp_cpu_exchange_op exchange = {.device = device,
                                          .kind = op->kind,
                                          .payload = RP_DTYPE_F32,
                                          .in = in,
                                          .out = out,
                                          .cols = op->in[0].cols,
                                          .at = at};
    if (op->kind == RP_OP_ALLREDUCE)
        exchange.payload = op->u.exchange.payload;
    if (op->kind == RP_OP_GROUP_NORM) {
        exchange.vector = op->vector;
        exchange.eps = op->u.group_norm.eps;
        exchange.norm_cols = op->u.group_norm.cols;
    }
    return exchange;
}

/* The block of a rank in exchange number `number`. */
static unsigned char *block_of(const struct rp_cpu_exchange_op *op, uint32_t number,
                               uint32_t rank) {
    const struct rp_cpu_exchange *exchange = op->device->exchange;
    return exchange->blocks + ((size_t)(number % 2) * exchange->count + rank) * exchange->bytes +
           op->at;
}

static float *row_of(const struct rp_values *values, size_t row) {
    return (float *)values->data + row * values->stride;
}

/* --- what a rank gives ----------------------------------------------------------------------- */

static void give_squares(const struct rp_cpu_exchange_op *op, float *out, size_t begin,
                         size_t end) {
    for (size_t row = begin; row < end; row++) {
        const float *x = row_of(&op->in, row);
        double sum = 0.0;
        for (uint32_t c = 0; c < op->cols; c++)
            sum += (double)x[c] * (double)x[c];
        out[row] = (float)sum;
    }
}

/* Elements [begin, end) of all rows, one after the other. */
static void give_values(const struct rp_cpu_exchange_op *op, unsigned char *out, size_t begin,
                        size_t end) {
    while (begin < end) {
        size_t row = begin / op->cols, col = begin % op->cols;
        size_t count = RP_MIN(op->cols - col, end - begin);
        const float *from = row_of(&op->in, row) + col;
        if (op->payload == RP_DTYPE_F32)
            memcpy((float *)(void *)out + begin, from, count * sizeof *from);
        else
            for (size_t i = 0; i < count; i++)
                ((uint16_t *)(void *)out)[begin + i] = rp_f32_to_bf16(from[i]);
        begin += count;
    }
}

void rp_cpu_exchange_run(const void *args_void, const struct rp_cpu_worker *worker) {
    const struct rp_cpu_exchange_args *args = args_void;
    struct rp_device *device = args->device;
    uint32_t rows = rp_live_rows(&args->step, args->rows), number = device->exchange_count;
    for (uint32_t i = 0; i < args->count; i++) {
        const struct rp_cpu_exchange_op *op = args->ops[i];
        unsigned char *out = block_of(op, number, device->rank);
        size_t begin, end;
        if (op->kind == RP_OP_GROUP_NORM) {
            rp_cpu_share(worker, rows, 16, &begin, &end);
            give_squares(op, (float *)(void *)out, begin, end);
        } else {
            rp_cpu_share(worker, (size_t)rows * op->cols, 32, &begin, &end);
            give_values(op, out, begin, end);
        }
    }
    rp_cpu_barrier(worker); /* all of it is written, and everybody has read the number */
    if (worker->index != 0)
        return;
    device->exchange_count = number + 1;
    if (!rp_cpu_ranks_wait(device->exchange->ranks))
        atomic_store(&device->failed, true); /* seen by all workers after the launch's barrier */
}

/* --- what it makes of all ranks' ------------------------------------------------------------- */

static void sum_rows(const struct rp_cpu_exchange_op *op, uint32_t begin, uint32_t end) {
    uint32_t number = op->device->exchange_count - 1, ranks = op->device->exchange->count;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const unsigned char *block = block_of(op, number, rank);
        for (uint32_t row = begin; row < end; row++) {
            float *out = row_of(&op->out, row);
            size_t at = (size_t)row * op->cols;
            const float *whole = (const float *)(const void *)block + at;
            const uint16_t *half = (const uint16_t *)(const void *)block + at;
            bool f32 = op->payload == RP_DTYPE_F32;
            if (rank == 0 && f32)
                memcpy(out, whole, op->cols * sizeof *out);
            else if (f32)
                for (uint32_t c = 0; c < op->cols; c++)
                    out[c] += whole[c];
            else
                for (uint32_t c = 0; c < op->cols; c++)
                    out[c] = (rank == 0 ? 0.0f : out[c]) + rp_bf16_to_f32(half[c]);
        }
    }
}

static void gather_rows(const struct rp_cpu_exchange_op *op, uint32_t begin, uint32_t end) {
    uint32_t number = op->device->exchange_count - 1, ranks = op->device->exchange->count;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const float *block = (const float *)(const void *)block_of(op, number, rank);
        for (uint32_t row = begin; row < end; row++)
            memcpy(row_of(&op->out, row) + (size_t)rank * op->cols, block + (size_t)row * op->cols,
                   op->cols * sizeof *block);
    }
}

static void norm_rows(const struct rp_cpu_exchange_op *op, uint32_t begin, uint32_t end) {
    uint32_t number = op->device->exchange_count - 1, ranks = op->device->exchange->count;
    for (uint32_t row = begin; row < end; row++) {
        float total = 0.0f;
        for (uint32_t rank = 0; rank < ranks; rank++)
            total += ((const float *)(const void *)block_of(op, number, rank))[row];
        float *x = row_of(&op->out, row);
        float inverse = 1.0f / sqrtf(total / (float)op->norm_cols + op->eps);
        for (uint32_t c = 0; c < op->cols; c++)
            x[c] = x[c] * inverse * op->vector[c];
    }
}

void rp_cpu_exchange_rows(const void *args, uint32_t begin, uint32_t end) {
    const struct rp_cpu_exchange_op *op = args;
    if (op->kind == RP_OP_ALLREDUCE)
        sum_rows(op, begin, end);
    else if (op->kind == RP_OP_ALLGATHER)
        gather_rows(op, begin, end);
    else
        norm_rows(op, begin, end);
}

/* --- the group ------------------------------------------------------------------------------- */

int rp_cpu_exchange_join(struct rp_device *const *devices, uint32_t count, struct rp_error *err) {
    struct rp_cpu_exchange *exchange = rp_calloc(1, sizeof *exchange);
    if (exchange)
        exchange->ranks = rp_cpu_ranks_create(count);
    if (!exchange || !exchange->ranks) {
        rp_free(exchange);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "cpu: no memory for a group of %u", count);
    }
    exchange->count = exchange->open = count;
    for (uint32_t rank = 0; rank < count; rank++) {
        devices[rank]->exchange = exchange;
        devices[rank]->rank = rank;
    }
    return RP_OK;
}

int rp_cpu_exchange_reserve(struct rp_device *const *devices, uint32_t count, size_t bytes,
                            struct rp_error *err) {
    struct rp_cpu_exchange *exchange = devices[0]->exchange;
    if (bytes <= exchange->bytes)
        return RP_OK;
    unsigned char *blocks = rp_alloc_aligned(2 * count * bytes, RP_CACHE_LINE);
    if (!blocks)
        return rp_error_set(err, RP_STATUS_NO_MEMORY,
                            "cpu: no memory for exchanges of %zu bytes by each of %u ranks", bytes,
                            count);
    for (uint32_t rank = 0; rank < count; rank++)
        rp_cpu_team_wait(devices[rank]->team, devices[rank]->last_job, UINT64_MAX);
    rp_free_aligned(exchange->blocks);
    exchange->blocks = blocks;
    exchange->bytes = bytes;
    return RP_OK;
}

void rp_cpu_exchange_break(struct rp_device *device) {
    if (device->exchange)
        rp_cpu_ranks_break(device->exchange->ranks);
}

void rp_cpu_exchange_leave(struct rp_device *device) {
    struct rp_cpu_exchange *exchange = device->exchange;
    device->exchange = NULL;
    if (!exchange || --exchange->open > 0)
        return;
    rp_cpu_ranks_destroy(exchange->ranks);
    rp_free_aligned(exchange->blocks);
    rp_free(exchange);
}
