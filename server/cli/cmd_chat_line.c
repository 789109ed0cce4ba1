/* cmd_chat_line.c - lines of standard input. On a terminal libedit edits them, if it is installed:
 * it is opened at run time, so that the program does not depend on it. Without it (and with
 * TERM=dumb) the terminal's own line discipline does. */
#include "base/library.h"
#include "base/memory.h"
#include "server/cli/cmd_chat.h"

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
    /* Without libedit: */
    struct rp_buffer line;
    char input[65536]; /* input_at to input_len: read, but not yet part of a line */
    size_t input_at, input_len;
    struct rp_buffer text; /* the message */
};

static volatile sig_atomic_t interrupted;
static sigset_t open_mask; /* the signal mask while input is awaited: SIGINT is not in it */
static const char *current_prompt = "";

static void on_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

static void block_interrupt(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, &open_mask);
    sigdelset(&open_mask, SIGINT);
}

void rp_chat_interrupt_hold(void) {
    struct sigaction action = {.sa_handler = on_interrupt};
    block_interrupt();
    sigaction(SIGINT, &action, NULL);
}

void rp_chat_interrupt_release(void) { sigprocmask(SIG_SETMASK, &open_mask, NULL); }

/* False after Ctrl-C. */
static bool await_input(void) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    /* ppoll prefers input to a signal that is pending already. */
    rp_chat_interrupt_release();
    block_interrupt();
    while (!interrupted && ppoll(&input, 1, NULL, &open_mask) < 0 && errno == EINTR)
        ; /* the window was resized, or Ctrl-C */
    return !interrupted;
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
        if (!await_input())
            return -1;
        ssize_t count = read(STDIN_FILENO, &byte, 1);
        if (count <= 0)
            return (int)count;
        size_t length = mbrtowc(out, &byte, 1, &state);
        if (length <= 1)
            return 1;
        if (length == (size_t)-1)
            memset(&state, 0, sizeof state); /* not UTF-8: the byte is dropped */
    }
}

static bool load_library(struct edit_library *out) {
    const struct rp_library_symbol symbols[] = {{"el_init", &out->init},
                                                {"el_end", &out->end},
                                                {"el_set", &out->set},
                                                {"el_gets", &out->gets},
                                                {"history_init", &out->history_init},
                                                {"history_end", &out->history_end},
                                                {"history", &out->history}};
    return rp_library_load("libedit.so.2", symbols, RP_ARRAY_COUNT(symbols));
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

/* The next line of standard input with its end; its length, or -1 at the end or after Ctrl-C. If
 * it is too long, lines->line.failed is set and the rest is dropped. */
static ssize_t read_plain(struct rp_chat_lines *lines) {
    const char *newline = NULL;
    rp_buffer_clear(&lines->line);
    while (!newline) {
        if (lines->input_at == lines->input_len) {
            ssize_t count =
                await_input() ? read(STDIN_FILENO, lines->input, sizeof lines->input) : -1;
            if (count <= 0)
                break;
            lines->input_at = 0;
            lines->input_len = (size_t)count;
        }
        const char *from = lines->input + lines->input_at;
        size_t len = lines->input_len - lines->input_at;
        newline = memchr(from, '\n', len);
        if (newline)
            len = (size_t)(newline + 1 - from);
        rp_buffer_append(&lines->line, from, len);
        lines->input_at += len;
    }
    return lines->line.len ? (ssize_t)lines->line.len : -1;
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
        len = read_plain(lines);
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
