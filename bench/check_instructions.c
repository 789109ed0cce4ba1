/* check_instructions.c - counts instructions per token with callgrind.
 *
 * The difference between a run of 2N tokens and one of N excludes startup and prefill. Only
 * instructions inside the listed functions are counted: other threads spin while they wait, and
 * their number of polls varies. */
#include "base/memory.h"
#include "bench/check_internal.h"
#include "metrics/recorder.h"
#include "metrics/tick.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TOKENS        64u
#define PROMPT        8u
#define FUNCTIONS_MAX 10

extern char **environ;

/* Groups of functions to count. No function of a group may call another one of the same group: the
 * inner call would toggle collection off. */
static const struct counted {
    const char *name;
    double relative;                      /* tolerance */
    const char *functions[FUNCTIONS_MAX]; /* up to the first NULL */
} lists[] = {
    {"host_per_token",
     0.03,
     {"rp_scheduler_plan", "rp_scheduler_commit", "rp_scheduler_next_event", "rp_batch_encode",
      "rp_batch_decode", "rp_graph_set_pick", "rp_engine_note_step", "rp_engine_note_turn",
      "rp_engine_update_gauges"}},
    {"scalar_step_per_token", 0.03, {"replay_job"}},
    /* Recording of each step and token. Part of it runs at intervals of time, not per step, and 64
     * tokens take more than a second under valgrind: hence the tolerance. */
    {"recording_per_token",
     0.3,
     {"rp_step_trace_span", "rp_step_trace_launch", "rp_step_trace_read", "rp_step_trace_event",
      "rp_step_trace_counters", "rp_engine_account_step"}},
};

static void ignore_event(void *ctx, const struct rp_event *event) {
    (void)ctx;
    (void)event;
}

/* Fills the engine configuration of a counted load and creates its recorder, which the caller
 * destroys. */
static int configure_load(const struct rp_counted_load *load, struct rp_engine_config *engine,
                          struct rp_recorder **out_recorder, struct rp_error *err) {
    const struct rp_recorder_config recorded = {.seconds = 1, .mib = 1};
    const struct rp_check_config config = {.model_dir = ""};
    *engine = rp_check_engine_config(&config);
    engine->max_num_seqs = load->rows;
    engine->max_num_batched_tokens = RP_MAX(16u, load->rows * PROMPT);
    engine->profile_every = load->profile_every;
    engine->no_recording = load->no_recording;
    if (!load->model_dir)
        engine->kv_cache_bytes = (uint64_t)load->rows << 20;
    rp_tick_start();
    if (load->no_recording)
        return RP_OK;
    int status = rp_recorder_create(&recorded, out_recorder, err);
    if (status == RP_OK)
        engine->ring = rp_recorder_add(*out_recorder, "engine", RP_RECORDER_ENGINE);
    return status;
}

int rp_check_counted_load(const struct rp_counted_load *load, struct rp_error *err) {
    static struct rp_request requests[RP_COUNTED_ROWS_MAX];
    static int32_t prompts[RP_COUNTED_ROWS_MAX][PROMPT];
    const struct rp_model_config shape = rp_check_shape(RP_FAMILY_LLAMA);
    const struct rp_engine_run_model random = {.shape = &shape, .dtype = RP_DTYPE_F32};
    const struct rp_engine_run_model named = {.dir = load->model_dir, .dtype = RP_MODEL_DTYPE_AUTO};
    struct rp_recorder *recorder = NULL;
    struct rp_engine_config engine;
    struct rp_engine_run run;
    RP_ASSERT(load->rows > 0 && load->rows <= RP_COUNTED_ROWS_MAX);
    for (uint32_t i = 0; i < load->rows; i++) {
        for (uint32_t t = 0; t < PROMPT; t++)
            prompts[i][t] = (int32_t)(3 + i * 7 + t * 31);
        requests[i] = (struct rp_request){.id = i,
                                          .prompt = prompts[i],
                                          .prompt_count = load->model_dir ? 1 : PROMPT,
                                          .max_tokens = load->tokens,
                                          .sampling = {.top_p = 1.0f}};
    }
    int status = configure_load(load, &engine, &recorder, err);
    if (status != RP_OK)
        return status;
    status = rp_engine_run_open(load->model_dir ? &named : &random, &engine, &run, err);
    if (status == RP_OK)
        status = rp_engine_run_requests(&run, requests, load->rows, ignore_event, NULL, err);
    rp_engine_run_close(&run);
    rp_recorder_destroy(recorder);
    return status;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WHY_NOT "a build with sanitizers does not run under valgrind"
#elif RP_DEBUG
#define WHY_NOT "a debug build"
#else
#define WHY_NOT ""
#endif

/* Reads "summary:" or "totals:" from callgrind's output; 0: not found. */
static uint64_t read_total(const char *path) {
    char line[512];
    uint64_t total = 0;
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "summary: ", 9) == 0 || strncmp(line, "totals: ", 8) == 0)
            total = strtoull(strchr(line, ' '), NULL, 10);
    if (file)
        fclose(file);
    return total;
}

/* A copy of the environment that selects the scalar kernels; freed with rp_free. */
static char **scalar_environment(void) {
    static char scalar[] = "REPRISE_CPU_ISA=scalar";
    size_t count = 0, used = 0;
    while (environ[count])
        count++;
    char **out = rp_calloc(count + 2, sizeof *out);
    for (size_t i = 0; out && i < count; i++)
        if (strncmp(environ[i], "REPRISE_", 8) != 0) /* these would change flags */
            out[used++] = environ[i];
    if (out)
        out[used] = scalar;
    return out;
}

/* Runs a program with empty input and its output in a file. Returns its exit status, or -1 with
 * errno set. */
static int run_quietly(char *const *argv, const char *log) {
    posix_spawn_file_actions_t files;
    char **environment = scalar_environment();
    pid_t child = 0;
    int how = 0;
    if (!environment) {
        errno = ENOMEM;
        return -1;
    }
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log, O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
    posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
    int failed = posix_spawnp(&child, argv[0], &files, NULL, argv, environment);
    posix_spawn_file_actions_destroy(&files);
    rp_free(environment);
    if (failed) {
        errno = failed;
        return -1;
    }
    while (waitpid(child, &how, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
}

/* RP_STATUS_NOT_FOUND: valgrind is not installed. */
static int count_once(const struct rp_check_config *config, const struct counted *list,
                      uint32_t tokens, const char *folder, uint64_t *out, struct rp_error *err) {
    char result[300], result_flag[340], log[300], count[16], toggles[FUNCTIONS_MAX][64];
    char *argv[FUNCTIONS_MAX + 12];
    size_t used = 0;
    snprintf(result, sizeof result, "%s/callgrind.out", folder);
    snprintf(result_flag, sizeof result_flag, "--callgrind-out-file=%s", result);
    snprintf(log, sizeof log, "%s/log", folder);
    snprintf(count, sizeof count, "%u", tokens);
    argv[used++] = (char *)(uintptr_t) "valgrind";
    argv[used++] = (char *)(uintptr_t) "--tool=callgrind";
    argv[used++] = result_flag;
    for (size_t i = 0; i < FUNCTIONS_MAX && list->functions[i]; i++) {
        snprintf(toggles[i], sizeof toggles[i], "--toggle-collect=%s", list->functions[i]);
        argv[used++] = toggles[i];
    }
    argv[used++] = (char *)(uintptr_t)config->program;
    argv[used++] = (char *)(uintptr_t) "bench";
    argv[used++] = (char *)(uintptr_t) "check";
    argv[used++] = (char *)(uintptr_t) "--counted-load";
    argv[used++] = count;
    argv[used] = NULL;
    int code = run_quietly(argv, log);
    int cause = errno;
    *out = code == 0 ? read_total(result) : 0;
    unlink(result);
    unlink(log);
    if (code < 0 && cause == ENOENT)
        return RP_STATUS_NOT_FOUND;
    if (code != 0)
        return rp_error_set(err, RP_STATUS_IO, "valgrind --tool=callgrind exited with %d", code);
    return *out ? RP_OK
                : rp_error_set(err, RP_STATUS_FORMAT, "callgrind counted nothing in %s",
                               list->functions[0]);
}

static int count_list(const struct rp_check_config *config, const struct counted *list,
                      const char *folder, struct rp_expectation *row, struct rp_error *err) {
    uint64_t once = 0, twice = 0;
    int status = count_once(config, list, TOKENS, folder, &once, err);
    if (status == RP_OK)
        status = count_once(config, list, 2 * TOKENS, folder, &twice, err);
    row->value = ((double)twice - (double)once) / TOKENS;
    return status;
}

int rp_check_instructions(const struct rp_check_config *config, struct rp_expectations *out,
                          struct rp_error *err) {
    const char *temporary = getenv("TMPDIR");
    const char *why_not = WHY_NOT;
    char folder[256];
    snprintf(folder, sizeof folder, "%s/reprise-check-XXXXXX",
             temporary && *temporary ? temporary : "/tmp");
    if (!*why_not && !mkdtemp(folder))
        return rp_error_set(err, RP_STATUS_IO, "%s: %s", folder, strerror(errno));
    int status = RP_OK;
    for (size_t i = 0; i < RP_ARRAY_COUNT(lists) && status == RP_OK; i++) {
        /* The count depends on the compiler. */
        struct rp_expectation *row =
            rp_expectations_add(out, "instructions_gcc%d.%s", __GNUC__, lists[i].name);
        if (!row) {
            status = rp_check_no_memory(err);
            break;
        }
        row->optional = true;
        row->direction = RP_EXPECT_LOWER;
        row->relative = lists[i].relative;
        if (!*why_not)
            status = count_list(config, &lists[i], folder, row, err);
        if (status == RP_STATUS_NOT_FOUND) {
            why_not = "valgrind is not installed";
            status = RP_OK;
        }
        snprintf(row->skipped, sizeof row->skipped, "%s", why_not);
    }
    if (!*WHY_NOT)
        rmdir(folder);
    return status;
}
