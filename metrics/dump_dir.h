/* dump_dir.h - a directory of trace dumps that never grows beyond its caps.
 *
 * A dump is a trace and a reason, `reprise-20261121T190228.123Z-4711-1-slo_ttft.pftrace.gz` and
 * `.json`: time, process, number in the process, trigger. Both are written under a name that begins
 * with a dot and then renamed, so what has its name is complete. Old ones are removed for new
 * ones, first those of the most frequent trigger; files of other names are left alone, so several
 * processes may share a directory (their dumps count together).
 * Thread: one owner, or a lock of the caller's. Errors: statuses; NO_MEMORY and IO. */
#ifndef RP_METRICS_DUMP_DIR_H
#define RP_METRICS_DUMP_DIR_H

#include "base/status.h"

#include <limits.h>

#define RP_DUMP_STEM_MAX   96
#define RP_DUMP_LIST_MAX   128
#define RP_DUMP_SUFFIX_MAX 16

struct rp_dump_dir {
    char path[PATH_MAX];
    uint32_t dumps_max;
    uint32_t trigger_max; /* dumps of one trigger; 0: dumps_max. Set by the caller after opening */
    uint64_t bytes_max;
    uint32_t made; /* by this process */
};

/* Makes the directory (its last part) when it is missing, and removes what a process that is gone
 * left half written. IO when nothing can be written into it. */
int rp_dump_dir_open(struct rp_dump_dir *dir, const char *path, uint32_t dumps_max,
                     uint64_t bytes_max, struct rp_error *err) RP_MUST_USE;

/* A new name, for a dump that is taken at unix_ns; trigger: [a-z0-9_]. */
void rp_dump_dir_name(struct rp_dump_dir *dir, uint64_t unix_ns, const char *trigger,
                      char stem[RP_DUMP_STEM_MAX]);

/* One file of a dump being written: fd -1 when there is none. */
struct rp_dump_file {
    int fd;
    uint64_t bytes;
    char partial[PATH_MAX], name[PATH_MAX];
};
int rp_dump_file_begin(struct rp_dump_file *file, const struct rp_dump_dir *dir, const char *stem,
                       const char *suffix, struct rp_error *err) RP_MUST_USE;
/* IO: the disk is full, say; or the file would be larger than the directory may be. */
int rp_dump_file_write(struct rp_dump_file *file, const struct rp_dump_dir *dir, const void *bytes,
                       size_t len, struct rp_error *err) RP_MUST_USE;
/* Gives it its name (keep), or removes it. */
int rp_dump_file_end(struct rp_dump_file *file, bool keep, struct rp_error *err);

/* Removes dumps until no more than the caps are left, `spare` dumps and bytes less: each time the
 * oldest one of the trigger that has the most. */
void rp_dump_dir_trim(const struct rp_dump_dir *dir, uint32_t spare_dumps, uint64_t spare_bytes);

struct rp_dump_entry {
    char stem[RP_DUMP_STEM_MAX];
    char trace[RP_DUMP_SUFFIX_MAX]; /* suffix of its trace; "" when there is none */
    bool has_reason;
    bool armed;     /* the crash file of a process that is alive: no dump yet, and not counted */
    uint64_t bytes; /* of its files */
};
/* Dumps in the directory, oldest first, the newest RP_DUMP_LIST_MAX of them; returns how many. */
uint32_t rp_dump_dir_list(const struct rp_dump_dir *dir,
                          struct rp_dump_entry out[RP_DUMP_LIST_MAX]);

#endif
