/* cmd_top.c - reprise top: live view of a server in a terminal, until q is pressed. */
#include "base/json_writer.h"
#include "base/memory.h"
#include "bench/load/load_run.h"
#include "server/cli/commands.h"
#include "server/cli/flags.h"
#include "server/cli/top_view.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

struct top_options {
    const char *api_key, *base_url;
    double interval_s;
    uint32_t window, requests;
    bool once, json;
};

#define AT(field) offsetof(struct top_options, field)
static const struct rp_flag top_flags[] = {
    {"base-url", RP_FLAG_TEXT, AT(base_url), "URL", 0, 0, NULL,
     "the server, instead of the argument (default http://127.0.0.1:8000)"},
    {"interval", RP_FLAG_REAL, AT(interval_s), "SECONDS", 0.1, 3600, "1", "polling interval"},
    {"window", RP_FLAG_CHOICE, AT(window), "10s|1m|5m|total", 0, 0, "10s",
     "window of the percentiles; w changes it"},
    {"requests", RP_FLAG_UINT, AT(requests), "N", 0, 100, "10", "slowest requests shown"},
    {"api-key", RP_FLAG_TEXT, AT(api_key), "KEY", 0, 0, "", "sent as a bearer token"},
    {"once", RP_FLAG_SWITCH, AT(once), NULL, 0, 0, NULL, "poll twice, print one screen and exit"},
    {"json", RP_FLAG_SWITCH, AT(json), NULL, 0, 0, NULL,
     "print the server's answers instead of a screen, one object per line"},
};
static const struct rp_command_spec top_spec = {
    "top",
    "[URL]",
    0,
    1,
    "watch a server: throughput, latency, pages, the slowest requests",
    top_flags,
    RP_ARRAY_COUNT(top_flags),
    NULL,
    0,
};

/* The server's answers at one time. */
struct answers {
    json_t *status, *latency, *requests;
};

static volatile sig_atomic_t stopped, resized;
static void on_stop(int number) {
    (void)number;
    stopped = 1;
}
static void on_resize(int number) {
    (void)number;
    resized = 1;
}

static struct termios terminal_before;
static bool terminal_taken;

/* Safe in a signal handler and when called repeatedly. */
static void give_terminal_back(void) {
    static const char text[] = "\x1b[?25h\x1b[?1049l";
    if (!terminal_taken)
        return;
    terminal_taken = false;
    ssize_t written = write(STDOUT_FILENO, text, sizeof text - 1);
    (void)written;
    tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
}

/* Raw key input without echo; uses the alternate screen. */
static bool take_terminal(void) {
    static const char text[] = "\x1b[?1049h\x1b[?25l";
    struct termios raw;
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) ||
        tcgetattr(STDIN_FILENO, &terminal_before) != 0)
        return false;
    raw = terminal_before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    if (tcsetattr(STDIN_FILENO, TCSANOW, &raw) != 0)
        return false;
    terminal_taken = true;
    atexit(give_terminal_back);
    fputs(text, stdout);
    return true;
}

static void free_answers(struct answers *answers) {
    json_decref(answers->status);
    json_decref(answers->latency);
    json_decref(answers->requests);
    *answers = (struct answers){NULL, NULL, NULL};
}

static json_t *get(const struct rp_load_target *target, const char *path, struct rp_error *err) {
    char *body = rp_load_get(target, path, err);
    json_t *root = body ? json_loads(body, JSON_DECODE_INT_AS_REAL, NULL) : NULL;
    if (body && !root) {
        int status = rp_error_set(err, RP_STATUS_FORMAT, "%.200s%s did not answer with JSON",
                                  target->base_url, path);
        (void)status;
    }
    rp_free(body);
    return root;
}

/* Without /debug/status it is not a reprise server, or not its admin port. */
static bool ask(const struct rp_load_target *target, const struct top_options *options,
                struct answers *out, struct rp_error *err) {
    char path[64];
    free_answers(out);
    out->status = get(target, "/debug/status", err);
    if (!out->status)
        return false;
    out->latency = get(target, "/debug/latency?format=json", NULL);
    snprintf(path, sizeof path, "/debug/requests?slowest=%u", options->requests);
    if (options->requests)
        out->requests = get(target, path, NULL);
    return true;
}

static void print_json(const struct answers *answers) {
    json_t *root = json_pack("{s:O,s:O*,s:O*}", "status", answers->status, "latency",
                             answers->latency, "requests", answers->requests);
    if (root)
        json_dumpf(root, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(root);
}

static void print_screen(const struct answers *now, const struct answers *before,
                         enum rp_top_window window, const char *trouble) {
    struct winsize size = {.ws_row = 24, .ws_col = 80};
    struct rp_buffer out;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0)
        size = (struct winsize){.ws_row = 60, .ws_col = 80};
    struct rp_top_answers shown = {now->status, now->latency, now->requests};
    struct rp_top_answers last = {before->status, before->latency, before->requests};
    uint32_t foot = terminal_taken ? 1 : 0; /* the footer is the last line, without a newline */
    rp_buffer_init(&out, 0);
    rp_top_write(&shown, before->status ? &last : NULL, window, size.ws_col, size.ws_row - foot,
                 &out);
    if (terminal_taken)
        fputs("\x1b[H", stdout);
    for (size_t at = 0; at < out.len;) {
        const char *text = out.data + at, *end = memchr(text, '\n', out.len - at);
        size_t len = end ? (size_t)(end - text) : out.len - at;
        fwrite(text, 1, len, stdout);
        fputs(terminal_taken ? "\x1b[K\n" : "\n", stdout);
        at += len + 1;
    }
    if (terminal_taken)
        printf("\x1b[J%.*s\x1b[K", (int)size.ws_col - 1,
               *trouble ? trouble : "q quits, w changes the window");
    fflush(stdout);
    rp_buffer_deinit(&out);
}

/* Waits until the next poll; false: quit. Keys take effect at once: *window, *redraw. */
static bool wait_for_keys(double until_s, enum rp_top_window *window, bool *redraw) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double left = until_s - ((double)now.tv_sec + (double)now.tv_nsec * 1e-9);
    struct pollfd keys = {.fd = terminal_taken ? STDIN_FILENO : -1, .events = POLLIN};
    *redraw = false;
    if (left <= 0 || stopped)
        return !stopped;
    int ready = poll(&keys, 1, (int)(left * 1e3) + 1);
    if (resized) {
        resized = 0;
        *redraw = true;
    }
    char key = 0;
    if (ready <= 0)
        return !stopped;
    if (read(STDIN_FILENO, &key, 1) <= 0)
        return false; /* the terminal was closed */
    if (key == 'w') {
        *window = (enum rp_top_window)((*window + 1) % RP_TOP_WINDOW_COUNT);
        *redraw = true;
    }
    return key != 'q' && key != 'Q' && key != 3;
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Polls, draws and waits until quit. A server that stops answering is polled again; one that never
 * answered is an error. */
static int watch(const struct rp_load_target *target, const struct top_options *options,
                 struct rp_error *err) {
    struct answers now = {NULL, NULL, NULL}, before = {NULL, NULL, NULL};
    enum rp_top_window window = (enum rp_top_window)options->window;
    bool go_on = ask(target, options, &now, err), redraw, first = true;
    int status = go_on ? RP_OK : RP_STATUS_IO;
    if (go_on && !options->once && !options->json)
        take_terminal();
    char trouble[256] = "";
    while (go_on && !stopped) {
        struct rp_error lost = {0};
        bool last = options->once && !first;
        if (options->json && (!options->once || last))
            print_json(&now);
        else if (!options->json && (!options->once || last))
            print_screen(&now, &before, window, trouble);
        fflush(stdout);
        if (last || ferror(stdout))
            break;
        first = false;
        for (double until = now_s() + options->interval_s; go_on && now_s() < until;) {
            go_on = wait_for_keys(until, &window, &redraw);
            if (go_on && redraw && !options->json)
                print_screen(&now, &before, window, trouble);
        }
        if (!go_on || stopped)
            break;
        struct answers next = {NULL, NULL, NULL};
        if (ask(target, options, &next, &lost)) {
            free_answers(&before);
            before = now;
            now = next;
            trouble[0] = '\0';
        } else {
            snprintf(trouble, sizeof trouble, "%.250s", lost.text);
            if (!terminal_taken)
                fprintf(stderr, "%s\n", trouble);
        }
    }
    give_terminal_back();
    free_answers(&now);
    free_answers(&before);
    return status;
}

int rp_cmd_top(int argc, char **argv) {
    const char *positionals[RP_POSITIONALS_MAX] = {NULL};
    struct top_options options = {.api_key = NULL};
    struct rp_error err = {0};
    int status = rp_flags_parse(&top_spec, argc, argv, &options, positionals, &err);
    if (status != RP_OK)
        return status == RP_STATUS_CANCELLED ? RP_EXIT_OK : rp_fail(RP_EXIT_USAGE, &err);
    struct rp_load_target target = {.base_url = positionals[0]     ? positionals[0]
                                                : options.base_url ? options.base_url
                                                                   : "http://127.0.0.1:8000",
                                    .api_key = options.api_key && *options.api_key ? options.api_key
                                                                                   : NULL};
    struct sigaction stop = {.sa_handler = on_stop}, resize = {.sa_handler = on_resize};
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGHUP, &stop, NULL);
    sigaction(SIGWINCH, &resize, NULL);
    if (watch(&target, &options, &err) == RP_OK)
        return RP_EXIT_OK;
    if (err.hint[0] == '\0')
        rp_error_hint(&err, "give the URL of a running `reprise serve`, or of its admin port");
    return rp_fail(RP_EXIT_FAILURE, &err);
}
