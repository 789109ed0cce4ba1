/* fake_cupti.h - a stand-in for NVIDIA's library (libfake_cupti.so, opened by dlopen) that records
 * what a test tells it and fails where it is told to. One thread. */
#ifndef RP_TESTS_SUPPORT_FAKE_CUPTI_H
#define RP_TESTS_SUPPORT_FAKE_CUPTI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RP_FAKE_CUPTI_PRIVILEGES = 35, RP_FAKE_CUPTI_BUSY = 26 }; /* results */

/* PM sampling (fake_cupti_pm.c). Results: of the function they are named after. */
struct fake_cupti_pm {
    int init_result, availability_result, host_result, enable_result, config_result, start_result;
    const char *unknown;     /* metrics with this in their name are not of this chip */
    uint32_t one_pass_holds; /* metrics; 0: all */
    uint32_t samples, per_decode;
    uint32_t gap_at;           /* this sample comes three intervals late; 0: none */
    uint32_t overflow_at;      /* the n-th decode finds the buffer full; 0: none */
    uint32_t decode_fails_at;  /* the n-th decode fails otherwise; 0: none */
    const char *without_value; /* metrics with this in their name are never a number */
    bool image_full;           /* every decode with samples stops because the image is full */
    size_t config_bytes, image_bytes, availability_bytes; /* 0: usual ones */
    /* What it saw. */
    uint32_t initialized, deinitialized, hosts_made, hosts_freed, enabled, disabled, started,
        stopped;
    uint32_t decodes, given;
    uint64_t interval;
};

struct fake_cupti {
    struct fake_cupti_pm pm;
    uint32_t version;
    const char *other_subscriber; /* not NULL: somebody else has subscribed */
    int enable_result;            /* of cuptiActivityEnable */
    int flush_result;
    size_t dropped;         /* what cuptiActivityGetNumDroppedRecords says */
    bool foreign_buffer;    /* gives back a buffer that it never got */
    bool torn_record;       /* the last record of a buffer reaches past what is valid */
    bool wrong_correlation; /* as CUDA 13.0 from the second session on */
    /* What it saw. */
    uint32_t subscribed, unsubscribed, enabled, disabled, refused; /* buffers */
    uint32_t finalized;
};

/* dlsym: "fake_cupti_state" gives a struct fake_cupti, "fake_cupti_kernel" this. node 0: outside
 * graphs. */
typedef void (*fake_cupti_kernel_fn)(uint32_t graph, uint64_t node, uint64_t begin, uint64_t end);
/* "fake_cupti_late": gives back a buffer when the session is over. */
typedef void (*fake_cupti_late_fn)(void);

#endif
