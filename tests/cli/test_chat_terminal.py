"""reprise chat: in a real terminal (a pty) with and without line editing, and plainly through pipes; with a server, and with a model's
directory. What a model says never reaches a terminal as commands; Ctrl-C stops an answer, Ctrl-D leaves."""
import ctypes
import json
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time

from fake_chat import FakeChat
from reprise_server import BIN, DEMO, Server

PATIENCE_S = 60
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


class Terminal:
    """The program on its own terminal; `text` is what it has written."""

    def __init__(self, *arguments, term="xterm"):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": term, "LC_ALL": "C.UTF-8"})
            os.execv(BIN, [BIN, "chat", *arguments])
        self.text, self.seen = "", 0

    def until(self, wanted, optional_s=None):
        """Reads until `wanted` (a pattern) occurs after what was found before; optional: for so long."""
        deadline = time.monotonic() + (optional_s or PATIENCE_S)
        while not (match := re.compile(wanted, re.S).search(self.text, self.seen)):
            if optional_s and time.monotonic() >= deadline:
                return None
            assert time.monotonic() < deadline, (wanted, self.text[self.seen:])
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    data = os.read(self.fd, 65536)
                except OSError:
                    data = b""
                assert data, (wanted, "the program has ended", self.text[self.seen:])
                self.text += data.decode(errors="replace").replace("\r", "")
        self.seen = match.end()
        return match

    def key(self, text):
        os.write(self.fd, text.encode())

    def interrupt(self, text=""):
        """Ctrl-C after `text`, and a prompt. The kernel first sends the signal, then discards output that nobody has read:
        if that was the prompt, Enter shows another."""
        self.key(text + "\x03")
        if not self.until(r"\n.*>>> ", optional_s=2):
            self.line("")
            self.until(">>> ")

    def line(self, text):
        self.key(text + "\r" if "\r" not in text else text)

    def end(self):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            pid, how = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(how)
            assert time.monotonic() < deadline, ("the program does not end", self.text[-300:])
            if select.select([self.fd], [], [], 0.02)[0]:
                try:
                    self.text += os.read(self.fd, 65536).decode(errors="replace").replace("\r", "")
                except OSError:
                    pass


def answer(body):
    last = body["messages"][-1]
    text = last["content"] or ""
    if last["role"] == "tool":
        return [{"content": "It is " + text}]
    if "think" in text:
        return [{"role": "assistant", "reasoning_content": "let me\x1b[2Jsee"}, {"content": "thought\x1b]0;evil\x07 \xc3"[:-1]}, {"content": "\u009bé\tok"}]
    if "weather" in text:
        return [{"tool_calls": [{"index": 0, "id": "call_a", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": "}}]},
                {"tool_calls": [{"index": 0, "function": {"arguments": "\"Paris\"}"}}], "finish_reason": "tool_calls"}]
    if "wait" in text:
        return [{"content": "begun"}, None]
    if "fail" in text:
        return 400, "no room"
    if "break" in text:
        return [{"content": "so far"}, {"error": {"message": "the device failed"}}]
    return [{"role": "assistant", "content": "answer "}, {"content": str(len(body["messages"]))}]


def run(*arguments, text="", env=None, code=0):
    result = subprocess.run([BIN, "chat", *arguments], input=text.encode(), capture_output=True, timeout=120, env={**os.environ, **(env or {})})
    assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
    return result.stdout.decode(), result.stderr.decode()


def check_pipes(fake, url, folder):
    """Without a terminal: a message a line, nothing but answers on standard output, exit code 1 after a failure."""
    out, err = run(url, "--verbose", "--system", "Be brief.", text='one\n\n"""two\nlines"""\n/clear\nthree\n')
    assert out == "answer 2\nanswer 4\nanswer 2\n", out
    assert len(re.findall(r"^2 tokens, .*first token after [\d.]+ ms, 80 prompt tokens, 80 % cached$", err, re.M)) == 3, err
    assert fake.bodies[-2]["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"},
                                           {"role": "assistant", "content": "answer 2"}, {"role": "user", "content": "two\nlines"}]
    out, err = run(url, text="think\n")
    assert out == "thought\x1b]0;evil\x07 \u009bé\tok\n", repr(out)  # a pipe gets the bytes as they are, without the reasoning
    out, err = run(url, text="x" * (8 << 20) + "x\nsmall\n")
    assert out == "answer 1\n" and "longer than 8 MiB" in err, (out, err)
    out, err = run(url, text="fail\nbreak\nnext\n", code=1)
    assert out == "so far\nanswer 1\n" and "error: no room\n" in err and "error: the device failed\n" in err, (out, err)
    path = os.path.join(folder, "chat.json")
    out, err = run(url, text=f"one\n/set parameter temperature 0.5\n/set parameter num_predict 9\n/set parameter stop END\n/set parameter stop STOP\n/system Hi\n/save {path}\n")
    saved = json.load(open(path, encoding="utf-8"))
    assert saved["parameters"] == {"temperature": 0.5, "max_tokens": 9, "stop": ["END", "STOP"]} and saved["system"] == "Hi", saved
    run(url, text=f"/load {path}\ntwo\n/set parameter stop\n/again\n")
    first, second = fake.bodies[-2:]
    assert [m["content"] for m in first["messages"]] == ["Hi", "one", "answer 1", "two"] and first["messages"] == second["messages"]
    assert (first["temperature"], first["max_tokens"], first["stop"]) == (0.5, 9, ["END", "STOP"]) and "stop" not in second
    schema, tools = os.path.join(folder, "schema.json"), os.path.join(folder, "tools.json")
    json.dump(SCHEMA, open(schema, "w", encoding="utf-8"))
    json.dump({"name": "weather", "parameters": {}}, open(tools, "w", encoding="utf-8"))
    out, err = run(url, "--format", schema, "--tools", tools, "--temperature", "0", text="weather?\nrain\n/set format json\n/set notools\n/set nothink\nx\n/set noformat\ny\n")
    assert out == 'weather({"city": "Paris"})\nIt is rain\nanswer 5\nanswer 7\n', out
    body = fake.bodies[-4]
    assert body["response_format"] == {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    assert body["tools"] == [{"type": "function", "function": {"name": "weather", "parameters": {}}}] and body["temperature"] == 0
    assert fake.bodies[-3]["messages"][-1] == {"role": "tool", "content": "rain", "tool_call_id": "call_a", "name": "weather"}
    assert fake.bodies[-3]["messages"][-2]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Paris"}'}
    assert fake.bodies[-2]["response_format"] == {"type": "json_object"} and fake.bodies[-2]["chat_template_kwargs"] == {"enable_thinking": False}
    assert "tools" not in fake.bodies[-2] and "response_format" not in fake.bodies[-1]


def check_words(url, folder):
    """Each mistake is answered with what is right, and the conversation goes on."""
    bad = os.path.join(folder, "bad.json")
    open(bad, "w", encoding="utf-8").write("[1,\n")
    count = os.path.join(folder, "count.json")
    open(count, "w", encoding="utf-8").write('{"messages": [{"role": 5}]}')
    for line, wanted in (("/set parameter temprature 1", "did you mean temperature"), ("/set parameter seed x", "seed needs an integer"),
                         ("/set parameter top_p 0.5x", "top_p needs a number"), ("/what", "unknown word /what"), ("/set nothing", "/set knows parameter"),
                         (f"/load {bad}", "bad.json:2:"), (f"/load {count}", "no conversation"), ("/load /no/such", "No such file"), (f"/set format {bad}", "bad.json:2:"),
                         ("/save", "needs the name"), ("/save /no/such/file", "cannot be written"), ("/again", "there is no message"), ("/set ignore_eos", "/set knows")):
        out, err = run(url, text=line + "\nok\n")
        assert wanted in err and out == "answer 1\n", (line, out, err)
    assert "/set parameter NAME VALUE" in run(url, text="/help\n/bye\nnot read\n")[0]


def check_refusals(url):
    for arguments, wanted, code in ((["/no/such/dir"], "is no directory", 2), (["localhost:8000"], "begins with http://", 2), (["https://127.0.0.1:1"], "https", 1),
                                    (["http://127.0.0.1:1"], "127.0.0.1:1", 1), (["--format", "/no/such"], "No such file", 2), ([url, "--nonsense"], "nonsense", 2)):
        assert wanted in run(*arguments, code=code)[1], arguments
    with tempfile.TemporaryDirectory() as folder:
        assert folder in run(folder, code=3)[1]


def check_terminal(url, fake, term, has_library):
    """The same by hand: a prompt, reasoning dimmed, Ctrl-C at an answer and at the prompt, Ctrl-D; editing where libedit is."""
    terminal = Terminal(url, term=term)
    terminal.until(r"scripted; /help.*>>> ")
    terminal.line("think about it")
    match = terminal.until(r"\x1b\[2mlet me(.*?)see\x1b\[0m\n\nthought(.*?)ok\n.*>>> ")
    assert match.group(1) == "[2J" and re.fullmatch(r"\]0;evil é\s+", match.group(2)), match.groups()
    fake.release.clear()
    fake.aborted.clear()
    terminal.line("wait")
    terminal.until("begun")
    terminal.interrupt()
    assert fake.aborted.wait(PATIENCE_S), "the request was not ended"
    for count in range(30):  # wherever it meets the echo, the program goes on
        terminal.interrupt("half of a line"[:count // 2])
    assert "Ctrl-D or /bye leaves." in terminal.text
    terminal.line("next")
    terminal.until(r"answer 5\n.*>>> ")
    assert [m["content"] for m in fake.bodies[-1]["messages"]][2:] == ["wait", "begun", "next"]
    if has_library:
        terminal.line("xé\x01first \x05!")  # Home, End; a character of two bytes
        terminal.until(r"answer 7\n.*>>> ")
        assert fake.bodies[-1]["messages"][-1]["content"] == "first xé!"
        terminal.line("\x1b[A")
        terminal.until(r"answer 9\n.*>>> ")
        assert fake.bodies[-1]["messages"][-1]["content"] == "first xé!"
    terminal.line('"""a')
    terminal.until(r"\.\.\. ")
    terminal.line('b"""')
    terminal.until(r"answer \d+\n.*>>> ")
    assert fake.bodies[-1]["messages"][-1]["content"] == "a\nb"
    terminal.key("\x04")
    assert terminal.end() == 0


def check_demo():
    """A model's directory: served for this conversation, by a process that ends with it; nobody else can use it."""
    out, err = run(DEMO, "--temperature=0", "--verbose", "--max-model-len", "256", "--no-enable-prefix-caching", text="What is 12 + 34?\n/show\nReverse the word: planet\n")
    assert out.startswith("46\nmodel") and out.endswith("tenalp\n") and "of 256 tokens" in out, out
    assert "0 % cached" in err and "error" not in err, err
    terminal = Terminal(DEMO, "--temperature", "0")
    terminal.until(r"demo; /help.*>>> ")
    terminal.line("/show")
    url = terminal.until(r"at (http://127\.0\.0\.1:\d+)").group(1)
    assert "status 401" in run(url, code=1)[1]
    terminal.line("Tell me a story about a cat.")
    terminal.until(r"cat\.\n.*[A-Z]\w+")  # the echo, then the answer
    terminal.interrupt()
    terminal.line("What is 12 + 34?")
    terminal.until(r"\d+\n.*>>> ")
    terminal.line("/bye")
    assert terminal.end() == 0
    assert "127.0.0.1" in run(url, code=1)[1], "the server has not ended"


def check_key():
    with Server(DEMO, "--max-num-seqs", "2", "--api-key", "secret") as server:
        url = f"http://127.0.0.1:{server.port}"
        assert "401" in run(url, code=1)[1]
        assert run(url, "--temperature", "0", text="What is 12 + 34?\n", env={"REPRISE_API_KEY": "secret"})[0] == "46\n"
        # What cannot be enforced is said, with its keyword.
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write('{"type": "array", "uniqueItems": true}')
            file.flush()
            assert "uniqueItems" in run(url + "/v1", "--api-key", "secret", "--format", file.name, text="x\n", code=1)[1]


def has_libedit():
    try:
        ctypes.CDLL("libedit.so.2")
        return True
    except OSError:
        return False


def main():
    with tempfile.TemporaryDirectory() as folder, FakeChat(b"", {}, answer) as fake:
        url = f"http://127.0.0.1:{fake.port}"
        check_pipes(fake, url, folder)
        check_words(url, folder)
        check_refusals(url)
        check_terminal(url, fake, "dumb", False)
        check_terminal(url, fake, "xterm", has_libedit())
    check_key()
    check_demo()
    print("ok" if has_libedit() else "ok, without line editing: libedit is not installed")


if __name__ == "__main__":
    sys.exit(main())
