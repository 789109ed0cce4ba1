#include "bench/membw.h"

#include "base/clock.h"
#include "base/memory.h"
#include "device/read_cpu.h"

#include <string.h>

struct read_job {
    const unsigned char *data;
    size_t bytes;
    enum rp_cpu_isa isa;
};

static void read_share(void *arg0, uint64_t pass, const struct rp_cpu_worker *worker) {
    const struct read_job *job = arg0;
    rp_read_cpu(job->data, job->bytes, pass % 2 == 1, job->isa, worker);
}

double rp_membw_read(uint32_t threads, size_t bytes, uint32_t passes) {
    struct rp_cpu_team *team;
    double best = 0;
    if (rp_cpu_team_create(threads, &team, NULL) != RP_OK)
        return 0;
    struct read_job job = {.bytes = bytes, .isa = rp_cpu_isa_detect()};
    unsigned char *data = rp_alloc_aligned(bytes, RP_CACHE_LINE);
    if (data) {
        memset(data, 1, bytes); /* unwritten pages would all map to the zero page */
        job.data = data;
        for (uint32_t pass = 0; pass < passes; pass++) {
            uint64_t number, begin = rp_clock_ns();
            if (rp_cpu_team_submit(team, read_share, &job, pass, &number) != RP_OK)
                break;
            rp_cpu_team_wait(team, number, UINT64_MAX);
            best = RP_MAX(best, (double)bytes * 1e9 / (double)(rp_clock_ns() - begin));
        }
    }
    rp_cpu_team_destroy(team);
    rp_free_aligned(data);
    return best;
}

#define DEVICE_BYTES  ((size_t)2 << 30)
#define DEVICE_PASSES 8
#define DEVICE_READS  4 /* reads per pass, with one wait for all */

double rp_membw_device(const struct rp_backend *backend, struct rp_device *device,
                       uint32_t threads) {
    double best = 0.0;
    struct rp_device_info info;
    memset(&info, 0, sizeof info);
    backend->info(device, &info);
    if (!backend->read || !info.separate_memory)
        return rp_membw_read(threads, (size_t)512 << 20, 6);
    void *data = backend->alloc(device, DEVICE_BYTES, RP_MEMORY_DEVICE);
    if (!data)
        return 0.0;
    bool good = backend->fill(device, data, 0x3C, DEVICE_BYTES) == RP_OK &&
                backend->synchronize(device) == RP_OK;
    for (int pass = 0; pass <= DEVICE_PASSES && good; pass++) { /* pass 0 warms up */
        uint64_t begin = rp_clock_ns();
        for (int i = 0; i < DEVICE_READS; i++)
            good = good && backend->read(device, data, DEVICE_BYTES) == RP_OK;
        good = good && backend->synchronize(device) == RP_OK;
        double ns = (double)(rp_clock_ns() - begin);
        double rate = DEVICE_READS * (double)DEVICE_BYTES / ns * 1e9;
        if (good && pass > 0)
            best = RP_MAX(best, rate);
    }
    backend->free(device, data, RP_MEMORY_DEVICE);
    return good ? best : 0.0;
}
