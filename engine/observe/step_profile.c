#include "engine/observe/step_profile.h"

#include "base/memory.h"

#include <string.h>

#define RING_WORDS   ((uint64_t)1 << 19) /* 4 MiB */
#define RECORDS_MIN  16
#define HEADER_WORDS 7
#define NO_TIMES     UINT64_MAX

int rp_step_profile_create(const struct rp_backend *backend, const struct rp_program *program,
                           struct rp_graph_set *graphs, enum rp_dtype kv_dtype,
                           uint32_t row_capacity, uint32_t every, struct rp_step_profile **out) {
    struct rp_step_profile *profile = rp_calloc(1, sizeof *profile);
    *out = NULL;
    if (!profile)
        return RP_STATUS_NO_MEMORY;
    int status = rp_profile_nodes_make(backend, program, graphs, kv_dtype, &profile->nodes);
    uint64_t words = RING_WORDS;
    profile->every = every;
    profile->row_capacity = row_capacity;
    profile->record_max = HEADER_WORDS + profile->nodes.nodes_max + 2 * (uint64_t)row_capacity + 1;
    while (words < RECORDS_MIN * profile->record_max)
        words *= 2;
    profile->mask = words - 1;
    profile->words = rp_calloc(words, sizeof *profile->words);
    profile->since_stamped = rp_calloc(profile->nodes.bucket_count, sizeof *profile->since_stamped);
    profile->row_ids =
        rp_calloc((size_t)RP_STEP_RING_ENTRIES * row_capacity, sizeof *profile->row_ids);
    if (status != RP_OK || !profile->words || !profile->since_stamped || !profile->row_ids) {
        rp_step_profile_destroy(profile);
        return RP_STATUS_NO_MEMORY;
    }
    *out = profile;
    return RP_OK;
}

void rp_step_profile_destroy(struct rp_step_profile *profile) {
    if (!profile)
        return;
    rp_profile_nodes_deinit(&profile->nodes);
    rp_free(profile->words);
    rp_free(profile->since_stamped);
    rp_free(profile->row_ids);
    rp_free(profile);
}

/* --- which steps ------------------------------------------------------------------------------ */

static bool is_of_phase(bool decode_only, enum rp_profile_phase phase) {
    return phase == RP_PROFILE_ANY || (phase == RP_PROFILE_DECODE) == decode_only;
}

static void take_schedule(struct rp_step_profile *profile) {
    uint32_t asked[5];
    for (int i = 0; i < 5; i++)
        asked[i] = atomic_load_explicit(&profile->asked[i], memory_order_relaxed);
    profile->schedule = (struct rp_profile_schedule){asked[0], asked[1], asked[2], asked[3],
                                                     (enum rp_profile_phase)asked[4]};
    profile->session_seen = profile->session_read = 0;
}

/* Whether the session in progress wants this step; *mark says whether it is an active one. */
static bool is_wanted_by_session(struct rp_step_profile *profile, bool decode_only,
                                 struct rp_profile_mark *mark) {
    uint64_t word = atomic_load_explicit(&profile->session, memory_order_acquire);
    if ((word & 3) == RP_PROFILE_ASKED) {
        take_schedule(profile);
        uint64_t running = (word & ~(uint64_t)3) | RP_PROFILE_RUNNING;
        if (!atomic_compare_exchange_strong(&profile->session, &word, running))
            return false; /* taken back meanwhile */
        word = running;
    }
    const struct rp_profile_schedule *schedule = &profile->schedule;
    if ((word & 3) != RP_PROFILE_RUNNING || !is_of_phase(decode_only, schedule->phase))
        return false;
    uint64_t cycle = (uint64_t)schedule->wait + schedule->warmup + schedule->active;
    uint64_t n = profile->session_seen;
    if (n >= cycle * schedule->repeat)
        return false;
    profile->session_seen++;
    if (n % cycle < schedule->wait)
        return false;
    if (n % cycle >= (uint64_t)schedule->wait + schedule->warmup) {
        mark->session = (uint32_t)(word >> 2);
        mark->repeat = (uint32_t)(n / cycle) + 1;
    }
    return true;
}

static bool is_wanted_by_request(const struct rp_step_profile *profile,
                                 const struct rp_sched_step *plan) {
    if (!profile->open_requests)
        return false;
    for (uint32_t i = 0; i < plan->row_count; i++)
        if (plan->rows[i].request->profile)
            return true;
    return false;
}

bool rp_step_profile_launch(struct rp_step_profile *profile, const struct rp_sched_step *plan,
                            uint32_t graph, uint64_t device_step) {
    struct rp_profile_mark mark = {.device_step = device_step};
    uint32_t *since = &profile->since_stamped[graph];
    bool due = profile->every && ++*since >= profile->every;
    bool session = is_wanted_by_session(profile, plan->decode_only, &mark);
    if (!due && !session && !is_wanted_by_request(profile, plan))
        return false;
    mark.stands_for = profile->every ? *since : 1;
    *since = 0;
    /* When the step is read its requests may be gone. */
    uint64_t entry = device_step % RP_STEP_RING_ENTRIES;
    for (uint32_t i = 0; i < plan->row_count; i++)
        profile->row_ids[entry * profile->row_capacity + i] = plan->rows[i].request->id;
    profile->marks[entry] = mark;
    return true;
}

/* --- records ---------------------------------------------------------------------------------- */

struct record {
    struct rp_step_profile *profile;
    uint64_t at; /* the next word, counted since the start */
};

static void put(struct record *record, uint64_t word) {
    /* release: a reader that sees this word sees that `head` had come to this record's begin, and
     * so that what lay here before may be gone. */
    atomic_store_explicit(&record->profile->words[record->at++ & record->profile->mask], word,
                          memory_order_release);
}

/* ns after the step's begin; 0 when the clock went back. */
static uint64_t behind(uint64_t ns, uint64_t begin_ns) { return ns > begin_ns ? ns - begin_ns : 0; }

static enum rp_op_kind op_of(const struct rp_profile_nodes *nodes,
                             const struct rp_profile_node *node) {
    enum rp_op_kind kind = node->op_count ? nodes->ops[node->ops[0]].kind : RP_OP_STEP_BEGIN;
    for (uint32_t i = 0; i < node->op_count; i++) {
        enum rp_op_kind member = nodes->ops[node->ops[i]].kind;
        if (member == RP_OP_ATTENTION)
            return RP_OP_ATTENTION;
        if (member == RP_OP_LINEAR)
            kind = RP_OP_LINEAR;
    }
    return kind;
}

/* Nodes are kept as 32 bits: in ns up to 4 s, in coarser units above. */
static uint32_t shift_of(uint64_t step_ns) {
    uint32_t shift = 0;
    while (step_ns >> shift >= UINT32_MAX - 1)
        shift++;
    return shift;
}

static uint64_t node_word(uint64_t begin, uint64_t end, uint32_t shift) {
    const uint64_t most = UINT32_MAX;
    return RP_MIN(begin >> shift, most - 1) << 32 | RP_MIN(end >> shift, most);
}

static void put_nodes(struct record *record, const struct rp_profile_read *read, uint32_t weight,
                      uint32_t shift) {
    const struct rp_profile_node *nodes = record->profile->nodes.buckets[read->graph].nodes;
    uint32_t count = record->profile->nodes.buckets[read->graph].count;
    uint64_t last = 0, host = read->begin_ns + (uint64_t)read->to_host_ns;
    for (uint32_t i = 0; i < count; i++) {
        struct rp_node_stamp stamp = rp_node_stamp_at(read->stamps, count, i);
        if (stamp.begin_ns > stamp.end_ns) {
            put(record, NO_TIMES);
            continue;
        }
        uint64_t begin = behind(stamp.begin_ns, read->begin_ns),
                 end = behind(stamp.end_ns, read->begin_ns);
        put(record, node_word(begin, end, shift));
        begin = RP_MAX(begin, last); /* its own time: spans of one lane do not overlap */
        if (end > begin)
            rp_counter_add(&record->profile->op_ns[op_of(&record->profile->nodes, &nodes[i])],
                           (end - begin) * weight);
        if (end > begin)
            rp_trace_put(read->trace, RP_TRACE_NODE, host + begin, i, (uint16_t)read->graph,
                         read->device_step, end - begin);
        last = RP_MAX(last, end);
    }
}

static void put_rows(struct record *record, const struct rp_profile_read *read) {
    const uint64_t *ids = record->profile->row_ids +
                          read->device_step % RP_STEP_RING_ENTRIES * record->profile->row_capacity;
    for (uint32_t i = 0; i < read->plan->row_count; i++) {
        const struct rp_sched_row *row = &read->plan->rows[i];
        put(record, ids[i]);
        put(record, (uint64_t)row->start << 32 | (uint64_t)row->decode << 31 |
                        (uint64_t)row->samples << 30 | row->count);
    }
}

/* An active step of the session in progress was read. */
static void count_active(struct rp_step_profile *profile, const struct rp_profile_mark *mark) {
    uint64_t word = atomic_load_explicit(&profile->session, memory_order_acquire);
    const struct rp_profile_schedule *schedule = &profile->schedule;
    if (word != ((uint64_t)mark->session << 2 | RP_PROFILE_RUNNING))
        return;
    profile->session_read++;
    atomic_store_explicit(&profile->session_done, profile->session_read, memory_order_relaxed);
    if (profile->session_read == (uint64_t)schedule->active * schedule->repeat)
        atomic_compare_exchange_strong(&profile->session, &word,
                                       (uint64_t)mark->session << 2 | RP_PROFILE_DONE);
}

void rp_step_profile_read(struct rp_step_profile *profile, const struct rp_profile_read *read) {
    uint64_t head = atomic_load_explicit(&profile->head, memory_order_relaxed);
    struct record record = {profile, head};
    const struct rp_profile_mark *mark = &profile->marks[read->device_step % RP_STEP_RING_ENTRIES];
    const struct rp_sched_step *plan = read->plan;
    uint32_t nodes = profile->nodes.buckets[read->graph].count;
    /* Its last node ends when the result has reached the host, just after the step's own end. */
    uint64_t end_ns = RP_MAX(read->end_ns, nodes ? read->stamps[nodes - 1].end_ns : 0);
    uint32_t shift = shift_of(behind(end_ns, read->begin_ns));
    RP_ASSERT(mark->device_step == read->device_step);
    put(&record, read->device_step);
    put(&record, read->begin_ns);
    put(&record, end_ns);
    put(&record, read->read_ns);
    put(&record, (uint64_t)read->graph << 48 | (uint64_t)nodes << 32 |
                     (uint64_t)plan->row_count << 16 | (uint64_t)shift << 1 | plan->decode_only);
    put(&record, (uint64_t)plan->token_count << 32 | plan->sample_count);
    put(&record, (uint64_t)mark->session << 32 | mark->repeat);
    put_nodes(&record, read, mark->stands_for, shift);
    put_rows(&record, read);
    put(&record, record.at + 1 - head);
    atomic_store_explicit(&profile->head, record.at, memory_order_release);
    atomic_store_explicit(&profile->stamped,
                          atomic_load_explicit(&profile->stamped, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    if (mark->session)
        count_active(profile, mark);
}

bool rp_step_profile_op(const struct rp_step_profile *profile, uint32_t index,
                        const char **out_name, uint64_t *out_ns) {
    if (index >= RP_OP_KIND_COUNT)
        return false;
    *out_name = rp_op_kind_name((enum rp_op_kind)index);
    *out_ns = rp_counter_read(&profile->op_ns[index]);
    return true;
}

uint32_t rp_step_profile_sessions(const struct rp_step_profile *profile) {
    return (uint32_t)(atomic_load_explicit(&((struct rp_step_profile *)profile)->session,
                                           memory_order_relaxed) >>
                      2);
}

/* --- sessions --------------------------------------------------------------------------------- */

uint64_t rp_step_profile_session_max(const struct rp_step_profile *profile) {
    return (profile->mask + 1) / profile->record_max / 2;
}

uint32_t rp_step_profile_start(struct rp_step_profile *profile,
                               const struct rp_profile_schedule *schedule) {
    uint64_t word = atomic_load_explicit(&profile->session, memory_order_acquire);
    const uint32_t asked[5] = {schedule->wait, schedule->warmup, schedule->active, schedule->repeat,
                               (uint32_t)schedule->phase};
    if ((word & 3) != RP_PROFILE_IDLE)
        return 0;
    for (int i = 0; i < 5; i++)
        atomic_store_explicit(&profile->asked[i], asked[i], memory_order_relaxed);
    atomic_store_explicit(&profile->session_done, 0, memory_order_relaxed);
    uint32_t number = (uint32_t)(word >> 2) + 1;
    number += number == 0;
    atomic_store_explicit(&profile->session, (uint64_t)number << 2 | RP_PROFILE_ASKED,
                          memory_order_release);
    return number;
}

enum rp_profile_state rp_step_profile_state(const struct rp_step_profile *profile,
                                            uint64_t *out_done) {
    struct rp_step_profile *read = (struct rp_step_profile *)profile;
    if (out_done)
        *out_done = atomic_load_explicit(&read->session_done, memory_order_relaxed);
    return (enum rp_profile_state)(atomic_load_explicit(&read->session, memory_order_acquire) & 3);
}

void rp_step_profile_stop(struct rp_step_profile *profile) {
    uint64_t word = atomic_load_explicit(&profile->session, memory_order_acquire);
    while (!atomic_compare_exchange_weak(&profile->session, &word,
                                         (word & ~(uint64_t)3) | RP_PROFILE_IDLE)) {
    }
}

/* --- copies ----------------------------------------------------------------------------------- */

static void read_record(const uint64_t *words, struct rp_profile_step *out) {
    *out = (struct rp_profile_step){.step = words[0],
                                    .begin_ns = words[1],
                                    .end_ns = words[2],
                                    .read_ns = words[3],
                                    .graph = (uint32_t)(words[4] >> 48),
                                    .node_count = (uint32_t)(words[4] >> 32) & 0xFFFF,
                                    .row_count = (uint32_t)(words[4] >> 16) & 0xFFFF,
                                    .shift = (uint32_t)(words[4] >> 1) & 0x7F,
                                    .decode_only = words[4] & 1,
                                    .tokens = (uint32_t)(words[5] >> 32),
                                    .logit_rows = (uint32_t)words[5],
                                    .session = (uint32_t)(words[6] >> 32),
                                    .repeat = (uint32_t)words[6],
                                    .nodes = words + HEADER_WORDS};
    out->rows = out->nodes + out->node_count;
}

/* Words [begin, head) of the ring that nobody wrote to meanwhile; their first one goes to
 * *out_begin. */
static uint64_t copy_words(struct rp_step_profile *profile, uint64_t *out, uint64_t *out_begin) {
    uint64_t size = profile->mask + 1;
    uint64_t head = atomic_load_explicit(&profile->head, memory_order_acquire);
    uint64_t begin = head > size ? head - size : 0;
    for (uint64_t at = begin; at < head; at++)
        out[at - begin] =
            atomic_load_explicit(&profile->words[at & profile->mask], memory_order_acquire);
    /* Behind `now` one record may be half written. */
    uint64_t now = atomic_load_explicit(&profile->head, memory_order_acquire);
    uint64_t safe = now + profile->record_max > size ? now + profile->record_max - size : 0;
    *out_begin = RP_MAX(begin, safe);
    return head;
}

bool rp_step_profile_copy(const struct rp_step_profile *profile, uint64_t since_ns,
                          struct rp_profile_copy *out) {
    memset(out, 0, sizeof *out);
    out->whole = true;
    uint64_t most = (profile->mask + 1) / (HEADER_WORDS + 1), begin;
    out->words = rp_alloc((profile->mask + 1) * sizeof *out->words);
    out->steps = rp_calloc(most, sizeof *out->steps);
    if (!out->words || !out->steps) {
        rp_profile_copy_deinit(out);
        return false;
    }
    uint64_t first, head = copy_words((struct rp_step_profile *)profile, out->words, &first);
    begin = head > profile->mask + 1 ? head - (profile->mask + 1) : 0;
    /* Backwards, from length to length. */
    for (uint64_t at = head; at > first;) {
        uint64_t length = out->words[at - 1 - begin];
        if (length > at - first) {
            out->whole = false;
            break;
        }
        at -= length;
        struct rp_profile_step *step = &out->steps[most - 1 - out->count];
        read_record(out->words + (at - begin), step);
        if (step->read_ns < since_ns)
            break;
        out->count++;
        if (at == first && first > 0)
            out->whole = false;
    }
    memmove(out->steps, out->steps + (most - out->count), out->count * sizeof *out->steps);
    return true;
}

void rp_profile_copy_deinit(struct rp_profile_copy *copy) {
    rp_free(copy->words);
    rp_free(copy->steps);
    memset(copy, 0, sizeof *copy);
}

bool rp_profile_step_node(const struct rp_profile_step *step, uint32_t i, uint64_t *out_begin,
                          uint64_t *out_end) {
    uint64_t word = step->nodes[i];
    *out_begin = (word >> 32) << step->shift;
    *out_end = (word & UINT32_MAX) << step->shift;
    return word != NO_TIMES;
}

struct rp_profile_row rp_profile_step_row(const struct rp_profile_step *step, uint32_t i) {
    uint64_t word = step->rows[2 * (size_t)i + 1];
    return (struct rp_profile_row){.request = step->rows[2 * (size_t)i],
                                   .start = (uint32_t)(word >> 32),
                                   .decode = word >> 31 & 1,
                                   .samples = word >> 30 & 1,
                                   .count = (uint32_t)word & 0x3FFFFFFF};
}

bool rp_profile_step_replace(struct rp_profile_step *step, const struct rp_node_stamp *stamps) {
    uint64_t *words = (uint64_t *)step->nodes;
    uint64_t begin = UINT64_MAX, end = 0;
    for (uint32_t i = 0; i < step->node_count; i++) {
        if (stamps[i].begin_ns > stamps[i].end_ns)
            continue;
        begin = RP_MIN(begin, stamps[i].begin_ns);
        end = RP_MAX(end, stamps[i].end_ns);
    }
    if (begin > end)
        return false;
    step->begin_ns = begin;
    step->end_ns = end;
    step->shift = shift_of(end - begin);
    for (uint32_t i = 0; i < step->node_count; i++)
        words[i] =
            stamps[i].begin_ns > stamps[i].end_ns
                ? NO_TIMES
                : node_word(stamps[i].begin_ns - begin, stamps[i].end_ns - begin, step->shift);
    return true;
}
