#include "device/rapl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool read_number(int fd, uint64_t *out) {
    char text[32];
    ssize_t len = pread(fd, text, sizeof text - 1, 0);
    char *end;
    if (len <= 0)
        return false;
    text[len] = '\0';
    *out = strtoull(text, &end, 10);
    return end != text;
}

static int open_file(const char *dir, uint32_t package, const char *name) {
    char path[512];
    if ((size_t)snprintf(path, sizeof path, "%s/intel-rapl:%u/%s", dir, package, name) >=
        sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return open(path, O_RDONLY | O_CLOEXEC);
}

static bool open_package(const char *dir, uint32_t number, struct rp_rapl_package *out) {
    int range = open_file(dir, number, "max_energy_range_uj");
    out->fd = open_file(dir, number, "energy_uj");
    bool opened = out->fd >= 0 && range >= 0 && read_number(out->fd, &out->last_uj) &&
                  read_number(range, &out->range_uj);
    int why = errno;
    if (range >= 0)
        close(range);
    if (!opened && out->fd >= 0)
        close(out->fd);
    errno = why;
    return opened;
}

int rp_rapl_open(const char *dir, struct rp_rapl *out, struct rp_error *err) {
    memset(out, 0, sizeof *out);
    while (out->count < RP_RAPL_PACKAGES_MAX &&
           open_package(dir, out->count, &out->packages[out->count]))
        out->count++;
    if (out->count == RP_RAPL_PACKAGES_MAX || (out->count > 0 && errno == ENOENT))
        return RP_OK;
    int why = errno;
    uint32_t package = out->count;
    rp_rapl_close(out);
    if (why == ENOENT)
        return rp_error_set(err, RP_STATUS_NOT_FOUND, "no RAPL counters in %s", dir);
    return rp_error_set(err, RP_STATUS_IO, "%s/intel-rapl:%u/energy_uj: %s", dir, package,
                        strerror(why));
}

bool rp_rapl_read(struct rp_rapl *rapl, uint64_t *out_mj) {
    for (uint32_t i = 0; i < rapl->count; i++) {
        struct rp_rapl_package *package = &rapl->packages[i];
        uint64_t now;
        if (!read_number(package->fd, &now))
            return false;
        rapl->total_uj += now >= package->last_uj ? now - package->last_uj
                                                  : package->range_uj - package->last_uj + now;
        package->last_uj = now;
    }
    *out_mj = rapl->total_uj / 1000;
    return rapl->count > 0;
}

void rp_rapl_close(struct rp_rapl *rapl) {
    for (uint32_t i = 0; i < rapl->count; i++)
        close(rapl->packages[i].fd);
    memset(rapl, 0, sizeof *rapl);
}
