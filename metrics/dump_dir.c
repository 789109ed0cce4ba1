#include "metrics/dump_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char prefix[] = "reprise-";
static const char partial_prefix[] = ".reprise-";
/* What belongs to a dump; the reason comes first. */
static const char *const suffixes[] = {"json", "pftrace.gz", "raw"};

/* --- Names ----------------------------------------------------------------------------------- */

void rp_dump_dir_name(struct rp_dump_dir *dir, uint64_t unix_ns, const char *trigger,
                      char stem[RP_DUMP_STEM_MAX]) {
    time_t seconds = (time_t)(unix_ns / 1000000000u);
    struct tm parts;
    char text[32];
    gmtime_r(&seconds, &parts);
    strftime(text, sizeof text, "%Y%m%dT%H%M%S", &parts);
    snprintf(stem, RP_DUMP_STEM_MAX, "%s%s.%03uZ-%d-%u-%.32s", prefix, text,
             (unsigned)(unix_ns / 1000000u % 1000u), (int)getpid(), ++dir->made, trigger);
}

/* Length of the stem and the index of the suffix of a file of ours; 0 of any other. */
static size_t split(const char *name, size_t *out_suffix) {
    const char *dot = strstr(name, "Z-");
    if (strncmp(name, prefix, sizeof prefix - 1) != 0 || !dot)
        return 0;
    dot = strchr(dot, '.');
    size_t len = dot ? (size_t)(dot - name) : 0;
    for (size_t i = 0; dot && i < RP_ARRAY_COUNT(suffixes); i++)
        if (strcmp(dot + 1, suffixes[i]) == 0 && len < RP_DUMP_STEM_MAX) {
            *out_suffix = i;
            return len;
        }
    return 0;
}

static bool join(char out[PATH_MAX], const struct rp_dump_dir *dir, const char *before,
                 const char *stem, const char *suffix) {
    int n =
        snprintf(out, PATH_MAX, "%s/%s%s%s%s", dir->path, before, stem, *suffix ? "." : "", suffix);
    return n > 0 && n < PATH_MAX;
}

/* --- Listing --------------------------------------------------------------------------------- */

/* Finds or inserts the entry with this stem; NULL: older than every entry of a full list. */
static struct rp_dump_entry *find_entry(struct rp_dump_entry *out, uint32_t *count,
                                        const char *name, size_t len) {
    char stem[RP_DUMP_STEM_MAX] = "";
    uint32_t at = 0;
    memcpy(stem, name, len);
    while (at < *count && strcmp(out[at].stem, stem) < 0)
        at++;
    if (at < *count && strcmp(out[at].stem, stem) == 0)
        return &out[at];
    if (*count == RP_DUMP_LIST_MAX) { /* the oldest goes */
        if (at == 0)
            return NULL;
        memmove(out, out + 1, --at * sizeof *out);
    } else {
        memmove(out + at + 1, out + at, (*count - at) * sizeof *out);
        ++*count;
    }
    memset(&out[at], 0, sizeof out[at]);
    memcpy(out[at].stem, stem, sizeof stem);
    return &out[at];
}

/* A crash file that is armed looks like a dump, but belongs to a process at work. */
static bool is_armed(const struct rp_dump_entry *dump) {
    const char *pid = strstr(dump->stem, "Z-");
    if (strcmp(dump->trace, "raw") != 0 || !pid)
        return false;
    return kill((pid_t)strtol(pid + 2, NULL, 10), 0) == 0 || errno != ESRCH;
}

uint32_t rp_dump_dir_list(const struct rp_dump_dir *dir,
                          struct rp_dump_entry out[RP_DUMP_LIST_MAX]) {
    uint32_t count = 0;
    DIR *listing = opendir(dir->path);
    for (struct dirent *entry; listing && (entry = readdir(listing));) {
        struct stat about;
        size_t suffix = 0, len = split(entry->d_name, &suffix);
        if (!len || fstatat(dirfd(listing), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(about.st_mode))
            continue;
        struct rp_dump_entry *dump = find_entry(out, &count, entry->d_name, len);
        if (!dump)
            continue;
        dump->bytes += (uint64_t)about.st_size;
        if (suffix == 0)
            dump->has_reason = true;
        else
            snprintf(dump->trace, sizeof dump->trace, "%s", suffixes[suffix]);
    }
    if (listing)
        closedir(listing);
    for (uint32_t i = 0; i < count; i++)
        out[i].armed = is_armed(&out[i]);
    return count;
}

static void remove_dump(const struct rp_dump_dir *dir, const struct rp_dump_entry *dump) {
    char path[PATH_MAX];
    for (size_t i = 0; i < RP_ARRAY_COUNT(suffixes); i++)
        if (join(path, dir, "", dump->stem, suffixes[i]))
            unlink(path);
}

/* The part of the stem after time, process and number. */
static const char *trigger_of(const struct rp_dump_entry *dump) {
    const char *at = strstr(dump->stem, "Z-");
    for (int part = 0; at && part < 3; part++)
        at = strchr(at + (part > 0), '-');
    return at ? at + 1 : "";
}

/* Index of the oldest dump of the trigger that has the most, and how many it has: a frequent
 * trigger never displaces the dumps of a rare one. count: not zero. */
static uint32_t most_frequent(const struct rp_dump_entry *dumps, uint32_t count,
                              uint32_t *out_same) {
    uint32_t chosen = 0;
    *out_same = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t same = 0;
        for (uint32_t j = i; j < count; j++)
            same += strcmp(trigger_of(&dumps[i]), trigger_of(&dumps[j])) == 0;
        if (same > *out_same) {
            *out_same = same;
            chosen = i;
        }
    }
    return chosen;
}

void rp_dump_dir_trim(const struct rp_dump_dir *dir, uint32_t spare_dumps, uint64_t spare_bytes) {
    struct rp_dump_entry dumps[RP_DUMP_LIST_MAX];
    uint32_t listed = rp_dump_dir_list(dir, dumps), count = 0;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < listed; i++) {
        if (dumps[i].armed)
            continue;
        bytes += dumps[i].bytes;
        dumps[count++] = dumps[i];
    }
    while (count > 0) {
        uint32_t same, oldest = most_frequent(dumps, count, &same);
        bool full = count + spare_dumps > dir->dumps_max || bytes + spare_bytes > dir->bytes_max;
        if (!full && (!dir->trigger_max || same <= dir->trigger_max))
            return;
        remove_dump(dir, &dumps[oldest]);
        bytes -= dumps[oldest].bytes;
        memmove(dumps + oldest, dumps + oldest + 1, (--count - oldest) * sizeof *dumps);
    }
}

/* --- Opening --------------------------------------------------------------------------------- */

/* Half-written files of processes that are gone. Their name goes on with the stem. */
static void sweep(const struct rp_dump_dir *dir) {
    DIR *listing = opendir(dir->path);
    for (struct dirent *entry; listing && (entry = readdir(listing));) {
        const char *pid = strstr(entry->d_name, "Z-");
        if (strncmp(entry->d_name, partial_prefix, sizeof partial_prefix - 1) != 0 || !pid)
            continue;
        if (kill((pid_t)strtol(pid + 2, NULL, 10), 0) != 0 && errno == ESRCH)
            unlinkat(dirfd(listing), entry->d_name, 0);
    }
    if (listing)
        closedir(listing);
}

int rp_dump_dir_open(struct rp_dump_dir *dir, const char *path, uint32_t dumps_max,
                     uint64_t bytes_max, struct rp_error *err) {
    size_t len = strlen(path);
    memset(dir, 0, sizeof *dir);
    dir->dumps_max = dumps_max;
    dir->bytes_max = bytes_max;
    if (len == 0 || len >= sizeof dir->path - RP_DUMP_STEM_MAX - 32)
        return rp_error_set(err, RP_STATUS_INVALID, "%.200s: no name of a directory", path);
    memcpy(dir->path, path, len + 1);
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return rp_error_set(err, RP_STATUS_IO, "%s: %s", path, strerror(errno));
    struct rp_dump_file probe;
    char stem[RP_DUMP_STEM_MAX];
    rp_dump_dir_name(dir, 0, "probe", stem);
    int status = rp_dump_file_begin(&probe, dir, stem, "json", err);
    if (status != RP_OK)
        return status;
    rp_dump_file_end(&probe, false, NULL);
    sweep(dir);
    return RP_OK;
}

/* --- Files ----------------------------------------------------------------------------------- */

int rp_dump_file_begin(struct rp_dump_file *file, const struct rp_dump_dir *dir, const char *stem,
                       const char *suffix, struct rp_error *err) {
    file->fd = -1;
    file->bytes = 0;
    if (!join(file->name, dir, "", stem, suffix) || !join(file->partial, dir, ".", stem, suffix))
        return rp_error_set(err, RP_STATUS_INVALID, "%.200s: the path is too long", dir->path);
    file->fd = open(file->partial, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (file->fd < 0)
        return rp_error_set(err, RP_STATUS_IO, "%.400s: %s", file->partial, strerror(errno));
    return RP_OK;
}

int rp_dump_file_write(struct rp_dump_file *file, const struct rp_dump_dir *dir, const void *bytes,
                       size_t len, struct rp_error *err) {
    const char *at = bytes;
    if (len > dir->bytes_max || file->bytes > dir->bytes_max - len)
        return rp_error_set(err, RP_STATUS_IO, "%.400s: larger than the directory may be",
                            file->name);
    while (len > 0) {
        ssize_t n = write(file->fd, at, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return rp_error_set(err, RP_STATUS_IO, "%.400s: %s", file->name,
                                n < 0 ? strerror(errno) : "nothing was written");
        at += n;
        len -= (size_t)n;
        file->bytes += (uint64_t)n;
    }
    return RP_OK;
}

int rp_dump_file_end(struct rp_dump_file *file, bool keep, struct rp_error *err) {
    int status = RP_OK;
    if (file->fd < 0)
        return RP_OK;
    /* Some file systems say only here that the disk is full. */
    if (close(file->fd) != 0 && keep)
        status = rp_error_set(err, RP_STATUS_IO, "%.400s: %s", file->name, strerror(errno));
    file->fd = -1;
    if (keep && status == RP_OK && rename(file->partial, file->name) != 0)
        status = rp_error_set(err, RP_STATUS_IO, "%.400s: %s", file->name, strerror(errno));
    if (!keep || status != RP_OK)
        unlink(file->partial);
    return status;
}
