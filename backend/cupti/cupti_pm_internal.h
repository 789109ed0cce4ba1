/* cupti_pm_internal.h - what the files of PM sampling share (cupti_pm.c, cupti_pm_select.c). */
#ifndef RP_BACKEND_CUPTI_PM_INTERNAL_H
#define RP_BACKEND_CUPTI_PM_INTERNAL_H

#include "backend/cupti/cupti_pm_api.h"
#include "device/counters.h"

struct rp_cupti_pm {
    struct rp_cupti_pm_api api;
    uint32_t version;
    uint32_t device;
    const char *chip; /* CUPTI's */
    uint8_t *availability;
    void *host;
    uint8_t *config;
    size_t config_bytes;
    /* The metrics that are counted, and of which entry of the report each is. */
    const char *metrics[RP_DEVICE_COUNTERS_MAX];
    uint32_t entries[RP_DEVICE_COUNTERS_MAX];
    uint32_t count;
};

/* Calls CUPTI with *p, whose first member it fills. */
#define RP_CUPTI_PM_CALL(pm, name, type, last, p)                                                  \
    ((p)->bytes = RP_CUPTI_BYTES(struct rp_cupti_##type, last), (pm)->api.name(p))

/* Fills *err with what to do about it where that is known; gives the status. */
int rp_cupti_pm_refused(const struct rp_cupti_pm *pm, const char *what, int result,
                        struct rp_error *err) RP_MUST_USE;

/* Chooses the metrics: lists all of the table in out, and in pm those that the chip counts in one
 * pass, with their host object and configuration. Needs chip and availability. UNSUPPORTED:
 * none; NO_MEMORY. */
int rp_cupti_pm_select(struct rp_cupti_pm *pm, struct rp_device_counters *out,
                       struct rp_error *err) RP_MUST_USE;
void rp_cupti_pm_select_undo(struct rp_cupti_pm *pm);

#endif
