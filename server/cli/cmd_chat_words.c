/* cmd_chat_words.c - the words that begin with a slash, named as in `ollama run`. */
#include "server/cli/cmd_chat.h"

#include "base/memory.h"
#include "base/nearest_name.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { FILE_BYTES = 8 << 20 };

static void print_help(void) {
    puts("  /set parameter NAME VALUE  a sampling field, as temperature 0.7; without VALUE: the "
         "default\n"
         "  /set system TEXT           what the model is told first; /system TEXT is the same\n"
         "  /set format json|FILE      answers are JSON, or match the JSON Schema in FILE; /set "
         "noformat\n"
         "  /set tools FILE            functions that the model may call; /set notools\n"
         "  /set think, /set nothink   with or without reasoning, if the template has a choice\n"
         "  /set verbose, /set quiet   print times and token counts after each answer, or not\n"
         "  /show                      the settings\n"
         "  /again                     another answer to the last message\n"
         "  /clear                     forget the conversation\n"
         "  /save FILE, /load FILE     conversation and settings\n"
         "  /bye                       leave; so does Ctrl-D\n"
         "\"\"\" begins and ends a message of several lines. Ctrl-C stops an answer.");
}

static void say(const struct rp_error *err) {
    fprintf(stderr, "error: %s\n", err->text);
    if (err->hint[0])
        fprintf(stderr, "hint: %s\n", err->hint);
}

/* The next word of *at, ended with NUL; the rest begins at its next character that is no space. */
static char *take_word(char **at) {
    char *word = *at + strspn(*at, " \t"), *end = word + strcspn(word, " \t");
    *at = end + strspn(end, " \t");
    *end = '\0';
    return word;
}

static void replace(json_t **member, json_t *value) {
    json_decref(*member);
    *member = value;
}

/* --- Parameters ------------------------------------------------------------------------------ */

static const struct parameter {
    const char *name, *other; /* other: ollama's name for it, or NULL */
    enum { REAL, INTEGER, TEXTS, SWITCH } type;
} parameters[] = {
    {"temperature", NULL, REAL},
    {"top_p", NULL, REAL},
    {"top_k", NULL, INTEGER},
    {"min_p", NULL, REAL},
    {"seed", NULL, INTEGER},
    {"max_tokens", "num_predict", INTEGER},
    {"min_tokens", NULL, INTEGER},
    {"presence_penalty", NULL, REAL},
    {"frequency_penalty", NULL, REAL},
    {"repetition_penalty", "repeat_penalty", REAL},
    {"stop", NULL, TEXTS},
    {"ignore_eos", NULL, SWITCH},
};

/* NULL: the text is no value of this type. */
static json_t *read_value(const struct parameter *parameter, const char *text) {
    char *end;
    errno = 0;
    if (parameter->type == TEXTS)
        return json_pack("[s]", text);
    if (parameter->type == SWITCH)
        return strcmp(text, "true") == 0    ? json_true()
               : strcmp(text, "false") == 0 ? json_false()
                                            : NULL;
    if (parameter->type == INTEGER) {
        long long value = strtoll(text, &end, 10);
        return *end || end == text || errno ? NULL : json_integer(value);
    }
    double value = strtod(text, &end);
    return *end || end == text || errno ? NULL : json_real(value);
}

static void set_parameter(struct rp_chat *chat, char *rest) {
    const char *name = take_word(&rest), *names[RP_ARRAY_COUNT(parameters)];
    const struct parameter *found = NULL;
    for (size_t i = 0; i < RP_ARRAY_COUNT(parameters); i++) {
        names[i] = parameters[i].name;
        if (strcmp(name, parameters[i].name) == 0 ||
            (parameters[i].other && strcmp(name, parameters[i].other) == 0))
            found = &parameters[i];
    }
    if (!found) {
        const char *nearest = rp_nearest_name(name, names, RP_ARRAY_COUNT(parameters));
        fprintf(stderr, "error: there is no parameter \"%.40s\"\n", name);
        fprintf(stderr, "hint: %s%s\n",
                nearest ? "did you mean "
                        : "they are temperature, top_p, top_k, min_p, seed, max_tokens, stop, ...",
                nearest ? nearest : "");
        return;
    }
    if (!*rest) {
        json_object_del(chat->parameters, found->name);
        return;
    }
    json_t *value = read_value(found, rest), *old = json_object_get(chat->parameters, found->name);
    if (!value)
        fprintf(stderr, "error: %s needs %s\n", found->name,
                found->type == SWITCH    ? "true or false"
                : found->type == INTEGER ? "an integer"
                                         : "a number");
    else if (found->type == TEXTS && old) { /* one more */
        json_array_extend(old, value);
        json_decref(value);
    } else
        json_object_set_new(chat->parameters, found->name, value);
}

/* --- Files ----------------------------------------------------------------------------------- */

static json_t *load_json(const char *path, struct rp_error *err) {
    json_error_t where;
    struct rp_buffer text;
    char chunk[65536];
    size_t len;
    FILE *file = fopen(path, "rb");
    if (!file) {
        int status = rp_error_set(err, RP_STATUS_NOT_FOUND, "%.300s: %s", path, strerror(errno));
        (void)status;
        return NULL;
    }
    rp_buffer_init(&text, FILE_BYTES);
    while ((len = fread(chunk, 1, sizeof chunk, file)) > 0)
        rp_buffer_append(&text, chunk, len);
    bool bad = ferror(file) || text.failed;
    fclose(file);
    json_t *root = bad ? NULL : json_loadb(text.data ? text.data : "", text.len, 0, &where);
    if (!root) {
        int status = bad ? rp_error_set(err, RP_STATUS_IO,
                                        "%.300s: cannot be read, or is larger than 8 MiB", path)
                         : rp_error_set(err, RP_STATUS_FORMAT, "%.300s:%d: %.100s", path,
                                        where.line, where.text);
        (void)status;
    }
    rp_buffer_deinit(&text);
    return root;
}

int rp_chat_set_format(struct rp_chat *chat, const char *from, struct rp_error *err) {
    if (strcmp(from, "json") == 0) {
        replace(&chat->format, json_pack("{s:s}", "type", "json_object"));
        return RP_OK;
    }
    json_t *schema = load_json(from, err);
    if (!schema)
        return RP_STATUS_FORMAT;
    if (!json_is_object(schema) && !json_is_boolean(schema)) {
        json_decref(schema);
        return rp_error_set(err, RP_STATUS_FORMAT, "%.300s: not a JSON Schema", from);
    }
    replace(&chat->format, json_pack("{s:s,s:{s:s,s:o}}", "type", "json_schema", "json_schema",
                                     "name", "answer", "schema", schema));
    return RP_OK;
}

/* OpenAI's list, or one tool, or bare functions. */
int rp_chat_set_tools(struct rp_chat *chat, const char *path, struct rp_error *err) {
    json_t *root = load_json(path, err), *tools = json_array(), *one;
    size_t i;
    if (!root) {
        json_decref(tools);
        return RP_STATUS_FORMAT;
    }
    if (!json_is_array(root))
        root = json_pack("[o]", root);
    json_array_foreach(root, i, one) {
        bool bare = json_object_get(one, "name") && !json_object_get(one, "type");
        json_array_append_new(tools,
                              bare ? json_pack("{s:s,s:O}", "type", "function", "function", one)
                                   : json_incref(one));
    }
    json_decref(root);
    replace(&chat->tools, tools);
    return RP_OK;
}

static void save(const struct rp_chat *chat, const char *path) {
    json_t *root = json_pack("{s:s,s:O,s:O}", "model", chat->about.model, "messages",
                             chat->messages, "parameters", chat->parameters);
    if (chat->system)
        json_object_set(root, "system", chat->system);
    if (chat->format)
        json_object_set(root, "format", chat->format);
    if (chat->tools)
        json_object_set(root, "tools", chat->tools);
    if (!*path)
        fprintf(stderr, "error: /save needs the name of a file\n");
    else if (!root || json_dump_file(root, path, JSON_INDENT(1)) != 0)
        fprintf(stderr, "error: %s cannot be written: %s\n", path, strerror(errno));
    else
        printf("%zu messages saved\n", json_array_size(chat->messages));
    json_decref(root);
}

static bool are_messages(const json_t *messages) {
    const json_t *one;
    size_t i;
    json_array_foreach(messages, i, one) {
        if (!json_is_string(json_object_get(one, "role")))
            return false;
    }
    return json_is_array(messages);
}

static void load(struct rp_chat *chat, const char *path) {
    struct rp_error err = {0};
    json_t *root = load_json(path, &err), *messages = json_object_get(root, "messages");
    if (!root)
        say(&err);
    else if (!are_messages(messages))
        fprintf(stderr, "error: %s: no conversation of /save\n", path);
    else {
        replace(&chat->messages, json_incref(messages));
        json_t *values = json_object_get(root, "parameters");
        replace(&chat->parameters, json_is_object(values) ? json_incref(values) : json_object());
        const struct {
            const char *name;
            json_t **member;
            bool is_right;
        } members[] = {
            {"system", &chat->system, json_is_string(json_object_get(root, "system"))},
            {"format", &chat->format, json_is_object(json_object_get(root, "format"))},
            {"tools", &chat->tools, json_is_array(json_object_get(root, "tools"))},
        };
        for (size_t i = 0; i < RP_ARRAY_COUNT(members); i++)
            replace(members[i].member, members[i].is_right
                                           ? json_incref(json_object_get(root, members[i].name))
                                           : NULL);
        chat->used_tokens = 0;
        printf("%zu messages loaded\n", json_array_size(messages));
    }
    json_decref(root);
}

/* --- Words ----------------------------------------------------------------------------------- */

static void set_system(struct rp_chat *chat, const char *text) {
    size_t len = strlen(text);
    if (len >= 2 && text[0] == '"' && text[len - 1] == '"') {
        text++;
        len -= 2;
    }
    json_t *value = len ? json_stringn(text, len) : NULL;
    if (len && !value)
        fprintf(stderr, "error: the text is not UTF-8\n");
    else
        replace(&chat->system, value);
}

static void show_json(const char *name, const json_t *value) {
    struct rp_buffer text;
    rp_buffer_init(&text, 0);
    if (value)
        rp_chat_dump(&text, value, JSON_ENSURE_ASCII);
    printf("%-11s%.*s\n", name, value ? (int)text.len : 4, value ? text.data : "none");
    rp_buffer_deinit(&text);
}

static void show(const struct rp_chat *chat) {
    printf("model      %s at %s\n", chat->about.model, chat->target.base_url);
    printf("messages   %zu\n", json_array_size(chat->messages));
    if (chat->used_tokens && chat->about.max_model_len)
        printf("context    %llu of %u tokens\n", (unsigned long long)chat->used_tokens,
               chat->about.max_model_len);
    show_json("parameters", json_object_size(chat->parameters) ? chat->parameters : NULL);
    show_json("system", chat->system);
    show_json("format", chat->format);
    show_json("tools", chat->tools);
    if (chat->template_values)
        show_json("template", chat->template_values);
}

static void set(struct rp_chat *chat, char *rest) {
    struct rp_error err = {0};
    const char *what = take_word(&rest);
    int status = RP_OK;
    if (strcmp(what, "parameter") == 0)
        set_parameter(chat, rest);
    else if (strcmp(what, "system") == 0)
        set_system(chat, rest);
    else if (strcmp(what, "format") == 0 && *rest)
        status = rp_chat_set_format(chat, rest, &err);
    else if (strcmp(what, "noformat") == 0)
        replace(&chat->format, NULL);
    else if (strcmp(what, "tools") == 0 && *rest)
        status = rp_chat_set_tools(chat, rest, &err);
    else if (strcmp(what, "notools") == 0)
        replace(&chat->tools, NULL);
    else if (strcmp(what, "think") == 0 || strcmp(what, "nothink") == 0)
        replace(&chat->template_values,
                json_pack("{s:b}", "enable_thinking", strcmp(what, "think") == 0));
    else if (strcmp(what, "verbose") == 0 || strcmp(what, "quiet") == 0)
        chat->verbose = strcmp(what, "verbose") == 0;
    else
        fprintf(stderr, "error: /set knows parameter, system, format, noformat, tools, notools, "
                        "think, nothink, verbose, quiet\n");
    if (status != RP_OK)
        say(&err);
}

/* Removes the last answer and what followed it; false: there is no message of the user. */
static bool forget_answer(struct rp_chat *chat) {
    for (size_t i = json_array_size(chat->messages); i > 0; i--) {
        const json_t *role = json_object_get(json_array_get(chat->messages, i - 1), "role");
        if (strcmp(json_string_value(role), "user") == 0)
            return true;
        json_array_remove(chat->messages, i - 1);
    }
    return false;
}

enum rp_chat_word rp_chat_word(struct rp_chat *chat, const char *line) {
    size_t bytes = strlen(line) + 1;
    char *copy = rp_alloc(bytes), *rest = copy;
    enum rp_chat_word result = RP_CHAT_WORD_DONE;
    if (!copy)
        return result;
    memcpy(copy, line, bytes);
    const char *word = take_word(&rest);
    for (size_t len = strlen(rest); len && (rest[len - 1] == ' ' || rest[len - 1] == '\t'); len--)
        rest[len - 1] = '\0';
    if (strcmp(word, "/set") == 0)
        set(chat, rest);
    else if (strcmp(word, "/system") == 0)
        set_system(chat, rest);
    else if (strcmp(word, "/show") == 0)
        show(chat);
    else if (strcmp(word, "/clear") == 0) {
        json_array_clear(chat->messages);
        chat->used_tokens = 0;
    } else if (strcmp(word, "/save") == 0)
        save(chat, rest);
    else if (strcmp(word, "/load") == 0)
        load(chat, rest);
    else if (strcmp(word, "/again") == 0) {
        if (forget_answer(chat))
            result = RP_CHAT_WORD_AGAIN;
        else
            fprintf(stderr, "error: there is no message to answer\n");
    } else if (strcmp(word, "/bye") == 0 || strcmp(word, "/exit") == 0 ||
               strcmp(word, "/quit") == 0)
        result = RP_CHAT_WORD_BYE;
    else if (strcmp(word, "/help") == 0 || strcmp(word, "/?") == 0)
        print_help();
    else
        fprintf(stderr,
                "error: unknown word %.40s\nhint: /help lists the words; a message that begins "
                "with a slash can be written between \"\"\"\n",
                word);
    fflush(stdout);
    rp_free(copy);
    return result;
}
