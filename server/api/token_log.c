#include "server/api/token_log.h"

#include "base/json_writer.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Stored in the buffer, followed by top_count of struct rp_logprob. */
struct entry {
    uint64_t at, chars;
    int32_t token;
    float logprob;
    uint32_t rank;
    uint32_t allowed; /* 0: all */
    uint8_t top_count;
    bool known;
};

void rp_token_log_deinit(struct rp_token_log *log) {
    rp_buffer_deinit(&log->entries);
    log->count = 0;
    log->sent = log->ready = 0;
}

void rp_token_log_add(struct rp_token_log *log, int32_t token, const struct rp_event *event,
                      uint64_t at, uint64_t chars) {
    struct entry entry;
    memset(&entry, 0, sizeof entry);
    entry.at = at;
    entry.chars = chars;
    entry.token = token;
    entry.allowed = log->allowed;
    if (event) {
        entry.logprob = event->logprob;
        entry.rank = event->rank;
        entry.top_count = event->top_count;
        entry.known = true;
    }
    rp_buffer_append(&log->entries, &entry, sizeof entry);
    if (event)
        rp_buffer_append(&log->entries, event->top, event->top_count * sizeof event->top[0]);
    log->count++;
}

/* Reads the entry at *place and advances past it; top: copies of the rp_logprob that follow it. */
static struct entry read_entry(const struct rp_token_log *log, size_t *place,
                               struct rp_logprob top[RP_LOGPROBS_MAX]) {
    struct entry entry;
    memcpy(&entry, log->entries.data + *place, sizeof entry);
    *place += sizeof entry;
    if (top)
        memcpy(top, log->entries.data + *place, entry.top_count * sizeof top[0]);
    *place += entry.top_count * sizeof(struct rp_logprob);
    return entry;
}

void rp_token_log_release(struct rp_token_log *log, uint64_t bytes) {
    size_t place = log->ready;
    while (place < log->entries.len) {
        struct entry entry = read_entry(log, &place, NULL);
        if (entry.at >= bytes)
            return;
        log->ready = place;
    }
}

void rp_token_log_cut(struct rp_token_log *log, uint64_t bytes) {
    rp_token_log_release(log, bytes);
    log->entries.len = log->ready;
}

void rp_token_log_release_all(struct rp_token_log *log) { log->ready = log->entries.len; }

/* --- Writing --------------------------------------------------------------------------------- */

/* JSON has no infinity; OpenAI uses this value for very unlikely tokens. */
#define IMPOSSIBLE (-9999.0f)

/* The token as a JSON string. A partial character is written "bytes:\xe2\x82", in chats without
 * "bytes:", as OpenAI does; this keeps distinct tokens distinct. */
static void write_token(struct rp_buffer *out, const struct rp_token_style *style, int32_t token,
                        const char *partial) {
    struct rp_token_bytes bytes = rp_tokenizer_token(style->tokenizer, token);
    if (style->as_token_ids) {
        rp_buffer_printf(out, "\"token_id:%" PRId32 "\"", token);
    } else if (rp_utf8_valid(bytes.bytes, bytes.len)) {
        rp_json_escape(out, bytes.len ? bytes.bytes : "", bytes.len);
    } else {
        rp_buffer_printf(out, "\"%s", partial);
        for (uint32_t i = 0; i < bytes.len; i++)
            rp_buffer_printf(out, "\\\\x%02x", (unsigned)(unsigned char)bytes.bytes[i]);
        rp_buffer_puts(out, "\"");
    }
}

/* The shortest text that reads back to the same float. */
static void write_logprob(struct rp_buffer *out, float logprob) {
    char text[32];
    if (isnan(logprob) || logprob < IMPOSSIBLE)
        logprob = IMPOSSIBLE;
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)logprob);
        if (strtof(text, NULL) == logprob)
            break;
    }
    rp_buffer_puts(out, text);
}

/* Whether a token's text equals one of the `count` before it: two ids can have the same text, and a
 * JSON object keeps only one. The more likely one comes first. */
static bool is_repeated(const struct rp_token_style *style, const struct rp_logprob *top,
                        uint32_t count, int32_t token) {
    struct rp_token_bytes bytes = rp_tokenizer_token(style->tokenizer, token);
    for (uint32_t i = 0; i < count; i++) {
        struct rp_token_bytes other = rp_tokenizer_token(style->tokenizer, top[i].token);
        if (top[i].token == token || (!style->as_token_ids && other.len == bytes.len &&
                                      memcmp(other.bytes, bytes.bytes, bytes.len) == 0))
            return true;
    }
    return false;
}

/* {"text":logprob,...}: the most likely tokens, and the token itself. */
static void write_top_object(struct rp_buffer *out, const struct rp_token_style *style,
                             const struct entry *entry, const struct rp_logprob *top) {
    uint32_t count = RP_MIN((uint32_t)entry->top_count, style->top), written = 0;
    rp_buffer_puts(out, "{");
    for (uint32_t i = 0; i <= count; i++) {
        struct rp_logprob own = {entry->token, entry->logprob};
        const struct rp_logprob *shown = i < count ? &top[i] : &own;
        if (is_repeated(style, top, i, shown->token))
            continue;
        rp_buffer_puts(out, written++ ? "," : "");
        write_token(out, style, shown->token, "bytes:");
        rp_buffer_puts(out, ":");
        write_logprob(out, shown->logprob);
    }
    rp_buffer_puts(out, "}");
}

enum column { COLUMN_OFFSET, COLUMN_LOGPROB, COLUMN_TOKEN, COLUMN_TOP, COLUMNS };

static void write_cell(struct rp_buffer *out, const struct rp_token_style *style,
                       enum column column, const struct entry *entry,
                       const struct rp_logprob *top) {
    if (column == COLUMN_OFFSET)
        rp_buffer_printf(out, "%" PRIu64, entry->chars);
    else if (column == COLUMN_TOKEN)
        write_token(out, style, entry->token, "bytes:");
    else if (!entry->known)
        rp_buffer_puts(out, "null");
    else if (column == COLUMN_LOGPROB)
        write_logprob(out, entry->logprob);
    else
        write_top_object(out, style, entry, top);
}

static void write_column(struct rp_buffer *out, const struct rp_token_log *log, size_t from,
                         size_t to, const struct rp_token_style *style, enum column column,
                         uint32_t *written) {
    struct rp_logprob top[RP_LOGPROBS_MAX];
    while (from < to) {
        struct entry entry = read_entry(log, &from, top);
        rp_buffer_puts(out, (*written)++ ? "," : "");
        write_cell(out, style, column, &entry, top);
    }
}

void rp_token_log_completion(const struct rp_token_log *before, struct rp_token_log *log,
                             const struct rp_token_style *style, struct rp_buffer *out) {
    static const char *const names[COLUMNS] = {"{\"text_offset\":[", "],\"token_logprobs\":[",
                                               "],\"tokens\":[", "],\"top_logprobs\":["};
    for (int column = 0; column < COLUMNS; column++) {
        uint32_t written = 0;
        rp_buffer_puts(out, names[column]);
        if (before)
            write_column(out, before, 0, before->entries.len, style, (enum column)column, &written);
        write_column(out, log, log->sent, log->ready, style, (enum column)column, &written);
    }
    rp_buffer_puts(out, "]}");
    log->sent = log->ready;
    out->failed = out->failed || log->entries.failed || (before && before->entries.failed);
}

/* "token":...,"logprob":...,"bytes":[...] */
static void write_chat_token(struct rp_buffer *out, const struct rp_token_style *style,
                             int32_t token, float logprob) {
    struct rp_token_bytes bytes = rp_tokenizer_token(style->tokenizer, token);
    rp_buffer_puts(out, "{\"token\":");
    write_token(out, style, token, "");
    rp_buffer_puts(out, ",\"logprob\":");
    write_logprob(out, logprob);
    rp_buffer_puts(out, ",\"bytes\":[");
    for (uint32_t i = 0; i < bytes.len; i++)
        rp_buffer_printf(out, "%s%u", i ? "," : "", (unsigned)(unsigned char)bytes.bytes[i]);
    rp_buffer_puts(out, "]");
}

void rp_token_log_chat(const struct rp_token_log *before, struct rp_token_log *log,
                       const struct rp_token_style *style, struct rp_buffer *out) {
    struct rp_logprob top[RP_LOGPROBS_MAX];
    uint32_t written = 0;
    (void)before;
    rp_buffer_puts(out, "{\"content\":[");
    while (log->sent < log->ready) {
        struct entry entry = read_entry(log, &log->sent, top);
        uint32_t count = RP_MIN((uint32_t)entry.top_count, style->top);
        rp_buffer_puts(out, written++ ? "," : "");
        write_chat_token(out, style, entry.token, entry.logprob);
        if (entry.allowed)
            rp_buffer_printf(out, ",\"allowed\":%" PRIu32, entry.allowed);
        rp_buffer_puts(out, ",\"top_logprobs\":[");
        for (uint32_t i = 0; i < count; i++) {
            rp_buffer_puts(out, i ? "," : "");
            write_chat_token(out, style, top[i].token, top[i].logprob);
            rp_buffer_puts(out, "}");
        }
        rp_buffer_puts(out, "]}");
    }
    rp_buffer_puts(out, "],\"refusal\":null}");
    out->failed = out->failed || log->entries.failed;
}

static void write_ranked(struct rp_buffer *out, const struct rp_token_style *style, bool first,
                         struct rp_logprob shown, uint32_t rank) {
    struct rp_token_bytes bytes = rp_tokenizer_token(style->tokenizer, shown.token);
    rp_buffer_printf(out, "%s\"%" PRId32 "\":{\"logprob\":", first ? "" : ",", shown.token);
    write_logprob(out, shown.logprob);
    rp_buffer_printf(out, ",\"rank\":%" PRIu32 ",\"decoded_token\":", rank);
    rp_json_escape(out, bytes.len ? bytes.bytes : "", bytes.len);
    rp_buffer_puts(out, "}");
}

static void write_prompt_entry(struct rp_buffer *out, const struct rp_token_style *style,
                               const struct entry *entry, const struct rp_logprob *top) {
    uint32_t count = RP_MIN((uint32_t)entry->top_count, style->top);
    bool own = false;
    rp_buffer_puts(out, "{");
    for (uint32_t i = 0; i < count; i++) {
        write_ranked(out, style, i == 0, top[i], i + 1);
        own = own || top[i].token == entry->token;
    }
    if (!own)
        write_ranked(out, style, count == 0, (struct rp_logprob){entry->token, entry->logprob},
                     entry->rank);
    rp_buffer_puts(out, "}");
}

void rp_token_log_prompt(const struct rp_token_log *log, const struct rp_token_style *style,
                         struct rp_buffer *out) {
    struct rp_logprob top[RP_LOGPROBS_MAX];
    for (size_t place = 0; place < log->entries.len;) {
        rp_buffer_puts(out, place ? "," : "[");
        struct entry entry = read_entry(log, &place, top);
        if (entry.known)
            write_prompt_entry(out, style, &entry, top);
        else
            rp_buffer_puts(out, "null");
    }
    rp_buffer_puts(out, log->entries.len ? "]" : "[]");
    out->failed = out->failed || log->entries.failed;
}
