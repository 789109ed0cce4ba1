"""Fails on functions that must not be called, on file names that occur twice, and on tests that docs/promises.md names and
that do not exist.

  check_names.py [ROOT]       prints file:line and the rule; files that grew too long are only named
  check_names.py --self-test  plants violations in temporary trees and expects each to be found
"""
import os
import re
import sys

import c_source

# Function -> what to use instead. Everywhere, tests too.
BANNED = {
    "sprintf": "snprintf", "vsprintf": "vsnprintf", "strcpy": "memcpy with a checked length",
    "strcat": "struct rp_buffer", "stpcpy": "memcpy with a checked length", "strtok": "strcspn",
    "gets": "fgets", "alloca": "an arena",
    "localtime": "localtime_r", "gmtime": "gmtime_r", "ctime": "strftime", "asctime": "strftime",
}
# Tests can fail the n-th allocation only if all of them pass one door.
ALLOCATORS = {name: "base/memory.h" for name in (
    "malloc", "calloc", "realloc", "free", "strdup", "strndup", "asprintf", "vasprintf",
    "aligned_alloc", "posix_memalign", "reallocarray")}
# The door itself, and files that must hand a library its own kind of memory: path -> reason.
MAY_ALLOCATE = {"base/memory.c": "the door", "server/sandbox.c": "names that libseccomp allocates"}
# Tests and tools are not part of the program.
NOT_THE_PROGRAM = ("tests/", "tools/")

# A file aims at 300 lines and argues at 600: path -> why it is one idea all the same.
LONG_FILES = {}
LINES_MAX = 600

# Each of these names is unique in the tree, so that a name alone says which file is meant.
UNIQUE_SUFFIXES = c_source.C_SUFFIXES + (".py", ".sh", ".cmake", ".md")
MAY_REPEAT = ("README.md", "CMakeLists.txt")

# A call, but neither a member (x.free, x->free) nor a longer name (rp_free).
CALL = re.compile(r"(?<![\w.])(?<!->)(%s)\s*\(" % "|".join([*BANNED, *ALLOCATORS]))

PROMISES = "docs/promises.md"
TEST_FILES = ("test_{}.c", "test_{}.cu", "test_{}.py", "{}.py", "{}.c", "fuzz_{}.c")


def missing_tests(root):
    """Tests in backquotes, folder.stem, that have no file."""
    if not os.path.exists(os.path.join(root, PROMISES)):
        return
    for number, line in enumerate(c_source.read(root, PROMISES).splitlines(), 1):
        for folder, stem in re.findall(r"`([a-z]+)\.([a-z0-9_]+)`", line) if line.startswith("| ") else ():
            stem = "scheduler_mutant" if stem.startswith("scheduler_mutant_") else stem
            if not any(os.path.exists(os.path.join(root, "tests", folder, name.format(stem))) for name in TEST_FILES):
                yield PROMISES, number, f"there is no test {folder}.{stem}"


def check(root):
    """Returns [(path, line, message)]."""
    problems, first_with = [*missing_tests(root)], {}
    for path in c_source.files(root, UNIQUE_SUFFIXES):
        name = path.rsplit("/", 1)[-1]
        if name not in MAY_REPEAT and first_with.setdefault(name, path) != path:
            problems.append((path, 1, f"the name is taken by {first_with[name]}"))
    for path in c_source.files(root, c_source.C_SUFFIXES):
        text = c_source.without_comments(c_source.read(root, path))
        for match in CALL.finditer(text):
            function, line = match.group(1), text.count("\n", 0, match.start()) + 1
            if function in BANNED:
                problems.append((path, line, f"{function}() is not used here: {BANNED[function]}"))
            elif path not in MAY_ALLOCATE and not path.startswith(NOT_THE_PROGRAM):
                problems.append((path, line, f"{function}() goes through {ALLOCATORS[function]}"))
    return problems


def long_files(root):
    for path in c_source.files(root, c_source.C_SUFFIXES + (".py", ".sh")):
        lines = c_source.read(root, path).count("\n")
        if lines > LINES_MAX and path not in LONG_FILES:
            yield path, lines


CASES = [
    ("what is allowed passes", {
        "base/memory.c": "void *p = malloc(1); free(p);\n",
        "base/a.c": '/* free(x) */\nconst char *s = "sprintf(";\nrp_free(p);\npool->free(p);\npool.free (p);\n'
                    "localtime_r(&t, &parts);\nsnprintf(a, b, c);\n",
        "tests/base/test_a.c": "char *p = malloc(1);\n",
        "base/README.md": "", "engine/README.md": ""}, []),
    ("banned functions, in tests too",
     {"base/a.c": "\nsprintf(a, b);\nstrcpy (a, b); strtok(a, b);\n", "tests/base/test_a.c": "x = localtime(&t);\n"},
     [("base/a.c", 2, "snprintf"), ("base/a.c", 3, "strcpy()"), ("base/a.c", 3, "strtok()"),
      ("tests/base/test_a.c", 1, "localtime_r")]),
    ("memory past the door", {"engine/e.c": "p = malloc(1);\nfree(p);\n(void)strdup(x);\n"},
     [("engine/e.c", 1, "malloc()"), ("engine/e.c", 2, "free()"), ("engine/e.c", 3, "strdup()")]),
    ("promised tests that are missing",
     {"docs/promises.md": "a `b.c` in a sentence\n| 1 | x | `engine.a`, `engine.gone` |\n", "tests/engine/test_a.c": ""},
     [("docs/promises.md", 2, "engine.gone")]),
    ("a name that occurs twice", {"base/util.h": "", "engine/util.h": ""}, [("engine/util.h", 1, "base/util.h")]),
]


def main(arguments):
    if arguments == ["--self-test"]:
        return 1 if c_source.self_test(check, CASES) else 0
    root = arguments[0] if arguments else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    for path, lines in long_files(root):
        print(f"{path}:1: warning: {lines} lines; argue for it in LONG_FILES of check_names.py or split it")
    return c_source.report("check_names", check(root), len(c_source.files(root, UNIQUE_SUFFIXES)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
