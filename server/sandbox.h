/* sandbox.h - a system call filter (seccomp) for the whole process, once the server has all that
 * it opens at start: its sockets, files, threads and executable memory.
 *
 * The filter is a list of what may still be called; everything else is refused with EPERM. A
 * refusal is counted and logged by name, and does not end the process: an attacker gains nothing by
 * it, and a library that tries something new costs a feature instead of the server.
 * Thread: loop. */
#ifndef RP_SERVER_SANDBOX_H
#define RP_SERVER_SANDBOX_H

#include "base/status.h"

/* --sandbox, in the order of its choices. */
enum rp_sandbox_mode { RP_SANDBOX_AUTO, RP_SANDBOX_ON, RP_SANDBOX_OFF };

/* What a configuration needs beyond serving. */
enum rp_sandbox_need {
    RP_SANDBOX_FILES = 1 << 0,  /* creates and renames files: --trace-dir */
    RP_SANDBOX_UNLINK = 1 << 1, /* removes its socket at the end: --uds */
    RP_SANDBOX_NOTIFY = 1 << 2, /* datagrams to the service manager */
    RP_SANDBOX_DRIVER = 1 << 3, /* a GPU's driver: device files, ioctl, code that it loads */
    RP_SANDBOX_CONNECT = 1 << 4 /* connections to elsewhere, and resolving names */
};

/* Puts the filter on every thread, and on those that they create. AUTO: not with a GPU's driver and
 * not in a build with sanitizers; logs why. Only ON fails: UNSUPPORTED where the kernel refuses. */
int rp_sandbox_enter(enum rp_sandbox_mode mode, uint32_t needs, struct rp_error *err) RP_MUST_USE;
bool rp_sandbox_is_on(void);
/* Returns how many calls were refused since the last time, and logs them: each name at its first,
 * second, fourth, ... refusal. */
uint64_t rp_sandbox_report(void);

#endif
