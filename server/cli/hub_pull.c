#include "server/cli/hub_pull.h"

#include "base/base.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/threads.h"
#include "server/cli/hub_http.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define ATTEMPTS 5
/* Space that must be left on the disk. */
#define SPARE_BYTES       ((uint64_t)64 << 20)
#define LISTING_BYTES_MAX ((size_t)16 << 20)

struct work {
    const struct rp_hub_pull *pull;
    const struct rp_hub_listing *listing;
    uint64_t total, already; /* bytes */
    _Atomic size_t next;
    _Atomic uint64_t *received; /* per file */
    _Atomic uint32_t running;
    _Atomic bool failed;
    pthread_mutex_t lock; /* err, and lines on standard error */
    struct rp_error *err;
    int status;
};

/* The first failure is the one that is reported. */
static int fail(struct work *w, const struct rp_error *err) {
    pthread_mutex_lock(&w->lock);
    if (!atomic_exchange(&w->failed, true)) {
        w->status = (int)err->status;
        if (w->err)
            *w->err = *err;
    }
    pthread_mutex_unlock(&w->lock);
    return (int)err->status;
}

/* Creates the folders on the way to the file. */
static int make_dirs(const char *file, struct rp_error *err) {
    char path[RP_HUB_PATH_MAX];
    snprintf(path, sizeof path, "%s", file);
    for (char *at = path + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return rp_error_set(err, RP_STATUS_IO, "cannot create %.300s: %s", path,
                                strerror(errno));
        *at = '/';
    }
    return RP_OK;
}

static void blob_path(const struct rp_hub_pull *pull, const struct rp_hub_file *file,
                      const char *ending, char *out, size_t size) {
    snprintf(out, size, "%s/blobs/%s%s", pull->dir, file->hash, ending);
}

void rp_hub_pull_path(const struct rp_hub_pull *pull, const struct rp_hub_listing *listing,
                      const struct rp_hub_file *file, char *out, size_t size) {
    snprintf(out, size, "%s/snapshots/%s/%s", pull->dir, listing->commit, file->name);
}

/* Reads the answer's code for people. */
static int explain(const struct rp_hub_pull *pull, const char *what,
                   const struct rp_hub_reply *reply, struct rp_error *err) {
    const char *id = pull->name.id;
    int status;
    if (reply->code == 0 || *reply->problem) {
        status = rp_error_set(err, RP_STATUS_IO, "%.200s: %.300s", what, reply->problem);
        if (reply->code == 0)
            rp_error_hint(err, "HF_ENDPOINT names another hub; now it is %.200s", pull->endpoint);
        return status;
    }
    if (strcmp(reply->error_code, "GatedRepo") == 0) {
        status = rp_error_set(err, RP_STATUS_UNSUPPORTED, "%s is gated (%ld)", id, reply->code);
        rp_error_hint(err, "accept its terms at %.200s/%.200s and set HF_TOKEN", pull->endpoint,
                      id);
    } else if (strcmp(reply->error_code, "RevisionNotFound") == 0) {
        status = rp_error_set(err, RP_STATUS_NOT_FOUND, "%s has no revision %s", id,
                              pull->name.revision);
    } else if (reply->code == 401 || reply->code == 403 || reply->code == 404) {
        status = rp_error_set(err, RP_STATUS_NOT_FOUND, "%.200s: %s (%ld)", what,
                              reply->code == 403 ? "the token does not allow it"
                                                 : "not found, or private",
                              reply->code);
        rp_error_hint(err, *pull->token ? "check the name, and what the token may read"
                                        : "check the name; a private model needs HF_TOKEN");
    } else {
        status = rp_error_set(err, RP_STATUS_IO, "%.200s: the hub answers %ld", what, reply->code);
    }
    return status;
}

/* A path for a URL: everything but the safe characters is escaped. */
static void escape(const char *text, bool keep_slash, char *out, size_t size) {
    static const char hex[] = "0123456789ABCDEF";
    size_t n = 0;
    for (; *text && n + 4 < size; text++) {
        unsigned char c = (unsigned char)*text;
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     strchr("-_.~", c) || (c == '/' && keep_slash);
        if (plain) {
            out[n++] = (char)c;
        } else {
            out[n++] = '%';
            out[n++] = hex[c >> 4];
            out[n++] = hex[c & 15];
        }
    }
    out[n] = '\0';
}

static bool worth_another_try(const struct rp_hub_reply *reply) {
    if (reply->is_refused)
        return false;
    return reply->code == 0 || *reply->problem || reply->code == 408 || reply->code == 429 ||
           reply->code >= 500;
}

static void pause_ms(uint64_t ms) {
    struct timespec time = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

int rp_hub_pull_list(const struct rp_hub_pull *pull, struct rp_hub_listing *out,
                     struct rp_error *err) {
    char url[2048], revision[3 * RP_HUB_NAME_MAX];
    struct rp_hub_reply reply;
    struct rp_buffer body;
    int status = RP_OK;
    escape(pull->name.revision, false, revision, sizeof revision);
    snprintf(url, sizeof url, "%s/api/models/%s/revision/%s?blobs=true", pull->endpoint,
             pull->name.id, revision);
    rp_buffer_init(&body, LISTING_BYTES_MAX);
    for (int attempt = 0; attempt < 3; attempt++) {
        rp_buffer_clear(&body);
        status = rp_hub_http_get(url, pull->token, &body, &reply);
        if (status == RP_OK || !worth_another_try(&reply))
            break;
        pause_ms(200u << attempt);
    }
    if (status != RP_OK)
        status = explain(pull, pull->name.id, &reply, err);
    else
        status = rp_hub_listing_parse(body.len ? body.data : "", body.len, out, err);
    rp_buffer_deinit(&body);
    return status;
}

/* Compares the file with the hash in its name: SHA-256, or git's SHA-1 of "blob SIZE\0" and the
 * bytes. */
static int check_hash(const struct rp_hub_file *file, int fd, struct rp_error *err) {
    bool git = strlen(file->hash) == 40;
    unsigned char digest[EVP_MAX_MD_SIZE];
    char text[2 * EVP_MAX_MD_SIZE + 1] = "", head[48];
    unsigned digest_len = 0;
    static const size_t piece = (size_t)1 << 20;
    char *buffer = rp_alloc(piece);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool ok = buffer && ctx && EVP_DigestInit_ex(ctx, git ? EVP_sha1() : EVP_sha256(), NULL) == 1;
    if (ok && git) {
        int len = snprintf(head, sizeof head, "blob %" PRIu64, file->bytes);
        ok = EVP_DigestUpdate(ctx, head, (size_t)len + 1) == 1;
    }
    for (uint64_t at = 0; ok && at < file->bytes;) {
        ssize_t n = pread(fd, buffer, piece, (off_t)at);
        ok = n > 0 && EVP_DigestUpdate(ctx, buffer, (size_t)n) == 1;
        at += n > 0 ? (uint64_t)n : 0;
    }
    ok = ok && EVP_DigestFinal_ex(ctx, digest, &digest_len) == 1;
    EVP_MD_CTX_free(ctx);
    rp_free(buffer);
    for (unsigned i = 0; i < digest_len; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    if (!ok)
        return rp_error_set(err, RP_STATUS_IO, "%.200s: cannot be hashed", file->name);
    if (strcmp(text, file->hash) != 0)
        return rp_error_set(err, RP_STATUS_FORMAT, "%.200s: its bytes have the hash %s, not %s",
                            file->name, text, file->hash);
    return RP_OK;
}

/* Downloads until the size is right, from where the file ends. */
static int fetch(struct work *w, size_t index, int fd, struct rp_error *err) {
    const struct rp_hub_pull *pull = w->pull;
    const struct rp_hub_file *file = &w->listing->files[index];
    char url[4096], name[1600];
    escape(file->name, true, name, sizeof name);
    snprintf(url, sizeof url, "%s/%s/resolve/%s/%s", pull->endpoint, pull->name.id,
             w->listing->commit, name);
    for (int attempt = 0;; attempt++) {
        struct rp_hub_reply reply;
        struct stat info;
        if (fstat(fd, &info) != 0)
            return rp_error_set(err, RP_STATUS_IO, "%.200s: %s", file->name, strerror(errno));
        uint64_t from = (uint64_t)info.st_size;
        if (from == file->bytes && from > 0)
            return RP_OK;
        if (from > file->bytes) {
            from = 0;
            if (ftruncate(fd, 0) != 0)
                return rp_error_set(err, RP_STATUS_IO, "%.200s: %s", file->name, strerror(errno));
        }
        int status = rp_hub_http_download(url, pull->token, fd, from, file->bytes,
                                          &w->received[index], &reply);
        if (status == RP_OK && fstat(fd, &info) == 0 && (uint64_t)info.st_size == file->bytes)
            return RP_OK;
        if (status == RP_OK)
            snprintf(reply.problem, sizeof reply.problem,
                     "the file ends after %" PRIu64 " of %" PRIu64 " bytes", (uint64_t)info.st_size,
                     file->bytes);
        if (atomic_load(&w->failed) || attempt + 1 == ATTEMPTS || !worth_another_try(&reply))
            return explain(pull, file->name, &reply, err);
        pause_ms(200u << attempt);
    }
}

/* Makes the blob; another process may be writing it, so its lock is held. A file that was continued
 * and has the wrong hash is fetched once more as a whole. */
static int make_blob(struct work *w, size_t index, struct rp_error *err) {
    const struct rp_hub_file *file = &w->listing->files[index];
    char blob[RP_HUB_PATH_MAX], part[RP_HUB_PATH_MAX];
    struct stat info;
    blob_path(w->pull, file, "", blob, sizeof blob);
    blob_path(w->pull, file, ".incomplete", part, sizeof part);
    if (stat(blob, &info) == 0 && (uint64_t)info.st_size == file->bytes) {
        atomic_store(&w->received[index], file->bytes);
        return RP_OK;
    }
    int fd = open(part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return rp_error_set(err, RP_STATUS_IO, "cannot write %.300s: %s", part, strerror(errno));
    bool continued = fstat(fd, &info) == 0 && info.st_size > 0;
    int status = fetch(w, index, fd, err);
    if (status == RP_OK)
        status = check_hash(file, fd, err);
    if (status == RP_STATUS_FORMAT && continued && ftruncate(fd, 0) == 0) {
        status = fetch(w, index, fd, err);
        if (status == RP_OK)
            status = check_hash(file, fd, err);
    }
    if (status == RP_OK && (fsync(fd) != 0 || rename(part, blob) != 0))
        status = rp_error_set(err, RP_STATUS_IO, "cannot write %.300s: %s", blob, strerror(errno));
    if (status == RP_STATUS_FORMAT)
        (void)unlink(part); /* its bytes are wrong */
    close(fd);
    return status;
}

/* snapshots/COMMIT/a/b -> ../../../blobs/HASH, put in place by a rename. */
static int link_file(struct work *w, const struct rp_hub_file *file, struct rp_error *err) {
    char path[RP_HUB_PATH_MAX], temporary[RP_HUB_PATH_MAX + 32], target[2048] = "../../";
    size_t len = strlen(target);
    rp_hub_pull_path(w->pull, w->listing, file, path, sizeof path);
    for (const char *at = file->name; (at = strchr(at, '/')) && len + 128 < sizeof target; at++)
        len += (size_t)snprintf(target + len, sizeof target - len, "../");
    snprintf(target + len, sizeof target - len, "blobs/%s", file->hash);
    int status = make_dirs(path, err);
    if (status != RP_OK)
        return status;
    snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid());
    (void)unlink(temporary);
    if (symlink(target, temporary) != 0 || rename(temporary, path) != 0)
        return rp_error_set(err, RP_STATUS_IO, "cannot write %.300s: %s", path, strerror(errno));
    return RP_OK;
}

static int take_lock(struct work *w, const struct rp_hub_file *file, struct rp_error *err) {
    char path[RP_HUB_PATH_MAX];
    const char *model = strrchr(w->pull->dir, '/');
    snprintf(path, sizeof path, "%s/.locks%s/%s.lock", w->pull->cache, model, file->hash);
    if (make_dirs(path, err) != RP_OK)
        return -1;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0 && flock(fd, LOCK_EX) == 0)
        return fd;
    (void)rp_error_set(err, RP_STATUS_IO, "cannot lock %.300s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

static int pull_file(struct work *w, size_t index) {
    const struct rp_hub_file *file = &w->listing->files[index];
    struct rp_error err = {.status = RP_STATUS_IO};
    int lock = take_lock(w, file, &err);
    if (lock < 0)
        return fail(w, &err);
    int status = make_blob(w, index, &err);
    close(lock);
    if (status == RP_OK)
        status = link_file(w, file, &err);
    if (status != RP_OK)
        return fail(w, &err);
    if (!w->pull->on_terminal && !w->pull->quiet) {
        pthread_mutex_lock(&w->lock);
        fprintf(stderr, "%s (%.1f MB)\n", file->name, (double)file->bytes * 1e-6);
        pthread_mutex_unlock(&w->lock);
    }
    return RP_OK;
}

static void *worker(void *ctx) {
    struct work *w = ctx;
    rp_thread_begin("reprise-pull", RP_THREAD_HOST);
    for (size_t i; (i = atomic_fetch_add(&w->next, 1)) < w->listing->count;)
        if (w->listing->files[i].wanted && !atomic_load(&w->failed))
            (void)pull_file(w, i);
    rp_thread_end();
    atomic_fetch_sub(&w->running, 1);
    return NULL;
}

static void show(const struct work *w, uint64_t start_ns) {
    uint64_t received = 0;
    for (size_t i = 0; i < w->listing->count; i++)
        received += atomic_load(&w->received[i]);
    double share = w->total ? (double)received / (double)w->total : 1;
    double seconds = (double)(rp_clock_ns() - start_ns) * 1e-9;
    double rate = received > w->already ? (double)(received - w->already) / (seconds + 0.01) : 0;
    int filled = (int)(RP_MIN(share, 1.0) * 30);
    fprintf(stderr, "\r[%.*s%.*s] %3d %%  %.1f of %.1f MB  %.1f MB/s ", filled,
            "##############################", 30 - filled, "..............................",
            (int)(share * 100), (double)received * 1e-6, (double)w->total * 1e-6, rate * 1e-6);
    fflush(stderr);
}

/* What is there already counts, finished or not. */
static void count_bytes(struct work *w) {
    for (size_t i = 0; i < w->listing->count; i++) {
        const struct rp_hub_file *file = &w->listing->files[i];
        char path[RP_HUB_PATH_MAX];
        struct stat info;
        if (!file->wanted)
            continue;
        blob_path(w->pull, file, "", path, sizeof path);
        bool there = stat(path, &info) == 0;
        if (!there) {
            blob_path(w->pull, file, ".incomplete", path, sizeof path);
            there = stat(path, &info) == 0;
        }
        uint64_t bytes = there ? RP_MIN((uint64_t)info.st_size, file->bytes) : 0;
        atomic_store(&w->received[i], bytes);
        w->already += bytes;
        w->total += file->bytes;
    }
}

static int check_space(const struct work *w, struct rp_error *err) {
    struct statvfs disk;
    char path[RP_HUB_PATH_MAX];
    snprintf(path, sizeof path, "%s/blobs/", w->pull->dir);
    int status = make_dirs(path, err);
    if (status != RP_OK || statvfs(path, &disk) != 0)
        return status;
    uint64_t room = (uint64_t)disk.f_bavail * disk.f_frsize, needed = w->total - w->already;
    if (needed == 0 || room >= needed + SPARE_BYTES)
        return RP_OK;
    status =
        rp_error_set(err, RP_STATUS_RANGE, "%.1f GB are missing, and %.1f GB are free in %.200s",
                     (double)needed * 1e-9, (double)room * 1e-9, w->pull->cache);
    rp_error_hint(err, "free some space, or name another place with HF_HUB_CACHE");
    return status;
}

int rp_hub_pull_files(const struct rp_hub_pull *pull, const struct rp_hub_listing *listing,
                      struct rp_error *err) {
    pthread_t threads[16];
    uint32_t count = 0, jobs = RP_MIN(pull->jobs, (uint32_t)RP_ARRAY_COUNT(threads));
    struct work w = {.pull = pull, .listing = listing, .err = err, .status = RP_OK};
    uint64_t start_ns = rp_clock_ns();
    w.received = rp_calloc(listing->count + 1, sizeof *w.received);
    if (!w.received)
        return rp_error_set(err, RP_STATUS_NO_MEMORY, "out of memory");
    count_bytes(&w);
    int status = check_space(&w, err);
    pthread_mutex_init(&w.lock, NULL);
    for (; status == RP_OK && count < jobs; count++) {
        atomic_fetch_add(&w.running, 1);
        if (pthread_create(&threads[count], NULL, worker, &w) == 0)
            continue;
        atomic_fetch_sub(&w.running, 1);
        break;
    }
    if (status == RP_OK && count == 0)
        status = rp_error_set(err, RP_STATUS_NO_MEMORY, "no thread can be started");
    while (pull->on_terminal && atomic_load(&w.running)) {
        show(&w, start_ns);
        pause_ms(100);
    }
    for (uint32_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    if (pull->on_terminal && count) {
        show(&w, start_ns);
        fputc('\n', stderr);
    }
    pthread_mutex_destroy(&w.lock);
    rp_free(w.received);
    return status == RP_OK ? w.status : status;
}

int rp_hub_pull_set_ref(const struct rp_hub_pull *pull, const struct rp_hub_listing *listing,
                        struct rp_error *err) {
    char path[RP_HUB_PATH_MAX], temporary[RP_HUB_PATH_MAX + 32];
    if (strcmp(pull->name.revision, listing->commit) == 0)
        return RP_OK;
    snprintf(path, sizeof path, "%s/refs/%s", pull->dir, pull->name.revision);
    snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid());
    int status = make_dirs(path, err);
    if (status != RP_OK)
        return status;
    FILE *file = fopen(temporary, "w");
    bool ok = file && fputs(listing->commit, file) >= 0;
    ok = file && fclose(file) == 0 && ok;
    if (!ok || rename(temporary, path) != 0)
        return rp_error_set(err, RP_STATUS_IO, "cannot write %.300s: %s", path, strerror(errno));
    return RP_OK;
}
