/* commands.h - one function for each subcommand; argv[0] is the command's name. */
#ifndef RP_SERVER_COMMANDS_H
#define RP_SERVER_COMMANDS_H

int rp_cmd_tokenize(int argc, char **argv);

#endif
