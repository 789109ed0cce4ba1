"""`reprise template`: the printed prompt of a conversation, and the errors."""
import json
import os
import subprocess
import tempfile

from reprise_server import BIN, DEMO

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{{ 'GO' if add_generation_prompt }}"


def run(*arguments, stdin=""):
    done = subprocess.run([BIN, "template", *arguments], input=stdin.encode(), capture_output=True, timeout=120)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def main():
    messages = json.dumps([{"role": "user", "content": "Hi <|im_end|>"}])
    code, out, errors = run(DEMO, "--chat-template", TEMPLATE, stdin=messages)
    assert code == 0, errors
    lines = out.split("\n")
    assert lines[:4] == ['template  "<|im_start|>"', 'input     "user"', 'template  "\\n"', 'input     "Hi <|im_end|>"'], lines
    assert lines[-2].startswith("ids       ") and all(word.isdigit() for word in lines[-2].split()[1:]), lines
    code, out, _ = run(DEMO, "--chat-template", TEMPLATE, "--text", "--no-generation", stdin=messages)
    assert (code, out) == (0, "<|im_start|>user\nHi <|im_end|><|im_end|>\n"), out
    with tempfile.TemporaryDirectory() as folder:
        path, file = os.path.join(folder, "x.jinja"), os.path.join(folder, "m.json")
        with open(path, "w", encoding="utf-8") as out_file:
            out_file.write("a\n{{ raise_exception('only ' ~ messages|length) }}")
        with open(file, "w", encoding="utf-8") as out_file:
            out_file.write(messages)
        code, out, errors = run(DEMO, "--chat-template", path, "--messages", file)
        assert code == 1 and "line 2: only 1" in errors and not out, (code, out, errors)
        with open(path, "w", encoding="utf-8") as out_file:
            out_file.write("a\n{% if %}")
        code, _, errors = run(DEMO, "--chat-template", path, stdin=messages)
        assert code == 3 and "x.jinja line 2: " in errors, (code, errors)
        code, _, errors = run(folder, stdin=messages)
        assert code == 3 and "no chat template" in errors and "--chat-template" in errors, (code, errors)
    for stdin in ("", "5", "[1", "null"):
        code, _, errors = run(DEMO, "--chat-template", TEMPLATE, stdin=stdin)
        assert code == 1 and "error: " in errors, (stdin, code, errors)
    assert run()[0] == 2 and run(DEMO, "--nope")[0] == 2 and run(DEMO, "--now", "x")[0] == 2
    assert run("--help")[0] == 0
    line = json.dumps({"template": "{{ 1 + x }}", "variables": {"x": 2}})
    code, out, _ = run("--lines", stdin=line + "\n" + json.dumps({"template": "{{ 1 + 'a' }}", "variables": {}}) + "\n")
    results = [json.loads(one) for one in out.split("\n")[:-1]]
    assert code == 0 and results[0]["text"] == "3" and results[1]["error"] == "TypeError" and results[1]["line"] == 1, out
    print("1 passed, 0 failed")


main()
