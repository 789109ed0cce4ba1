"""An OpenTelemetry collector for tests: takes OTLP/HTTP JSON, judges it by opentelemetry-proto, and misbehaves on request."""
import base64
import http.server
import json
import re
import threading
import time

from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def parse(path, text):
    """The message of opentelemetry-proto. Its JSON has base64 where OTLP has hexadecimal digits."""
    if path.endswith("/v1/metrics"):
        return json_format.Parse(text, ExportMetricsServiceRequest())
    ids = re.sub('"(traceId|spanId|parentSpanId)":"([0-9a-f]+)"',
                 lambda m: f'"{m[1]}":"{base64.b64encode(bytes.fromhex(m[2])).decode()}"', text)
    return json_format.Parse(ids, ExportTraceServiceRequest())


class Collector:
    """with Collector(port=0, answers=[...]) as collector. answers: (status, headers) of the first posts, or "hold": no answer
    until the end; later ones get 200. posts: [(path, headers, message)] of the posts that got 200."""

    def __init__(self, port=0, answers=(), context=None):
        self.answers, self.posts, self.refused, self.problems = list(answers), [], [], []
        self.changed, self.held = threading.Condition(), threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                outer.take(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        if context:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]

    def take(self, handler):
        body = handler.rfile.read(int(handler.headers["Content-Length"])).decode()
        with self.changed:
            answer = self.answers.pop(0) if self.answers else (200, {})
            try:
                assert handler.headers["Content-Type"] == "application/json", handler.headers
                message = parse(handler.path, body)
            except Exception as problem:  # shown by the test
                self.problems.append(problem)
                answer = (400, {})
            else:
                (self.posts if answer == (200, {}) else self.refused).append((handler.path, handler.headers, message))
            self.changed.notify_all()
        if answer == "hold":
            self.held.wait()
            return
        status, headers = answer
        reply = json.dumps({}).encode()
        handler.send_response(status)
        for name, value in {**headers, "Content-Type": "application/json", "Content-Length": str(len(reply))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(reply)

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        return self

    def __exit__(self, kind, *_):
        self.held.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
        if kind is None:
            assert not self.problems, self.problems

    def wait(self, reached, seconds=60):
        with self.changed:
            assert self.changed.wait_for(lambda: reached(self) or self.problems, seconds), "the collector got too little"
            assert not self.problems, self.problems

    def spans(self):
        return [span for path, _, message in list(self.posts) if path.endswith("/v1/traces")
                for resource in message.resource_spans for scope in resource.scope_spans for span in scope.spans]

    def requests(self):
        """Server spans by trace id."""
        return {span.trace_id.hex(): span for span in self.spans() if span.kind == 2}

    def metrics(self):
        """Of each post: {name: metric}."""
        return [{metric.name: metric for resource in message.resource_metrics for scope in resource.scope_metrics
                 for metric in scope.metrics} for path, _, message in list(self.posts) if path.endswith("/v1/metrics")]


def url(port, scheme="http", host="127.0.0.1", path=""):
    return f"{scheme}://{host}:{port}{path}"


def ask(server, count, parent=None, tokens=3):
    """Trace id and sampled flag of each answer."""
    seen, threads = [], []

    def one(i):
        headers = {"traceparent": parent(i)} if parent else {}
        status, answer, body = server.request("POST", "/v1/completions", {"prompt": [9 + i], "max_tokens": tokens, "ignore_eos": True}, headers)
        assert status == 200, body
        _, trace, _, flags = dict((k.lower(), v) for k, v in dict(answer).items())["traceparent"].split("-")
        seen.append((trace, int(flags, 16) & 1))

    for i in range(count):
        threads.append(threading.Thread(target=one, args=(i,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert len(seen) == count
    return seen


def records(server, result):
    return server.metrics()[f'reprise_otlp_records_total{{result="{result}"}}']


def posts(server, signal, outcome):
    return server.metrics()[f'reprise_otlp_posts_total{{signal="{signal}",outcome="{outcome}"}}']


def wait_until(reached, seconds=60):
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)
