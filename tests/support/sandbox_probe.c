/* sandbox_probe.c - a library for LD_PRELOAD: on SIGUSR1 the program calls what an attacker inside
 * of it would call, and writes each name and result (0 or an errno) to standard error; execve
 * comes last. */
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static void report(const char *name, long result) {
    dprintf(STDERR_FILENO, "probe %s %d\n", name, result < 0 ? errno : 0);
}

static void fork_by(const char *name, long number, long flags) {
    long result = syscall(number, flags, 0, 0, 0, 0);
    if (result == 0)
        _exit(0); /* the child */
    report(name, result);
}

static void probe(int number) {
    const char *const arguments[] = {"/bin/true", NULL};
    const char *const *none = arguments + 1;
    const char *file = getenv("PROBE_FILE");
    static char page[2 * 4096];
    char *code = page + 4096 - (uintptr_t)page % 4096;
    (void)number;
    report("read_only", open("/proc/self/stat", O_RDONLY | O_CLOEXEC));
    report("create", open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    report("append", open(file, O_RDWR | O_APPEND | O_CLOEXEC));
    report("unlink", unlink(file));
    report("connect", connect(-1, NULL, 0));
    report("socket_inet", socket(AF_INET, SOCK_STREAM, 0));
    report("socket_unix", socket(AF_UNIX, SOCK_DGRAM, 0));
    report("bind", bind(-1, NULL, 0));
    fork_by("clone", SYS_clone, SIGCHLD);
    report("ptrace", ptrace(PTRACE_ATTACH, 1, 0, 0));
    report("kill", kill(1, SIGCONT));
    report("memfd", syscall(SYS_memfd_create, "probe", MFD_CLOEXEC));
    report("io_uring", syscall(SYS_io_uring_setup, 1, page));
    report("unshare", unshare(CLONE_NEWUSER));
    report("mprotect", mprotect(code, 4096, PROT_READ | PROT_EXEC));
    report("mmap",
           (long)mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    report("execve", syscall(SYS_execve, arguments[0], arguments, none));
}

__attribute__((constructor)) static void arm(void) {
    struct sigaction action = {.sa_handler = probe, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
}
