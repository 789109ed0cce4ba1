/* crash_dump.h - what the recorder holds, saved by a process that dies of a signal.
 *
 *   rp_crash_arm      opens the file, writes everything that does not change, installs handlers of SIGSEGV, SIGBUS,
 *                     SIGFPE, SIGILL and SIGABRT (failed assertions)
 *   the handler       writes the rings as they lie in memory, and lets the signal do what it does otherwise. It calls
 *                     only what is safe in a signal handler, and gives up after 20 seconds
 *   rp_crash_disarm   an orderly end: the file goes away
 *   rp_crash_read     in a later process: the file as events and names; `reprise trace FILE` makes a trace of it
 *
 * The file (little endian, as the machine has it):
 *   header | names | crash record | for each ring: head | slots
 * A file that ends early is read as far as it goes. Whatever it holds, reading does not crash.
 * Thread: arm and disarm one, once in a process; reading any. */
#ifndef RP_METRICS_CRASH_DUMP_H
#define RP_METRICS_CRASH_DUMP_H

#include "metrics/recorder.h"
#include "metrics/trace_model.h"

struct rp_crash_about {
    const char *version, *model;
    struct rp_trace_names names; /* called while arming only */
    uint32_t bucket_count;
};

/* IO: the file cannot be made (it must not exist). recorder: borrowed until disarm. */
int rp_crash_arm(const char *path, const struct rp_recorder *recorder,
                 const struct rp_crash_about *about, struct rp_error *err) RP_MUST_USE;
void rp_crash_disarm(void);

struct rp_crash_name {
    uint32_t of, bucket, value;
    char text[RP_TRACE_NAME_MAX];
};

struct rp_crash_file {
    char version[32], model[128];
    uint32_t pid;
    int32_t signal, thread;   /* of the crash */
    uint64_t address;         /* that was touched; SIGSEGV and SIGBUS */
    uint64_t end_ns, unix_ns; /* when */
    uint64_t start_ns;        /* since when the process recorded */
    struct rp_recording recording;
    struct rp_crash_name *names;
    uint32_t name_count;
    uint32_t unknown; /* events of kinds that this version does not know, left out */
};

/* IO, FORMAT (not such a file), NOT_FOUND (armed, but nobody crashed), NO_MEMORY. */
int rp_crash_read(const char *path, struct rp_crash_file *out, struct rp_error *err) RP_MUST_USE;
void rp_crash_file_deinit(struct rp_crash_file *file); /* legal on a zeroed struct */
/* Names out of the file, which is borrowed. */
struct rp_trace_names rp_crash_names(const struct rp_crash_file *file);

#endif
