"""Missing system resources: threads, file descriptors, a reader of the log. The server reports it and continues, or does
not start; it never aborts, hangs or closes connections without counting them."""
import json
import os
import resource
import subprocess
import tempfile

from fake_server import TIMEOUT, Connection, Server, tokenizer
from reprise_server import SANITIZED

BINARY = os.environ.get("REPRISE_FAKE_BIN", "")
PROGRAM = os.environ.get("REPRISE_BIN", "")
DEMO = os.path.join(os.environ.get("REPRISE_SOURCE_DIR", "."), "models", "demo")
NOBODY = 65534


class Limited(Server):
    """A server with resource limits; `code` is None once it is ready, else its exit code."""

    def __init__(self, limit, *flags, stderr=None):
        self.folder = tempfile.TemporaryDirectory()
        os.chmod(self.folder.name, 0o755)
        path = os.path.join(self.folder.name, "tokenizer.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(tokenizer(), file)
        self.log_path = os.path.join(self.folder.name, "log")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([BINARY, path, "--port", "0", "--served-model-name", "fake", *flags],
                                            stdout=subprocess.PIPE, stderr=stderr or log, preexec_fn=limit)
        words = self.process.stdout.readline().decode().split()
        self.code = None
        if not words:
            self.code = self.process.wait(TIMEOUT)
            self.process.stdout.close()
            return
        self.port = int(dict(word.split("=") for word in words[1:])["port"])


def limit_threads(count):
    def limit():
        if os.geteuid() == 0:  # root has no such limit
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        resource.setrlimit(resource.RLIMIT_NPROC, (count, count))
    return limit


def limit_memory(mib):
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20))


def start_with(limit):
    """Whether it became ready; if so, a body that a worker parses is answered."""
    server = Limited(limit)
    if server.code is not None:
        assert server.code > 0, (server.code, server.log())  # below 0: a signal
        assert "error" in server.log(), server.log()
        server.folder.cleanup()
        return False
    with server:
        answer = server.complete("a" * 3000, max_tokens=1, stop=["b" * 200] * 4)
        assert answer.status == 200, answer.body
        assert server.post("/tokenize", {"prompt": "ab" * 20000}).status == 200
    return True


def test_too_few_threads_are_an_error_at_start():
    ready = [start_with(limit_threads(count)) for count in range(1, 14)]
    if os.geteuid() == 0:
        assert not ready[0] and ready[-1] and ready == sorted(ready), ready


def test_too_little_memory_is_an_error_at_start():
    """The real server, because threads, weights and graphs share memory."""
    ready = []
    for mib in (32, 64, 96, 128, 192, 256, 384, 512, 768, 4096):
        process = subprocess.Popen([PROGRAM, "serve", DEMO, "--port", "0", "--max-num-seqs", "4", "--swap-space", "0"],
                                   stderr=subprocess.PIPE, preexec_fn=limit_memory(mib))
        log = b""
        while b"ready:" not in log and (line := process.stderr.readline()):
            log += line
        ready.append(b"ready:" in log)
        process.terminate()
        log += process.stderr.read()
        process.stderr.close()
        code = process.wait(TIMEOUT)
        assert code == 0 if ready[-1] else code > 0 and b"error" in log, (mib, code, log)
    assert not ready[0] and ready[-1], ready


def test_connections_beyond_the_file_limit_are_refused_and_counted():
    with Limited(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))) as server:
        connections = [Connection(server.port) for _ in range(120)]
        server.until(lambda: "connections refused" in server.log(), "a log line")
        answered = refused = 0
        for connection in connections:
            connection.send("GET", "/health/live")
            try:
                status = connection.head()[0]
                answered += status == 200
                refused += status == 503
            except EOFError:
                refused += 1
        assert answered + refused == 120 and answered >= 16 and refused >= 60, (answered, refused)
        for connection in connections:
            connection.close()
        server.until(server.accepts, "connections are accepted again")
        assert server.metric("reprise_http_connections_refused_total") >= refused
        assert server.metric("process_open_fds") < 64
        assert "open files limit is 64" in server.log()
    server = Limited(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24)))
    assert server.code and server.code > 0 and "ulimit -n" in server.log(), server.log()
    server.folder.cleanup()


def test_a_reader_of_the_log_that_stops_holds_nobody_up():
    reading, writing = os.pipe()
    server = Limited(lambda: None, "--log-level", "debug", stderr=writing)
    os.close(writing)
    with server.connect() as connection:
        for i in range(1500):  # more than a pipe holds
            connection.send("GET", "/version", headers=[("X-Request-Id", f"{i:06}" + "x" * 60)])
            assert connection.response().status == 200
    assert server.metric("reprise_log_lines_dropped_total") > 100
    os.set_blocking(reading, False)
    text = b""

    def read():
        nonlocal text
        try:
            text += os.read(reading, 1 << 20)
        except BlockingIOError:
            pass
        server.get("/version")
        return b"lines dropped, nobody read them count=" in text

    server.until(read, "the log says how many lines were dropped")
    assert all(line.count(b"http: answered") <= 1 for line in text.split(b"\n"))
    server.signal()
    assert server.wait() == 0
    server.process.stdout.close()
    os.close(reading)
    server.folder.cleanup()


if __name__ == "__main__":
    if not os.access(BINARY, os.X_OK):
        print("skipped: fake_reprise was not built")
        raise SystemExit(77)
    if not SANITIZED:  # their shadow memory and threads exceed such limits
        test_too_few_threads_are_an_error_at_start()
        test_too_little_memory_is_an_error_at_start()
    test_connections_beyond_the_file_limit_are_refused_and_counted()
    test_a_reader_of_the_log_that_stops_holds_nobody_up()
    print("ok")
