/* cmd_chat_line.c - lines of standard input. On a terminal libedit edits them, if it is installed:
 * it is opened at run time, so that the program does not depend on it. Without it (and with
 * TERM=dumb) the terminal's own line discipline does. */
#include "base/memory.h"
#include "server/cli/cmd_chat.h"

#include <dlfcn.h>
#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

/* From libedit's histedit.h, whose ABI (libedit.so.2) is stable. */
enum { EL_PROMPT = 0, EL_EDITOR = 2, EL_HIST = 10, EL_GETCFN = 13, EL_PREP_TERM = 16 };
enum { H_SETSIZE = 1, H_ENTER = 10, H_SETUNIQUE = 20 };
#define MESSAGE_BYTES ((size_t)8 << 20)
struct hist_event {
    int num;
    const char *str;
};
struct edit_line;
struct history;
struct edit_library {
    struct edit_line *(*init)(const char *program, FILE *in, FILE *out, FILE *err);
    void (*end)(struct edit_line *line);
    int (*set)(struct edit_line *line, int op, ...);
    const char *(*gets)(struct edit_line *line, int *count);
    struct history *(*history_init)(void);
    void (*history_end)(struct history *history);
    int (*history)(struct history *history, struct hist_event *event, int op, ...);
};

struct rp_chat_lines {
    struct edit_library library;
    struct edit_line *edit; /* NULL: no library */
    struct history *history;
    bool is_terminal;
    struct rp_buffer line; /* without libedit */
    struct rp_buffer text; /* the message */
};

static volatile sig_atomic_t interrupted;
static const char *current_prompt = "";

static void on_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

void rp_chat_lines_take_interrupt(void) {
    /* No SA_RESTART: a read ends with EINTR. */
    struct sigaction action = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &action, NULL);
}

static const char *give_prompt(struct edit_line *line) {
    (void)line;
    return current_prompt;
}

/* libedit's own function would try again after a signal. 1: a character, 0: the end, -1: the line
 * is abandoned. */
static int read_character(struct edit_line *line, wchar_t *out) {
    mbstate_t state = {0};
    (void)line;
    for (;;) {
        char byte;
        struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
        int ready = interrupted ? -1 : poll(&input, 1, -1);
        ssize_t count = ready > 0 ? read(STDIN_FILENO, &byte, 1) : -1;
        if (count == 0)
            return 0;
        if (count < 0) {
            if (!interrupted && (errno == EINTR || errno == EAGAIN))
                continue; /* the window was resized */
            return -1;
        }
        size_t length = mbrtowc(out, &byte, 1, &state);
        if (length <= 1)
            return 1;
        if (length == (size_t)-1)
            memset(&state, 0, sizeof state); /* not UTF-8: the byte is dropped */
    }
}

static void *symbol(void *handle, const char *name) { return dlsym(handle, name); }

static bool load_library(struct edit_library *out) {
    void *handle = dlopen("libedit.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return false;
    /* The library stays open until the program ends. POSIX allows these conversions. */
    *(void **)&out->init = symbol(handle, "el_init");
    *(void **)&out->end = symbol(handle, "el_end");
    *(void **)&out->set = symbol(handle, "el_set");
    *(void **)&out->gets = symbol(handle, "el_gets");
    *(void **)&out->history_init = symbol(handle, "history_init");
    *(void **)&out->history_end = symbol(handle, "history_end");
    *(void **)&out->history = symbol(handle, "history");
    return out->init && out->end && out->set && out->gets && out->history_init &&
           out->history_end && out->history;
}

static void start_editing(struct rp_chat_lines *lines) {
    struct hist_event event;
    const char *term = getenv("TERM");
    if (!term || !*term || strcmp(term, "dumb") == 0)
        return;
    /* Characters are those of the locale; one without UTF-8 would break them. */
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8");
    if (!load_library(&lines->library))
        return;
    lines->edit = lines->library.init("reprise", stdin, stdout, stderr);
    if (!lines->edit)
        return;
    lines->history = lines->library.history_init();
    lines->library.set(lines->edit, EL_PROMPT, give_prompt);
    lines->library.set(lines->edit, EL_EDITOR, "emacs");
    lines->library.set(lines->edit, EL_GETCFN, read_character);
    if (lines->history) {
        lines->library.history(lines->history, &event, H_SETSIZE, 1000);
        lines->library.history(lines->history, &event, H_SETUNIQUE, 1);
        lines->library.set(lines->edit, EL_HIST, lines->library.history, lines->history);
    }
}

struct rp_chat_lines *rp_chat_lines_open(bool is_terminal) {
    struct rp_chat_lines *lines = rp_calloc(1, sizeof *lines);
    if (!lines)
        return NULL;
    lines->is_terminal = is_terminal;
    rp_buffer_init(&lines->text, MESSAGE_BYTES);
    rp_buffer_init(&lines->line, MESSAGE_BYTES);
    if (is_terminal)
        start_editing(lines);
    return lines;
}

void rp_chat_lines_close(struct rp_chat_lines *lines) {
    if (!lines)
        return;
    if (lines->edit)
        lines->library.end(lines->edit);
    if (lines->history)
        lines->library.history_end(lines->history);
    rp_buffer_deinit(&lines->line);
    rp_buffer_deinit(&lines->text);
    rp_free(lines);
}

/* The next line of standard input with its end; its length, or -1 at the end or after a signal. If
 * it is too long, out->failed is set and the rest is dropped. */
static ssize_t read_plain(struct rp_buffer *out) {
    char chunk[65536];
    rp_buffer_clear(out);
    while (fgets(chunk, sizeof chunk, stdin)) {
        size_t len = strlen(chunk);
        rp_buffer_append(out, chunk, len);
        if (len && chunk[len - 1] == '\n')
            break;
    }
    clearerr(stdin);
    return out->len ? (ssize_t)out->len : -1;
}

/* One line without its end. */
static enum rp_chat_line read_line(struct rp_chat_lines *lines, const char *prompt,
                                   const char **out, size_t *out_len) {
    ssize_t len;
    interrupted = 0;
    current_prompt = prompt;
    if (lines->edit) {
        int count = 0;
        /* el_gets itself prints the prompt first: a Ctrl-D typed in between would be lost. */
        lines->library.set(lines->edit, EL_PREP_TERM, 1);
        *out = lines->library.gets(lines->edit, &count);
        len = *out ? count : -1;
    } else {
        if (lines->is_terminal) {
            fputs(prompt, stdout);
            fflush(stdout);
        }
        len = read_plain(&lines->line);
        *out = lines->line.data;
    }
    if (interrupted) {
        interrupted = 0;
        return RP_CHAT_LINE_INTERRUPTED;
    }
    if (len <= 0)
        return RP_CHAT_LINE_END;
    while (len > 0 && ((*out)[len - 1] == '\n' || (*out)[len - 1] == '\r'))
        len--;
    *out_len = (size_t)len;
    return RP_CHAT_LINE_OK;
}

static void remember(struct rp_chat_lines *lines) {
    struct hist_event event;
    if (lines->history && lines->text.len > 1 && !memchr(lines->text.data, '\n', lines->text.len))
        lines->library.history(lines->history, &event, H_ENTER, lines->text.data);
}

enum rp_chat_line rp_chat_lines_read(struct rp_chat_lines *lines, const char *prompt,
                                     const char **out) {
    static const char mark[] = "\"\"\"";
    const char *line;
    size_t len = 0, skip = 0;
    rp_buffer_clear(&lines->text);
    *out = "";
    enum rp_chat_line got = read_line(lines, prompt, &line, &len);
    if (got != RP_CHAT_LINE_OK)
        return got;
    bool many = len >= 3 && memcmp(line, mark, 3) == 0;
    skip = many ? 3 : 0;
    for (;;) {
        bool ends = many && len >= skip + 3 && memcmp(line + len - 3, mark, 3) == 0;
        rp_buffer_append(&lines->text, line + skip, len - skip - (ends ? 3 : 0));
        if (!many || ends)
            break;
        if (lines->text.len)
            rp_buffer_puts(&lines->text, "\n");
        skip = 0;
        got = read_line(lines, "... ", &line, &len);
        if (got == RP_CHAT_LINE_INTERRUPTED)
            return got;
        if (got == RP_CHAT_LINE_END)
            break;
    }
    while (many && lines->text.len && lines->text.data[lines->text.len - 1] == '\n')
        lines->text.len--;
    rp_buffer_append(&lines->text, "", 1);
    if (lines->text.failed || lines->line.failed) {
        fprintf(stderr, "error: the message is longer than 8 MiB\n");
        return RP_CHAT_LINE_OK;
    }
    *out = lines->text.data;
    remember(lines);
    return RP_CHAT_LINE_OK;
}
