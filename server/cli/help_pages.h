/* help_pages.h - the man page and the shell completions, from the tables that --help prints.
 *
 * Every command is run with --help. A command with a table of flags yields its rp_command_spec; the
 * text of any other is captured, and the words in it that begin with two dashes are its flags. */
#ifndef RP_SERVER_HELP_PAGES_H
#define RP_SERVER_HELP_PAGES_H

#include "server/cli/commands.h"

#include <stdio.h>

/* `kind`: "man" (reprise(1), for troff), "bash" or "zsh". False: no such kind, or the help of a
 * command could not be read. Thread: one; replaces stdout while it runs. */
bool rp_help_page(const char *kind, const struct rp_command *commands, uint32_t count, FILE *out);

#endif
