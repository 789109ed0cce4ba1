#!/usr/bin/env python3
"""Compares a template's string methods with Python's on every character that Python knows.

    python3 tests/oracle/python_case_oracle.py --bin build/release/reprise

Ours follow Unicode 16, as in Python 3.14; CHANGED lists the differences of an older Python (3.11 has
Unicode 14) on characters that it knows. Of runs of ideographs and Hangul only the first and last
characters are tested.
"""
import argparse
import json
import os
import subprocess
import sys
import unicodedata

CASES = ("upper", "lower", "title", "swapcase", "capitalize")
TESTS = ("isupper", "islower", "istitle", "isalpha", "isalnum", "isdigit", "isdecimal", "isnumeric", "isspace")
CHANGED = set() if unicodedata.unidata_version >= "16" else set("\u019b\u0264\u10fc\ua7f2\ua7f3\ua7f4\uab69")
LINE = 200


def alike(char):
    """Inside a run of characters of one kind."""
    def kind(c):
        return unicodedata.category(c), unicodedata.numeric(c, None), unicodedata.bidirectional(c)
    code = ord(char)
    return code > 0x3400 and all(kind(chr(code + d)) == kind(char) == (("Lo", None, "L"))
                                 for d in (-1, 1) if 0xDFFF != code + d and code + d < 0x110000)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default=os.environ.get("REPRISE_BIN", "build/debug/reprise"))
    args = parser.parse_args()
    chars = [c for c in map(chr, range(1, 0x110000))
             if unicodedata.category(c) not in ("Cn", "Cs", "Co") and c != "|" and c not in CHANGED
             and not alike(c)]
    lines = [chars[i:i + LINE] for i in range(0, len(chars), LINE)]
    failures = 0
    for method in CASES + TESTS:
        template = "{%% for c in x %%}{{ c.%s() }}|{%% endfor %%}" % method
        done = subprocess.run([args.bin, "template", "--lines"], stdout=subprocess.PIPE, check=True,
                              input="".join(json.dumps({"template": template, "variables": {"x": line}}) + "\n"
                                            for line in lines).encode())
        out = done.stdout.decode().split("\n")[:-1]
        if len(out) != len(lines):
            sys.exit(f"{method}: {len(out)} lines for {len(lines)}")
        for line, answer in zip(lines, out):
            answer = json.loads(answer)
            ours = (answer["text"] if isinstance(answer, dict) else answer).split("|")
            bad = [c for c, got in zip(line, ours) if got != str(getattr(c, method)())]
            failures += len(bad)
            for c in bad[:2]:
                print(f"{method} of U+{ord(c):04X}: Python {getattr(c, method)()!r}")
    print(f"{len(CASES + TESTS)} methods, {len(chars)} characters: {failures} differences")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
