"""--otlp-endpoint with a collector that is down, slow, or answers 503 or 400: requests are served, what is lost is counted, and
the end does not wait for the collector."""
import http.client
import socket
import threading

from free_port import free_port
from reprise_server import DEMO, Server, skip

try:
    from otlp_collector import Collector, ask, posts, records, url, wait_until
except ImportError:
    skip("opentelemetry-proto is not installed")

QUEUE, BATCH = 2048, 256


def check_a_collector_that_is_down():
    port = free_port()
    with Server(DEMO, "--otlp-endpoint", url(port), "--otlp-metrics-interval", "0") as server:
        wanted = {trace for trace, _ in ask(server, 5)}
        wait_until(lambda: posts(server, "traces", "retried") >= 1)
        assert f"otlp: http://127.0.0.1:{port}: connect: Connection refused" in server.output()
        with Collector(port) as collector:
            collector.wait(lambda c: set(c.requests()) == wanted)
            wait_until(lambda: records(server, "sent") == 5)
        assert "accepts posts again" in server.output() and records(server, "failed") == 0


def check_answers_that_are_errors():
    soon = {"Retry-After": "0"}
    with Collector(answers=[(503, soon), (429, soon), (502, soon)]) as collector:
        with Server(DEMO, "--otlp-endpoint", url(collector.port), "--otlp-metrics-interval", "0") as server:
            wanted = {trace for trace, _ in ask(server, 4)}
            collector.wait(lambda c: set(c.requests()) == wanted)
            assert len(collector.refused) == 3 and len(collector.spans()) == 4 * 6
            wait_until(lambda: records(server, "sent") == 4)
            assert posts(server, "traces", "retried") == 3
            collector.answers.append((400, {}))
            ask(server, 1)
            wait_until(lambda: records(server, "failed") == 1)
            assert posts(server, "traces", "failed") == 1 and posts(server, "traces", "retried") == 3
            assert "status 400" in server.output()


def check_a_collector_that_does_not_answer():
    """The queue fills, requests are served, the rest is counted, and the end does not wait for the collector."""
    many = QUEUE + 2 * BATCH + 100
    with Collector(answers=["hold"] * 100) as collector:
        with Server(DEMO, "--otlp-endpoint", url(collector.port), "--otlp-metrics-interval", "0") as server:
            ask(server, 1)
            collector.wait(lambda c: len(c.refused) >= 1)
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            for _ in range(many):
                connection.request("POST", "/v1/completions", b"{}", {"Content-Type": "application/json"})
                assert connection.getresponse().read()
            metrics = server.metrics()
            assert metrics['reprise_otlp_records_total{result="dropped"}'] == many - QUEUE, metrics
            ask(server, 1)
            server.process.terminate()
            server.process.wait(60)
            assert f"otlp: ended sent=0 lost={many + 2}" in server.output(), server.output()


def check_answers_that_are_not_http():
    """Each post meets the next of them; none counts as taken, and the server goes on."""
    answers = [b"", b"\x00\xff\r\n\r\n", b"SSH-2.0-x\r\n", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx",
               b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"HTTP/1.1 503 x\r\nRetry-After: 0\r\nX: " + b"a" * 99999]
    given = []

    def answer(listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(answers[len(given) % len(answers)])
                given.append(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        with Server(DEMO, "--otlp-endpoint", url(listener.getsockname()[1]), "--otlp-metrics-interval", "0.1") as server:
            ask(server, 2)
            wait_until(lambda: posts(server, "traces", "retried") + posts(server, "metrics", "retried") >= 1)
            ask(server, 2)
            assert records(server, "sent") == 0
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def main():
    problems = []

    def run(check):
        try:
            check()
        except BaseException as problem:  # shown by the main thread
            problems.append((check.__name__, problem))

    checks = [check_a_collector_that_is_down, check_answers_that_are_errors, check_a_collector_that_does_not_answer,
              check_answers_that_are_not_http]
    threads = [threading.Thread(target=run, args=(check,)) for check in checks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems
    print("nothing waits for a collector, and what it did not take is counted")


main()
