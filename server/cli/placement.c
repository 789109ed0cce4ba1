#include "server/cli/placement.h"

#include "base/cpu_list.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NODES_MAX = 1024, PREFER_NODE = 1 /* MPOL_PREFERRED of linux/mempolicy.h */ };

/* First line of a file of /sys/devices/system/node; false: there is no such file. */
static bool read_node_file(const char *name, char *out, int size) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/node/%s", name);
    FILE *file = fopen(path, "re");
    bool read = file && fgets(out, size, file);
    if (file)
        fclose(file);
    return read;
}

static int read_node(const char *text, cpu_set_t *out, uint32_t *out_node, struct rp_error *err) {
    char *end, name[32], list[RP_CPU_LIST_MAX];
    unsigned long node = strtoul(text, &end, 10);
    snprintf(name, sizeof name, "node%lu/cpulist", node);
    if (text[0] < '0' || text[0] > '9' || *end || node >= NODES_MAX ||
        !read_node_file(name, list, sizeof list)) {
        int status =
            rp_error_set(err, RP_STATUS_INVALID, "--numa: there is no node \"%.40s\"", text);
        if (read_node_file("online", list, sizeof list))
            rp_error_hint(err, "nodes of this machine: %.*s", (int)strcspn(list, "\n"), list);
        return status;
    }
    *out_node = (uint32_t)node;
    return list[0] == '\n' ? rp_error_set(err, RP_STATUS_INVALID,
                                          "--numa: node %lu has memory and no processors", node)
                           : rp_cpu_list_parse(list, out, err);
}

/* Prefers the node's memory. Some containers forbid it; memory then still comes from the node, as
 * long as it has any, because the threads that touch it first run there. */
static void prefer_memory(uint32_t node) {
    unsigned long mask[NODES_MAX / (8 * sizeof(unsigned long))] = {0};
    mask[node / (8 * sizeof *mask)] = 1ul << node % (8 * sizeof *mask);
    if (syscall(SYS_set_mempolicy, PREFER_NODE, mask, (unsigned long)NODES_MAX) != 0)
        rp_log(RP_LOG_WARN, "start: memory policy for --numa %u: %s", node, strerror(errno));
}

static int check_allowed(const char *flag, const cpu_set_t *wanted, const cpu_set_t *allowed,
                         struct rp_error *err) {
    char text[RP_CPU_LIST_MAX], have[128];
    cpu_set_t both, missing;
    CPU_AND(&both, wanted, allowed);
    CPU_XOR(&missing, wanted, &both);
    if (CPU_COUNT(&missing) == 0)
        return RP_OK;
    rp_cpu_list_format(&missing, text, sizeof text);
    rp_cpu_list_format(allowed, have, sizeof have);
    int status = rp_error_set(err, RP_STATUS_INVALID,
                              "%s: this process may not use processor %.200s", flag, text);
    rp_error_hint(err, "it may use %s", have);
    return status;
}

int rp_placement_apply(const char *cpus, const char *node, struct rp_error *err) {
    cpu_set_t allowed, set, of_node;
    uint32_t node_number = 0;
    int status = RP_OK;
    if (!(cpus && *cpus) && !(node && *node))
        return RP_OK;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return rp_error_set(err, RP_STATUS_IO, "sched_getaffinity: %s", strerror(errno));
    set = allowed;
    if (cpus && *cpus) {
        struct rp_error why = {0};
        if (rp_cpu_list_parse(cpus, &set, &why) != RP_OK)
            return rp_error_set(err, RP_STATUS_INVALID, "--cpu-affinity: %s", why.text);
        status = check_allowed("--cpu-affinity", &set, &allowed, err);
    }
    if (status == RP_OK && node && *node) {
        status = read_node(node, &of_node, &node_number, err);
        if (status == RP_OK)
            CPU_AND(&set, &set, &of_node);
        if (status == RP_OK && CPU_COUNT(&set) == 0)
            status = rp_error_set(err, RP_STATUS_INVALID,
                                  "--numa %u: no processor of the node is among those that this "
                                  "process may use, or that --cpu-affinity names",
                                  node_number);
    }
    if (status != RP_OK)
        return status;
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        return rp_error_set(err, RP_STATUS_IO, "sched_setaffinity: %s", strerror(errno));
    if (node && *node)
        prefer_memory(node_number);
    return RP_OK;
}
