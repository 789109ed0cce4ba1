"""Fails on comments that are hard to read and on functions that are too long.

  check_text.py [ROOT]       prints file:line and the rule
  check_text.py --self-test  plants violations in temporary trees and expects each to be found

Rules, for C and CUDA sources:
- a comment stays within 100 columns, but for drawings and commands (indented by two spaces or more, or with |);
- a declaration is not torn apart by its trailing comment: the comment goes above it;
- no comment begins with "Of": it is a sentence without its subject;
- no function has more than 120 lines.
"""
import os
import re
import sys

import c_source

COLUMNS = 100
FUNCTION_LINES = 120

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
PREFORMATTED = re.compile(r"^\s*(/\*|\*)\s{2,}\S|\|")
TORN = re.compile(r"^[ \t]*(?:(?:static|const|struct|enum|unsigned|_Atomic) )*[a-z_]\w*(?: \*+)?[ \t]*\n"
                  r"[ \t]+[*\w\[\]]+;[ \t]*/\*", re.M)
TYPE = re.compile(r"^(template <.*> )?(static |const )*(struct|union|enum|namespace)\b[^()]*\{")
STATEMENT = re.compile(r"\s*(else|do|return|break|continue|default|goto)\b")


def comment_problems(text):
    for match in COMMENT.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if re.match(r"(/\*+|//)\s*Of [a-z]", match.group(0)):
            yield line, 'a comment begins with "Of"'
        begin = text.rfind("\n", 0, match.start()) + 1
        end = text.find("\n", match.end())
        lines = text[begin:end if end >= 0 else len(text)].split("\n")
        for i, content in enumerate(lines):
            if len(content) > COLUMNS and not PREFORMATTED.search(content) and not content.endswith("\\"):
                yield line + i, f"a comment reaches column {len(content)} of {COLUMNS}"


def torn_problems(text):
    for match in TORN.finditer(text):
        if not STATEMENT.match(match.group(0)):
            yield text.count("\n", 0, match.start()) + 1, "a declaration is torn by its comment: put the comment above"


def function_problems(text):
    """A function's body begins with { at the end of an unindented line, or alone on one, and ends with } alone."""
    begin, opens = None, None
    lines = c_source.without_comments(text).split("\n")
    for number, content in enumerate(lines, 1):
        if content[:1] not in ("", " ", "\t", "}", "{", "#"):
            opens = number if opens is None or begin is None else opens
            if not content.rstrip().endswith((";", "{", ",", "(")) and not content.rstrip().endswith(")"):
                opens = number
            if content.rstrip().endswith(";"):
                opens = None
        if TYPE.search(content):
            begin = opens = None
            continue
        if (content.rstrip().endswith(") {") or content.rstrip() == "{") and begin is None and content[:1] not in (" ", "\t"):
            begin = opens or number
        elif content.rstrip().endswith(") {") and begin is None and opens is not None and content[:1] in (" ", "\t"):
            begin = opens
        if content.startswith("}"):
            if begin is not None and number - begin + 1 > FUNCTION_LINES:
                yield begin, f"a function of {number - begin + 1} lines, at most {FUNCTION_LINES}: it is several"
            begin = opens = None


def check(root):
    """Returns [(path, line, message)]."""
    problems = []
    for path in c_source.files(root, c_source.C_SUFFIXES):
        text = c_source.read(root, path)
        for find in (comment_problems, torn_problems, function_problems):
            problems += [(path, line, message) for line, message in find(text)]
    return problems


LONG = "x" * 120
BODY = "    call();\n"
CASES = [
    ("what is allowed passes", {
        "base/a.c": "/* Offers a thing. */\n/* a drawing:\n *   " + LONG + "\n * | " + LONG + " |\n */\n"
                    "    int a; /* short */\nstatic const char *s = \"/* Of a string\";\n"
                    "    struct a\n        b; \n" "int f(void) {\n" + BODY * 117 + "}\n"}, []),
    ("a comment past the margin", {"base/a.c": "\n/* " + LONG + " */\n", "base/b.h": "/* a\n * " + LONG + "\n */\n",
                                   "base/c.h": "    int a; /* " + LONG + " */\n"},
     [("base/a.c", 2, "column 126"), ("base/b.h", 2, "column 123"), ("base/c.h", 1, "column 137")]),
    ("Of", {"base/a.c": "int a;\n/* Of the caller. */\n", "base/b.cu": "int a; // Of it\n"},
     [("base/a.c", 2, '"Of"'), ("base/b.cu", 1, '"Of"')]),
    ("a torn declaration", {"base/a.h": "struct a {\n    uint32_t\n        count; /* of things */\n    const float *\n"
                                        "        data; /* (count) */\n};\n"},
     [("base/a.h", 2, "torn"), ("base/a.h", 4, "torn")]),
    ("a long function", {"base/a.c": "int g;\nint f(void) {\n" + BODY * 119 + "}\n",
                         "base/b.c": "static int f(int a,\n             int b) {\n" + BODY * 119 + "}\n"},
     [("base/a.c", 2, "121 lines"), ("base/b.c", 1, "122 lines")]),
]


def main(arguments):
    if arguments == ["--self-test"]:
        return 1 if c_source.self_test(check, CASES) else 0
    root = arguments[0] if arguments else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    return c_source.report("check_text", check(root), len(c_source.files(root, c_source.C_SUFFIXES)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
