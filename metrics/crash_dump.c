#include "metrics/crash_dump.h"

#include "metrics/crash_format.h"
#include "metrics/tick.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { GIVE_UP_S = 20, STACK_BYTES = 65536, NODES_MAX = 4096, REASONS_MAX = 16 };
static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

/* The handler's: set before it is installed. */
static struct {
    const struct rp_recorder *recorder;
    int fd;
    char path[PATH_MAX];
    struct sigaction before[RP_ARRAY_COUNT(signals)];
    stack_t stack_before;
    bool armed;
} crash;
static atomic_flag crash_taken = ATOMIC_FLAG_INIT;
/* A stack that has overflowed cannot run a handler; other threads than the one that armed use their
 * own. */
static char crash_stack[STACK_BYTES];

/* --- In the handler: nothing but what signal-safety(7) lists --------------------------------- */

static bool write_all(int fd, const void *bytes, size_t len) {
    const char *at = bytes;
    while (len > 0) {
        ssize_t n = write(fd, at, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

static uint64_t clock_now(clockid_t clock) {
    struct timespec now = {0, 0};
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void save(int number, const siginfo_t *info) {
    const struct rp_recorder *recorder = crash.recorder;
    struct rp_crash_record record = {.magic = RP_CRASH_RECORD_MAGIC};
    uint32_t count =
        atomic_load_explicit(&((struct rp_recorder *)recorder)->ring_count, memory_order_acquire);
    bool ok = true;
    record.signal = number;
    record.thread = (int32_t)syscall(SYS_gettid);
    if (number == SIGSEGV || number == SIGBUS)
        record.address = (uint64_t)(uintptr_t)info->si_addr;
    record.end_ns = clock_now(CLOCK_MONOTONIC);
    record.unix_ns = clock_now(CLOCK_REALTIME);
    record.ring_count = count;
    ok = write_all(crash.fd, &record, sizeof record);
    for (uint32_t i = 0; i < count && ok; i++) {
        const struct rp_trace_ring *ring = &recorder->rings[i];
        struct rp_crash_ring head = {.slots = ring->slots ? ring->mask + 1 : 0};
        memcpy(head.thread, ring->thread, sizeof head.thread);
        head.head =
            atomic_load_explicit(&((struct rp_trace_ring *)ring)->head, memory_order_acquire);
        /* Slots that were never written hold nothing. */
        if (head.head < head.slots)
            head.slots = head.head;
        ok = write_all(crash.fd, &head, sizeof head) &&
             write_all(crash.fd, ring->slots, head.slots * sizeof *ring->slots);
    }
    fsync(crash.fd);
}

static void on_crash(int number, siginfo_t *info, void *context) {
    (void)context;
    if (atomic_flag_test_and_set(&crash_taken)) {
        for (;;) /* another thread is at it, and ends the process */
            pause();
    }
    signal(SIGALRM, SIG_DFL);
    alarm(GIVE_UP_S);
    save(number, info);
    /* As if we had not been here: the core dump, the exit status, a sanitizer's report. */
    for (size_t i = 0; i < RP_ARRAY_COUNT(signals); i++)
        sigaction(signals[i], &crash.before[i], NULL);
    raise(number);
}

/* --- Arming ---------------------------------------------------------------------------------- */

static bool put_name(uint32_t *count, const struct rp_crash_about *about, enum rp_trace_name_of of,
                     uint32_t bucket, uint32_t value, bool *ok) {
    struct rp_crash_name_entry entry = {.of = (uint32_t)of, .bucket = bucket, .value = value};
    if (!about->names.name || *count >= RP_CRASH_NAMES_MAX || !*ok ||
        !about->names.name(about->names.ctx, of, bucket, value, entry.text, sizeof entry.text))
        return false;
    *ok = write_all(crash.fd, &entry, sizeof entry);
    ++*count;
    return *ok;
}

static bool put_names(const struct rp_crash_about *about, uint32_t *out_count) {
    bool ok = true;
    for (uint32_t bucket = 0; bucket < about->bucket_count; bucket++) {
        put_name(out_count, about, RP_NAME_BUCKET, 0, bucket, &ok);
        for (uint32_t node = 0; node < NODES_MAX; node++)
            if (!put_name(out_count, about, RP_NAME_NODE, bucket, node, &ok))
                break;
    }
    for (uint32_t reason = 0; reason < REASONS_MAX; reason++)
        put_name(out_count, about, RP_NAME_REASON, 0, reason, &ok);
    return ok;
}

static bool put_fixed(const struct rp_crash_about *about) {
    struct rp_crash_header header = {.magic = RP_CRASH_MAGIC};
    header.header_bytes = sizeof header;
    header.pid = (uint32_t)getpid();
    header.event_bytes = sizeof(struct rp_trace_event);
    header.start_ns = crash.recorder->start_ns;
    snprintf(header.version, sizeof header.version, "%s", about->version);
    snprintf(header.model, sizeof header.model, "%s", about->model);
    /* The header's count is known after the names. */
    return write_all(crash.fd, &header, sizeof header) && put_names(about, &header.name_count) &&
           pwrite(crash.fd, &header, sizeof header, 0) == (ssize_t)sizeof header;
}

int rp_crash_arm(const char *path, const struct rp_recorder *recorder,
                 const struct rp_crash_about *about, struct rp_error *err) {
    struct sigaction action = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    stack_t stack = {.ss_sp = crash_stack, .ss_size = sizeof crash_stack};
    RP_ASSERT(!crash.armed);
    if (strlen(path) >= sizeof crash.path)
        return rp_error_set(err, RP_STATUS_INVALID, "%.200s...: the path is too long", path);
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0)
        return rp_error_set(err, RP_STATUS_IO, "%s: %s", path, strerror(errno));
    crash.fd = fd;
    crash.recorder = recorder;
    memcpy(crash.path, path, strlen(path) + 1);
    if (!put_fixed(about)) {
        int status = rp_error_set(err, RP_STATUS_IO, "%s: %s", path, strerror(errno));
        close(fd);
        unlink(path);
        return status;
    }
    atomic_flag_clear(&crash_taken);
    sigaltstack(&stack, &crash.stack_before);
    sigfillset(&action.sa_mask);
    sigdelset(&action.sa_mask, SIGSYS); /* a refused system call must not end the handler */
    for (size_t i = 0; i < RP_ARRAY_COUNT(signals); i++)
        sigaction(signals[i], &action, &crash.before[i]);
    crash.armed = true;
    return RP_OK;
}

void rp_crash_disarm(void) {
    if (!crash.armed)
        return;
    for (size_t i = 0; i < RP_ARRAY_COUNT(signals); i++)
        sigaction(signals[i], &crash.before[i], NULL);
    sigaltstack(&crash.stack_before, NULL);
    close(crash.fd);
    unlink(crash.path);
    crash.armed = false;
}
