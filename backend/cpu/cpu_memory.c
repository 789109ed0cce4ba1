/* cpu_memory.c - available memory: the minimum of what the machine has and what the limit of this
 * process's control group allows. Both versions of control groups, as seen from inside a
 * container. */
#include "backend/cpu/cpu_internal.h"

#include <stdio.h>
#include <string.h>

/* The number after `key ` on a line (key "": the first of the file); false: none. */
static bool read_number(const char *root, const char *name, const char *key, uint64_t *out) {
    char path[512], line[256];
    unsigned long long value;
    size_t key_len = strlen(key);
    bool found = false;
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof line, file))
        found = strncmp(line, key, key_len) == 0 && (!key_len || line[key_len] == ' ') &&
                sscanf(line + key_len, "%llu", &value) == 1;
    if (file)
        fclose(file);
    if (found)
        *out = value;
    return found;
}

uint64_t rp_cpu_group_room(const char *root) {
    static const struct {
        const char *limit, *usage, *stat, *cache[2];
    } versions[] = {
        {"memory.max", "memory.current", "memory.stat", {"inactive_file", "active_file"}},
        {"memory/memory.limit_in_bytes",
         "memory/memory.usage_in_bytes",
         "memory/memory.stat",
         {"total_inactive_file", "total_active_file"}},
    };
    uint64_t room = UINT64_MAX;
    for (size_t i = 0; i < RP_ARRAY_COUNT(versions); i++) {
        uint64_t limit, used = 0, cache;
        if (!read_number(root, versions[i].limit, "", &limit)) /* "max": no limit */
            continue;
        (void)read_number(root, versions[i].usage, "", &used);
        /* File pages count as used but make room when it is needed: a model was just read. */
        for (size_t c = 0; c < 2; c++)
            if (read_number(root, versions[i].stat, versions[i].cache[c], &cache))
                used -= RP_MIN(used, cache);
        room = RP_MIN(room, limit > used ? limit - used : 0);
    }
    return room;
}

uint64_t rp_cpu_memory_room(void) {
    uint64_t kib = 0;
    /* What the kernel says may be used without swapping. */
    (void)read_number("/proc", "meminfo", "MemAvailable:", &kib);
    return RP_MIN(kib * 1024, rp_cpu_group_room("/sys/fs/cgroup"));
}
