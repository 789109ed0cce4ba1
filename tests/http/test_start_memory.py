"""Each allocation of the start-up fails once. The start fails with one line and an exit code, or
the server starts and can do everything; nothing crashes or leaks (under the address sanitizer).

REPRISE_EVERY=1 tries every allocation; otherwise the first ones and every few of the rest."""
import concurrent.futures
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

from random_models import write_model
from reprise_server import skip

BIN = os.environ.get("REPRISE_FAILING_BIN", "")
TIMEOUT_S = 120
FIRST, SAMPLES = 60, 120  # how many are all tried, and how many of the rest
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
EXIT_CODES = {1, 2, 3, 4}  # those of commands.h, neither a signal nor a sanitizer's


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=TIMEOUT_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self.path)


def post(path, route, body):
    """Retries if the pending failure hit this request: the next one works."""
    try:
        post_once(path, route, body)
    except (AssertionError, OSError, http.client.HTTPException):
        post_once(path, route, body)


def post_once(path, route, body):
    connection = Connection(path)
    connection.request("POST", route, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    connection.close()
    assert response.status == 200, (route, response.status, text)


class Start:
    def __init__(self, model, folder, number):
        self.socket, self.number = os.path.join(folder, f"socket-{number}"), number
        self.log = open(os.path.join(folder, f"log-{number}"), "w+b")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("REPRISE_API", "VLLM_"))}
        self.process = subprocess.Popen(
            [BIN, str(number), "serve", model, "--uds", self.socket, "--device", "cpu", "--threads", "1", "--max-num-seqs", "2",
             "--max-num-batched-tokens", "16", "--max-model-len", "64", "--swap-space", "0", "--num-gpu-blocks-override", "16"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=clean)

    def text(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def is_ready(self):
        deadline = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None:
            if "ready: " in self.text():
                return True
            assert time.monotonic() < deadline, f"allocation {self.number}: neither ready nor ended"
            time.sleep(0.005)
        return False

    def use(self):
        post(self.socket, "/v1/completions", {"prompt": "ab", "max_tokens": 2})
        post(self.socket, "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2})

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(TIMEOUT_S) == 0, self.text()


def count_allocations(model, folder):
    start = Start(model, folder, 0)
    assert start.is_ready(), start.text()
    start.process.send_signal(signal.SIGUSR1)
    while not (found := re.search(r"allocations (\d+)", start.text())):
        time.sleep(0.01)
    start.use()
    start.stop()
    return int(found.group(1))


def fail_one(model, folder, number):
    """The result: "ready" or the error's last line."""
    start = Start(model, folder, number)
    try:
        if start.is_ready():
            start.use()
            start.stop()
            return "ready"
        text = start.text()
        assert start.process.returncode in EXIT_CODES, f"allocation {number}: {start.process.returncode}\n{text}"
        errors = [line for line in text.splitlines() if line.startswith("error: ")]
        says_why = "out of memory" in text or "no memory" in text
        return errors[0] if len(errors) == 1 and says_why else f"BAD\n{text}"
    except (AssertionError, OSError, http.client.HTTPException) as error:
        return f"BAD {error!r} exit={start.process.poll()}\n{start.text()}"
    finally:
        start.process.kill()
        start.process.wait()
        start.log.close()


def main():
    if not os.access(BIN, os.X_OK):
        skip("failing_reprise was not built")
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "model")
        write_model(model, "llama", num_hidden_layers=1)
        with open(os.path.join(model, "chat_template.jinja"), "w", encoding="utf-8") as file:
            file.write(TEMPLATE)
        total = count_allocations(model, folder)
        step = 1 if os.environ.get("REPRISE_EVERY") else max(1, (total - FIRST) // SAMPLES)
        numbers = [*range(1, min(FIRST, total) + 1), *range(FIRST + 1, total + 1, step)]
        seen = {}
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
            for number, said in zip(numbers, pool.map(lambda n: fail_one(model, folder, n), numbers)):
                seen.setdefault(said, []).append(number)
        for said, at in sorted(seen.items(), key=lambda item: item[1]):
            print(f"{len(at):5} of {total}, first {at[0]}: {said}")
        assert not [said for said in seen if said.startswith("BAD")]
        assert len(seen) > 3, "the failures were not injected"
    print("ok")


sys.exit(main())
