#include "server/observe/kv_publisher.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/threads.h"
#include "server/observe/kv_batch.h"
#include "server/observe/zmq_library.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#define LINGER_MS      500  /* for what is not sent at the end */
#define REQUEST_BYTES  64   /* of a frame of a replay request: an identity, empty, a number */
#define MESSAGE_MAX    512  /* of what peers send: requests, subscriptions, handshakes */
#define REQUESTS_MAX   16   /* replay requests that wait */
#define REPLAYS_MAX    4    /* answered before new changes are published */
#define REPLAY_ROOM    1000 /* further messages that may wait for a client of replays */
#define KEEPALIVE_IDLE 60   /* seconds until a silent peer is probed */

/* One encoded batch. Its owners are the replay buffer and messages in libzmq's queues. */
struct payload {
    atomic_uint owners;
    uint64_t number;
    size_t len;
    char bytes[];
};

struct rp_kv_publisher {
    struct rp_kv_config config;
    const struct rp_zmq *zmq;
    void *context, *pub, *replay;
    bool connects;

    struct rp_kv_events *events;
    unsigned char *batch;  /* (RP_KV_BATCH_EVENTS) of rp_kv_event_bytes */
    uint32_t batch_count;  /* taken, not yet published */
    struct rp_buffer text; /* the batch, encoded */
    struct payload **kept; /* (buffer_steps) ring of published batches, kept_first the oldest */
    uint32_t kept_first, kept_count;
    uint64_t kept_bytes;
    uint64_t next_number;

    struct rp_counter published;
    _Atomic bool stopping;
    pthread_t thread;
    bool started;
};

/* --- Batches ---------------------------------------------------------------------------------- */

/* Called by a thread of libzmq's. */
static void release(void *data, void *hint) {
    struct payload *payload = hint;
    (void)data;
    if (atomic_fetch_sub_explicit(&payload->owners, 1, memory_order_acq_rel) == 1)
        rp_free(payload);
}

/* Sends [first, number, batch]; on the replay socket, where `first` is an identity, an empty frame
 * follows it. All of them, or nothing. */
static void send_payload(struct rp_kv_publisher *publisher, void *socket, const void *first,
                         size_t first_len, struct payload *payload) {
    const struct rp_zmq *zmq = publisher->zmq;
    const int more = RP_ZMQ_DONTWAIT | RP_ZMQ_SNDMORE;
    struct rp_zmq_message message;
    unsigned char number[8];
    for (int i = 0; i < 8; i++)
        number[i] = (unsigned char)(payload->number >> (8 * (7 - i)));
    atomic_fetch_add_explicit(&payload->owners, 1, memory_order_relaxed);
    if (zmq->msg_init_data(&message, payload->bytes, payload->len, release, payload) != 0) {
        release(NULL, payload);
        return;
    }
    /* Only the first frame may need memory: those below 30 bytes are stored in place. */
    bool sent = zmq->send(socket, first, first_len, more) >= 0;
    if (sent && socket == publisher->replay)
        zmq->send(socket, "", 0, more);
    if (sent)
        zmq->send(socket, number, sizeof number, more);
    if (!sent || zmq->msg_send(&message, socket, RP_ZMQ_DONTWAIT) < 0)
        zmq->msg_close(&message); /* releases it */
}

static void drop_oldest(struct rp_kv_publisher *publisher) {
    struct payload *oldest = publisher->kept[publisher->kept_first];
    publisher->kept_bytes -= oldest->len;
    publisher->kept_first = (publisher->kept_first + 1) % publisher->config.buffer_steps;
    publisher->kept_count--;
    release(NULL, oldest);
}

static void keep(struct rp_kv_publisher *publisher, struct payload *payload) {
    while (publisher->kept_count && (publisher->kept_count == publisher->config.buffer_steps ||
                                     publisher->kept_bytes + payload->len > RP_KV_REPLAY_BYTES))
        drop_oldest(publisher);
    uint32_t at =
        (publisher->kept_first + publisher->kept_count++) % publisher->config.buffer_steps;
    publisher->kept[at] = payload;
    publisher->kept_bytes += payload->len;
}

/* Publishes what `batch` holds. Without memory it is lost, and its number with it. */
static void publish(struct rp_kv_publisher *publisher) {
    struct timespec now;
    uint64_t number = publisher->next_number++;
    clock_gettime(CLOCK_REALTIME, &now);
    rp_buffer_clear(&publisher->text);
    rp_kv_batch_write(publisher->batch, publisher->batch_count, publisher->events->page_tokens,
                      number == 0, (double)now.tv_sec + (double)now.tv_nsec * 1e-9,
                      &publisher->text);
    struct payload *payload =
        publisher->text.failed ? NULL : rp_alloc(sizeof *payload + publisher->text.len);
    if (payload) {
        *payload = (struct payload){.owners = 1, .number = number, .len = publisher->text.len};
        memcpy(payload->bytes, publisher->text.data, publisher->text.len);
        send_payload(publisher, publisher->pub, publisher->config.topic,
                     strlen(publisher->config.topic), payload);
        keep(publisher, payload);
        rp_counter_add(&publisher->published, publisher->batch_count);
    } else {
        rp_buffer_deinit(&publisher->text);
    }
    publisher->batch_count = 0;
}

/* Publishes all changes that are there. */
static void publish_all(struct rp_kv_publisher *publisher) {
    size_t bytes = rp_kv_event_bytes(publisher->events->page_tokens);
    for (;;) {
        struct rp_kv_event *event =
            (struct rp_kv_event *)(publisher->batch + publisher->batch_count * bytes);
        if (!rp_kv_events_take(publisher->events, event))
            break;
        if (event->follows_gap) {
            /* What came before the gap is a batch of its own; the next number is left out. */
            struct rp_kv_event *first = (struct rp_kv_event *)publisher->batch;
            if (publisher->batch_count)
                publish(publisher);
            publisher->next_number++;
            memmove(first, event, bytes);
        }
        if (++publisher->batch_count == RP_KV_BATCH_EVENTS)
            publish(publisher);
    }
    if (publisher->batch_count)
        publish(publisher);
}

/* --- Replays ---------------------------------------------------------------------------------- */

/* Reads a whole message; false: none, or it is not one of `frames` frames. lens: theirs. */
static bool receive(struct rp_kv_publisher *publisher, unsigned char (*out)[REQUEST_BYTES],
                    int *lens, int frames) {
    const struct rp_zmq *zmq = publisher->zmq;
    int more = 1, count = 0;
    for (; more; count++) {
        unsigned char unused[REQUEST_BYTES];
        size_t size = sizeof more;
        int len = zmq->recv(publisher->replay, count < frames ? out[count] : unused, REQUEST_BYTES,
                            RP_ZMQ_DONTWAIT);
        if (len < 0 || zmq->getsockopt(publisher->replay, RP_ZMQ_RCVMORE, &more, &size) != 0)
            return false;
        if (count < frames)
            lens[count] = len;
    }
    return count == frames;
}

/* A request is [identity, empty, number]; an answer [identity, empty, number, batch]. */
static bool answer_replay(struct rp_kv_publisher *publisher) {
    const struct rp_zmq *zmq = publisher->zmq;
    struct rp_zmq_poll_item item = {.socket = publisher->replay, .events = RP_ZMQ_POLLIN};
    static const unsigned char end[8] = {255, 255, 255, 255, 255, 255, 255, 255};
    const int more = RP_ZMQ_DONTWAIT | RP_ZMQ_SNDMORE;
    unsigned char frames[3][REQUEST_BYTES];
    int lens[3];
    uint64_t from = 0;
    if (zmq->poll(&item, 1, 0) <= 0)
        return false;
    if (!receive(publisher, frames, lens, 3) || lens[0] > REQUEST_BYTES || lens[1] != 0 ||
        lens[2] != 8)
        return true;
    for (int i = 0; i < 8; i++)
        from = from << 8 | frames[2][i];
    for (uint32_t i = 0; i < publisher->kept_count; i++) {
        struct payload *payload =
            publisher->kept[(publisher->kept_first + i) % publisher->config.buffer_steps];
        if (payload->number < from)
            continue;
        send_payload(publisher, publisher->replay, frames[0], (size_t)lens[0], payload);
    }
    if (zmq->send(publisher->replay, frames[0], (size_t)lens[0], more) >= 0) {
        zmq->send(publisher->replay, "", 0, more);
        zmq->send(publisher->replay, end, sizeof end, more);
        zmq->send(publisher->replay, "", 0, RP_ZMQ_DONTWAIT);
    }
    return true;
}

/* --- The thread ------------------------------------------------------------------------------- */

static void pause_briefly(struct rp_kv_publisher *publisher) {
    struct rp_zmq_poll_item item = {.socket = publisher->replay, .events = RP_ZMQ_POLLIN};
    const struct timespec time = {.tv_nsec = RP_KV_POLL_MS * 1000000};
    if (publisher->replay)
        publisher->zmq->poll(&item, 1, RP_KV_POLL_MS);
    else
        nanosleep(&time, NULL);
}

static void *publisher_main(void *arg) {
    struct rp_kv_publisher *publisher = arg;
    rp_thread_begin("rp-kv-events", RP_THREAD_HOST);
    for (bool stopping = false; !stopping;) {
        pause_briefly(publisher);
        stopping = atomic_load(&publisher->stopping);
        for (int i = 0; publisher->replay && i < REPLAYS_MAX && answer_replay(publisher); i++) {
        }
        publish_all(publisher);
    }
    rp_thread_end();
    return NULL;
}

/* --- Start and stop --------------------------------------------------------------------------- */

/* vLLM's rule: an address of all interfaces, or a path, is bound; another host is connected to. */
static bool is_bound(const char *endpoint) {
    return strchr(endpoint, '*') || strstr(endpoint, "::") || strstr(endpoint, "0.0.0.0") ||
           strncmp(endpoint, "ipc://", 6) == 0;
}

static int fail_endpoint(const struct rp_zmq *zmq, const char *key, const char *endpoint,
                         struct rp_error *err) {
    int number = zmq->error();
    int status = number == EADDRINUSE                   ? RP_STATUS_IN_USE
                 : number == EINVAL || number == ENODEV ? RP_STATUS_INVALID
                                                        : RP_STATUS_IO;
    (void)rp_error_set(err, status, "--kv-events-config: %s %s: %s", key, endpoint,
                       zmq->strerror(number));
    rp_error_hint(
        err, "%s",
        status == RP_STATUS_IN_USE ? "stop the process that uses it, or choose another port" : "");
    return status;
}

static void set_option(const struct rp_zmq *zmq, void *socket, int option, int value) {
    if (zmq->setsockopt(socket, option, &value, sizeof value) != 0)
        rp_log(RP_LOG_WARN, "kv events: option %d: %s", option, zmq->strerror(zmq->error()));
}

static void *make_socket(struct rp_kv_publisher *publisher, int type, uint32_t send_limit) {
    const struct rp_zmq *zmq = publisher->zmq;
    const int64_t message_max = MESSAGE_MAX;
    void *socket = zmq->socket(publisher->context, type);
    if (!socket)
        return NULL;
    set_option(zmq, socket, RP_ZMQ_LINGER, LINGER_MS);
    set_option(zmq, socket, RP_ZMQ_SNDHWM, (int)send_limit);
    set_option(zmq, socket, RP_ZMQ_RCVHWM, REQUESTS_MAX);
    set_option(zmq, socket, RP_ZMQ_IPV6, 1);
    set_option(zmq, socket, RP_ZMQ_TCP_KEEPALIVE, 1);
    set_option(zmq, socket, RP_ZMQ_TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE);
    zmq->setsockopt(socket, RP_ZMQ_MAXMSGSIZE, &message_max, sizeof message_max);
    return socket;
}

static int open_sockets(struct rp_kv_publisher *publisher, struct rp_error *err) {
    const struct rp_zmq *zmq = publisher->zmq;
    const struct rp_kv_config *config = &publisher->config;
    publisher->context = zmq->ctx_new();
    if (publisher->context)
        publisher->pub = make_socket(publisher, RP_ZMQ_PUB, config->hwm);
    /* A replay may be all batches that are kept. libzmq learns late of what a peer has read, so it
     * is given twice that room; what exceeds it is dropped. */
    if (publisher->pub && *config->replay_endpoint)
        publisher->replay =
            make_socket(publisher, RP_ZMQ_ROUTER, 2 * config->buffer_steps + REPLAY_ROOM);
    if (!publisher->pub || (*config->replay_endpoint && !publisher->replay))
        return rp_error_set(err, RP_STATUS_IO, "--kv-events-config: no socket: %s",
                            zmq->strerror(zmq->error()));
    publisher->connects = !is_bound(config->endpoint);
    if ((publisher->connects ? zmq->connect : zmq->bind)(publisher->pub, config->endpoint) != 0)
        return fail_endpoint(zmq, "endpoint", config->endpoint, err);
    if (publisher->replay && zmq->bind(publisher->replay, config->replay_endpoint) != 0)
        return fail_endpoint(zmq, "replay_endpoint", config->replay_endpoint, err);
    return RP_OK;
}

int rp_kv_publisher_create(const struct rp_kv_config *config, struct rp_kv_publisher **out,
                           struct rp_error *err) {
    const struct rp_zmq *zmq;
    *out = NULL;
    if (!config->enabled)
        return RP_OK;
    int status = rp_zmq_open(&zmq, err);
    if (status != RP_OK)
        return status;
    struct rp_kv_publisher *publisher = rp_calloc(1, sizeof *publisher);
    if (publisher)
        publisher->kept = rp_calloc(config->buffer_steps, sizeof *publisher->kept);
    if (!publisher || !publisher->kept) {
        rp_free(publisher);
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "no memory for events of the prefix cache");
    }
    publisher->config = *config;
    publisher->zmq = zmq;
    status = open_sockets(publisher, err);
    if (status == RP_OK)
        *out = publisher;
    else
        rp_kv_publisher_destroy(publisher);
    return status;
}

int rp_kv_publisher_start(struct rp_kv_publisher *publisher, struct rp_kv_events *events,
                          struct rp_error *err) {
    publisher->events = events;
    publisher->batch = rp_calloc(RP_KV_BATCH_EVENTS, rp_kv_event_bytes(events->page_tokens));
    publisher->started = publisher->batch &&
                         pthread_create(&publisher->thread, NULL, publisher_main, publisher) == 0;
    return publisher->started
               ? RP_OK
               : rp_error_set(err, RP_STATUS_NO_MEMORY, "no thread for events of the prefix cache");
}

void rp_kv_publisher_stop(struct rp_kv_publisher *publisher) {
    if (!publisher || !publisher->started)
        return;
    atomic_store(&publisher->stopping, true);
    pthread_join(publisher->thread, NULL);
    publisher->started = false;
}

void rp_kv_publisher_destroy(struct rp_kv_publisher *publisher) {
    if (!publisher)
        return;
    rp_kv_publisher_stop(publisher);
    while (publisher->kept_count)
        drop_oldest(publisher);
    if (publisher->pub)
        publisher->zmq->close(publisher->pub);
    if (publisher->replay)
        publisher->zmq->close(publisher->replay);
    if (publisher->context)
        publisher->zmq->ctx_term(publisher->context); /* waits for LINGER_MS at most */
    rp_buffer_deinit(&publisher->text);
    rp_free(publisher->batch);
    rp_free(publisher->kept);
    rp_free(publisher);
}

bool rp_kv_publisher_connects(const struct rp_kv_publisher *publisher) {
    return publisher && publisher->connects;
}

void rp_kv_publisher_register(struct rp_kv_publisher *publisher, struct rp_registry *registry) {
    static const struct rp_metric_family family = {
        "reprise_kv_events_total", NULL, "Changes of the prefix cache, by what became of them.",
        RP_METRIC_COUNTER, RP_METRICS_OWN};
    if (!publisher || !publisher->events)
        return;
    rp_registry_add(registry, &family, "result=\"published\"", &publisher->published);
    rp_registry_add(registry, &family, "result=\"dropped\"", &publisher->events->dropped);
}
