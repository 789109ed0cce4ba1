#include "metrics/thread_stats.h"

#include "base/threads.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A file of a thread, cut to the size; "" when it cannot be read (the thread has ended, say). */
static void read_file(int32_t tid, const char *name, char *out, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/%s", tid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t len = fd < 0 ? -1 : read(fd, out, size - 1);
    out[RP_MAX(len, 0)] = '\0';
    if (fd >= 0)
        close(fd);
}

/* The number after a key of a file of lines "key : value" or "key:\tvalue"; -1: there is none. */
static int64_t value_of(const char *text, const char *key) {
    const char *at = strstr(text, key);
    at = at ? strchr(at, ':') : NULL;
    return at ? strtoll(at + 1, NULL, 10) : -1;
}

/* Field 39 of "tid (name) state ...": the name may contain anything. */
static int32_t processor_of(const char *stat) {
    const char *at = strrchr(stat, ')');
    for (int field = 2; at && field < 39; field++)
        at = strchr(at + 1, ' ');
    return at ? atoi(at + 1) : -1;
}

int32_t rp_numa_node_of(int32_t processor) {
    char path[64];
    int32_t node = -1;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d", processor);
    DIR *listing = opendir(path);
    for (const struct dirent *entry; listing && node < 0 && (entry = readdir(listing));)
        if (strncmp(entry->d_name, "node", 4) == 0)
            node = atoi(entry->d_name + 4);
    if (listing)
        closedir(listing);
    return node;
}

static void read_thread(struct rp_thread_stats *out) {
    char text[4096]; /* "sched" has some 30 lines */
    read_file(out->tid, "comm", out->name, sizeof out->name);
    out->name[strcspn(out->name, "\n")] = '\0';
    CPU_ZERO(&out->affinity);
    (void)sched_getaffinity(out->tid, sizeof out->affinity, &out->affinity);
    read_file(out->tid, "stat", text, sizeof text);
    out->processor = processor_of(text);
    out->node = rp_numa_node_of(out->processor);
    read_file(out->tid, "schedstat", text, sizeof text);
    char *end = text;
    out->run_ns = strtoull(text, &end, 10);
    out->wait_ns = strtoull(end, NULL, 10);
    read_file(out->tid, "sched", text, sizeof text);
    out->migrations = value_of(text, "se.nr_migrations");
    read_file(out->tid, "status", text, sizeof text);
    out->voluntary = (uint64_t)RP_MAX(value_of(text, "\nvoluntary_ctxt_switches"), 0);
    out->involuntary = (uint64_t)RP_MAX(value_of(text, "\nnonvoluntary_ctxt_switches"), 0);
}

static int compare_tids(const void *left, const void *right) {
    const struct rp_thread_stats *a = left, *b = right;
    return a->tid < b->tid ? -1 : a->tid > b->tid;
}

uint32_t rp_thread_stats_read(struct rp_thread_stats *out, uint32_t capacity, uint32_t *out_all) {
    struct rp_thread registered[RP_THREADS_MAX];
    uint32_t count = 0, known = rp_thread_list(registered, RP_THREADS_MAX);
    DIR *tasks = opendir("/proc/self/task");
    *out_all = 0;
    for (const struct dirent *entry; tasks && (entry = readdir(tasks));) {
        int32_t tid = atoi(entry->d_name);
        if (tid <= 0)
            continue;
        ++*out_all;
        if (count < capacity)
            out[count++] = (struct rp_thread_stats){.tid = tid};
    }
    if (tasks)
        closedir(tasks);
    for (uint32_t i = 0; i < count; i++) {
        read_thread(&out[i]);
        for (uint32_t j = 0; j < known; j++)
            if (registered[j].tid == out[i].tid)
                out[i].computes_steps = registered[j].role == RP_THREAD_STEP;
    }
    qsort(out, count, sizeof *out, compare_tids);
    return count;
}
