#include "server/observe/memory_snapshot.h"

#include "base/pickle.h"
#include "engine/engine.h"

#include <string.h>

/* Owners without a known address get synthetic address ranges, far from the pool's. */
#define OWNER_BASE   ((uint64_t)1 << 56)
#define OWNER_STRIDE ((uint64_t)1 << 44)

static void write_frames(struct rp_pickle *pickle, const char *name) {
    rp_pickle_list_begin(pickle, "frames");
    rp_pickle_dict_begin(pickle, NULL);
    rp_pickle_string(pickle, "name", name);
    rp_pickle_string(pickle, "filename", "reprise");
    rp_pickle_int(pickle, "line", 0);
    rp_pickle_dict_end(pickle);
    rp_pickle_list_end(pickle);
}

static void write_block(struct rp_pickle *pickle, uint64_t address, uint64_t bytes, bool active,
                        const char *name) {
    rp_pickle_dict_begin(pickle, NULL);
    rp_pickle_int(pickle, "address", (int64_t)address);
    rp_pickle_int(pickle, "size", (int64_t)bytes);
    rp_pickle_int(pickle, "requested_size", (int64_t)bytes);
    rp_pickle_string(pickle, "state", active ? "active_allocated" : "inactive");
    write_frames(pickle, name);
    rp_pickle_dict_end(pickle);
}

static void begin_segment(struct rp_pickle *pickle, uint64_t address, uint64_t bytes,
                          uint64_t active) {
    rp_pickle_dict_begin(pickle, NULL);
    rp_pickle_int(pickle, "device", 0);
    rp_pickle_int(pickle, "address", (int64_t)address);
    rp_pickle_int(pickle, "total_size", (int64_t)bytes);
    rp_pickle_int(pickle, "allocated_size", (int64_t)active);
    rp_pickle_int(pickle, "active_size", (int64_t)active);
    rp_pickle_int(pickle, "requested_size", (int64_t)active);
    rp_pickle_int(pickle, "stream", 0);
    rp_pickle_string(pickle, "segment_type", "large");
    rp_pickle_bool(pickle, "is_expandable", false);
    rp_pickle_list_begin(pickle, "segment_pool_id");
    rp_pickle_int(pickle, NULL, 0);
    rp_pickle_int(pickle, NULL, 0);
    rp_pickle_list_end(pickle);
    rp_pickle_list_begin(pickle, "frames");
    rp_pickle_list_end(pickle);
    rp_pickle_list_begin(pickle, "blocks");
}

static void end_segment(struct rp_pickle *pickle) {
    rp_pickle_list_end(pickle);
    rp_pickle_dict_end(pickle);
}

static enum rp_kv_state state_of(uint32_t word) {
    return (enum rp_kv_state)(word & ((1u << RP_KV_MAP_STATE_BITS) - 1));
}

static bool is_active(enum rp_kv_state state) { return state != RP_KV_FREE; }

/* The pool is one item of the plan; the snapshot shows its pages as runs. */
static bool is_pool(const struct rp_memory_item *item) {
    return strncmp(item->name, "KV pool", 7) == 0;
}

static uint64_t owner_address(uint32_t item) { return OWNER_BASE + item * OWNER_STRIDE; }

static void write_pool(struct rp_pickle *pickle, const struct rp_memory_snapshot *s) {
    uint64_t active = 0;
    for (uint32_t page = 0; page < s->page_count; page++)
        active += is_active(state_of(s->map[page])) ? s->page_bytes : 0;
    begin_segment(pickle, s->pool_address, s->page_count * s->page_bytes, active);
    for (uint32_t page = 0, run; page < s->page_count; page += run) {
        enum rp_kv_state state = state_of(s->map[page]);
        /* Each page in use is a separate block, as in the trace. */
        for (run = 1; state == RP_KV_FREE && page + run < s->page_count &&
                      state_of(s->map[page + run]) == state;)
            run++;
        write_block(pickle, s->pool_address + page * s->page_bytes, run * s->page_bytes,
                    is_active(state), rp_kv_states[state]);
    }
    end_segment(pickle);
}

static void write_segments(struct rp_pickle *pickle, const struct rp_memory_snapshot *s) {
    rp_pickle_list_begin(pickle, "segments");
    for (uint32_t i = 0; i < s->plan->item_count; i++) {
        const struct rp_memory_item *item = &s->plan->items[i];
        if (item->on_host || is_pool(item) || item->bytes == 0)
            continue;
        begin_segment(pickle, owner_address(i), item->bytes, item->bytes);
        write_block(pickle, owner_address(i), item->bytes, true, item->name);
        end_segment(pickle);
    }
    write_pool(pickle, s);
    rp_pickle_list_end(pickle);
}

static void write_action(struct rp_pickle *pickle, const char *action, uint64_t address,
                         uint64_t bytes, uint64_t ns, const char *name) {
    rp_pickle_dict_begin(pickle, NULL);
    rp_pickle_string(pickle, "action", action);
    rp_pickle_int(pickle, "addr", (int64_t)address);
    rp_pickle_int(pickle, "size", (int64_t)bytes);
    rp_pickle_int(pickle, "stream", 0);
    rp_pickle_int(pickle, "time_us", (int64_t)(ns / 1000));
    write_frames(pickle, name);
    rp_pickle_dict_end(pickle);
}

/* PyTorch's trace distinguishes only allocated and free memory; other page state changes are
 * omitted. */
static void write_page_event(struct rp_pickle *pickle, const struct rp_memory_snapshot *s,
                             const struct rp_trace_event *event) {
    uint64_t address = s->pool_address + event->a * s->page_bytes;
    bool was = is_active((enum rp_kv_state)event->id), is = is_active((enum rp_kv_state)event->b);
    if (event->b >= RP_KV_STATE_COUNT || event->id >= RP_KV_STATE_COUNT || was == is)
        return;
    if (is) {
        write_action(pickle, "alloc", address, s->page_bytes, event->ns, rp_kv_states[event->b]);
        return;
    }
    write_action(pickle, "free_requested", address, s->page_bytes, event->ns,
                 rp_kv_states[event->id]);
    write_action(pickle, "free_completed", address, s->page_bytes, event->ns,
                 rp_kv_states[event->id]);
}

static void write_traces(struct rp_pickle *pickle, const struct rp_memory_snapshot *s) {
    rp_pickle_list_begin(pickle, "device_traces");
    rp_pickle_list_begin(pickle, NULL);
    for (uint32_t i = 0; i < s->plan->item_count; i++) {
        const struct rp_memory_item *item = &s->plan->items[i];
        if (item->on_host || is_pool(item) || item->bytes == 0)
            continue;
        write_action(pickle, "segment_alloc", owner_address(i), item->bytes, s->start_ns,
                     item->name);
        write_action(pickle, "alloc", owner_address(i), item->bytes, s->start_ns, item->name);
    }
    for (uint64_t i = 0; i < s->history_count; i++)
        write_page_event(pickle, s, &s->history[i]);
    rp_pickle_list_end(pickle);
    rp_pickle_list_end(pickle);
}

void rp_memory_snapshot_write(const struct rp_memory_snapshot *snapshot, struct rp_buffer *out) {
    struct rp_pickle pickle;
    rp_pickle_init(&pickle, out);
    rp_pickle_dict_begin(&pickle, NULL);
    write_segments(&pickle, snapshot);
    write_traces(&pickle, snapshot);
    rp_pickle_dict_begin(&pickle, "allocator_settings");
    rp_pickle_dict_end(&pickle);
    rp_pickle_list_begin(&pickle, "external_annotations");
    rp_pickle_list_end(&pickle);
    rp_pickle_dict_end(&pickle);
    rp_pickle_finish(&pickle);
}
