"""Starts fake_reprise (tests/http/fake_main.c) with a tokenizer made here, and talks to it over raw sockets.

The tokenizer is byte-level: id = byte value + 3 for each byte, then a few longer tokens; <s> is 0, </s> 1,
<|x|> 2. The fake engine repeats the prompt as its answer, so a test chooses the answer."""
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

TIMEOUT = 60  # seconds; far longer than anything takes


def byte_names():
    """GPT-2's printable name for each byte."""
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    names, more = {}, 0
    for byte in range(256):
        names[byte] = chr(byte) if byte in plain else chr(256 + more)
        more += byte not in plain
    return names


def tokenizer(specials=()):
    """specials: contents of further special tokens, with ids from VOCAB on."""
    names = byte_names()
    vocab = {"<s>": 0, "</s>": 1, "<|x|>": 2}
    for byte in range(256):
        vocab[names[byte]] = byte + 3
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    added = [*list(vocab.items())[:3], *((text, VOCAB + i) for i, text in enumerate(specials))]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for text, number in added],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {"type": "TemplateProcessing",
                           "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                      {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                  "merges": [" ".join(pair) for pair in merges]}}


VOCAB = 3 + 256 + 4


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


class Server:
    def __init__(self, *flags, env=None, log=False, specials=()):
        binary = os.environ.get("REPRISE_FAKE_BIN", "")
        if not os.access(binary, os.X_OK):
            skip("fake_reprise was not built")
        self.folder = tempfile.TemporaryDirectory()
        path = os.path.join(self.folder.name, "tokenizer.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(tokenizer(specials), file)
        clean = {name: value for name, value in os.environ.items()
                 if not name.startswith(("REPRISE_API", "VLLM_", "FAKE_"))}
        self.log_path = os.path.join(self.folder.name, "log")
        with open(self.log_path, "wb") as log_file:
            self.process = subprocess.Popen(
                [binary, path, "--port", "0", "--served-model-name", "fake", *map(str, flags)],
                stdout=subprocess.PIPE, stderr=log_file, env={**clean, **(env or {})})
        line = self.process.stdout.readline().decode()
        if not line.startswith("ready "):
            self.process.wait()
            raise RuntimeError(f"no server: exit {self.process.returncode}: {self.log()}")
        words = dict(word.split("=") for word in line.split()[1:])
        self.port, self.admin_port = int(words["port"]), int(words["admin_port"])

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        code = self.stop()
        if kind is None and "sandbox: refused" in self.log():
            raise AssertionError(f"--sandbox refused what the server needs: {self.log()}")
        if kind is None and code != 0:
            raise AssertionError(f"the server left with {code}: {self.log()}")
        if kind is not None:
            print(self.log(), file=sys.stderr)
        self.folder.cleanup()

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self):
        try:
            return self.process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError("the server does not end") from None

    def stop(self):
        if self.process.poll() is None:
            self.signal()
            time.sleep(0.05)
            self.signal()
        code = self.wait()
        self.process.stdout.close()
        return code

    def connect(self, port=None):
        return Connection(port or self.port)

    def request(self, method, path, body=None, headers=(), port=None):
        with self.connect(port) as connection:
            connection.send(method, path, body, [*headers, ("Connection", "close")])
            return connection.response()

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def complete(self, prompt, **fields):
        return self.post("/v1/completions", {"prompt": prompt, **fields})

    def metric(self, name, port=None):
        """The value of one series, named as in the text: `reprise_x_total` or `reprise_x{a="b"}`."""
        for line in self.get("/metrics", port=port).body.decode().splitlines():
            if line.rsplit(" ", 1)[0] == name:
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"/metrics has no {name}")

    def accepts(self):
        """Whether a new connection is served; it may be refused, with an answer or without."""
        try:
            return self.get("/health/live").status == 200
        except (EOFError, ConnectionError):
            return False

    def until(self, condition, what):
        """Waits until condition() is true, with a generous limit."""
        end = time.monotonic() + TIMEOUT
        while not condition():
            if time.monotonic() > end or self.process.poll() is not None:
                raise AssertionError(f"never: {what}; {self.log()}")
            time.sleep(0.01)


class Response:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json()["error"]

    @property
    def text(self):
        return self.json()["choices"][0]["text"]

    def events(self):
        """The data of each server-sent event; JSON is parsed, [DONE] is returned as a string."""
        return parse_events(self.body)


def parse_events(body):
    found = []
    for event in body.decode().split("\n\n"):
        if event:
            assert event.startswith("data: "), event
            found.append(event[6:] if event == "data: [DONE]" else json.loads(event[6:]))
    return found


class Connection:
    """One socket. Answers are parsed strictly: anything but HTTP/1.1 fails the test."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT)
        self.socket.settimeout(TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def reset(self):
        """Closes with RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def raw(self, data):
        """Sends; a connection that the server has closed is not an error here, since its answer is checked."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def send(self, method, path, body=None, headers=()):
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1"]
        lines += [f"{name}: {value}" for name, value in headers]
        if body is not None:
            lines += [f"Content-Length: {len(body)}"]
            if not any(name.lower() == "content-type" for name, _ in headers):
                lines += ["Content-Type: application/json"]
        self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b""))

    def more(self):
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            data = b""
        self.buffer += data
        return bool(data)

    def line(self):
        while b"\r\n" not in self.buffer:
            if not self.more():
                raise EOFError(self.buffer)
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line

    def exactly(self, count):
        while len(self.buffer) < count:
            if not self.more():
                raise EOFError(self.buffer)
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    def head(self):
        version, status, _ = self.line().decode().split(" ", 2)
        assert version == "HTTP/1.1", version
        headers = {}
        while True:
            line = self.line().decode()
            if not line:
                return int(status), headers
            name, value = line.split(": ", 1)
            assert name.lower() not in headers, f"{name} twice"
            headers[name.lower()] = value

    def chunk(self):
        """One chunk of a chunked body; b"" is the last."""
        size = int(self.line(), 16)
        data = self.exactly(size)
        assert self.line() == b""
        return data

    def response(self, head_only=False):
        status, headers = self.head()
        while status == 100:
            status, headers = self.head()
        if head_only or status == 204:
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body, part = b"", self.chunk()
            while part:
                body, part = body + part, self.chunk()
        elif "content-length" in headers:
            body = self.exactly(int(headers["content-length"]))
        else:
            while self.more():
                pass
            body, self.buffer = self.buffer, b""
        return Response(status, headers, body)

    def at_end(self):
        """Whether the server closes without sending more."""
        while self.more():
            pass
        return self.buffer == b""
