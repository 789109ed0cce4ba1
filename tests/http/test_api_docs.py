"""docs/api.md is correct: its examples have the answers shown, each field of its tables is accepted or refused as stated,
and no route or field is missing. The examples of models/demo/README.md have the answers shown."""
import io
import json
import os
import re
import shutil
import subprocess
from contextlib import redirect_stdout

from reprise_server import SOURCE, Server, skip

BASE = "http://127.0.0.1:8000"
ROUTES = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
NEEDED = {"chat": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
          "completions": {"prompt": "12", "max_tokens": 2}}


def read(*path):
    with open(os.path.join(SOURCE, *path), encoding="utf-8") as file:
        return file.read()


DOC = read("docs", "api.md")


def matches(shown, got):
    """"..." matches anything; only the shown fields of an object are compared."""
    if shown == "...":
        return True
    if isinstance(shown, dict):
        return isinstance(got, dict) and all(key in got and matches(shown[key], got[key]) for key in shown)
    if isinstance(shown, list):
        return isinstance(got, list) and len(shown) == len(got) and all(map(matches, shown, got))
    if isinstance(shown, str) and "..." in shown:
        return isinstance(got, str) and like(shown, got)
    return type(shown) is type(got) and shown == got


def like(shown, got):
    return re.fullmatch(".*?".join(map(re.escape, shown.split("..."))), got) is not None


def run_shell(command, url):
    command = command.replace(BASE, url)
    assert url in command, "an example uses another server"
    result = subprocess.run(["bash", "-c", command.replace("curl ", "curl -sS ", 1)], capture_output=True, text=True, timeout=120,
                            check=True)
    return result.stdout


def check_examples(url, page, least):
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.M | re.S)
    count = 0
    for (kind, text), (next_kind, shown) in zip(blocks, blocks[1:] + [("", "")]):
        if kind == "sh":
            got = run_shell(text, url)
            if next_kind == "json":
                assert matches(json.loads(shown), json.loads(got)), f"{text}shown: {shown}got: {got}"
            else:
                assert next_kind == "text" and like(shown.rstrip("\n"), got.rstrip("\n")), f"{text}shown: {shown}got: {got}"
        elif kind == "python":
            run_python(text, url)
        count += kind in ("sh", "python")
    assert count >= least
    return count


def run_python(text, url):
    try:
        import openai  # noqa: F401
    except ImportError:
        print("the example of the openai package was not run: it is not installed")
        return
    wanted = re.findall(r"^ *print\(.*\)  # (.*)$", text, re.M)
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(text.replace(BASE, url), "docs/api.md", "exec"), {})
    assert out.getvalue().splitlines() == wanted, out.getvalue()


def tables():
    """(heading, cells of each row)"""
    heading, found = "", []
    for line in DOC.splitlines():
        if line.startswith("## "):
            heading = line[3:]
        if line.startswith("| `"):
            found.append((heading, [cell.strip() for cell in line.strip("|").split("|")]))
    return found


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


def fields():
    """(route, field, example, whether it is accepted)"""
    for heading, cells in tables():
        if heading.startswith("Fields of"):
            apis = ["chat", "completions"] if "both" in heading else ["chat"] if "chat" in heading else ["completions"]
            for name in names(cells[0]):
                for api in apis:
                    yield api, name, json.loads(names(cells[1])[0]), True
        elif heading == "Refused":
            for name in names(cells[0]):
                for api in ["chat", "completions"] if cells[1] == "both" else [cells[1]]:
                    yield api, name, json.loads(names(cells[2])[0]), False


def check_fields(server):
    count = 0
    for api, name, example, taken in fields():
        body = {**NEEDED[api], name: example}
        if name == "stream":
            body["stream_options"] = {"include_usage": True}
        status, _, answer = server.request("POST", ROUTES[api], body)
        if taken:
            assert status == 200, f"{api}: {name}: {answer}"
        else:
            error = json.loads(answer)["error"]
            assert (status, error["code"], error["param"]) == (400, "unsupported_parameter", name), f"{api}: {name}: {answer}"
        count += 1
    assert "unknown field" not in server.output(), server.output()
    return count


def check_nothing_is_missing():
    documented = {}
    for api, name, _, _ in fields():
        documented.setdefault(name, set()).add(api)
    documented["top_logprobs"] = {"chat"}
    documented["stream_options"] = {"chat", "completions"}
    assert "`top_logprobs` (0 to 20) needs" in DOC and "`stream_options` is only for" in DOC
    source = read("server", "api", "params.c")
    rows = re.findall(r'^    \{"(\w+)",.*?\b(BOTH|TEXT|CHAT)\b', source, re.M | re.S)
    assert len(rows) > 60
    for name, apis in rows:
        wanted = {"BOTH": {"chat", "completions"}, "TEXT": {"completions"}, "CHAT": {"chat"}}[apis]
        assert wanted <= documented.get(name, set()), f"docs/api.md: {name} for {wanted}"
    routes = [name for heading, cells in tables() if heading == "Routes" for name in names(cells[0])]
    assert sorted(routes) == sorted(re.findall(r'^    \{"(/[^"]*)"', read("server", "http", "router.c"), re.M))


def main():
    if not shutil.which("curl") or not shutil.which("bash"):
        skip("curl or bash is not installed")
    check_nothing_is_missing()
    with Server() as server:
        url = f"http://127.0.0.1:{server.port}"
        examples = check_examples(url, DOC, 8) + check_examples(url, read("models", "demo", "README.md"), 5)
        count = check_fields(server)
    print(f"{examples} examples, {count} fields")


main()
