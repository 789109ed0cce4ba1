"""Starts the program under test as a server, and sends requests with the standard library."""
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from free_port import free_port

SOURCE = os.environ.get("REPRISE_SOURCE_DIR", os.path.join(os.path.dirname(__file__), "..", ".."))
BIN = os.environ.get("REPRISE_BIN", os.path.join(SOURCE, "build", "release", "reprise"))
DATA = os.environ.get("REPRISE_TEST_DATA") or os.path.join(SOURCE, "..", "shared", "data")
DEMO = os.path.join(SOURCE, "models", "demo")
PRESET = os.path.basename(os.path.dirname(BIN))
TSAN = PRESET == "tsan"
SANITIZED = TSAN or PRESET == "asan"
START_TIMEOUT_S = 120  # sanitizers on a busy machine


def skip(reason):
    print("skipped: " + reason)
    sys.exit(77)


def data(relative):
    path = os.path.join(DATA, relative)
    return path if os.path.exists(path) else None


class Server:
    """with Server(model, flags...) as server: server.post(...). Stops with SIGTERM and asserts exit code 0."""

    def __init__(self, model=DEMO, *flags, exit_code=0, env=None, may_refuse=False):
        self.port = free_port()
        self.exit_code = exit_code
        self.env = {**os.environ, **(env or {})}
        self.may_refuse = may_refuse  # calls that --sandbox refuses
        self.command = [BIN, "serve", model, "--host", "127.0.0.1", "--port", str(self.port), *flags]

    def __enter__(self):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=self.env)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError("the server ended at start:\n" + self.output())
            try:
                if self.get("/health/ready")[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.02)
        self.process.kill()
        raise AssertionError("the server did not become ready:\n" + self.output())

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = "no exit within 60 s of SIGTERM"
        if kind is not None or code != self.exit_code:
            print(self.output())
        if kind is None and not self.may_refuse and "sandbox: refused" in self.output():
            raise AssertionError("--sandbox refused what the server needs:\n" + self.output())
        if kind is None and code != self.exit_code:
            raise AssertionError(f"exit code {code}, expected {self.exit_code}")
        self.log.close()

    def output(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body bytes)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            payload = json.dumps(body) if isinstance(body, (dict, list)) else body
            all_headers = {"Content-Type": "application/json"} if payload is not None else {}
            all_headers.update(headers or {})
            connection.request(method, path, payload, all_headers)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def get(self, path):
        status, headers, body = self.request("GET", path)
        return status, body.decode(), headers

    def post(self, path, body):
        """(status, parsed JSON)"""
        status, _, answer = self.request("POST", path, body)
        return status, json.loads(answer)

    def stream(self, body, path="/v1/completions"):
        """The chunks of a streamed completion, parsed; the last is the string "[DONE]"."""
        status, _, answer = self.request("POST", path, dict(body, stream=True))
        if status != 200:
            raise AssertionError(f"status {status}: {answer}")
        chunks = []
        for line in answer.decode().split("\n\n"):
            if line:
                assert line.startswith("data: "), line
                chunks.append(line[6:] if line[6:] == "[DONE]" else json.loads(line[6:]))
        return chunks

    def stream_text(self, body):
        chunks = self.stream(body)
        assert chunks[-1] == "[DONE]", chunks[-1]
        return "".join(c["choices"][0]["text"] for c in chunks[:-1] if c["choices"])

    def metrics(self):
        """name{labels} -> value"""
        values = {}
        for line in self.get("/metrics")[1].splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values
