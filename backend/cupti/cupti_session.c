#include "backend/cupti/cupti_session.h"

#include "backend/cupti/cupti_api.h"
#include "base/clock.h"
#include "base/memory.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define BUFFERS      8u
#define BUFFER_BYTES ((size_t)4 << 20)
#define RECORD_BYTES 160u /* that are read of a record */

struct rp_cupti_session {
    struct rp_cupti_api api;
    uint32_t version;
    uint32_t records_max;
    struct rp_cupti_kernel *kernels;
    atomic_uint count; /* may pass records_max */
    atomic_uint_least64_t without_time, outside, dropped;
    void *subscriber;
    uint64_t begun_ns;
    bool begun, ended;
    uint32_t kept; /* after end */
};

/* What CUPTI may still hold when a session is over: never freed. */
static struct {
    unsigned char *data;
    atomic_bool lent[BUFFERS];
} buffers;

static atomic_flag taken = ATOMIC_FLAG_INIT; /* by the one session, or by PM sampling */
/* Where records go; NULL: nowhere. Callbacks have no argument of ours. */
static _Atomic(struct rp_cupti_session *) receiver;
static atomic_uint inside; /* callbacks at work, with the receiver perhaps */

/* ---- callbacks: any thread ------------------------------------------------------------------ */

static uint8_t *lend(void) {
    for (uint32_t i = 0; i < BUFFERS; i++)
        if (!atomic_exchange(&buffers.lent[i], true))
            return buffers.data + i * BUFFER_BYTES;
    return NULL;
}

/* NULL: CUPTI throws the records away. */
static void on_request(uint8_t **buffer, size_t *bytes, size_t *max_records) {
    atomic_fetch_add(&inside, 1);
    struct rp_cupti_session *session = atomic_load(&receiver);
    *buffer = session ? lend() : NULL;
    *bytes = *buffer ? BUFFER_BYTES : 0;
    *max_records = 0; /* as many as fit */
    if (session && !*buffer)
        atomic_fetch_add(&session->dropped, 1);
    atomic_fetch_sub(&inside, 1);
}

static uint64_t load_u64(const unsigned char *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint32_t load_u32(const unsigned char *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static void keep(struct rp_cupti_session *session, const unsigned char *record) {
    uint64_t begin = load_u64(record + RP_CUPTI_AT_START), end = load_u64(record + RP_CUPTI_AT_END);
    if (load_u32(record + RP_CUPTI_AT_KIND) != RP_CUPTI_KIND_CONCURRENT_KERNEL)
        return;
    if (begin == 0 || end < begin) {
        atomic_fetch_add(&session->without_time, 1);
        return;
    }
    uint64_t node = load_u64(record + RP_CUPTI_AT_GRAPH_NODE);
    if (node == 0) {
        atomic_fetch_add(&session->outside, 1);
        return;
    }
    uint32_t at = atomic_fetch_add(&session->count, 1);
    if (at < session->records_max)
        session->kernels[at] =
            (struct rp_cupti_kernel){begin, end, node, load_u32(record + RP_CUPTI_AT_GRAPH), at};
}

static void read_buffer(struct rp_cupti_session *session, uint8_t *buffer, size_t valid) {
    void *record = NULL;
    while (session->api.cuptiActivityGetNextRecord(buffer, valid, &record) == RP_CUPTI_SUCCESS) {
        ptrdiff_t offset = (unsigned char *)record - buffer;
        if (!record || offset < 0 || (size_t)offset + RECORD_BYTES > valid)
            return;
        keep(session, record);
    }
}

static void on_complete(void *context, uint32_t stream, uint8_t *buffer, size_t bytes,
                        size_t valid) {
    (void)context, (void)stream, (void)bytes;
    for (uint32_t i = 0; i < BUFFERS; i++) {
        if (!buffer || buffer != buffers.data + i * BUFFER_BYTES)
            continue;
        atomic_fetch_add(&inside, 1);
        struct rp_cupti_session *session = atomic_load(&receiver);
        if (session)
            read_buffer(session, buffer, RP_MIN(valid, BUFFER_BYTES));
        atomic_fetch_sub(&inside, 1);
        atomic_store(&buffers.lent[i], false);
    }
}

static uint64_t now(void) { return rp_clock_ns(); }

/* Subscribed for being the only one: no callback is ever switched on. */
static void on_callback(void *user, uint32_t domain, uint32_t id, const void *data) {
    (void)user, (void)domain, (void)id, (void)data;
}

/* ---- sessions ------------------------------------------------------------------------------- */

static bool load_api(struct rp_cupti_api *api, void *library) {
#define X(name, parameters)                                                                        \
    *(void **)&api->name = dlsym(library, #name);                                                  \
    if (!api->name)                                                                                \
        return false;
    RP_CUPTI_FUNCTIONS(X)
#undef X
    *(void **)&api->subscribe_v2 = dlsym(library, "cuptiSubscribe_v2");
    return true;
}

static const char *text_of(const struct rp_cupti_session *session, int result) {
    const char *text = NULL;
    if (session->api.cuptiGetResultString(result, &text) != RP_CUPTI_SUCCESS || !text)
        return "an unknown error";
    return text;
}

static int make(struct rp_cupti_session *session, void *library, struct rp_error *err) {
    if (!load_api(&session->api, library))
        return rp_error_set(err, RP_STATUS_UNSUPPORTED, "CUPTI: a function is missing");
    if (session->api.cuptiGetVersion(&session->version) != RP_CUPTI_SUCCESS ||
        session->version < RP_CUPTI_VERSION_MIN || session->version >= RP_CUPTI_VERSION_BELOW)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED,
                            "CUPTI: version %u, known are %u to %u (CUDA 12.9 to 13.x)",
                            session->version, RP_CUPTI_VERSION_MIN, RP_CUPTI_VERSION_BELOW - 1);
    if (!buffers.data)
        buffers.data = rp_alloc_aligned(BUFFERS * BUFFER_BYTES, 4096);
    session->kernels = rp_alloc(session->records_max * sizeof *session->kernels);
    if (!buffers.data || !session->kernels)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "CUPTI: out of memory");
    return RP_OK;
}

bool rp_cupti_take(void) { return !atomic_flag_test_and_set(&taken); }

void rp_cupti_give(void) { atomic_flag_clear(&taken); }

int rp_cupti_open(void *library, uint32_t records_max, struct rp_cupti_session **out,
                  struct rp_error *err) {
    *out = NULL;
    if (!rp_cupti_take())
        return rp_error_set(err, RP_STATUS_IN_USE, "CUPTI: a session is under way");
    struct rp_cupti_session *session = rp_calloc(1, sizeof *session);
    int status = RP_STATUS_NO_MEMORY;
    if (session) {
        session->records_max =
            records_max ? RP_MIN(records_max, RP_CUPTI_RECORDS_MAX) : RP_CUPTI_RECORDS_MAX;
        status = make(session, library, err);
    } else {
        rp_error_fill(err, RP_STATUS_NO_MEMORY, "CUPTI: out of memory");
    }
    if (status != RP_OK) {
        if (session)
            rp_free(session->kernels);
        rp_free(session);
        rp_cupti_give();
        return status;
    }
    *out = session;
    return RP_OK;
}

/* No callback touches the session any more when it returns. */
static void stop_receiving(void) {
    atomic_store(&receiver, NULL);
    while (atomic_load(&inside) != 0)
        sched_yield();
}

static int subscribe(struct rp_cupti_session *session, struct rp_error *err) {
    char other[128] = "";
    struct rp_cupti_subscriber_params params = {sizeof params, "reprise", other, sizeof other};
    int result = session->api.subscribe_v2
                     ? session->api.subscribe_v2(&session->subscriber, on_callback, NULL, &params)
                     : session->api.cuptiSubscribe(&session->subscriber, on_callback, NULL);
    if (result == RP_CUPTI_SUCCESS)
        return RP_OK;
    session->subscriber = NULL;
    if (result != RP_CUPTI_MULTIPLE_SUBSCRIBERS)
        return rp_error_set(err, RP_STATUS_UNSUPPORTED, "CUPTI: %s", text_of(session, result));
    other[sizeof other - 1] = '\0';
    return rp_error_set(err, RP_STATUS_IN_USE, "CUPTI: in use by %s",
                        other[0] ? other : "another tool (a profiler or debugger)");
}

int rp_cupti_begin(struct rp_cupti_session *session, struct rp_error *err) {
    const struct rp_cupti_api *api = &session->api;
    int status = subscribe(session, err);
    if (status != RP_OK)
        return status;
    atomic_store(&receiver, session);
    int result = api->cuptiActivityRegisterTimestampCallback(now);
    if (result == RP_CUPTI_SUCCESS)
        result = api->cuptiActivityRegisterCallbacks(on_request, on_complete);
    if (result == RP_CUPTI_SUCCESS)
        result = api->cuptiActivityEnable(RP_CUPTI_KIND_CONCURRENT_KERNEL);
    if (result != RP_CUPTI_SUCCESS) {
        stop_receiving();
        (void)api->cuptiUnsubscribe(session->subscriber);
        session->subscriber = NULL;
        return rp_error_set(err, RP_STATUS_UNSUPPORTED, "CUPTI: %s", text_of(session, result));
    }
    session->begun = true;
    session->begun_ns = rp_clock_ns();
    return RP_OK;
}

bool rp_cupti_is_due(const struct rp_cupti_session *session, uint64_t now_ns) {
    return session->begun && !session->ended &&
           (now_ns - session->begun_ns >= RP_CUPTI_NS_MAX ||
            atomic_load_explicit(&session->count, memory_order_relaxed) >= session->records_max);
}

/* Sorted by begin; equals as they came. */
static int compare(const void *a_void, const void *b_void) {
    const struct rp_cupti_kernel *a = a_void, *b = b_void;
    if (a->begin_ns != b->begin_ns)
        return a->begin_ns < b->begin_ns ? -1 : 1;
    return (a->order > b->order) - (a->order < b->order);
}

int rp_cupti_end(struct rp_cupti_session *session, struct rp_error *err) {
    const struct rp_cupti_api *api = &session->api;
    size_t dropped = 0;
    if (!session->begun || session->ended)
        return RP_OK;
    session->ended = true;
    int disabled = api->cuptiActivityDisable(RP_CUPTI_KIND_CONCURRENT_KERNEL);
    int flushed = api->cuptiActivityFlushAll(RP_CUPTI_FLUSH_FORCED);
    if (api->cuptiActivityGetNumDroppedRecords(NULL, 0, &dropped) == RP_CUPTI_SUCCESS)
        atomic_fetch_add(&session->dropped, dropped);
    stop_receiving();
    int result = api->cuptiUnsubscribe(session->subscriber);
    session->subscriber = NULL;
    session->kept = RP_MIN(atomic_load(&session->count), session->records_max);
    if (disabled != RP_CUPTI_SUCCESS)
        result = disabled;
    else if (flushed != RP_CUPTI_SUCCESS)
        result = flushed;
    return result == RP_CUPTI_SUCCESS
               ? RP_OK
               : rp_error_set(err, RP_STATUS_DEVICE, "CUPTI: %s", text_of(session, result));
}

const struct rp_cupti_kernel *rp_cupti_read(struct rp_cupti_session *session, uint32_t *out_count,
                                            struct rp_cupti_counts *out) {
    uint32_t count = atomic_load(&session->count);
    *out = (struct rp_cupti_counts){
        .without_time = atomic_load(&session->without_time),
        .outside = atomic_load(&session->outside),
        .over = count > session->records_max ? count - session->records_max : 0,
        .dropped = atomic_load(&session->dropped)};
    qsort(session->kernels, session->kept, sizeof *session->kernels, compare);
    *out_count = session->kept;
    return session->kernels;
}

uint32_t rp_cupti_version(const struct rp_cupti_session *session) { return session->version; }

void rp_cupti_close(struct rp_cupti_session *session) {
    if (!session)
        return;
    (void)rp_cupti_end(session, NULL);
    rp_free(session->kernels);
    rp_free(session);
    rp_cupti_give();
}
