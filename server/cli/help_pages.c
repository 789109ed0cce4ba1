#include "server/cli/help_pages.h"

#include "server/cli/flags.h"

#include <ctype.h>
#include <string.h>

#define HELP_BYTES 8192
#define NAME_BYTES 64

/* What --help of one command says: a table, or else a text. */
struct help {
    char name[NAME_BYTES]; /* "bench serve" */
    const struct rp_command *command;
    const struct rp_command_spec *spec;
    char text[HELP_BYTES];
};

static void keep_spec(void *ctx, const struct rp_command_spec *spec) {
    struct help *help = ctx;
    help->spec = spec;
}

static bool read_help(const char *group, const struct rp_command *command, struct help *help) {
    char flag[] = "--help", name[NAME_BYTES];
    char *argv[] = {name, flag, NULL};
    memset(help, 0, sizeof *help);
    help->command = command;
    snprintf(name, sizeof name, "%s", command->name);
    snprintf(help->name, sizeof help->name, "%s%s%s", group, *group ? " " : "", command->name);
    FILE *shown = stdout, *text = fmemopen(help->text, sizeof help->text, "w");
    if (!text)
        return false;
    rp_flags_on_help(keep_spec, help);
    stdout = text;
    int code = command->run(2, argv);
    stdout = shown;
    rp_flags_on_help(NULL, NULL);
    bool whole = fclose(text) == 0 && help->text[HELP_BYTES - 2] == '\0';
    return code == RP_EXIT_OK && whole && (help->spec || help->text[0]);
}

typedef void write_fn(const struct help *help, FILE *out);

/* Calls `write` for every command that is not a group, and for the members of groups. */
static bool for_each(const struct rp_command *commands, uint32_t count, const char *group,
                     write_fn *write, FILE *out) {
    static struct help help;
    bool read = true;
    for (uint32_t i = 0; i < count && read; i++)
        if (commands[i].members) {
            read = for_each(commands[i].members, commands[i].member_count, commands[i].name, write,
                            out);
        } else {
            read = read_help(group, &commands[i], &help);
            if (read)
                write(&help, out);
        }
    return read;
}

#define FLAG_LETTERS "abcdefghijklmnopqrstuvwxyz0123456789-"

/* The first flag at or after *at, without its dashes, or NULL; *at is then after it. */
static const char *find_text_flag(const char *text, const char **at, size_t *out_len) {
    const char *found = *at;
    while ((found = strstr(found, "--"))) {
        bool begins = found == text || isspace((unsigned char)found[-1]) || found[-1] == '[';
        *out_len = strspn(found + 2, FLAG_LETTERS);
        *at = found + 2 + *out_len;
        if (begins && *out_len)
            return found + 2;
        found = *at;
    }
    return NULL;
}

static bool is_repeated(const char *text, const char *flag, size_t len) {
    size_t other_len;
    for (const char *at = text, *other; (other = find_text_flag(text, &at, &other_len));)
        if (other_len == len && strncmp(other, flag, len) == 0)
            return other != flag;
    return false;
}

static bool is_on(const struct rp_flag *flag) {
    return flag->type == RP_FLAG_SWITCH && flag->default_value &&
           strcmp(flag->default_value, "true") == 0;
}

typedef void write_flag_fn(const char *name, size_t len, const struct rp_flag *flag, FILE *out);

/* Calls `write` for every flag that --help shows; flag: NULL where there is no table. */
static void for_each_flag(const struct help *help, write_flag_fn *write, FILE *out) {
    size_t len;
    for (uint32_t i = 0; help->spec && i < help->spec->flag_count; i++)
        if (help->spec->flags[i].help)
            write(help->spec->flags[i].name, strlen(help->spec->flags[i].name),
                  &help->spec->flags[i], out);
    for (const char *at = help->text, *name; (name = find_text_flag(help->text, &at, &len));)
        if (!is_repeated(help->text, name, len))
            write(name, len, NULL, out);
}

/* -- man page --------------------------------------------------------------------------------- */

static void write_roff(const char *text, FILE *out) {
    for (const char *at = text; *at; at++) {
        if ((at == text || at[-1] == '\n') && (*at == '.' || *at == '\''))
            fputs("\\&", out);
        if (*at == '-')
            fputs("\\-", out);
        else if (*at == '\\')
            fputs("\\e", out);
        else
            fputc(*at, out);
    }
}

static void write_man_flag(const char *name, size_t len, const struct rp_flag *flag, FILE *out) {
    (void)len;
    fputs(".TP\n\\fB", out);
    write_roff("--", out);
    write_roff(name, out);
    fputs("\\fR", out);
    if (flag->value_name) {
        fputs(" \\fI", out);
        write_roff(flag->value_name, out);
        fputs("\\fR", out);
    }
    fputc('\n', out);
    write_roff(flag->help, out);
    if (flag->default_value && flag->default_value[0]) {
        fputs(" (default ", out);
        write_roff(flag->default_value, out);
        fputc(')', out);
    }
    fputc('\n', out);
}

static void write_man(const struct help *help, FILE *out) {
    fputs(".SS \"reprise ", out);
    write_roff(help->name, out);
    if (help->spec && help->spec->positionals[0]) {
        fputc(' ', out);
        write_roff(help->spec->positionals, out);
    }
    fputs("\"\n", out);
    if (help->spec) {
        write_roff(help->spec->summary, out);
        fputc('\n', out);
        for_each_flag(help, write_man_flag, out);
    } else {
        fputs(".nf\n", out);
        write_roff(help->text, out);
        fputs(".fi\n", out);
    }
}

static const char man_head[] =
    ".TH REPRISE 1 \"\" \"reprise " RP_VERSION "\" \"User Commands\"\n"
    ".SH NAME\n"
    "reprise \\- serve large language models by replaying captured graphs\n"
    ".SH SYNOPSIS\n"
    ".B reprise\n"
    ".I COMMAND\n"
    "[\\fIARGUMENT\\fR ...]\n"
    ".SH DESCRIPTION\n"
    "reprise serves a model in the layout of Hugging Face with an HTTP API compatible with\n"
    "OpenAI's, on a CPU or an NVIDIA GPU. It captures each step of the model once per batch\n"
    "size as a graph and then replays it.\n"
    ".PP\n"
    "A flag is given as \\fB\\-\\-name\\fR \\fIvalue\\fR or \\fB\\-\\-name=\\fR\\fIvalue\\fR.\n"
    "A switch is turned off by \\fB\\-\\-no\\-name\\fR. The last one wins.\n"
    ".SH COMMANDS\n";

static const char man_tail[] =
    ".SS \"reprise help [COMMAND]\"\n"
    "Lists the commands, or the flags of one.\n"
    "\\fBreprise help \\-\\-man\\fR prints this page,\n"
    "\\fBreprise help \\-\\-completion bash\\fR or \\fBzsh\\fR the completion of a shell.\n"
    ".SH ENVIRONMENT\n"
    ".TP\n"
    ".B REPRISE_\\fINAME\\fR\n"
    "The value of a flag that is not on the command line: capitals, with underscores in place of\n"
    "dashes. \\fBREPRISE_PORT=9000\\fR is \\fB\\-\\-port 9000\\fR.\n"
    ".TP\n"
    ".B REPRISE_CUDA_MODULE\n"
    "The file of the CUDA module, instead of libreprise_cuda.so in the folder of the program.\n"
    ".SH EXIT STATUS\n"
    "0: success. 1: other failure. 2: usage. 3: files of a model. 4: device or memory.\n"
    "5: the port is in use. 70: the device failed while serving.\n"
    ".SH SIGNALS\n"
    "\\fBreprise serve\\fR ends after its requests on SIGTERM, at once on a second one, reads "
    "keys\n"
    "and certificate again on SIGHUP, and writes a trace to \\fB\\-\\-trace\\-dir\\fR on "
    "SIGUSR2.\n";

/* -- bash ------------------------------------------------------------------------------------- */

/* Words: --flag, or --flag=VALUE with the name of its value or its choices. */
static void write_bash_flag(const char *name, size_t len, const struct rp_flag *flag, FILE *out) {
    fprintf(out, " --%s%.*s", flag && is_on(flag) ? "no-" : "", (int)len, name);
    if (flag && flag->value_name)
        fputc('=', out);
    for (const char *at = flag ? flag->value_name : NULL; at && *at; at++)
        fputc(*at == ' ' || *at == '\'' ? '_' : *at, out);
}

static void write_bash(const struct help *help, FILE *out) {
    fprintf(out, "    '%s') list='--help", help->name);
    for_each_flag(help, write_bash_flag, out);
    fputs("' ;;\n", out);
}

static void write_names(const struct rp_command *commands, uint32_t count, FILE *out) {
    for (uint32_t i = 0; i < count; i++)
        fprintf(out, "%s%s", i ? " " : "", commands[i].name);
}

static bool write_bash_page(const struct rp_command *commands, uint32_t count, FILE *out) {
    fputs("# bash completion of reprise " RP_VERSION ": reprise help --completion bash\n"
          "_reprise() {\n"
          "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}\n"
          "    local command=${COMP_WORDS[1]-} list='' names=() entries=() entry\n"
          "    COMPREPLY=()\n"
          "    if ((COMP_CWORD == 1)); then\n"
          "        COMPREPLY=($(compgen -W '",
          out);
    write_names(commands, count, out);
    fputs(
        " help --help --version' -- \"$current\"))\n        return\n    fi\n    case $command in\n",
        out);
    for (uint32_t i = 0; i < count; i++) {
        if (!commands[i].members)
            continue;
        fprintf(out,
                "    %s)\n        command=\"$command ${COMP_WORDS[2]-}\"\n"
                "        ((COMP_CWORD > 2)) || command=group list='",
                commands[i].name);
        write_names(commands[i].members, commands[i].member_count, out);
        fputs("' ;;\n", out);
    }
    fputs("    help)\n        command=group list='", out);
    write_names(commands, count, out);
    fputs(" --man --completion=bash|zsh' ;;\n    esac\n    case $command in\n", out);
    bool read = for_each(commands, count, "", write_bash, out);
    fputs("    esac\n"
          "    read -ra entries <<<\"$list\"\n"
          "    for entry in \"${entries[@]}\"; do\n"
          "        names+=(\"${entry%%=*}\")\n"
          "        [[ $entry == \"$previous\"=* ]] || continue\n"
          "        case $entry in\n"
          "        *=*FILE* | *=*DIR* | *=*PATH*) compopt -o default ;;\n"
          "        *'|'*)\n"
          "            entry=${entry#*=}\n"
          "            COMPREPLY=($(compgen -W \"${entry//|/ }\" -- \"$current\")) ;;\n"
          "        esac\n"
          "        return\n"
          "    done\n"
          "    if [[ $current == -* || $command == group ]]; then\n"
          "        COMPREPLY=($(compgen -W \"${names[*]}\" -- \"$current\"))\n"
          "    else\n"
          "        compopt -o default\n"
          "    fi\n"
          "}\n"
          "complete -F _reprise reprise\n",
          out);
    return read;
}

/* -- zsh -------------------------------------------------------------------------------------- */

/* Inside single quotes; colons and brackets end a field of _arguments and _describe. */
static void write_zsh_text(const char *text, FILE *out) {
    for (const char *at = text; *at; at++) {
        if (*at == '\'')
            fputs("'\\'", out);
        else if (strchr(":[]\\", *at))
            fputc('\\', out);
        fputc(*at, out);
    }
}

static void write_zsh_flag(const char *name, size_t len, const struct rp_flag *flag, FILE *out) {
    fprintf(out, " \\\n            '--%s%.*s", flag && is_on(flag) ? "no-" : "", (int)len, name);
    if (!flag) {
        fputc('\'', out);
        return;
    }
    fputs(flag->value_name ? "=[" : "[", out);
    write_zsh_text(flag->help, out);
    fputc(']', out);
    if (flag->type == RP_FLAG_CHOICE) {
        fputs(":value:(", out);
        for (const char *at = flag->value_name; *at; at++)
            fputc(*at == '|' ? ' ' : *at, out);
        fputc(')', out);
    } else if (flag->value_name) {
        const char *value = flag->value_name;
        fputc(':', out);
        write_zsh_text(value, out);
        fputs(strstr(value, "FILE") || strstr(value, "DIR") || strstr(value, "PATH") ? ":_files"
                                                                                     : ": ",
              out);
    }
    fputc('\'', out);
}

static void write_zsh(const struct help *help, FILE *out) {
    fprintf(out, "    '%s')\n        _arguments '--help[show the flags]'", help->name);
    for_each_flag(help, write_zsh_flag, out);
    fputs(" \\\n            '*:file:_files' ;;\n", out);
}

static void write_zsh_names(const struct rp_command *commands, uint32_t count, FILE *out) {
    for (uint32_t i = 0; i < count; i++) {
        fputs(" \\\n            '", out);
        write_zsh_text(commands[i].name, out);
        fputc(':', out);
        write_zsh_text(commands[i].summary, out);
        fputc('\'', out);
    }
    fputs(")\n            _describe command names\n            return\n", out);
}

static bool write_zsh_page(const struct rp_command *commands, uint32_t count, FILE *out) {
    fputs("#compdef reprise\n"
          "# zsh completion of reprise " RP_VERSION ": reprise help --completion zsh\n"
          "_reprise() {\n"
          "    local command=$words[2]\n"
          "    local -a names\n"
          "    if ((CURRENT == 2)) || [[ $command == help ]]; then\n"
          "            names=('help:list the flags of a command'",
          out);
    write_zsh_names(commands, count, out);
    fputs("    fi\n    shift words\n    ((CURRENT--))\n    case $command in\n", out);
    for (uint32_t i = 0; i < count; i++) {
        if (!commands[i].members)
            continue;
        fprintf(out, "    %s)\n        if ((CURRENT == 2)); then\n            names=(",
                commands[i].name);
        write_zsh_names(commands[i].members, commands[i].member_count, out);
        fputs("        fi\n        command=\"$command $words[2]\"\n        shift words\n"
              "        ((CURRENT--)) ;;\n",
              out);
    }
    fputs("    esac\n    case $command in\n", out);
    bool read = for_each(commands, count, "", write_zsh, out);
    fputs("    esac\n}\n_reprise \"$@\"\n", out);
    return read;
}

bool rp_help_page(const char *kind, const struct rp_command *commands, uint32_t count, FILE *out) {
    if (strcmp(kind, "bash") == 0)
        return write_bash_page(commands, count, out);
    if (strcmp(kind, "zsh") == 0)
        return write_zsh_page(commands, count, out);
    if (strcmp(kind, "man") != 0)
        return false;
    fputs(man_head, out);
    bool read = for_each(commands, count, "", write_man, out);
    fputs(man_tail, out);
    return read;
}
