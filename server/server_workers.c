#include "server/server_workers.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

/* libuv's defaults and limit (threadpool.c). */
enum { THREADS_DEFAULT = 4, THREADS_MAX = 1024, STACK_BYTES = 8 << 20 };

static unsigned pool_threads(void) {
    const char *text = getenv("UV_THREADPOOL_SIZE");
    unsigned count = text ? (unsigned)strtoul(text, NULL, 10) : THREADS_DEFAULT;
    return count ? RP_MIN(count, (unsigned)THREADS_MAX) : 1;
}

static void *wait_for_unlock(void *ctx) {
    pthread_mutex_lock(ctx);
    pthread_mutex_unlock(ctx);
    return NULL;
}

/* Creates `count` threads that exist at the same time, and ends them. Returns 0 or an errno. */
static int try_threads(unsigned count) {
    static pthread_t threads[THREADS_MAX];
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_attr_t attributes;
    unsigned created = 0;
    int failure = pthread_attr_init(&attributes);
    if (failure)
        return failure;
    failure = pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_mutex_lock(&gate);
    while (!failure && created < count) {
        failure = pthread_create(&threads[created], &attributes, wait_for_unlock, &gate);
        created += !failure;
    }
    pthread_mutex_unlock(&gate);
    while (created > 0)
        pthread_join(threads[--created], NULL);
    pthread_attr_destroy(&attributes);
    return failure;
}

static void on_work(uv_work_t *work) { (void)work; }

static void on_done(uv_work_t *work, int status) {
    (void)status;
    *(bool *)work->data = true;
}

int rp_server_workers_start(uv_loop_t *loop, struct rp_error *err) {
    unsigned count = pool_threads();
    bool done = false;
    uv_work_t work = {.data = &done};
    char name[16]; /* the kernel's limit; a new thread has its creator's name */
    prctl(PR_GET_NAME, name, 0, 0, 0);
    prctl(PR_SET_NAME, "rp-worker", 0, 0, 0);
    int failure = try_threads(count);
    if (failure == 0)
        failure = -uv_queue_work(loop, &work, on_work, on_done);
    prctl(PR_SET_NAME, name, 0, 0, 0);
    if (failure) {
        int status = rp_error_set(err, RP_STATUS_NO_MEMORY, "cannot start %u worker threads: %s",
                                  count, strerror(failure));
        rp_error_hint(err, "raise the limit on threads (ulimit -u, pids.max) or on memory, or "
                           "lower UV_THREADPOOL_SIZE");
        return status;
    }
    while (!done)
        uv_run(loop, UV_RUN_ONCE);
    return RP_OK;
}
