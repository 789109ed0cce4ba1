/* cupti_api.h - what is used of CUPTI, and the layout of its kernel records (cupti.h of CUDA 12.9
 * to 13.x).
 *
 * A kernel's record has grown only at its end since CUDA 11: tests/gpu/test_cupti_cuda.c holds
 * these offsets against the toolkit's headers. */
#ifndef RP_BACKEND_CUPTI_API_H
#define RP_BACKEND_CUPTI_API_H

#include "base/base.h"

enum rp_cupti_result {
    RP_CUPTI_SUCCESS = 0,
    RP_CUPTI_MAX_LIMIT_REACHED = 12, /* no more records in a buffer */
    RP_CUPTI_INSUFFICIENT_PRIVILEGES = 35,
    RP_CUPTI_MULTIPLE_SUBSCRIBERS = 39
};
enum { RP_CUPTI_KIND_CONCURRENT_KERNEL = 10, RP_CUPTI_FLUSH_FORCED = 1 };

/* Offsets in a kernel's record, which CUPTI aligns to 8 bytes. */
enum {
    RP_CUPTI_AT_KIND = 0,         /* u32 */
    RP_CUPTI_AT_START = 16,       /* u64; start and end 0: not taken */
    RP_CUPTI_AT_END = 24,         /* u64 */
    RP_CUPTI_AT_GRAPH_NODE = 144, /* u64; 0: not from a graph */
    RP_CUPTI_AT_GRAPH = 156       /* u32 */
};

struct rp_cupti_subscriber_params {
    size_t struct_bytes;
    const char *name;
    char *old_name; /* filled when another has subscribed */
    size_t old_name_bytes;
};

typedef void (*rp_cupti_request)(uint8_t **buffer, size_t *bytes, size_t *max_records);
typedef void (*rp_cupti_complete)(void *context, uint32_t stream, uint8_t *buffer, size_t bytes,
                                  size_t valid_bytes);
typedef void (*rp_cupti_callback)(void *user, uint32_t domain, uint32_t id, const void *data);

/* X(result type is int, name, parameters) */
#define RP_CUPTI_FUNCTIONS(X)                                                                      \
    X(cuptiGetVersion, (uint32_t * version))                                                       \
    X(cuptiSubscribe, (void **subscriber, rp_cupti_callback callback, void *user))                 \
    X(cuptiUnsubscribe, (void *subscriber))                                                        \
    X(cuptiActivityRegisterTimestampCallback, (uint64_t(*now)(void)))                              \
    X(cuptiActivityRegisterCallbacks, (rp_cupti_request request, rp_cupti_complete complete))      \
    X(cuptiActivityEnable, (int kind))                                                             \
    X(cuptiActivityDisable, (int kind))                                                            \
    X(cuptiActivityFlushAll, (uint32_t flags))                                                     \
    X(cuptiActivityGetNextRecord, (uint8_t * buffer, size_t bytes, void **record))                 \
    X(cuptiActivityGetNumDroppedRecords, (void *context, uint32_t stream, size_t *dropped))        \
    X(cuptiGetResultString, (int result, const char **text))

struct rp_cupti_api {
#define X(name, parameters) int(*name) parameters;
    RP_CUPTI_FUNCTIONS(X)
#undef X
    /* NULL where it is missing: it reports who has subscribed. */
    int (*subscribe_v2)(void **subscriber, rp_cupti_callback callback, void *user,
                        struct rp_cupti_subscriber_params *params);
};

#endif
