#include "server/sandbox.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <linux/sockios.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_SANITIZER true
#else
#define HAS_SANITIZER false
#endif

#ifndef SYS_SECCOMP /* older headers; si_code of a refused call */
#define SYS_SECCOMP 1
#endif

enum { NUMBERS = 512, ALWAYS = 0 };

/* --- What may be called ---------------------------------------------------------------------- */

/* By name, because headers differ in the calls that they know; a name that is unknown here is left
 * out. */
static const char *const allowed[] = {
    /* connections and the loop */
    "read", "readv", "write", "writev", "recvfrom", "recvmsg", "sendmsg", "shutdown", "close",
    "accept4", "getsockname", "getpeername", "getsockopt", "setsockopt", "epoll_ctl", "epoll_wait",
    "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "fcntl",
    /* reading files: /proc, /sys, keys and certificates that SIGHUP reads again */
    "fstat", "stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2",
    "readlink", "readlinkat", "getdents64", "lseek", "pread64", "getcwd",
    /* memory; never executable: see below */
    "brk", "munmap", "mremap", "madvise",
    /* threads and signals */
    "futex", "set_robust_list", "rseq", "exit", "sched_yield", "sched_getaffinity", "getcpu",
    "setpriority", "gettid", "getpid", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn",
    "sigaltstack", "alarm", "pause", "restart_syscall", "exit_group",
    /* time, sizes, identity */
    "clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "time",
    "getrusage", "times", "sysinfo", "uname", "getrandom", "getuid", "geteuid", "getgid", "getegid",
    /* /debug/profile/stacks */
    "timer_create", "timer_settime", "timer_delete",
    /* /debug/profile/counters; the kernel's perf_event_paranoid decides what it may count */
    "perf_event_open"};

/* A call that is allowed when (argument & mask) == value; mask 0: always. */
struct rule {
    const char *name;
    uint32_t needs; /* rp_sandbox_need; ALWAYS: of every configuration */
    unsigned argument;
    uint64_t mask, value;
};
#define EQUALS UINT64_MAX
static const struct rule rules[] = {
    /* Files for reading. */
    {"openat", ALWAYS, 2, O_ACCMODE | O_CREAT | O_TRUNC, O_RDONLY},
    {"open", ALWAYS, 1, O_ACCMODE | O_CREAT | O_TRUNC, O_RDONLY},
    /* No new executable memory. */
    {"mmap", ALWAYS, 2, PROT_EXEC, 0},
    {"mprotect", ALWAYS, 2, PROT_EXEC, 0},
    /* Threads, no processes. The flags of clone3 are in memory that a filter cannot read. */
    {"clone", ALWAYS, 0, CLONE_THREAD, CLONE_THREAD},
    {"prctl", ALWAYS, 0, EQUALS, PR_SET_NAME},
    {"prlimit64", ALWAYS, 2, EQUALS, 0}, /* getrlimit */
    {"sendto", ALWAYS, 4, EQUALS, 0},    /* to the peer, no other address */
    {"ioctl", ALWAYS, 1, EQUALS, FIONBIO},
    {"ioctl", ALWAYS, 1, EQUALS, FIONREAD},
    {"ioctl", ALWAYS, 1, EQUALS, SIOCOUTQ},
    {"ioctl", ALWAYS, 1, EQUALS, TCGETS},
    {"ioctl", ALWAYS, 1, EQUALS, PERF_EVENT_IOC_ENABLE},
    {"ioctl", ALWAYS, 1, EQUALS, PERF_EVENT_IOC_DISABLE},
    {"ioctl", ALWAYS, 1, EQUALS, PERF_EVENT_IOC_RESET},

    {"openat", RP_SANDBOX_FILES | RP_SANDBOX_DRIVER, 0, 0, 0},
    {"open", RP_SANDBOX_FILES | RP_SANDBOX_DRIVER, 0, 0, 0},
    {"symlink", RP_SANDBOX_DRIVER, 0, 0, 0}, /* /dev/char, driver 580 */
    {"rename", RP_SANDBOX_FILES | RP_SANDBOX_DRIVER, 0, 0, 0},
    {"unlink", RP_SANDBOX_FILES | RP_SANDBOX_DRIVER | RP_SANDBOX_UNLINK, 0, 0, 0},
    {"fsync", RP_SANDBOX_FILES, 0, 0, 0},
    {"kill", RP_SANDBOX_FILES, 1, EQUALS, 0}, /* whether the process of a half-written dump lives */
    {"ftruncate", RP_SANDBOX_FILES | RP_SANDBOX_DRIVER, 0, 0, 0},

    {"socket", RP_SANDBOX_NOTIFY, 0, EQUALS, AF_UNIX},
    {"sendto", RP_SANDBOX_NOTIFY, 0, 0, 0},

    {"socket", RP_SANDBOX_CONNECT, 0, EQUALS, AF_INET},
    {"socket", RP_SANDBOX_CONNECT, 0, EQUALS, AF_INET6},
    {"socket", RP_SANDBOX_CONNECT, 0, EQUALS, AF_UNIX}, /* nscd */
    {"socket", RP_SANDBOX_CONNECT, 0, EQUALS,
     AF_NETLINK}, /* getaddrinfo: which addresses there are */
    {"connect", RP_SANDBOX_CONNECT, 0, 0, 0},
    {"bind", RP_SANDBOX_CONNECT, 0, 0, 0},
    {"sendto", RP_SANDBOX_CONNECT, 0, 0, 0},
    {"sendmmsg", RP_SANDBOX_CONNECT, 0, 0, 0},

    {"ioctl", RP_SANDBOX_DRIVER, 0, 0, 0},
    {"mmap", RP_SANDBOX_DRIVER, 0, 0, 0},
    {"mprotect", RP_SANDBOX_DRIVER, 0, 0, 0},
    {"prctl", RP_SANDBOX_DRIVER, 0, 0, 0},
    {"mlock", RP_SANDBOX_DRIVER, 0, 0, 0},
    {"munlock", RP_SANDBOX_DRIVER, 0, 0, 0},
    {"mincore", RP_SANDBOX_DRIVER, 0, 0, 0},
    {"mbind", RP_SANDBOX_DRIVER, 0, 0, 0},
    {"get_mempolicy", RP_SANDBOX_DRIVER, 0, 0, 0},
    {"set_mempolicy", RP_SANDBOX_DRIVER, 0, 0, 0},
    {"memfd_create", RP_SANDBOX_DRIVER, 0, 0, 0},
    {"eventfd2", RP_SANDBOX_DRIVER, 0, 0, 0},
    {"pipe2", RP_SANDBOX_DRIVER, 0, 0, 0},
    {"mkdir", RP_SANDBOX_DRIVER, 0, 0, 0},
    {"sched_setaffinity", RP_SANDBOX_DRIVER, 0, 0, 0},
    {"socket", RP_SANDBOX_DRIVER, 0, EQUALS, AF_UNIX},
};

/* Returns 0 or a negative errno. */
static int add(scmp_filter_ctx filter, uint32_t action, const char *name,
               const struct scmp_arg_cmp *compare) {
    int number = seccomp_syscall_resolve_name(name);
    if (number < 0) /* not a call of this processor, or newer than the library */
        return 0;
    int rc = seccomp_rule_add_array(filter, action, number, compare ? 1 : 0, compare);
    return rc == -EEXIST ? 0 : rc;
}

static int add_rules(scmp_filter_ctx filter, uint32_t needs) {
    int rc = 0;
    for (size_t i = 0; i < RP_ARRAY_COUNT(allowed) && rc == 0; i++)
        rc = add(filter, SCMP_ACT_ALLOW, allowed[i], NULL);
    for (size_t i = 0; i < RP_ARRAY_COUNT(rules) && rc == 0; i++) {
        const struct rule *rule = &rules[i];
        const struct scmp_arg_cmp compare = {rule->argument, SCMP_CMP_MASKED_EQ, rule->mask,
                                             rule->value};
        if (rule->needs == ALWAYS || (rule->needs & needs))
            rc = add(filter, SCMP_ACT_ALLOW, rule->name, rule->mask ? &compare : NULL);
    }
    /* raise and abort: signals to this process alone. */
    const struct scmp_arg_cmp own = {0, SCMP_CMP_EQ, (uint64_t)getpid(), 0};
    if (rc == 0)
        rc = add(filter, SCMP_ACT_ALLOW, "tgkill", &own);
    /* libc then creates threads with clone. */
    if (rc == 0)
        rc = add(filter, SCMP_ACT_ERRNO(ENOSYS), "clone3", NULL);
    return rc;
}

/* --- Refusals -------------------------------------------------------------------------------- */

static struct {
    _Atomic bool on;
    _Atomic uint64_t refused;
    _Atomic uint32_t by_number[NUMBERS];
    uint64_t reported; /* of refused; the rest: the loop thread's */
    uint32_t logged[NUMBERS];
} sandbox;

/* The kernel calls this in place of the refused call. A thread that blocks SIGSYS ends the process
 * instead. */
static void on_refused(int signal, siginfo_t *info, void *context) {
    ucontext_t *thread = context;
    unsigned number = (unsigned)info->si_syscall;
    (void)signal;
    if (info->si_code != SYS_SECCOMP)
        return;
    atomic_fetch_add(&sandbox.by_number[RP_MIN(number, (unsigned)NUMBERS - 1)], 1);
    atomic_fetch_add(&sandbox.refused, 1);
#if defined(__x86_64__)
    thread->uc_mcontext.gregs[REG_RAX] = -EPERM;
#elif defined(__aarch64__)
    thread->uc_mcontext.regs[0] = (unsigned long long)-EPERM;
#else
#error "the register that holds a system call's result"
#endif
}

bool rp_sandbox_is_on(void) { return atomic_load(&sandbox.on); }

uint64_t rp_sandbox_report(void) {
    uint64_t refused = atomic_load(&sandbox.refused), more = refused - sandbox.reported;
    if (more == 0)
        return 0;
    sandbox.reported = refused;
    for (int i = 0; i < NUMBERS; i++) {
        uint32_t count = atomic_load(&sandbox.by_number[i]);
        if (count == 0 || count < 2 * sandbox.logged[i])
            continue;
        sandbox.logged[i] = count;
        char *name = seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, i);
        rp_log(RP_LOG_WARN,
               "sandbox: refused call=%s count=%u: not needed for serving; if it comes from the "
               "server itself please report it (--sandbox off)",
               name ? name : "unknown", count);
        free(name);
    }
    return more;
}

/* --- Entering -------------------------------------------------------------------------------- */

static int load(uint32_t needs) {
    struct sigaction action = {.sa_sigaction = on_refused, .sa_flags = SA_SIGINFO};
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_TRAP);
    if (!filter)
        return -ENOMEM;
    /* All threads; another processor mode (32 bits) ends the process. */
    int rc = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
    if (rc == 0)
        rc = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    if (rc == 0)
        rc = add_rules(filter, needs);
    sigemptyset(&action.sa_mask);
    if (rc == 0 && sigaction(SIGSYS, &action, NULL) != 0)
        rc = -errno;
    if (rc == 0)
        rc = seccomp_load(filter);
    seccomp_release(filter);
    return rc;
}

int rp_sandbox_enter(enum rp_sandbox_mode mode, uint32_t needs, struct rp_error *err) {
    const char *why_not = mode == RP_SANDBOX_OFF  ? "--sandbox off"
                          : mode == RP_SANDBOX_ON ? NULL
                          : HAS_SANITIZER         ? "auto: a build with sanitizers"
                          : needs & RP_SANDBOX_DRIVER
                              ? "auto: not with a GPU's driver; --sandbox on tries"
                              : NULL;
    if (why_not) {
        rp_log(RP_LOG_INFO, "sandbox: off (%s)", why_not);
        return RP_OK;
    }
    rp_log_open();
    int rc = load(needs);
    if (rc == 0) {
        atomic_store(&sandbox.on, true);
        rp_log(RP_LOG_INFO, "sandbox: on (%s): no programs, processes%s%s%s",
               mode == RP_SANDBOX_AUTO ? "auto" : "--sandbox on",
               needs & RP_SANDBOX_CONNECT ? "" : ", connections",
               needs & RP_SANDBOX_DRIVER ? "" : ", executable memory",
               needs & (RP_SANDBOX_FILES | RP_SANDBOX_DRIVER) ? "" : ", files for writing");
        return RP_OK;
    }
    if (mode == RP_SANDBOX_AUTO) {
        rp_log(RP_LOG_WARN, "sandbox: off (auto: the kernel refuses the filter: %s)",
               strerror(-rc));
        return RP_OK;
    }
    int status = rp_error_set(err, RP_STATUS_UNSUPPORTED,
                              "--sandbox on: the kernel refuses the filter: %s", strerror(-rc));
    rp_error_hint(err, "--sandbox auto serves without it where it cannot be used");
    return status;
}
