#!/usr/bin/env python3
"""Compares `reprise template` with the jinja2 package, byte for byte, errors included.

jinja2 is configured as in transformers: immutable sandbox, trim_blocks, lstrip_blocks, loop controls, the tag
generation, tojson by json.dumps, raise_exception, strftime_now. It renders the templates of the test data and of
chat_cases.py, each with every conversation, templates that must be refused, and mutations of all of them.
"""
import argparse
import datetime
import glob
import json
import os
import random
import re
import subprocess
import sys
import time
import traceback

from chat_cases import BROKEN, FEATURES, conversations

try:
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("SKIP: the Python package 'jinja2' is not installed")
    sys.exit(77)

NOW = 1721990000  # a day in July 2024


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("render"), [], [], body).set_lineno(line)

    def render(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.fromtimestamp(NOW).strftime(form)
    return env


def line_of(error):
    if isinstance(error, jinja2.TemplateSyntaxError):
        return error.lineno
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == "<template>"]
    return lines[-1] if lines else 0


def by_jinja2(env, compiled, source, variables):
    try:
        if source not in compiled:
            compiled[source] = env.from_string(source)
        if isinstance(compiled[source], dict):
            return compiled[source]
        return {"text": compiled[source].render(**variables)}
    except Exception as error:  # whatever a template makes Python raise
        result = {"error": type(error).__name__, "line": line_of(error), "message": str(error.args[0] if error.args else error)}
        if source not in compiled:
            compiled[source] = result
        return result


def by_reprise(binary, cases):
    lines = "".join(json.dumps({"template": t, "variables": v}) + "\n" for _, t, v in cases)
    done = subprocess.run([binary, "template", "--lines", "--now", str(NOW)], input=lines.encode(), capture_output=True,
                          timeout=280)
    if done.returncode != 0:
        print(done.stderr.decode()[-2000:])
        sys.exit(f"reprise template ended with {done.returncode}")
    return [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]


# Where Python's message depends on its version or on the form of a filter, only kind and line are compared.
OUR_WORDS = ("TypeError", "ValueError", "AttributeError", "AssertionError", "FilterArgumentError", "KeyError", "IndexError",
             "RuntimeError", "OverflowError")
SAME_WORDS = ("can only concatenate", "unsupported operand", "not supported between", "is not iterable", "has no len()", "macro ",
              "requires string", "JSON serializable", "not callable", "unpack")


def differs_on_purpose(theirs, ours):
    """Integers have 64 bits, addresses are not shown, and jinja2 lets slices of constants pass that fail otherwise."""
    return (ours.get("error") in ("OverflowError", "BudgetError") or " at 0x" in theirs.get("text", "")
            or ours.get("message", "").startswith(("slice indices", "integers of more")) or theirs.get("error") == "RecursionError")


def same(theirs, ours):
    if "text" in theirs or "text" in ours:
        return theirs.get("text") == ours.get("text")
    if theirs["error"] != ours["error"] or theirs["line"] not in (0, ours["line"]):
        return False  # 0: Python's compiler found it, which knows no lines of templates
    if theirs["error"] in OUR_WORDS and not any(w in theirs["message"] for w in SAME_WORDS):
        return True
    # Python's compiler names variables as jinja2 does in its code.
    return re.sub(r"'l_\d+_", "'", theirs["message"])[:300] == ours["message"][:300]


def templates(data):
    for path in sorted(glob.glob(os.path.join(data, "templates", "*.jinja"))):
        with open(path, encoding="utf-8") as file:
            yield os.path.basename(path), file.read()
    path = os.path.join(data, "templates", "rendered_cases.json")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            for case in json.load(file)["cases"]:
                yield case["name"], case["template"]
    yield from FEATURES.items()


def check_cases(binary, env, compiled, data, show):
    cases, bad = [], 0
    talks = conversations()
    for name, source in templates(data):
        cases += [(f"{name} / {talk}", source, variables) for talk, variables in talks.items()]
    cases += [(f"refused {i}", source, talks["system"]) for i, source in enumerate(BROKEN)]
    ours = by_reprise(binary, cases)
    assert len(ours) == len(cases), (len(ours), len(cases))
    errors = 0
    for (name, source, variables), result in zip(cases, ours):
        want = by_jinja2(env, compiled, source, variables)
        errors += "error" in want
        if not same(want, result):
            bad += 1
            if bad <= show:
                got = {k: v for k, v in result.items() if k != "spans"}
                print(f"{name}:\n  template {source[:300]!r}\n  jinja2   {want}\n  reprise  {got}")
    return len(cases), errors, bad


PIECES = re.compile(r"\\{%-?|-?%\\}|\\{\\{-?|-?\\}\\}|\\w+|\\s+|'[^']*'|.", re.S)


def mutate(rng, source, pool):
    """A few tokens dropped, doubled, swapped, or replaced by some of another template."""
    parts = PIECES.findall(source)
    for _ in range(rng.randrange(1, 4)):
        if not parts:
            break
        at, what = rng.randrange(len(parts)), rng.randrange(5)
        if what == 0:
            del parts[at]
        elif what == 1:
            parts.insert(at, rng.choice(parts))
        elif what == 2:
            other = rng.randrange(len(parts))
            parts[at], parts[other] = parts[other], parts[at]
        else:
            parts[at] = rng.choice(pool)
    return "".join(parts)


def check_mutations(binary, env, compiled, data, seed, count, show):
    rng, talks, bad = random.Random(seed), conversations(), 0
    sources = [source for _, source in templates(data) if len(source) < 3000]
    pool = [p for source in FEATURES.values() for p in PIECES.findall(source)]
    cases = []
    for _ in range(count):
        talk = rng.choice(list(talks))
        cases.append((talk, mutate(rng, rng.choice(sources), pool), talks[talk]))
    errors = 0
    for (talk, source, variables), ours in zip(cases, by_reprise(binary, cases)):
        theirs = by_jinja2(env, compiled, source, variables)
        errors += "error" in theirs
        if not same(theirs, ours) and not differs_on_purpose(theirs, ours):
            bad += 1
            if bad <= show:
                got = {k: v for k, v in ours.items() if k != "spans"}
                print(f"mutation / {talk}:\n  template {source!r}\n  jinja2   {theirs}\n  reprise  {got}")
    return len(cases), errors, bad


def main():
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default=os.environ.get("REPRISE_BIN", os.path.join(here, "build/release/reprise")))
    parser.add_argument("--data", default=os.environ.get("REPRISE_TEST_DATA") or os.path.join(here, "..", "shared", "data"))
    parser.add_argument("--show", type=int, default=10)
    parser.add_argument("--mutations", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.environ["TZ"] = "UTC"
    time.tzset()
    print(f"jinja2 {jinja2.__version__}")
    if not os.path.isdir(os.path.join(args.data, "templates")):
        print("test data not found: templates (only our own are compared)")
    count, errors, bad = check_cases(args.bin, environment(), {}, args.data, args.show)
    print(f"{count} renderings, {errors} of them errors: {bad} differences")
    if args.mutations:
        count, errors, more = check_mutations(args.bin, environment(), {}, args.data, args.seed, args.mutations, args.show)
        print(f"{count} mutations, {errors} of them errors: {more} differences")
        bad += more
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
