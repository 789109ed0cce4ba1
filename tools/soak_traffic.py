"""The clients of a soak (soak.py): each function below is one kind of traffic or fault, and raises Wrong when the server
answers other than it should."""
import http.client
import json
import random
import socket
import struct
import threading
import time

TIMEOUT_S = 120
FIXED = {"messages": [{"role": "user", "content": "What is 12 + 34?"}], "temperature": 0, "max_tokens": 24}


class Wrong(Exception):
    pass


class Client:
    """What the clients of one worker share."""

    def __init__(self, port, key, seed):
        self.port, self.key, self.random = port, key, random.Random(seed)
        self.number, self.seed = 0, seed

    def headers(self):
        return {"Content-Type": "application/json", "Authorization": "Bearer " + self.key}

    def send(self, method, path, body=None, headers=None):
        """(connection, response)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        payload = json.dumps(body) if isinstance(body, (dict, list)) else body
        connection.request(method, path, payload, {**self.headers(), **(headers or {})})
        return connection, connection.getresponse()

    def ask(self, method, path, body=None, expect=(200,), headers=None):
        """The bytes of the answer, whose status must be expected."""
        connection, response = self.send(method, path, body, headers)
        try:
            answer = response.read()
            if response.status not in expect:
                raise Wrong(f"{method} {path}: status {response.status}, not {expect}: {answer[:200]!r}")
            return answer
        finally:
            connection.close()

    def socket(self, receive_bytes=0):
        client = socket.socket()
        client.settimeout(TIMEOUT_S)
        if receive_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.connect(("127.0.0.1", self.port))
        return client

    def head(self, path, length):
        return (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n"
                f"Authorization: Bearer {self.key}\r\n\r\n").encode()

    def prompt(self, words):
        return " ".join(self.random.choice(("one", "river", "seven", "the", "garden", "12", "cat", "+"))
                        for _ in range(words))


def chunks(answer):
    """The text of a stream that ended well."""
    lines = [line[6:] for line in answer.decode().split("\n\n") if line]
    if not lines or lines[-1] != "[DONE]":
        raise Wrong(f"a stream ended with {answer[-200:]!r}")
    return [json.loads(line) for line in lines[:-1]]


def fixed_text(client):
    answer = json.loads(client.ask("POST", "/v1/chat/completions", FIXED))
    return json.dumps(answer["choices"], sort_keys=True)


def fixed_stream(client):
    parts = chunks(client.ask("POST", "/v1/chat/completions", dict(FIXED, stream=True)))
    return "".join(part["choices"][0]["delta"].get("content") or "" for part in parts if part["choices"])


def completion(client):
    body = {"prompt": [client.prompt(5), client.prompt(30)], "n": 2, "max_tokens": 8, "logprobs": 2,
            "temperature": 0.8, "stop": ["zzz", "\n\n\n"]}
    answer = json.loads(client.ask("POST", "/v1/completions", body))
    if len(answer["choices"]) != 4:
        raise Wrong(f"{len(answer['choices'])} choices, not 4")


def chat(client):
    body = {"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": client.prompt(20)}],
            "max_tokens": client.random.randrange(1, 40), "temperature": 1.0}
    client.ask("POST", "/v1/chat/completions", body)


def stream(client):
    tokens = client.random.randrange(1, 40)
    body = {"prompt": client.prompt(client.random.randrange(1, 100)), "max_tokens": tokens, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True}}
    usage = chunks(client.ask("POST", "/v1/completions", body))[-1]["usage"]
    if usage["completion_tokens"] != tokens:
        raise Wrong(f"{usage['completion_tokens']} tokens, not {tokens}")


def long_prompt(client):
    ids = [client.random.randrange(10, 4000) for _ in range(client.random.randrange(300, 900))]
    client.ask("POST", "/v1/completions", {"prompt": ids, "max_tokens": 4})


def large_body(client):
    client.ask("POST", "/v1/completions", {"prompt": client.prompt(60000), "max_tokens": 1}, expect=(400,))


def bad_request(client):
    path, body, status = client.random.choice((
        ("/v1/completions", b'{"prompt": "a"', 400), ("/v1/completions", {"prompt": "a", "n": 99}, 400),
        ("/v1/chat/completions", {"messages": []}, 400), ("/v1/chat/completions", {"messages": 5}, 400),
        ("/v1/completions", {"prompt": "a", "model": "no such"}, 404), ("/v1/nowhere", {}, 404),
        ("/v1/completions", {"prompt": [99999999]}, 400), ("/v1/completions", b"\xff\xfe", 400)))
    client.ask("POST", path, body, expect=(status,))
    client.ask("GET", "/v1/models", expect=(401,), headers={"Authorization": "Bearer wrong"})
    client.ask("GET", "/v1/completions", expect=(405,))


def abort(client):
    """Closes a stream with a reset after a few bytes, or an upload in its middle."""
    body = json.dumps({"prompt": client.prompt(40), "max_tokens": 300, "ignore_eos": True, "stream": True}).encode()
    with client.socket() as connection:
        half = client.random.random() < 0.3
        connection.sendall(client.head("/v1/completions", len(body)) + (body[:20] if half else body))
        if not half:
            connection.recv(client.random.randrange(1, 2000))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def malformed(client):
    with client.socket() as connection:
        connection.sendall(client.random.choice((b"GARBAGE\r\n\r\n", b"\x16\x03\x01\x02\x00",
                                                 b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")))
        first = connection.recv(64)
        if first and not first.startswith(b"HTTP/1.1 4"):
            raise Wrong(f"bytes that are not HTTP were answered with {first!r}")


def bad_version(client):
    """505 is what is asked for here."""
    with client.socket() as connection:
        connection.sendall(b"GET / HTTP/9.9\r\n\r\n")
        first = connection.recv(64)
        if not first.startswith(b"HTTP/1.1 505"):
            raise Wrong(f"HTTP/9.9 was answered with {first!r}")


def slow_reader(client):
    body = json.dumps({"prompt": "slow", "max_tokens": 120, "ignore_eos": True, "stream": True, "logprobs": 5}).encode()
    with client.socket(receive_bytes=4096) as connection:
        connection.sendall(client.head("/v1/completions", len(body)))
        connection.sendall(body)
        end, tail = time.monotonic() + 2, b""
        while not tail.endswith(b"0\r\n\r\n"):
            part = connection.recv(256 if time.monotonic() < end else 65536)
            if not part:
                raise Wrong("a slow reader's stream ended early")
            tail = (tail + part)[-16:]
            if time.monotonic() < end:
                time.sleep(0.03)


def cancel(client):
    client.number += 1
    name = f"soak-{client.seed}-{client.number}"
    body = {"prompt": client.prompt(10), "max_tokens": 500, "ignore_eos": True, "stream": True}
    connection, response = client.send("POST", "/v1/completions", body, {"X-Request-Id": name})
    try:
        response.read(64)
        client.ask("POST", f"/v1/requests/{name}/cancel", b"", expect=(200, 202, 204, 404, 409))
        response.read()
    finally:
        connection.close()


def deadline(client):
    """504 is what is asked for here; a fast machine may answer in time."""
    body = {"prompt": client.prompt(100), "max_tokens": 800, "ignore_eos": True, "timeout": 0.1}
    client.ask("POST", "/v1/completions", body, expect=(200, 504))


def crowd(client):
    """Many connections at once, most of them idle."""
    connections = [client.socket() for _ in range(100)]
    try:
        for connection in connections[::4]:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        for connection in connections[::4]:
            if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
                raise Wrong("/health failed among many connections")
    finally:
        for connection in connections:
            connection.close()


OBSERVED = ("/debug/status", "/debug/steps?limit=50", "/debug/latency", "/debug/profile", "/debug/diagnose?seconds=5",
            "/debug/trace?seconds=1&gzip=1", "/debug/trace?seconds=1&format=perfetto", "/debug/flight", "/debug/memory",
            "/debug/requests", "/debug/graphs", "/debug/ui", "/debug/env", "/metrics")


def observe(client):
    # Large reports are limited to a few at a time: 429 is an answer.
    client.ask("GET", client.random.choice(OBSERVED), expect=(200, 429))


# Kind of traffic: weight.
MIX = {chat: 4, completion: 3, stream: 6, long_prompt: 1, large_body: 1, bad_request: 2, abort: 3, malformed: 1, bad_version: 1,
       slow_reader: 1, cancel: 2, deadline: 1, crowd: 1, observe: 3}


class Gate:
    """Workers pass while it is open; close() returns when none is inside."""

    def __init__(self):
        self.condition, self.is_open, self.inside = threading.Condition(), True, 0

    def __enter__(self):
        with self.condition:
            self.condition.wait_for(lambda: self.is_open)
            self.inside += 1

    def __exit__(self, kind, value, trace):
        with self.condition:
            self.inside -= 1
            self.condition.notify_all()

    def close(self):
        with self.condition:
            self.is_open = False
            return self.condition.wait_for(lambda: self.inside == 0, TIMEOUT_S)

    def open(self):
        with self.condition:
            self.is_open = True
            self.condition.notify_all()
