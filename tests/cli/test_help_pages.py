"""The man page and the shell completions name every flag that --help names, command by command, and no other."""
import os
import re
import shutil
import subprocess
import tempfile

from reprise_server import BIN, SOURCE

FLAG = re.compile(r"(?:^|[\s\[])--([a-z0-9][a-z0-9-]*)")


def run(*args):
    return subprocess.run([BIN, *args], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


def page(*args):
    done = run("help", *args)
    assert done.returncode == 0 and not done.stderr, (args, done)
    return done.stdout


def members(text):
    return re.findall(r"^  ([a-z][a-z-]*) +\S", text, re.M)


def commands():
    """Yields ("bench serve", its help) for every command that is not a group."""
    for name in members(run("--help").stdout):
        text = run(name, "--help").stdout
        if " WHAT [flags]" in text.splitlines()[0]:
            for member in members(text):
                yield f"{name} {member}", run(name, member, "--help").stdout
        else:
            yield name, text


def is_table(text):
    return "REPRISE_<NAME>" in text


def flags_of(text):
    """Name: (value or choices or None, whether it is on by default)."""
    if not is_table(text):
        return {name: (None, False) for name in FLAG.findall(text)}
    rows = re.findall(r"^  --(\S+)( \S+)?  *(.*)$", text, re.M)
    found = {}
    for name, _, _ in rows:
        line = next(line for line in text.splitlines() if line.startswith(f"  --{name} "))
        # The help begins in column 43, or after one space where the flag is longer.
        value = re.match(rf"  --{re.escape(name)} (\S+) ", line)
        on = value is None and line.endswith("(default true)")
        found[name] = (value.group(1) if value else None, on)
    return found


def man_sections(text):
    found = {}
    for section in re.split(r"^\.SS ", text.split(".SH COMMANDS")[1].split(".SH ENVIRONMENT")[0], flags=re.M)[1:]:
        heading, body = section.split("\n", 1)
        # Positionals are in capitals.
        words = heading.strip('"').replace("\\-", "-").split()[1:]
        name = " ".join(word for word in words if re.fullmatch(r"[a-z][a-z-]*", word))
        found[name] = body.replace("\\-", "-")
    return found


def check_man(expected):
    text = page("--man")
    sections = man_sections(text)
    assert set(sections) - {"help"} == set(expected), set(sections) ^ set(expected)
    for name, help_text in expected.items():
        body = sections[name]
        if is_table(help_text):
            named = re.findall(r"^\.TP\n\\fB--([a-z0-9-]+)\\fR(?: \\fI(.*)\\fR)?$", body, re.M)
            assert {flag: value or None for flag, value in named} == {
                flag: value for flag, (value, _) in flags_of(help_text).items()}, (name, named)
        else:
            assert set(FLAG.findall(body)) == set(flags_of(help_text)), name
    if shutil.which("groff"):
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z"], input=text, text=True, capture_output=True,
                              timeout=60)
        assert done.returncode == 0 and not done.stderr, done.stderr


def bash_words(script, *words):
    """What bash offers for the last word; None: names of files."""
    program = (f"source {script}; compopt() {{ echo FILES; }}; COMP_WORDS=(reprise \"$@\"); COMP_CWORD=$#; _reprise; "
               "printf '%s\\n' \"${COMPREPLY[@]}\"")
    done = subprocess.run(["bash", "-c", program, "bash", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done
    return None if "FILES" in done.stdout else set(done.stdout.split())


def check_bash(expected):
    with tempfile.NamedTemporaryFile("w", suffix=".bash") as file:
        file.write(page("--completion", "bash"))
        file.flush()
        script = file.name
        names = {name.split()[0] for name in expected}
        assert bash_words(script, "") == names | {"help", "--help", "--version"}
        assert bash_words(script, "bench", "") == {name.split()[1] for name in expected if name.startswith("bench ")}
        for name, help_text in expected.items():
            offered = {("no-" if on else "") + flag for flag, (_, on) in flags_of(help_text).items()}
            assert bash_words(script, *name.split(), "--") == {f"--{flag}" for flag in offered | {"help"}}, name
        assert bash_words(script, "serve", "--m") >= {"--max-num-seqs", "--max-model-len"}
        assert bash_words(script, "serve", "--device", "") == {"auto", "cpu", "cuda"}
        assert bash_words(script, "serve", "--device", "cu") == {"cuda"}
        assert bash_words(script, "serve", "--port", "") == set()
        assert bash_words(script, "serve", "") is None and bash_words(script, "serve", "--tls-cert", "") is None
        assert bash_words(script, "bench", "serve", "--api", "") == {"completions", "chat"}
        assert "serve" in bash_words(script, "help", "")


def check_zsh(expected):
    text = page("--completion", "zsh")
    for name, help_text in expected.items():
        body = re.search(rf"^    '{name}'\)\n(.*?) ;;$", text, re.M | re.S).group(1)
        offered = {("no-" if on else "") + flag for flag, (_, on) in flags_of(help_text).items()}
        assert set(re.findall(r"^ +'--([a-z0-9-]+)", body, re.M)) == offered, name
    assert len(re.findall(r"^        _arguments ", text, re.M)) == len(expected)
    if shutil.which("zsh"):
        done = subprocess.run(["zsh", "-n"], input=text, text=True, capture_output=True, timeout=60)
        assert done.returncode == 0 and not done.stderr, done.stderr


def check_documents(expected):
    """The flags that the security pages name exist."""
    for name in ("THREATS.md", "SECURITY.md"):
        with open(os.path.join(SOURCE, name), encoding="utf-8") as file:
            named = set(re.findall(r"`--([a-z-]+)", file.read()))
        unknown = named - set(flags_of(expected["serve"])) - {"version"}
        assert named and not unknown, (name, unknown)


def main():
    expected = dict(commands())
    assert len(expected) > 20 and "bench serve" in expected and "eval ppl" in expected, expected.keys()
    assert flags_of(expected["serve"])["device"] == ("auto|cpu|cuda", False)
    assert flags_of(expected["serve"])["vllm-metrics"] == (None, True)
    check_man(expected)
    check_bash(expected)
    check_zsh(expected)
    check_documents(expected)
    for wrong in (["--completion"], ["--completion", "fish"], ["--man", "serve"]):
        assert run("help", *wrong).returncode == 2, wrong
    print(f"ok: {sum(len(flags_of(text)) for text in expected.values())} flags of {len(expected)} commands")


main()
