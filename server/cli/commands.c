#include "server/cli/commands.h"

#include "server/cli/flags.h"

#include <stdio.h>
#include <string.h>

int rp_cmd_group(const char *name, const struct rp_command *members, uint32_t count, int argc,
                 char **argv) {
    for (uint32_t i = 0; argc > 1 && i < count; i++)
        if (strcmp(argv[1], members[i].name) == 0)
            return members[i].run(argc - 1, argv + 1);
    bool help = argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    FILE *out = help ? stdout : stderr;
    fprintf(out, "usage: reprise %s WHAT [flags]\n\n", name);
    for (uint32_t i = 0; i < count; i++)
        fprintf(out, "  %-13s %s\n", members[i].name, members[i].summary);
    return help ? RP_EXIT_OK : RP_EXIT_USAGE;
}
