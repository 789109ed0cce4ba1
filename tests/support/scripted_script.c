#include "tests/support/scripted_internal.h"
#include "tests/support/scripted_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void scripted_reset(struct script *script) {
    *script = (struct script){.tokens = 16,
                              .status = 200,
                              .reset = SCRIPTED_NEVER,
                              .close = SCRIPTED_NEVER,
                              .hang = SCRIPTED_NEVER,
                              .error = SCRIPTED_NEVER,
                              .garbage = SCRIPTED_NEVER,
                              .longest = SCRIPTED_NEVER,
                              .body = "chunked",
                              .message = "scripted"};
}

static void read_word(struct script *s, const char *name, const char *value) {
    const struct {
        const char *name;
        uint32_t *count;
        double *ms;
        bool *flag;
    } words[] = {
        {"n", &s->number, NULL, NULL},
        {"tokens", &s->tokens, NULL, NULL},
        {"cached", &s->cached, NULL, NULL},
        {"status", &s->status, NULL, NULL},
        {"reset", &s->reset, NULL, NULL},
        {"close", &s->close, NULL, NULL},
        {"hang", &s->hang, NULL, NULL},
        {"error", &s->error, NULL, NULL},
        {"garbage", &s->garbage, NULL, NULL},
        {"long", &s->longest, NULL, NULL},
        {"split", &s->split, NULL, NULL},
        {"fuzz", &s->fuzz, NULL, NULL},
        {"blank", &s->blank, NULL, NULL},
        {"ttft", NULL, &s->ttft_ms, NULL},
        {"itl", NULL, &s->itl_ms, NULL},
        {"head", NULL, &s->head_ms, &s->has_head_ms},
        {"slow", NULL, &s->slow_ms, NULL},
        {"stall", NULL, &s->stall_ms, NULL},
        {"drop", NULL, NULL, &s->drop},
        {"crlf", NULL, NULL, &s->crlf},
        {"joined", NULL, NULL, &s->joined},
        {"comments", NULL, NULL, &s->comments},
        {"interim", NULL, NULL, &s->interim},
        {"nousage", NULL, NULL, &s->no_usage},
        {"nodone", NULL, NULL, &s->no_done},
        {"stop", NULL, NULL, &s->stop},
        {"role", NULL, NULL, &s->role},
        {"empty", NULL, NULL, &s->empty},
        {"reasoning", NULL, NULL, &s->reasoning},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(words); i++)
        if (strcmp(words[i].name, name) == 0) {
            if (words[i].count)
                *words[i].count = (uint32_t)strtoul(value, NULL, 10);
            if (words[i].ms)
                *words[i].ms = strtod(value, NULL);
            if (words[i].flag)
                *words[i].flag = words[i].ms || strtod(value, NULL) > 0;
        }
    if (strcmp(name, "body") == 0)
        snprintf(s->body, sizeof s->body, "%s", value);
    if (strcmp(name, "raw") == 0)
        snprintf(s->raw, sizeof s->raw, "%s", value);
    if (strcmp(name, "message") == 0)
        snprintf(s->message, sizeof s->message, "%s", value);
}

static void read_script(struct script *s, const char *text) {
    char words[512], *rest = words, *word;
    snprintf(words, sizeof words, "%s", text);
    while ((word = strsep(&rest, " ")) != NULL) {
        char *equals = strchr(word, '=');
        if (equals) {
            *equals = '\0';
            read_word(s, word, equals + 1);
        }
    }
    s->number = RP_MIN(s->number, SCRIPTED_REQUESTS - 1);
}

static const char *script_of(const json_t *root) {
    const char *model = json_string_value(json_object_get(root, "model"));
    const json_t *messages = json_object_get(root, "messages");
    const json_t *prompt = messages ? json_object_get(json_array_get(messages, 0), "content")
                                    : json_object_get(root, "prompt");
    const char *texts[] = {json_string_value(prompt), model};
    for (int i = 0; i < 2; i++)
        if (texts[i] && strncmp(texts[i], "script:", 7) == 0)
            return texts[i] + 7;
    return "";
}

void scripted_read(struct script *script, const json_t *root) {
    read_script(script, root ? script_of(root) : "status=400 message=no_JSON");
}

static uint32_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

void scripted_mutate(struct rp_buffer *bytes, uint32_t seed) {
    static const char pieces[][8] = {"\r\n", "\n\n",  "\"",    "{", "]",
                                     "\\u",  "0\r\n", "data:", ",", "\\"};
    uint64_t state = seed;
    for (uint32_t left = 1 + next(&state) % 6; left && bytes->len > 1; left--) {
        size_t at = next(&state) % bytes->len, len = 1 + next(&state) % 9;
        const char *piece = pieces[next(&state) % RP_ARRAY_COUNT(pieces)];
        len = RP_MIN(len, bytes->len - at);
        switch (next(&state) % 4) {
        case 0:
            bytes->data[at] = (char)next(&state);
            break;
        case 1:
            memmove(bytes->data + at, bytes->data + at + len, bytes->len - at - len);
            bytes->len -= len;
            break;
        case 2:
            memcpy(bytes->data + at, piece, RP_MIN(strlen(piece), bytes->len - at));
            break;
        default:
            if (next(&state) % 4 == 0)
                bytes->len = at + 1;
        }
    }
}
