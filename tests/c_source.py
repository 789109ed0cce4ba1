"""Reading C sources without a compiler, for check_layers.py and check_names.py."""
import os
import re
import tempfile

C_SUFFIXES = (".c", ".h", ".cu", ".cuh")
NOT_OURS = {"build", "models", "__pycache__"}

# A comment, a string or a character literal; whatever comes first wins.
TOKEN = re.compile(r"""/\*.*?(?:\*/|\Z)|//(?:\\\n|[^\n])*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S)


def files(root, suffixes):
    """Paths below root, relative to it, in order; build output and hidden folders are left out."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in NOT_OURS and not name.startswith(".")]
        for name in names:
            if name.endswith(suffixes):
                found.append(os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/"))
    return sorted(found)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        return file.read()


def _blank(match, keep_strings):
    text = match.group(0)
    if text[0] in "\"'":
        return text if keep_strings else text[0] + " " * (len(text) - 2) + text[-1]
    return re.sub(r"[^\n]", " ", text)


def without_comments(text, keep_strings=False):
    """The text with comments (and the insides of strings) blanked out; lines keep their numbers."""
    return TOKEN.sub(lambda match: _blank(match, keep_strings), text)


def self_test(check, cases):
    """Plants each case in a tree of its own and compares what `check(root)` finds.

    A case: (name, {path: text}, [(path, line, part of the message)]); no findings means a clean tree.
    """
    failed = 0
    for name, tree, expected in cases:
        with tempfile.TemporaryDirectory() as root:
            for path, text in tree.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)) or root, exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            found = check(root)
        right = len(found) == len(expected) and all(
            (path, line) == (want_path, want_line) and part in message
            for (path, line, message), (want_path, want_line, part) in zip(sorted(found), sorted(expected)))
        if not right:
            failed += 1
            print(f"self-test: {name}: expected {expected}, found {found}")
    print(f"self-test: {len(cases) - failed} of {len(cases)} cases")
    return failed


def report(script, problems, file_count):
    for path, line, message in sorted(problems):
        print(f"{path}:{line}: {message}")
    print(f"{script}: {file_count} files, {len(problems)} problems")
    return 1 if problems else 0
