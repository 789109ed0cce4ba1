/* rp_model_stream: reader threads fill matrices while the caller consumes them, one after the
 * other.
 *
 * Work is cut into slices of whole rows so that a large matrix is read by all threads. Slices are
 * begun in order; the first slice of a matrix allocates it, once the window has room. So at most
 * the window, or one matrix, is in host memory that has not been consumed.
 *
 * One thread alone copies 2 to 3 GB/s out of the page cache. */
#include "base/memory.h"
#include "model/safetensors.h"
#include "model/weights_internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define READERS_MAX 8
#define SLICE_BYTES ((size_t)16 << 20) /* of the file */

struct rp_weight_source {
    struct rp_safetensors files;
};

struct slice {
    struct rp_weight_part part; /* its weight: of the model's table, or one of `late` */
    uint32_t index;             /* of the weight in the table */
    uint32_t row, rows;
    uint64_t bytes; /* of the file */
};

struct stream {
    struct rp_model *model;
    const struct rp_safetensors *files;
    struct rp_weight_consumer *consumer;
    /* per entry of the table: where the consumer quantizes it, the weight with a matrix of the
     * file's values, and where it fills, with one like the table's; matrix.rows 0: it is read into
     * the table's */
    struct rp_weight *late;
    struct slice *slices;
    uint32_t slice_count, slice_room;
    uint32_t *left; /* per entry of the table: slices that are not read yet */
    uint64_t total_bytes;
    uint64_t told_bytes; /* last progress reported */

    pthread_mutex_t lock; /* protects the following fields, and left */
    pthread_cond_t changed;
    uint32_t next_slice;
    uint64_t window_used, done_bytes;
    bool stopped; /* no further slice is begun */
};

struct reader {
    struct stream *stream;
    pthread_t thread;
    unsigned char *staging;
    int status;
    uint32_t failed_slice;
    struct rp_error err;
};

struct rp_weight_source *rp_weight_source_create(struct rp_safetensors *files) {
    struct rp_weight_source *source = rp_alloc(sizeof *source);
    if (source)
        source->files = *files;
    return source;
}

void rp_weight_source_destroy(struct rp_weight_source *source) {
    if (!source)
        return;
    rp_safetensors_close(&source->files);
    rp_free(source);
}

static uint64_t bytes_of(const struct rp_weight *weight) {
    return rp_matrix_bytes(&weight->matrix) +
           rp_matrix_scale_count(&weight->matrix) * sizeof(float);
}

static size_t index_of(const struct stream *stream, const struct rp_weight *weight) {
    return (size_t)(weight - stream->model->weights.entries);
}

/* What is read of an entry of the table. */
static struct rp_weight *read_weight(const struct stream *stream, uint32_t index) {
    struct rp_weight *late = &stream->late[index];
    return late->matrix.rows ? late : &stream->model->weights.entries[index];
}

/* Whether the consumer quantizes the entry. */
static bool is_late(const struct stream *stream, uint32_t index) {
    const struct rp_matrix *values = &stream->late[index].matrix;
    return values->rows && values->dtype != stream->model->weights.entries[index].matrix.dtype;
}

/* --- which weights the consumer quantizes ----------------------------------------------------- */

/* A weight whose parts differ in type is read as f32, which has the values of both. */
static int choose_late(void *ctx, const struct rp_weight_part *part) {
    struct stream *stream = ctx;
    struct rp_matrix *values = &stream->late[index_of(stream, part->weight)].matrix;
    if (!rp_weight_is_matrix(part->weight) || values->rows == 0)
        return RP_OK;
    enum rp_dtype dtype = rp_weight_late_dtype(stream->files, part);
    if (dtype == RP_DTYPE_BLOCKS)
        values->rows = 0;
    else
        values->dtype =
            values->dtype == RP_DTYPE_BLOCKS || values->dtype == dtype ? dtype : RP_DTYPE_F32;
    return RP_OK;
}

static int list_late(struct stream *stream) {
    const struct rp_weights *weights = &stream->model->weights;
    stream->late = rp_calloc(RP_MAX(weights->count, 1u), sizeof *stream->late);
    if (!stream->late)
        return RP_STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < weights->count && stream->consumer->quantize; i++) {
        const struct rp_weight *weight = &weights->entries[i];
        stream->late[i] = *weight;
        stream->late[i].matrix = (struct rp_matrix){
            .rows = weight->matrix.rows, .cols = weight->matrix.cols, .dtype = RP_DTYPE_BLOCKS};
    }
    return rp_weight_parts(stream->model, choose_late, stream);
}

/* A consumer that fills: matrices that it does not quantize are read apart from the table, too. */
static void list_fills(struct stream *stream) {
    const struct rp_weights *weights = &stream->model->weights;
    for (uint32_t i = 0; i < weights->count; i++) {
        struct rp_weight *late = &stream->late[i];
        if (late->matrix.rows || !rp_weight_is_matrix(&weights->entries[i]))
            continue;
        *late = weights->entries[i];
        RP_ASSERT(late->matrix.dtype != RP_DTYPE_BLOCKS);
        late->matrix.data = NULL;
        late->matrix.scales = NULL;
    }
}

static void free_late(struct stream *stream) {
    for (uint32_t i = 0; stream->late && i < stream->model->weights.count; i++)
        rp_matrix_deinit(&stream->late[i].matrix);
    rp_free(stream->late);
}

/* --- the list of slices ---------------------------------------------------------------------- */

/* Counts the slices of a part; lists them where there is room. */
static int list_part(void *ctx, const struct rp_weight_part *part) {
    struct stream *stream = ctx;
    if (!rp_weight_is_matrix(part->weight))
        return RP_OK;
    const struct rp_safetensor *tensor =
        rp_weight_main_tensor(stream->files, &stream->model->config, part);
    uint64_t row_bytes = tensor->bytes / part->rows;
    uint32_t step = (uint32_t)RP_MIN(
        (uint64_t)part->rows, RP_MAX(SLICE_BYTES / RP_MAX(row_bytes, (uint64_t)1), (uint64_t)1));
    /* Scales are read with it; columns are not rows; it is read as one. */
    if (part->quantized || part->transposed || part->split)
        step = part->rows;
    uint32_t index = (uint32_t)index_of(stream, part->weight);
    for (uint32_t row = 0; row < part->rows; row += step) {
        uint32_t rows = RP_MIN(step, part->rows - row);
        if (stream->slices) {
            RP_ASSERT_CMP(stream->slice_count, <, stream->slice_room);
            struct slice *slice = &stream->slices[stream->slice_count];
            *slice = (struct slice){*part, index, row, rows, rows * row_bytes};
            slice->part.weight = read_weight(stream, index);
            stream->left[index]++;
            stream->total_bytes += rows * row_bytes;
        }
        stream->slice_count++;
    }
    return RP_OK;
}

/* Stable, by the table's order: matrices are consumed in it. */
static void sort_slices(struct stream *stream, struct slice *sorted, uint32_t *begin) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < stream->model->weights.count; i++) {
        begin[i] = at;
        at += stream->left[i];
    }
    for (uint32_t i = 0; i < stream->slice_count; i++)
        sorted[begin[stream->slices[i].index]++] = stream->slices[i];
}

static int list_slices(struct stream *stream) {
    uint32_t weights = stream->model->weights.count;
    int status = list_late(stream);
    if (status != RP_OK)
        return status;
    if (stream->consumer->fill)
        list_fills(stream);
    status = rp_weight_parts(stream->model, list_part, stream);
    RP_ASSERT(status == RP_OK);
    stream->slice_room = stream->slice_count;
    stream->slice_count = 0;
    stream->slices = rp_calloc(RP_MAX(stream->slice_room, 1u), sizeof *stream->slices);
    stream->left = rp_calloc(weights, sizeof *stream->left);
    struct slice *sorted = rp_calloc(RP_MAX(stream->slice_room, 1u), sizeof *sorted);
    uint32_t *begin = rp_calloc(weights, sizeof *begin);
    bool ok = stream->slices && stream->left && sorted && begin;
    if (ok) {
        status = rp_weight_parts(stream->model, list_part, stream);
        sort_slices(stream, sorted, begin);
        struct slice *listed = stream->slices;
        stream->slices = sorted;
        sorted = listed;
    }
    rp_free(sorted);
    rp_free(begin);
    return ok ? RP_OK : RP_STATUS_NO_MEMORY;
}

/* --- readers --------------------------------------------------------------------------------- */

/* The next slice, its matrix allocated; NULL: nothing is left, or an error stops the rest. Blocks
 * while the window is full. Others wait for the lock meanwhile, so slices are begun in order. */
static const struct slice *begin_slice(struct reader *reader) {
    struct stream *stream = reader->stream;
    const struct slice *slice = NULL;
    pthread_mutex_lock(&stream->lock);
    while (!stream->stopped && stream->next_slice < stream->slice_count) {
        struct slice *next = &stream->slices[stream->next_slice];
        struct rp_weight *weight = next->part.weight;
        uint64_t bytes = bytes_of(weight);
        bool fresh = !weight->matrix.data;
        if (fresh && stream->window_used > 0 &&
            stream->window_used + bytes > stream->consumer->window_bytes) {
            pthread_cond_wait(&stream->changed, &stream->lock);
            continue;
        }
        if (fresh) {
            stream->window_used += bytes;
            stream->consumer->peak_bytes =
                RP_MAX(stream->consumer->peak_bytes, stream->window_used);
            if (rp_weights_allocate_matrix(&weight->matrix) != RP_OK) {
                reader->status = rp_weights_no_memory(stream->model, &reader->err);
                reader->failed_slice = stream->next_slice;
                stream->stopped = true;
                break;
            }
        }
        stream->next_slice++;
        slice = next;
        break;
    }
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    return slice;
}

static void end_slice(struct stream *stream, const struct slice *slice, bool ok) {
    pthread_mutex_lock(&stream->lock);
    stream->left[slice->index]--;
    stream->done_bytes += slice->bytes;
    stream->stopped = stream->stopped || !ok;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

static void *read_slices(void *arg) {
    struct reader *reader = arg;
    struct stream *stream = reader->stream;
    const struct slice *slice;
    while (reader->status == RP_OK && (slice = begin_slice(reader)) != NULL) {
        reader->status =
            rp_weight_read_rows(stream->files, &stream->model->config, &slice->part, slice->row,
                                slice->rows, reader->staging, &reader->err);
        reader->failed_slice = (uint32_t)(slice - stream->slices);
        end_slice(stream, slice, reader->status == RP_OK);
    }
    return NULL;
}

static uint32_t start_readers(struct stream *stream, struct reader *readers) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t wanted = (uint32_t)RP_MAX(1, RP_MIN(cores, READERS_MAX)), count = 0;
    while (count < wanted) {
        struct reader *reader = &readers[count];
        memset(reader, 0, sizeof *reader);
        reader->stream = stream;
        reader->staging = rp_alloc(RP_WEIGHT_STAGING_BYTES);
        if (!reader->staging || pthread_create(&reader->thread, NULL, read_slices, reader) != 0) {
            rp_free(reader->staging);
            break;
        }
        count++;
    }
    return count;
}

/* Joins all readers; the error of the first bad slice, in order, whose index is *out_first. */
static int join_readers(struct reader *readers, uint32_t count, uint32_t *out_first,
                        struct rp_error *err) {
    int status = RP_OK;
    uint32_t first = UINT32_MAX;
    for (uint32_t i = 0; i < count; i++) {
        pthread_join(readers[i].thread, NULL);
        rp_free(readers[i].staging);
        if (readers[i].status != RP_OK && readers[i].failed_slice < first) {
            first = readers[i].failed_slice;
            status = readers[i].status;
            *err = readers[i].err;
        }
    }
    *out_first = first;
    return status;
}

/* After an error, readers joined: FORMAT for the first row before slice `end` that cannot be
 * quantized, as a reader would have found it. Readers begin slices in order, so all before are
 * read; what was consumed was right. */
static int check_late(const struct stream *stream, uint32_t end, struct rp_error *err) {
    int status = RP_OK;
    for (uint32_t i = 0; i < RP_MIN(end, stream->next_slice) && status == RP_OK; i++) {
        const struct slice *slice = &stream->slices[i];
        if (is_late(stream, slice->index) && stream->late[slice->index].matrix.data)
            status =
                rp_weight_check_rows(stream->files, &slice->part, slice->row, slice->rows,
                                     &stream->model->weights.entries[slice->index].matrix, err);
    }
    return status;
}

/* --- the consumer ---------------------------------------------------------------------------- */

static void tell(struct stream *stream, uint64_t done) {
    if (!stream->consumer->progress || done <= stream->told_bytes)
        return;
    stream->told_bytes = done;
    stream->consumer->progress(stream->consumer->ctx, done, stream->total_bytes);
}

/* Waits until the matrix is read; false: an error came first. */
static bool await_weight(struct stream *stream, size_t index) {
    pthread_mutex_lock(&stream->lock);
    while (stream->left[index] > 0 && !stream->stopped) {
        pthread_cond_wait(&stream->changed, &stream->lock);
        uint64_t done = stream->done_bytes;
        pthread_mutex_unlock(&stream->lock);
        tell(stream, done);
        pthread_mutex_lock(&stream->lock);
    }
    bool ok = !stream->stopped;
    pthread_mutex_unlock(&stream->lock);
    return ok;
}

static int consume_all(struct stream *stream, struct rp_error *err) {
    struct rp_weights *weights = &stream->model->weights;
    struct rp_weight_consumer *consumer = stream->consumer;
    int status = RP_OK;
    for (uint32_t i = 0; i < weights->count && status == RP_OK; i++) {
        struct rp_weight *weight = &weights->entries[i], *read = read_weight(stream, i);
        if (!rp_weight_is_matrix(weight))
            continue;
        uint64_t bytes = bytes_of(read); /* before it is repacked */
        if (!await_weight(stream, i))
            return RP_OK; /* the readers have the error */
        if (read == weight)
            status = consumer->consume(consumer->ctx, weight, err);
        else {
            status = (is_late(stream, i) ? consumer->quantize : consumer->fill)(
                consumer->ctx, weight, &read->matrix, err);
            if (status == RP_OK)
                rp_matrix_deinit(&read->matrix);
        }
        pthread_mutex_lock(&stream->lock);
        stream->window_used -= bytes;
        stream->stopped = stream->stopped || status != RP_OK;
        pthread_cond_broadcast(&stream->changed);
        pthread_mutex_unlock(&stream->lock);
    }
    return status;
}

int rp_model_stream(struct rp_model *model, struct rp_weight_consumer *consumer,
                    struct rp_error *err) {
    struct reader readers[READERS_MAX];
    struct rp_error first = {0};
    uint32_t first_bad = UINT32_MAX;
    RP_ASSERT(model->source);
    struct stream stream = {.model = model, .files = &model->source->files, .consumer = consumer};
    pthread_mutex_init(&stream.lock, NULL);
    pthread_cond_init(&stream.changed, NULL);
    int status = list_slices(&stream), read = RP_OK;
    uint32_t count = status == RP_OK ? start_readers(&stream, readers) : 0;
    if (count == 0)
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "model: out of memory");
    else {
        status = consume_all(&stream, err);
        read = join_readers(readers, count, &first_bad, &first);
    }
    if (read != RP_OK && status == RP_OK && err)
        *err = first;
    if (status == RP_OK)
        status = read;
    if (count > 0 && status != RP_OK && (status == read || status == RP_STATUS_FORMAT) &&
        check_late(&stream, first_bad, &first) != RP_OK) {
        status = RP_STATUS_FORMAT;
        if (err)
            *err = first;
    }
    if (status == RP_OK)
        tell(&stream, stream.total_bytes);
    pthread_cond_destroy(&stream.changed);
    pthread_mutex_destroy(&stream.lock);
    free_late(&stream);
    rp_free(stream.slices);
    rp_free(stream.left);
    rp_weight_source_destroy(model->source);
    model->source = NULL;
    model->loaded = status == RP_OK;
    return status;
}
