#include "engine/observe/step_record.h"

#include "engine/engine_internal.h"

#include <string.h>

#define WORDS (sizeof(struct rp_step_record) / sizeof(uint64_t))
_Static_assert(sizeof(struct rp_step_record) % sizeof(uint64_t) == 0, "a record is whole words");

bool rp_step_records_init(struct rp_step_records *records) {
    records->words = rp_calloc((size_t)RP_STEP_RECORDS * WORDS, sizeof *records->words);
    if (!records->words)
        return false;
    /* Its pages are there before the first step. */
    memset((void *)records->words, 0, (size_t)RP_STEP_RECORDS * WORDS * sizeof *records->words);
    return true;
}

void rp_step_records_deinit(struct rp_step_records *records) {
    rp_free((void *)records->words);
    memset(records, 0, sizeof *records);
}

void rp_step_records_put(struct rp_step_records *records, const struct rp_step_record *record) {
    uint64_t from[WORDS];
    memcpy(from, record, sizeof from);
    uint64_t head = atomic_load_explicit(&records->head, memory_order_relaxed);
    _Atomic uint64_t *to = records->words + (head % RP_STEP_RECORDS) * WORDS;
    /* release, twice: as in rp_trace_put. */
    for (size_t i = 0; i < WORDS; i++)
        atomic_store_explicit(&to[i], from[i], memory_order_release);
    atomic_store_explicit(&records->head, head + 1, memory_order_release);
}

uint32_t rp_step_records_copy(const struct rp_step_records *records, uint64_t since_ns,
                              struct rp_step_record *out, uint32_t capacity) {
    _Atomic uint64_t *head = &((struct rp_step_records *)records)->head;
    uint64_t begin = atomic_load_explicit(head, memory_order_acquire), at = begin;
    uint32_t count = 0;
    while (count < capacity && at > 0) {
        uint64_t words[WORDS];
        _Atomic uint64_t *from = records->words + ((at - 1) % RP_STEP_RECORDS) * WORDS;
        for (size_t i = 0; i < WORDS; i++)
            words[i] = atomic_load_explicit(&from[i], memory_order_acquire);
        /* Its place is written over when RP_STEP_RECORDS others follow: that one may have begun. */
        if (at - 1 + RP_STEP_RECORDS <= atomic_load_explicit(head, memory_order_acquire))
            break;
        struct rp_step_record *record = &out[capacity - 1 - count];
        memcpy(record, words, sizeof words);
        if (record->end_ns < since_ns)
            break;
        count++;
        at--;
    }
    memmove(out, out + (capacity - count), count * sizeof *out);
    return count;
}

uint32_t rp_engine_copy_steps(const struct rp_engine *engine, uint64_t since_ns,
                              struct rp_step_record *out, uint32_t capacity) {
    return rp_step_records_copy(&engine->observer.records, since_ns, out, capacity);
}
