/* fake_cupti.h - a fake of NVIDIA's library (libfake_cupti.so, opened by dlopen) that delivers the
 * records of a test and fails on demand. One thread. */
#ifndef RP_TESTS_SUPPORT_FAKE_CUPTI_H
#define RP_TESTS_SUPPORT_FAKE_CUPTI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RP_FAKE_CUPTI_PRIVILEGES = 35, RP_FAKE_CUPTI_BUSY = 26 }; /* results */

/* PM sampling (fake_cupti_pm.c). Each result is returned by the function that it is named after. */
struct fake_cupti_pm {
    int init_result, availability_result, host_result, enable_result, config_result, start_result;
    const char *unknown;     /* this chip has no metrics with this in their name */
    uint32_t one_pass_holds; /* metrics; 0: all */
    uint32_t samples, per_decode;
    uint32_t gap_at;           /* this sample is three intervals late; 0: none */
    uint32_t overflow_at;      /* the n-th decode finds the buffer full; 0: none */
    uint32_t decode_fails_at;  /* the n-th decode fails otherwise; 0: none */
    const char *without_value; /* metrics with this in their name are NaN */
    bool image_full;           /* every decode with samples stops because the image is full */
    size_t config_bytes, image_bytes, availability_bytes; /* 0: usual ones */
    /* Recorded calls. */
    uint32_t initialized, deinitialized, hosts_made, hosts_freed, enabled, disabled, started,
        stopped;
    uint32_t decodes, given;
    uint64_t interval;
};

struct fake_cupti {
    struct fake_cupti_pm pm;
    uint32_t version;
    const char *other_subscriber; /* not NULL: another subscriber exists */
    int enable_result;            /* result of cuptiActivityEnable */
    int flush_result;
    size_t dropped;         /* result of cuptiActivityGetNumDroppedRecords */
    bool foreign_buffer;    /* returns a buffer that it never received */
    bool torn_record;       /* the last record of a buffer exceeds the valid bytes */
    bool wrong_correlation; /* as CUDA 13.0 from the second session on */
    /* Recorded calls. */
    uint32_t subscribed, unsubscribed, enabled, disabled, refused; /* buffers */
    uint32_t finalized;
};

/* dlsym: "fake_cupti_state" is a struct fake_cupti, "fake_cupti_kernel" this. node 0: outside
 * graphs. */
typedef void (*fake_cupti_kernel_fn)(uint32_t graph, uint64_t node, uint64_t begin, uint64_t end);
/* "fake_cupti_late": returns a buffer after the session. */
typedef void (*fake_cupti_late_fn)(void);

#endif
