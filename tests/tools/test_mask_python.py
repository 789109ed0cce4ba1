"""tools/mask_python.py and the program agree on the mask language: pictures of programs with few brackets."""
import os
import random
import subprocess
import sys

from reprise_server import BIN, SOURCE

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(SOURCE, "tools"))

import mask_python

SIZE, HEAD, LAYER, PROGRAMS = 12, 3, 1, 250
DECLARED = "param w = 3 in 1..9; param shift = -2 in -4..4; "


def div(a, b):
    return int(a / b)


ENVIRONMENT = {"where": lambda c, a, b: a if c else b, "div": div, "mod": lambda a, b: a - b * div(a, b), "absolute": abs}


def integer(r, length):
    """Adjacent operators, whose precedence determines the meaning."""
    text = ""
    for i in range(length):
        sign = "" if i == 0 else r.choice([" + ", " - ", " - ", " * ", " / ", " % "])
        divides = sign in (" / ", " % ")
        term = r.choice(["2", "3", "w", "7", "-5"] if divides else ["q", "kv", "kv", "q", "h", "layer", "shift", "w", "1", "-4", "6"])
        if not divides and r.random() < 0.25:
            term = r.choice(["-q", "- -kv", "abs(q - kv)", "min(q, 2 * kv)", "max(kv - 3, w)", "(kv - q)", "(q < 4 ? kv : h)"])
        text += sign + term
    return text


def comparison(r):
    kind = r.random()
    if kind < 0.35:
        return r.choice(["causal", "sliding_window(4)", "sink(w)", "prefix_lm(3)", "chunked(w + 1)", "dilated(w)", "document(3, 7)",
                         "sliding_window(2 * h - 1)", "true", "!causal", "!sink(2)"])
    text = integer(r, r.randint(1, 4)) + r.choice([" < ", " <= ", " > ", " >= ", " == ", " != "]) + integer(r, r.randint(1, 2))
    return text if kind < 0.85 else f"!({text})"


def program(r):
    text = comparison(r)
    for _ in range(r.randint(0, 4)):
        text += r.choice([" && ", " || ", " && ", " == ", " != ", "; "]) + comparison(r)
    if r.random() < 0.2:
        text = f"{comparison(r)} ? {comparison(r)} : {text}"
    return DECLARED + text


def picture(text):
    """None: the program is refused, for a reason that this language's second reading does not know."""
    done = subprocess.run([BIN, "mask", text, "--q", str(SIZE), "--kv", str(SIZE), "--head", str(HEAD), "--layer", str(LAYER), "--length", "1000"],
                          capture_output=True, timeout=120)
    errors = done.stderr.decode()
    if done.returncode:
        assert "side is" in errors or "may not fit" in errors, (text, errors)
        return None
    return [line.strip() for line in done.stdout.decode().split("pairs\n")[1].split("\n")[:-1]]


def main():
    r, drawn = random.Random(7), 0
    while drawn < PROGRAMS:
        text = program(r)
        got = picture(text)
        if got is None:  # a == b < c compares a condition with an integer
            continue
        sees = mask_python.parse(text, heads=32).function("sees", ENVIRONMENT)
        want = ["".join("#" if sees(q, kv, HEAD, LAYER) else "." for kv in range(SIZE)) for q in range(SIZE)]
        assert got == want, text + "\n" + "\n".join(f"{a}  {b}" for a, b in zip(got, want))
        drawn += 1
    print("1 passed, 0 failed")


main()
