/* crash_read.c - reads the file of a process that crashed (crash_dump.h). The file is hostile:
 * every number in it is held against the file's size before it is used. */
#include "base/memory.h"
#include "metrics/crash_dump.h"
#include "metrics/crash_format.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool read_all(FILE *file, void *out, size_t len) { return fread(out, 1, len, file) == len; }

static int malformed(struct rp_error *err, const char *path, const char *what) {
    return rp_error_set(err, RP_STATUS_FORMAT, "%s: %s", path, what);
}

static void copy_text(char *out, size_t size, const char *from, size_t len) {
    size_t used = strnlen(from, RP_MIN(len, size - 1));
    memcpy(out, from, used);
    out[used] = '\0';
    rp_trace_clean(out);
}

static int read_names(FILE *file, const char *path, uint64_t bytes, uint32_t count,
                      struct rp_crash_file *out, struct rp_error *err) {
    if (count > RP_CRASH_NAMES_MAX || bytes / sizeof(struct rp_crash_name_entry) < count)
        return malformed(err, path, "more names than bytes");
    out->names = rp_calloc((size_t)count + 1, sizeof *out->names);
    if (!out->names)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: no memory for its names", path);
    for (; out->name_count < count; out->name_count++) {
        struct rp_crash_name_entry entry;
        struct rp_crash_name *name = &out->names[out->name_count];
        if (!read_all(file, &entry, sizeof entry))
            return malformed(err, path, "its names are cut off");
        *name =
            (struct rp_crash_name){.of = entry.of, .bucket = entry.bucket, .value = entry.value};
        copy_text(name->text, sizeof name->text, entry.text, sizeof entry.text);
    }
    return RP_OK;
}

/* The slots of one ring, in the order in which they lie, which is not that of time: who reads
 * sorts. False: the file ends here. */
static bool read_slots(FILE *file, uint64_t most, const struct rp_crash_ring *ring,
                       struct rp_crash_file *out) {
    uint64_t overwritten = ring->head >= ring->slots ? ring->head % ring->slots : 0;
    for (uint64_t i = 0; i < ring->slots; i++) {
        uint64_t words[4];
        if (out->recording.event_count == most || !read_all(file, words, sizeof words))
            return false;
        struct rp_trace_event event = rp_trace_unpack(words);
        /* The writer may have been about to use the oldest slot, half of it may be new. */
        if (ring->head > ring->slots && i == overwritten)
            continue;
        if (event.kind >= RP_TRACE_KIND_COUNT || event.ns > out->end_ns) {
            out->unknown += event.kind >= RP_TRACE_KIND_COUNT;
            continue;
        }
        out->recording.events[out->recording.event_count++] = event;
    }
    return true;
}

static int compare_ns(const void *left, const void *right) {
    const struct rp_trace_event *a = left, *b = right;
    return a->ns < b->ns ? -1 : a->ns > b->ns;
}

static bool read_ring(FILE *file, uint64_t bytes, struct rp_crash_file *out) {
    struct rp_recording *recording = &out->recording;
    struct rp_crash_ring ring;
    if (!read_all(file, &ring, sizeof ring))
        return false;
    if (ring.slots == 0)
        return true;
    bool cut = ring.slots > bytes / sizeof(struct rp_trace_event);
    struct rp_recording_ring *entry = &recording->rings[recording->ring_count++];
    entry->first = recording->event_count;
    entry->whole = ring.head <= ring.slots && !cut;
    copy_text(entry->thread, sizeof entry->thread, ring.thread, sizeof ring.thread);
    bool whole = read_slots(file, bytes / sizeof *recording->events, &ring, out);
    entry->count = recording->event_count - entry->first;
    /* Oldest first, as in any recording. */
    if (entry->count)
        qsort(recording->events + entry->first, entry->count, sizeof *recording->events,
              compare_ns);
    return whole;
}

static int read_file(FILE *file, const char *path, uint64_t bytes, struct rp_crash_file *out,
                     struct rp_error *err) {
    struct rp_crash_header header;
    struct rp_crash_record record;
    if (!read_all(file, &header, sizeof header) ||
        memcmp(header.magic, RP_CRASH_MAGIC, sizeof header.magic) != 0)
        return malformed(err, path, "not a crash file of reprise");
    if (header.header_bytes != sizeof header || header.event_bytes != sizeof(struct rp_trace_event))
        return malformed(err, path, "written by another version");
    out->pid = header.pid;
    out->start_ns = header.start_ns;
    copy_text(out->version, sizeof out->version, header.version, sizeof header.version);
    copy_text(out->model, sizeof out->model, header.model, sizeof header.model);
    int status = read_names(file, path, bytes, header.name_count, out, err);
    if (status != RP_OK)
        return status;
    if (!read_all(file, &record, sizeof record))
        return rp_error_set(err, RP_STATUS_NOT_FOUND, "%s: process %u did not crash, or still runs",
                            path, header.pid);
    if (memcmp(record.magic, RP_CRASH_RECORD_MAGIC, sizeof record.magic) != 0)
        return malformed(err, path, "its crash record is damaged");
    out->signal = record.signal;
    out->thread = record.thread;
    out->address = record.address;
    out->end_ns = record.end_ns;
    out->unix_ns = record.unix_ns;
    out->recording.taken_ns = record.end_ns;
    out->recording.events = rp_alloc(bytes); /* at most what the file holds */
    if (!out->recording.events)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "%s: no memory for its events", path);
    uint32_t rings = RP_MIN(record.ring_count, (uint32_t)RP_RECORDER_RINGS_MAX);
    for (uint32_t i = 0; i < rings && read_ring(file, bytes, out); i++) {
    }
    return RP_OK;
}

int rp_crash_read(const char *path, struct rp_crash_file *out, struct rp_error *err) {
    struct stat about;
    memset(out, 0, sizeof *out);
    FILE *file = fopen(path, "rb");
    if (!file || fstat(fileno(file), &about) != 0 || !S_ISREG(about.st_mode)) {
        int status = rp_error_set(err, RP_STATUS_IO, "%s: %s", path,
                                  file ? "not a regular file" : strerror(errno));
        if (file)
            fclose(file);
        return status;
    }
    int status = read_file(file, path, (uint64_t)about.st_size, out, err);
    fclose(file);
    if (status != RP_OK)
        rp_crash_file_deinit(out);
    return status;
}

void rp_crash_file_deinit(struct rp_crash_file *file) {
    rp_recording_deinit(&file->recording);
    rp_free(file->names);
    memset(file, 0, sizeof *file);
}

static bool find_name(void *ctx, enum rp_trace_name_of of, uint32_t bucket, uint32_t value,
                      char *out, size_t size) {
    const struct rp_crash_file *file = ctx;
    for (uint32_t i = 0; i < file->name_count; i++) {
        const struct rp_crash_name *name = &file->names[i];
        if (name->of != (uint32_t)of || name->value != value ||
            (of == RP_NAME_NODE && name->bucket != bucket))
            continue;
        snprintf(out, size, "%s", name->text);
        return true;
    }
    return false;
}

struct rp_trace_names rp_crash_names(const struct rp_crash_file *file) {
    return (struct rp_trace_names){.name = find_name, .ctx = (void *)file};
}
