/* grammar_format.c - formats of strings as patterns.
 * Each pattern accepts only texts that the format's RFC accepts, and the usual ones of them. */
#include "text/grammar/grammar_schema.h"

#include <string.h>

#define YEAR      "(?:\\d{4})"
#define LEAP_YEAR "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
#define DAY                                                                                        \
    "(?:" YEAR                                                                                     \
    "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|"         \
    "02-(?:0[1-9]|1\\d|2[0-8]))|" LEAP_YEAR "-02-29)"
#define ZONE   "(?:[Zz]|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define CLOCK  "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d+)?"
#define BYTE   "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4   BYTE "\\." BYTE "\\." BYTE "\\." BYTE
#define LABEL  "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define H      "[0-9a-fA-F]{1,4}"
#define LAST32 "(?:" H ":" H "|" IPV4 ")"
#define IPV6                                                                                       \
    "(?:(?:" H ":){6}" LAST32 "|::(?:" H ":){5}" LAST32 "|(?:" H ")?::(?:" H ":){4}" LAST32        \
    "|(?:(?:" H ":){0,1}" H ")?::(?:" H ":){3}" LAST32 "|(?:(?:" H ":){0,2}" H ")?::(?:" H         \
    ":){2}" LAST32 "|(?:(?:" H ":){0,3}" H ")?::" H ":" LAST32 "|(?:(?:" H ":){0,4}" H             \
    ")?::" LAST32 "|(?:(?:" H ":){0,5}" H ")?::" H "|(?:(?:" H ":){0,6}" H ")?::)"
/* RFC 3986 */
#define PCT           "%[0-9A-Fa-f]{2}"
#define PCHAR         "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|" PCT ")"
#define USER          "(?:[A-Za-z0-9._~!$&'()*+,;=:-]|" PCT ")*"
#define REGNAME       "(?:[A-Za-z0-9._~!$&'()*+,;=-]|" PCT ")*"
#define HOST          "(?:\\[" IPV6 "\\]|" REGNAME ")"
#define REST          "(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?"
#define AUTHORITY     "//(?:" USER "@)?" HOST "(?::\\d*)?(?:/" PCHAR "*)*"
#define ABSOLUTE      "/(?:" PCHAR "+(?:/" PCHAR "*)*)?"
#define ROOTLESS      PCHAR "+(?:/" PCHAR "*)*"
#define NO_COLON      "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|" PCT ")+(?:/" PCHAR "*)*"
#define URI           "[A-Za-z][A-Za-z0-9+.-]*:(?:" AUTHORITY "|" ABSOLUTE "|" ROOTLESS ")?" REST
#define POINTER       "(?:/(?:[^~/]|~[01])*)*"
#define DURATION_TIME "T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S)"
#define DURATION_DAY  "(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)"
#define ATOM          "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"

/* A part of ECMAScript's syntax that other engines read likewise. */
#define R_ESCAPE "\\\\[dDwWsStnrfv.*+?^$(){}|/\\[\\]\\\\-]"
#define R_CLASS  "\\[\\^?(?:[A-Za-z0-9_ .,:;/@#%+*]|a-z|A-Z|0-9|" R_ESCAPE ")+\\]"
/* n,m with n <= m: of one digit, or m has one more */
#define R_RANGE                                                                                    \
    "(?:[01],[1-9]|2,[2-9]|3,[3-9]|4,[4-9]|5,[5-9]|6,[6-9]|7,[7-9]|8,[89]|9,9|\\d,[1-9]\\d|"       \
    "[1-9]\\d,[1-9]\\d\\d)"
#define R_TIMES  "(?:[*+?]\\??|\\{(?:[1-9]\\d?,?|" R_RANGE ")\\})?"
#define R_ATOM   "(?:[^\\\\\\[\\](){}*+?|^$]|" R_ESCAPE "|" R_CLASS ")" R_TIMES
#define R_GROUP  "\\((?:\\?:)?(?:" R_ATOM ")+(?:\\|(?:" R_ATOM ")+)*\\)" R_TIMES
#define REGEX    "\\^?(?:" R_ATOM "|" R_GROUP ")*\\$?"
#define TEMPLATE "(?:[A-Za-z0-9._~!$&()*+,;=:@/?#-]|" PCT "|\\{[A-Za-z0-9_]+\\})*"

struct format {
    const char *name, *pattern, *outline;
};

static const struct format *find(const char *name) {
    static const struct format formats[] = {
        {"date-time", DAY "[Tt]" CLOCK ZONE, "\\d{4}-.*"},
        {"date", DAY, "\\d{4}-?.*"},
        {"time", CLOCK ZONE, "\\d\\d.*"},
        {"duration", "P(?:" DURATION_DAY "(?:" DURATION_TIME ")?|" DURATION_TIME "|\\d+W)", "P.*"},
        {"email", ATOM "(?:\\." ATOM ")*@" LABEL "(?:\\." LABEL ")*", "[^]*@[^]*"},
        {"idn-email", ATOM "(?:\\." ATOM ")*@" LABEL "(?:\\." LABEL ")*", "[^]*@[^]*"},
        /* 4 labels of 63 characters have at most 255 */
        {"hostname", LABEL "(?:\\." LABEL "){0,2}(?:\\.[A-Za-z0-9]{1,61})?", "[A-Za-z0-9._-]*"},
        {"idn-hostname", LABEL "(?:\\." LABEL "){0,2}(?:\\.[A-Za-z0-9]{1,61})?", "[^ ]*"},
        {"ipv4", IPV4, "[0-9.]*"},
        {"ip-address", IPV4, "[0-9.]*"},
        {"ipv6", IPV6, "[0-9A-Fa-f:.]*(?:%.*)?"},
        {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
         "[^]*[0-9a-fA-F]{4}[^]*"},
        {"uri", URI, "[A-Za-z][A-Za-z0-9+.-]*:[^]*"},
        {"iri", URI, "[A-Za-z][A-Za-z0-9+.-]*:[^]*"},
        {"uri-reference", "(?:" URI "|(?:" AUTHORITY "|" ABSOLUTE "|" NO_COLON ")?" REST ")",
         "[^]*"},
        {"iri-reference", "(?:" URI "|(?:" AUTHORITY "|" ABSOLUTE "|" NO_COLON ")?" REST ")",
         "[^]*"},
        {"json-pointer", POINTER, "(?:/[^]*)?"},
        {"relative-json-pointer", "(?:0|[1-9]\\d*)(?:#|" POINTER ")", "\\d[^]*"},
        {"uri-template", TEMPLATE, "[^]*"},
        {"regex", REGEX, "[^]*"},
    };
    for (size_t i = 0; i < RP_ARRAY_COUNT(formats); i++)
        if (strcmp(name, formats[i].name) == 0)
            return &formats[i];
    return NULL;
}

const char *schema_format_pattern(const char *name) {
    const struct format *f = find(name);
    return f ? f->pattern : "";
}

const char *schema_format_outline(const char *name) {
    const struct format *f = find(name);
    return f ? f->outline : NULL;
}
