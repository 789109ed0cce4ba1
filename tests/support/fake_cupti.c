#include "tests/support/fake_cupti.h"

#include "backend/cupti/cupti_api.h"

#include <stdio.h>
#include <string.h>

enum { RECORD = 216, AT_CORRELATION = 92 };

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

struct fake_cupti fake_cupti_state;

static rp_cupti_request request;
static rp_cupti_complete complete;
static uint64_t (*clock_of_client)(void);
static uint8_t *buffer;
static size_t room, used;
static uint32_t correlation;
static bool tracing;

int cuptiGetVersion(uint32_t *version) {
    *version = fake_cupti_state.version;
    return RP_CUPTI_SUCCESS;
}

int cuptiSubscribe_v2(void **subscriber, rp_cupti_callback callback, void *user,
                      struct rp_cupti_subscriber_params *params) {
    (void)callback, (void)user;
    if (fake_cupti_state.other_subscriber) {
        snprintf(params->old_name, params->old_name_bytes, "CUPTI for %s",
                 fake_cupti_state.other_subscriber);
        return RP_CUPTI_MULTIPLE_SUBSCRIBERS;
    }
    fake_cupti_state.subscribed++;
    *subscriber = &fake_cupti_state;
    return RP_CUPTI_SUCCESS;
}

int cuptiSubscribe(void **subscriber, rp_cupti_callback callback, void *user) {
    struct rp_cupti_subscriber_params params = {0};
    return cuptiSubscribe_v2(subscriber, callback, user, &params);
}

int cuptiUnsubscribe(void *subscriber) {
    fake_cupti_state.unsubscribed += subscriber == &fake_cupti_state;
    return RP_CUPTI_SUCCESS;
}

int cuptiActivityRegisterTimestampCallback(uint64_t (*now)(void)) {
    clock_of_client = now;
    return now && now() ? RP_CUPTI_SUCCESS : 1;
}

int cuptiActivityRegisterCallbacks(rp_cupti_request wanted, rp_cupti_complete done) {
    request = wanted;
    complete = done;
    return RP_CUPTI_SUCCESS;
}

int cuptiActivityEnable(int kind) {
    if (fake_cupti_state.enable_result)
        return fake_cupti_state.enable_result;
    tracing = kind == RP_CUPTI_KIND_CONCURRENT_KERNEL;
    fake_cupti_state.enabled++;
    return RP_CUPTI_SUCCESS;
}

static void give_back(void) {
    uint8_t *full = buffer;
    buffer = NULL;
    if (full)
        complete(NULL, 0, full, room, used - (fake_cupti_state.torn_record && used ? 64 : 0));
}

int cuptiActivityDisable(int kind) {
    (void)kind;
    tracing = false;
    fake_cupti_state.disabled++;
    return RP_CUPTI_SUCCESS;
}

int cuptiActivityFlushAll(uint32_t flags) {
    static uint8_t foreign[RECORD];
    if (fake_cupti_state.foreign_buffer)
        complete(NULL, 0, foreign, sizeof foreign, sizeof foreign);
    if (flags & RP_CUPTI_FLUSH_FORCED)
        give_back();
    return fake_cupti_state.flush_result;
}

int cuptiActivityGetNextRecord(uint8_t *from, size_t bytes, void **record) {
    uint8_t *next = *record ? (uint8_t *)*record + RECORD : from;
    if (next >= from + bytes)
        return RP_CUPTI_MAX_LIMIT_REACHED;
    *record = next;
    return RP_CUPTI_SUCCESS;
}

int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped) {
    (void)context, (void)stream;
    *dropped = fake_cupti_state.dropped;
    return RP_CUPTI_SUCCESS;
}

int cuptiGetResultString(int result, const char **text) {
    *text =
        result == RP_CUPTI_INSUFFICIENT_PRIVILEGES ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : NULL;
    return RP_CUPTI_SUCCESS;
}

int cuptiFinalize(void) {
    fake_cupti_state.finalized++;
    return RP_CUPTI_SUCCESS;
}

void fake_cupti_kernel(uint32_t graph, uint64_t node, uint64_t begin, uint64_t end) {
    uint32_t kind = RP_CUPTI_KIND_CONCURRENT_KERNEL;
    size_t most = 0;
    if (!tracing)
        return;
    if (buffer && used + RECORD > room)
        give_back();
    if (!buffer) {
        request(&buffer, &room, &most);
        used = 0;
        if (!buffer || room < RECORD) {
            fake_cupti_state.refused++;
            buffer = NULL;
            return;
        }
    }
    uint8_t *record = buffer + used;
    uint32_t id = fake_cupti_state.wrong_correlation ? 7 : ++correlation;
    memset(record, 0, RECORD);
    memcpy(record + RP_CUPTI_AT_KIND, &kind, sizeof kind);
    memcpy(record + RP_CUPTI_AT_START, &begin, sizeof begin);
    memcpy(record + RP_CUPTI_AT_END, &end, sizeof end);
    memcpy(record + AT_CORRELATION, &id, sizeof id);
    memcpy(record + RP_CUPTI_AT_GRAPH_NODE, &node, sizeof node);
    memcpy(record + RP_CUPTI_AT_GRAPH, &graph, sizeof graph);
    used += RECORD;
}

void fake_cupti_late(void) {
    size_t most;
    request(&buffer, &room, &most);
    if (buffer)
        give_back();
}
