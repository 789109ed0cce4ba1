"""reprise top in a real terminal (a pty): it fits 80 columns and follows a resize, handles keys, restores the terminal,
survives its server; once and as JSON without a terminal; a server's text never reaches the terminal as commands."""
import fcntl
import http.server
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

from reprise_server import BIN, DEMO, Server

PATIENCE_S = 60


class Terminal:
    """A program on its own terminal, and the screen that it has drawn."""

    def __init__(self, command, columns, rows):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.execv(command[0], command)
        self.raw, self.code = b"", None
        self.before = None

    def resize(self, columns, rows):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def key(self, key):
        os.write(self.fd, key.encode())

    def read(self, seconds=0.1):
        if select.select([self.fd], [], [], seconds)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                data = b""
            self.raw += data
            return bool(data)
        return None

    def screen(self):
        """The lines drawn last, complete: from the last cursor home that has an end."""
        parts = self.raw.split(b"\x1b[H")
        for part in reversed(parts[1:]):
            if b"\x1b[J" in part:
                text = part.decode().replace("\r", "")
                return re.sub(r"\x1b\[(\?)?\d*[A-Za-z]", "", text).split("\n")
        return []

    def wait_for(self, wanted):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.read()
            lines = self.screen()
            if wanted(lines):
                return lines
        raise AssertionError(self.raw[-3000:])

    def wait_end(self):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.read(0.02)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self.read(0.05):
                    pass
                return os.waitstatus_to_exitcode(status)
        raise AssertionError("it does not end: " + repr(self.raw[-500:]))


def flags(fd):
    return termios.tcgetattr(fd)[:4]


def has(text):
    return lambda lines: any(text in line for line in lines)


def check_terminal(server, url):
    top = Terminal([BIN, "top", url, "--interval", "0.2"], 80, 40)
    before = flags(top.fd)
    lines = top.wait_for(lambda lines: has("tokens/s")(lines) and has("slowest requests")(lines))
    assert flags(top.fd) != before and b"\x1b[?1049h" in top.raw
    assert len(lines) <= 40 and all(len(line) <= 80 for line in lines), lines
    for words in ("demo on ", "ready", "running", "KV pages", "time to first token", "inter token latency", "ms, 10s", "q quits"):
        assert has(words)(lines), (words, lines)
    top.wait_for(lambda lines: not any(re.search(r"tokens/s +- out", line) for line in lines))
    top.key("w")
    top.wait_for(has("ms, 1m"))
    top.resize(60, 12)
    lines = top.wait_for(lambda lines: lines and len(lines) <= 12)
    assert all(len(line) <= 60 for line in lines), lines
    top.key("q")
    assert top.wait_end() == 0
    assert top.raw.endswith(b"\x1b[?25h\x1b[?1049l"), top.raw[-100:]
    assert flags(top.fd) == before
    os.close(top.fd)


def check_signal(url):
    top = Terminal([BIN, "top", url], 80, 24)
    before = flags(top.fd)
    top.wait_for(has("tokens/s"))
    os.kill(top.pid, signal.SIGTERM)
    assert top.wait_end() == 0 and flags(top.fd) == before
    os.close(top.fd)


def run(*arguments):
    result = subprocess.run([BIN, "top", *arguments], capture_output=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL)
    return result.returncode, result.stdout.decode(), result.stderr.decode()


def check_without_terminal(url):
    code, out, _ = run(url, "--once", "--interval", "0.1")
    assert code == 0 and "\x1b" not in out and "tokens/s" in out and "slowest requests" in out, out
    assert all(len(line) <= 80 for line in out.split("\n")), out
    code, out, _ = run(url, "--once", "--json", "--interval", "0.1", "--requests", "0")
    answers = json.loads(out)
    assert code == 0 and answers["status"]["model"] == "demo" and "requests" not in answers, out
    code, _, errors = run("http://127.0.0.1:1", "--once")
    assert code == 1 and errors.startswith("error: ") and "hint: " in errors, errors
    assert run("ftp://x", "--once")[0] == 1 and run("--window", "2m")[0] == 2


class Hostile(http.server.BaseHTTPRequestHandler):
    """A server with hostile answers."""
    status = {"model": "\x1b[2J\x07evil\u202e", "device": ["no", "text"], "now_seconds": "soon", "tokens": None,
              "pages": {"total": 0, "held": -5, "cached": 1e308}, "device_seconds": {"busy": 1e308, "idle": {"\x1b[31m" * 50: 1}}}

    def do_GET(self):
        answer = {"/debug/status": self.status, "/debug/latency?format=json": {"series": [{"name": "a" * 500}, 7, None], "steps": 3},
                  "/debug/requests?slowest=10": {"requests": [1, {"id": "\x1b]0;x\x07", "tokens": "x"}]}}[self.path]
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def check_hostile():
    server = http.server.HTTPServer(("127.0.0.1", 0), Hostile)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    code, out, errors = run(f"http://127.0.0.1:{server.server_port}", "--once", "--interval", "0.1")
    assert code == 0, errors
    assert out.replace("\n", "").isascii() and out.replace("\n", "").isprintable(), repr(out)
    server.shutdown()


def main():
    with Server(DEMO, "--max-num-seqs", "4") as server:
        url = f"http://127.0.0.1:{server.port}"
        for _ in range(8):  # each with a seed that the server draws
            assert server.post("/v1/completions", {"prompt": "1 2 3", "max_tokens": 20})[0] == 200
        seeds = [r["params"]["seed"] for r in json.loads(server.get("/debug/requests?recent=8")[1])["requests"]]
        assert len(seeds) == 8 and all(0 <= seed < 2**63 for seed in seeds), seeds
        check_terminal(server, url)
        check_signal(url)
        check_without_terminal(url)
        check_hostile()
        top = Terminal([BIN, "top", url, "--interval", "0.2"], 80, 24)
        top.wait_for(has("tokens/s"))
    top.wait_for(lambda lines: any("/debug/status: " in line for line in lines))  # the server has gone; top says so and stays
    top.key("q")
    assert top.wait_end() == 0
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
