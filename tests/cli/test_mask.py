"""docs/masks.md is correct: each of its commands prints the output shown, and writes the picture shown.

  test_mask.py --write     renews outputs and pictures
"""
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

from reprise_server import BIN, SOURCE

DOCS = os.path.join(SOURCE, "docs")
PAGE = os.path.join(DOCS, "masks.md")
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def shell(command, folder):
    environment = dict(os.environ, PATH=os.path.dirname(os.path.abspath(BIN)) + os.pathsep + os.environ["PATH"])
    done = subprocess.run(["sh", "-c", command], cwd=folder, env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=120)
    return done.stdout.decode()


def renewed(text, folder):
    """The page with the current output of its commands."""
    def block(match):
        out = ""
        for line in match.group(1).split("\n"):
            if line.startswith("$ "):
                out += line + "\n" + shell(line[2:], folder)
        return "```console\n" + out + "```"
    return BLOCK.sub(block, text)


def run(*arguments):
    done = subprocess.run([BIN, "mask", *arguments], capture_output=True, timeout=120)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def check_pictures(folder, text):
    shown = set(re.findall(r"masks/\w+\.svg", text))
    assert shown == {"masks/" + name for name in os.listdir(os.path.join(DOCS, "masks"))}, shown
    for name in shown:
        with open(os.path.join(folder, name), "rb") as made, open(os.path.join(DOCS, name), "rb") as kept:
            picture = made.read()
            assert picture == kept.read(), f"{name} is not what its command makes: test_mask.py --write renews it"
        xml.etree.ElementTree.fromstring(picture)
        assert b"prefers-color-scheme: dark" in picture, name


def check_options():
    code, out, _ = run("--help")
    assert code == 0 and "--svg FILE" in out
    for arguments in ([], ["causal", "causal"], ["causal", "--nope", "1"], ["causal", "--q"], ["causal", "--q", "0"],
                      ["causal", "--q", "8..4"], ["causal", "--kv", "99999999"], ["causal", "--kv", "4x"],
                      ["causal", "--tile", "0"], ["causal", "--head", "32"], ["causal", "--layer", "32"],
                      ["causal", "--param", "w=1"], ["causal", "--param", "w"], ["causal", "--q", "20", "--length", "16"],
                      ["param w = 1 in 0..3; sink(w)", "--param", "w=4"],
                      ["param w = 1 in 0..3; sink(w)", "--param", "w=x"]):
        code, out, errors = run(*arguments)
        assert code == 2 and not out and errors.startswith("error: ") and "hint: " in errors, (arguments, code, errors)
    code, out, errors = run("causal", "--svg", "/nowhere/a.svg")
    assert code == 1 and "/nowhere/a.svg" in errors, errors
    # Ranges, heads: a window of two keys for head 1.
    code, out, _ = run("causal && sliding_window(h + 1)", "--head", "1", "--q", "4..8", "--kv", "2..8", "--tile", "2", "--page", "2")
    assert code == 0 and out.endswith("pairs\n  .##...\n  ..##..\n  ...##.\n  ....##\n"), out
    assert "queries 4 to 7, keys 2 to 7, head 1; tiles of 2 queries x 2 keys:" in out, out
    # Large ones show only tiles.
    code, out, _ = run("causal && sliding_window(65536)", "--q", "65536..131072", "--kv", "131072", "--tile", "8192", "--page", "8192")
    assert code == 0 and "pairs" not in out, out
    assert out.endswith("tiles\n" + "".join(f"  {'.' * i}+{'#' * 7}+{'.' * (7 - i)}\n" for i in range(8))), out


def main():
    with open(PAGE, encoding="utf-8") as file:
        text = file.read()
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "masks"))
        if sys.argv[1:] == ["--write"]:
            with open(PAGE, "w", encoding="utf-8") as file:
                file.write(renewed(text, DOCS))
            return
        now = renewed(text, folder)
        for want, got in zip(text.split("\n"), now.split("\n")):
            assert want == got, f"docs/masks.md says {want!r}, the command {got!r}: test_mask.py --write renews it"
        assert now == text
        check_pictures(folder, text)
    check_options()
    print("1 passed, 0 failed")


main()
