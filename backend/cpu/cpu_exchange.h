/* cpu_exchange.h - data that the ranks of a group exchange on the CPU.
 *
 * Each rank has two blocks of memory, used in turn. An exchange is two launches:
 *
 *   exchange_wait   copies what the rank gives, rounded to the payload's type, into its block, and
 *                   waits until all ranks have done so
 *   the rest        reads the blocks of all ranks, in rank order
 *
 * One wait is enough: a rank writes a block again in the exchange after the next one, and before
 * that it has waited for ranks that had finished reading it. */
#ifndef RP_BACKEND_CPU_EXCHANGE_H
#define RP_BACKEND_CPU_EXCHANGE_H

#include "backend/cpu/cpu_internal.h"
#include "device/cpu_ranks.h"
#include "device/ops.h"

/* Shared by the devices of a group; freed with the last one. */
struct rp_cpu_exchange {
    struct rp_cpu_ranks *ranks;
    uint32_t count, open;  /* devices, and those not closed yet */
    size_t bytes;          /* of a block */
    unsigned char *blocks; /* (2, count, bytes) */
};

/* One operator of an exchange. */
struct rp_cpu_exchange_op {
    struct rp_device *device;
    enum rp_op_kind kind;
    enum rp_dtype payload;
    struct rp_values in, out;
    uint32_t cols;       /* of in */
    size_t at;           /* bytes into the block */
    const float *vector; /* GROUP_NORM */
    float eps;
    uint32_t norm_cols;
};

#define RP_CPU_EXCHANGE_OPS 2
struct rp_cpu_exchange_args {
    struct rp_device *device;
    struct rp_step_view step;
    enum rp_rows rows;
    uint32_t count;
    const struct rp_cpu_exchange_op *ops[RP_CPU_EXCHANGE_OPS];
};

/* Describes an operator whose part of a block begins at `at`. */
struct rp_cpu_exchange_op rp_cpu_exchange_op(struct rp_device *device, const struct rp_op *op,
                                             struct rp_values in, struct rp_values out, size_t at);
/* The first launch; a group that is broken makes the device fail. */
void rp_cpu_exchange_run(const void *args, const struct rp_cpu_worker *worker);
/* The second one, on rows [begin, end) (rp_row_op, args: struct rp_cpu_exchange_op). */
void rp_cpu_exchange_rows(const void *args, uint32_t begin, uint32_t end);

/* rp_backend.join and reserve_exchange */
int rp_cpu_exchange_join(struct rp_device *const *devices, uint32_t count, struct rp_error *err);
int rp_cpu_exchange_reserve(struct rp_device *const *devices, uint32_t count, size_t bytes,
                            struct rp_error *err);
/* The device fails, and everybody who waits for it; legal without a group. */
void rp_cpu_exchange_break(struct rp_device *device);
void rp_cpu_exchange_leave(struct rp_device *device); /* its workers have ended */

#endif
