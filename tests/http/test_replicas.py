"""Two replicas behind HAProxy, as deploy/compose/haproxy.cfg has it: the least busy one is chosen, one that leaves or dies
gets no requests, and a rolling restart under load fails none."""
import json
import os
import subprocess
import tempfile
import threading

import haproxy
from fake_server import tokenizer
from haproxy import Gateway, UnixConnection, until
from reprise_server import BIN, DEMO, skip

try:
    from kv_subscriber import Blocks, Subscriber
except ImportError:
    Subscriber = None
FAKE = os.environ.get("REPRISE_FAKE_BIN", "")
if not haproxy.program():
    skip("haproxy is not installed")
if not os.access(FAKE, os.X_OK):
    skip("fake_reprise was not built")


class Replica:
    """A server on a Unix socket that can be stopped and started again."""

    def __init__(self, folder, name, *command, env=None):
        self.socket, self.log_path = f"{folder}/{name}", f"{folder}/{name}.log"
        self.command = [*command, "--uds", self.socket]
        self.env = {**os.environ, **(env or {})}

    def start(self):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(self.command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(self.is_ready, "the replica is ready")

    def is_ready(self):
        assert self.process.poll() is None, self.log()
        try:
            return self.request("GET", "/health/ready")[0] == 200
        except OSError:
            return False

    def request(self, method, path, body=None):
        connection = UnixConnection(self.socket)
        return send(connection, method, path, body)

    def leave(self):
        """SIGTERM, and the end."""
        self.process.terminate()
        assert self.process.wait(haproxy.PATIENCE_S) == 0, self.log()

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, *_):
        self.process.kill()
        self.process.wait(haproxy.PATIENCE_S)
        if kind:
            print(self.log())


def send(connection, method, path, body=None):
    try:
        connection.request(method, path, json.dumps(body) if body else None,
                           {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def fake(folder, name, *flags):
    path = f"{folder}/tokenizer.json"
    with open(path, "w", encoding="utf-8") as file:
        json.dump(tokenizer(), file)
    return Replica(folder, name, FAKE, path, "--served-model-name", "fake", *flags, env={"FAKE_STEP_US": "20000"})


def open_stream(gateway):
    connection = gateway.connect()
    connection.request("POST", "/v1/completions",
                       json.dumps({"prompt": "abc", "stream": True, "max_tokens": 4000, "ignore_eos": True}),
                       {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200 and response.readline().startswith(b"data: ")
    connection.response = response  # it keeps the socket open
    return connection


def close(connection):
    connection.response.close()
    connection.close()


def test_the_replica_with_the_fewest_open_requests_is_chosen():
    with tempfile.TemporaryDirectory() as folder, fake(folder, "a") as first, fake(folder, "b") as second, \
            Gateway(folder, [first.socket, second.socket]) as gateway:
        gateway.wait_for("UP", "UP")
        assert send(gateway.connect(), "GET", "/metrics")[0] == 404 and send(gateway.connect(), "GET", "/debug/env")[0] == 404
        streams = ([], [])
        for _ in range(6):
            before = gateway.open_requests()
            stream = open_stream(gateway)
            streams[gateway.open_requests()[0] == before[0]].append(stream)
        assert gateway.open_requests() == [3, 3] and len(streams[0]) == len(streams[1]) == 3
        for stream in streams[0]:
            close(stream)
        until(lambda: gateway.open_requests() == [0, 3], "those on the first replica end")
        more = [open_stream(gateway) for _ in range(3)]
        assert gateway.open_requests() == [3, 3]
        for stream in streams[1] + more:
            close(stream)


def test_a_replica_that_leaves_or_dies_gets_no_requests():
    with tempfile.TemporaryDirectory() as folder, fake(folder, "a", "--drain-delay", "3600") as first, \
            fake(folder, "b") as second, Gateway(folder, [first.socket, second.socket]) as gateway:
        gateway.wait_for("UP", "UP")
        streams = [open_stream(gateway), open_stream(gateway)]
        first.process.terminate()
        gateway.wait_for("DOWN", "UP")
        assert gateway.open_requests() == [1, 1]  # its stream goes on
        streams += [open_stream(gateway) for _ in range(3)]
        assert gateway.open_requests() == [1, 4]
        for stream in streams:
            assert stream.response.readline() is not None
            close(stream)
        first.process.kill()
        first.process.wait()
        first.start()
        gateway.wait_for("UP", "UP")
        second.process.kill()  # unannounced: the gateway finds out by a refused connection
        second.process.wait()
        for _ in range(4):
            status, body = send(gateway.connect(), "POST", "/v1/completions", {"prompt": "abc", "max_tokens": 3})
            assert status == 200 and json.loads(body)["choices"][0]["text"] == "abc", body
        gateway.wait_for("UP", "DOWN")


REQUESTS = [{"prompt": f"Tell a story about the number {number}.", "max_tokens": 24 + number, "temperature": 0, "seed": 1,
             "stream": number % 2 == 0} for number in range(6)]


def text_of(status, body, request):
    assert status == 200, (status, body)
    if not request["stream"]:
        return json.loads(body)["choices"][0]["text"]
    lines = [line[6:] for line in body.decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]", lines[-3:]
    return "".join(choice["text"] for line in lines[:-1] for choice in json.loads(line)["choices"])


class Clients:
    """Threads that send requests until they are told to stop, and compare every answer."""

    def __init__(self, gateway, expected, count=4):
        self.gateway, self.expected = gateway, expected
        self.stopping, self.failures, self.answered = threading.Event(), [], [0] * count
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(count)]

    def run(self, number):
        turn = number
        while not self.stopping.is_set() and not self.failures:
            request = REQUESTS[turn % len(REQUESTS)]
            try:
                text = text_of(*send(self.gateway.connect(), "POST", "/v1/completions", request), request)
                assert text == self.expected[turn % len(REQUESTS)], text
                self.answered[number] += 1
            except Exception as error:  # every kind of failure is one of the test's
                self.failures.append(repr(error))
            turn += 1

    def more(self):
        """Every client has had further answers."""
        before = list(self.answered)
        until(lambda: self.failures or all(now > then + 1 for now, then in zip(self.answered, before)), "further answers")
        assert not self.failures, self.failures

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join()


def test_a_rolling_restart_under_load_fails_no_request():
    with tempfile.TemporaryDirectory() as folder:
        replicas = [Replica(folder, name, BIN, "serve", DEMO, "--threads", "1", "--max-num-seqs", "8", "--drain-delay", "0.6",
                            "--shutdown-timeout", "60") for name in "ab"]
        with replicas[0] as first, replicas[1] as second, Gateway(folder, [first.socket, second.socket]) as gateway:
            gateway.wait_for("UP", "UP")
            expected = [text_of(*first.request("POST", "/v1/completions", request), request) for request in REQUESTS]
            with Clients(gateway, expected) as clients:
                clients.more()
                for replica in replicas:
                    replica.leave()
                    clients.more()  # one replica alone
                    replica.start()
                    gateway.wait_for("UP", "UP")
                    clients.more()
            assert not clients.failures and min(clients.answered) >= 10, (clients.failures, clients.answered)


PAGE = 16
PROMPTS = [[20 + number] + [20 + (i * (number + 3)) % 400 for i in range(3 * PAGE + 5)] for number in range(8)]


def cached_tokens(status, body):
    assert status == 200, body
    return json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_events_tell_which_replica_has_a_prompt():
    if not Subscriber:
        print("pyzmq or msgpack is not installed: events were not read")
        return
    with tempfile.TemporaryDirectory() as folder:
        def events(name):
            return [f"ipc://{folder}/{name}.events", f"ipc://{folder}/{name}.replay"]

        def replica(name):
            config = {"enable_kv_cache_events": True, "endpoint": events(name)[0], "replay_endpoint": events(name)[1],
                      "topic": "kv"}
            return Replica(folder, name, BIN, "serve", DEMO, "--threads", "1", "--max-num-seqs", "8", "--block-size", str(PAGE),
                           "--kv-events-config", json.dumps(config))

        def known(*listeners):
            """What each has heard, once all pages were announced by one replica or the other."""
            heard = [Blocks() for _ in listeners]
            for blocks, listener in zip(heard, listeners):
                for _, batch in listener.replay(0):
                    blocks.apply(batch)
            return heard if sum(blocks.stored for blocks in heard) == 3 * len(PROMPTS) else None
        with replica("a") as first, replica("b") as second, Gateway(folder, [first.socket, second.socket]) as gateway, \
                Subscriber(*events("a")) as of_first, Subscriber(*events("b")) as of_second:
            gateway.wait_for("UP", "UP")
            for prompt in PROMPTS:
                send(gateway.connect(), "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1})
            both = until(lambda: known(of_first, of_second), "all pages are announced")
            hits = [[blocks.hit_tokens(prompt, PAGE) for blocks in both] for prompt in PROMPTS]
            assert all(sorted(pair) == [0, 3 * PAGE] for pair in hits), hits
            assert {pair.index(3 * PAGE) for pair in hits} == {0, 1}, "the gateway uses both"
            for prompt, pair in zip(PROMPTS, hits):
                home = (first, second)[pair.index(3 * PAGE)]
                assert cached_tokens(*home.request("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1})) == 3 * PAGE


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name, flush=True)
