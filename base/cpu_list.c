#include "base/cpu_list.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_number(const char **at, unsigned *out) {
    char *end;
    if (!isdigit((unsigned char)**at))
        return false;
    unsigned long value = strtoul(*at, &end, 10);
    *at = end;
    *out = (unsigned)RP_MIN(value, (unsigned long)CPU_SETSIZE);
    return true;
}

int rp_cpu_list_parse(const char *text, cpu_set_t *out, struct rp_error *err) {
    const char *at = text;
    CPU_ZERO(out);
    for (;;) {
        unsigned first, last;
        const char *begin = at;
        bool good = read_number(&at, &first);
        last = first;
        if (good && *at == '-') {
            at++;
            good = read_number(&at, &last);
        }
        bool end = *at == '\0' || strcmp(at, "\n") == 0;
        if (!good || (!end && *at != ','))
            return rp_error_set(
                err, RP_STATUS_INVALID,
                "\"%.200s\" is no list of processors at byte %zu; an example: 0-3,8", text,
                (size_t)(at - text));
        if (last < first || last >= CPU_SETSIZE)
            return rp_error_set(err, RP_STATUS_INVALID, "\"%.*s\": %s", (int)(at - begin), begin,
                                last < first ? "the range runs backwards"
                                             : "there is no processor of this number");
        for (unsigned cpu = first; cpu <= last; cpu++)
            CPU_SET(cpu, out);
        if (end)
            return RP_OK;
        at++;
    }
}

void rp_cpu_list_format(const cpu_set_t *set, char *out, size_t size) {
    size_t len = 0;
    out[0] = '\0';
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        char part[32];
        int last = cpu;
        if (!CPU_ISSET(cpu, set))
            continue;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set))
            last++;
        int n = last == cpu ? snprintf(part, sizeof part, "%s%d", len ? "," : "", cpu)
                            : snprintf(part, sizeof part, "%s%d-%d", len ? "," : "", cpu, last);
        if (len + (size_t)n + sizeof ",..." > size) {
            snprintf(out + len, size - len, ",...");
            return;
        }
        memcpy(out + len, part, (size_t)n + 1);
        len += (size_t)n;
        cpu = last;
    }
}
