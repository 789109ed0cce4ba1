#include "metrics/stack_sampler.h"

#include "base/clock.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

/* Frames of the handler itself and of the kernel's return from it, which are left out. */
enum { OWN_FRAMES = 8 };

static struct {
    _Atomic(struct rp_stacks *) stacks; /* NULL: not sampling */
    _Atomic uint32_t next;              /* place of the next sample */
    _Atomic uint32_t inside;            /* handlers that may use stacks */
    atomic_flag busy;
} sampler = {.busy = ATOMIC_FLAG_INIT};

/* --- The handler ----------------------------------------------------------------------------- */

#if defined(__x86_64__)
#define KNOWN_MACHINE   true
#define INSTRUCTION(mc) ((mc).gregs[REG_RIP])
#elif defined(__aarch64__)
#define KNOWN_MACHINE   true
#define INSTRUCTION(mc) ((mc).pc)
#else
#define KNOWN_MACHINE   false
#define INSTRUCTION(mc) 0
#endif

static void store(struct rp_stack_sample *sample, const void *context) {
    void *frames[RP_STACK_DEPTH + OWN_FRAMES];
    const ucontext_t *interrupted = context;
    const void *at = (const void *)INSTRUCTION(interrupted->uc_mcontext);
    int count = backtrace(frames, RP_STACK_DEPTH + OWN_FRAMES), first = 0;
    while (first < count && frames[first] != at)
        first++;
    if (first == count) { /* the tables do not describe this code */
        sample->frames[0] = at;
        sample->depth = 1;
        return;
    }
    sample->depth = (uint32_t)RP_MIN(count - first, RP_STACK_DEPTH);
    memcpy(sample->frames, frames + first, sample->depth * sizeof *frames);
}

static void on_profile(int number, siginfo_t *info, void *context) {
    int saved = errno;
    (void)number;
    atomic_fetch_add(&sampler.inside, 1);
    struct rp_stacks *stacks = atomic_load(&sampler.stacks);
    if (stacks && info->si_code == SI_TIMER) {
        uint32_t place = atomic_fetch_add(&sampler.next, 1);
        if (place < RP_STACK_SAMPLES) {
            stacks->samples[place].thread = (uint32_t)info->si_value.sival_int;
            store(&stacks->samples[place], context);
        }
    }
    atomic_fetch_sub(&sampler.inside, 1);
    errno = saved;
}

/* --- Timers ---------------------------------------------------------------------------------- */

/* Clock of a thread's processor time, as pthread_getcpuclockid makes it from its TID. */
static clockid_t clock_of(int32_t tid) { return (clockid_t)((~(unsigned)tid << 3) | 6u); }

/* Without the separators of folded stacks. */
static void copy_name(const char *text, char name[16]) {
    snprintf(name, 16, "%.15s", text);
    for (; *name; name++)
        if (*name == ';' || *name == ' ')
            *name = '_';
}

/* Reads the thread's name and whether it accepts SIGPROF. False: it has ended, or blocks it. */
static bool read_thread(int32_t tid, char name[16]) {
    char path[64], line[128];
    bool accepts = false;
    snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
    FILE *file = fopen(path, "re");
    name[0] = '\0';
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "Name:\t", 6) == 0)
            copy_name(line + 6, name);
        else if (strncmp(line, "SigBlk:\t", 8) == 0)
            accepts = !(strtoull(line + 8, NULL, 16) >> (SIGPROF - 1) & 1);
    }
    if (file)
        fclose(file);
    return accepts;
}

static bool start_timer(int32_t tid, uint32_t thread, uint32_t hz, timer_t *out) {
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGPROF};
    long period_ns = hz > 1 ? 1000000000L / hz : 999999999L;
    const struct itimerspec period = {{0, period_ns}, {0, period_ns}};
    event.sigev_value.sival_int = (int)thread;
    event.sigev_notify_thread_id = tid;
    if (timer_create(clock_of(tid), &event, out) != 0)
        return false;
    if (timer_settime(*out, 0, &period, NULL) == 0)
        return true;
    timer_delete(*out);
    return false;
}

/* One timer for each thread but the calling one, which sleeps. Returns the last error. */
static int start_timers(struct rp_stacks *stacks, uint32_t hz, timer_t *timers) {
    DIR *tasks = opendir("/proc/self/task");
    int32_t own = (int32_t)syscall(SYS_gettid);
    int failure = 0;
    for (const struct dirent *entry; tasks && (entry = readdir(tasks));) {
        int32_t tid = atoi(entry->d_name);
        uint32_t thread = stacks->thread_count;
        if (tid <= 0 || tid == own)
            continue;
        if (thread >= RP_STACK_THREADS || !read_thread(tid, stacks->names[thread])) {
            stacks->unsampled++;
        } else if (start_timer(tid, thread, hz, &timers[thread])) {
            stacks->thread_count++;
        } else {
            failure = errno;
            stacks->unsampled++;
        }
    }
    if (tasks)
        closedir(tasks);
    return failure;
}

static void sleep_seconds(double seconds) {
    struct timespec left = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

/* Installed once and kept: a signal that is still pending when the timers are gone would otherwise
 * end the process. */
static bool install_handler(void) {
    struct sigaction action = {.sa_sigaction = on_profile, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigemptyset(&action.sa_mask);
    return sigaction(SIGPROF, &action, NULL) == 0;
}

void rp_stacks_prepare(void) {
    void *frames[2];
    (void)backtrace(frames, 2);
}

static int check_system(struct rp_error *err) {
    if (!KNOWN_MACHINE || !dlsym(RTLD_DEFAULT, "_dl_find_object"))
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "call stacks need glibc 2.35 or newer on x86-64 or AArch64");
    rp_stacks_prepare();
    if (!install_handler())
        return rp_error_set(err, RP_STATUS_UNSUPPORTED, "sigaction(SIGPROF): %s", strerror(errno));
    return RP_OK;
}

int rp_stacks_sample(struct rp_stacks *stacks, double seconds, uint32_t hz, struct rp_error *err) {
    timer_t timers[RP_STACK_THREADS];
    int status = check_system(err);
    if (status != RP_OK)
        return status;
    if (atomic_flag_test_and_set(&sampler.busy))
        return rp_error_set(err, RP_STATUS_IN_USE, "call stacks are being sampled already");
    stacks->thread_count = stacks->unsampled = 0;
    atomic_store(&sampler.next, 0);
    atomic_store(&sampler.stacks, stacks);
    uint64_t begin_ns = rp_clock_ns();
    int failure = start_timers(stacks, hz, timers);
    if (stacks->thread_count)
        sleep_seconds(seconds);
    for (uint32_t i = 0; i < stacks->thread_count; i++)
        timer_delete(timers[i]);
    stacks->seconds = (double)(rp_clock_ns() - begin_ns) * 1e-9;
    /* A handler that starts from here on sees no memory; the others are waited for. */
    atomic_store(&sampler.stacks, NULL);
    while (atomic_load(&sampler.inside))
        sleep_seconds(0.001);
    uint32_t taken = atomic_load(&sampler.next);
    stacks->sample_count = RP_MIN(taken, (uint32_t)RP_STACK_SAMPLES);
    stacks->dropped = taken - stacks->sample_count;
    atomic_flag_clear(&sampler.busy);
    if (stacks->thread_count)
        return RP_OK;
    return rp_error_set(err, RP_STATUS_UNSUPPORTED, "no thread could be given a timer%s%s",
                        failure ? ": timer_create: " : "", failure ? strerror(failure) : "");
}
