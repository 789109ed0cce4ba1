"""--otlp-endpoint: spans and metrics that a collector gets are valid by opentelemetry-proto, whole, and sampled as traceparent
says."""
import os
import subprocess
import threading

from reprise_server import BIN, DEMO, Server, skip

try:
    from otlp_collector import Collector, ask, records, url, wait_until
except ImportError:
    skip("opentelemetry-proto is not installed")


def check_span(span, parent=None):
    attributes = {a.key: a.value for a in span.attributes}
    assert span.name.startswith("text_completion ") and attributes["gen_ai.usage.output_tokens"].int_value == 3
    assert span.start_time_unix_nano < span.end_time_unix_nano and len(span.span_id) == 8
    assert not parent or span.parent_span_id.hex() == parent


def check_metrics(collector, server):
    collector.wait(lambda c: len(c.metrics()) >= 2)
    first, last = collector.metrics()[0], collector.metrics()[-1]
    shown = {line.split()[2] for line in server.get("/metrics?compat=none")[1].splitlines() if line.startswith("# TYPE ")}
    assert set(last) <= shown and len(last) > 60, set(last) - shown
    for name, metric in last.items():
        kind = metric.WhichOneof("data")
        points = getattr(metric, kind).data_points
        assert points, name
        assert (kind == "sum") == name.endswith("_total"), (name, kind)
        if kind == "sum":
            assert metric.sum.is_monotonic and metric.sum.aggregation_temporality == 2
            assert all(0 < p.start_time_unix_nano <= p.time_unix_nano for p in points)
        if kind == "histogram":
            for point in points:
                assert sum(point.bucket_counts) == point.count and len(point.bucket_counts) == len(point.explicit_bounds) + 1
                assert list(point.explicit_bounds) == sorted(point.explicit_bounds)
        keys = [tuple(sorted((a.key, a.value.string_value) for a in p.attributes)) for p in points]
        assert len(set(keys)) == len(keys), name
        if name.endswith("_seconds"):
            assert metric.unit == "s", metric
    steps = [sum(p.as_double for p in m["reprise_steps_total"].sum.data_points) for m in (first, last)]
    assert steps[0] <= steps[1]
    message = next(post[2] for post in collector.posts if post[0].endswith("metrics"))
    resource = {a.key: a.value.string_value for a in message.resource_metrics[0].resource.attributes}
    assert resource["service.name"] == "reprise" and len(resource["service.instance.id"]) == 32, resource


def check_batches_and_sampling():
    os.environ["OTEL_EXPORTER_OTLP_HEADERS"] = "x-token=a%20b,x-other=1"
    with Collector() as collector:
        with Server(DEMO, "--otlp-endpoint", url(collector.port, path="/base/"), "--otlp-sample-ratio", "0.5",
                    "--otlp-metrics-interval", "0.2") as server:
            callers = {f"{i + 1:032x}": f"{i + 1:016x}" for i in range(12)}
            asked = ask(server, 12, lambda i: f"00-{i + 1:032x}-{i + 1:016x}-{'01' if i % 3 else '00'}")
            own = ask(server, 48)
            assert {trace: flag for trace, flag in asked} == {f"{i + 1:032x}": int(i % 3 > 0) for i in range(12)}
            assert 0 < sum(flag for _, flag in own) < 48  # one in 2^47 runs is all or nothing
            wanted = {trace for trace, flag in asked + own if flag}
            collector.wait(lambda c: len(c.requests()) >= len(wanted))
            assert set(collector.requests()) == wanted
            for trace, span in collector.requests().items():
                check_span(span, callers.get(trace))
            traces = [post for post in collector.posts if post[0] == "/base/v1/traces"]
            assert len(traces) < len(wanted) / 2, len(traces)
            assert all(post[1]["x-token"] == "a b" and post[1]["x-other"] == "1" for post in collector.posts)
            children = [span for span in collector.spans() if span.kind == 1]
            assert {span.name for span in children} == {"receive", "tokenize", "queue", "prefill", "decode"}
            check_metrics(collector, server)
            wait_until(lambda: records(server, "sent") == len(wanted))
            assert records(server, "not_sampled") == 60 - len(wanted)
            assert records(server, "dropped") == records(server, "failed") == 0
    del os.environ["OTEL_EXPORTER_OTLP_HEADERS"]


def check_the_end_sends_what_is_left():
    with Collector() as collector:
        with Server(DEMO, "--otlp-endpoint", url(collector.port), "--otlp-metrics-interval", "3600") as server:
            wanted = {trace for trace, _ in ask(server, 7)}
            for body, status in (({"prompt": 5}, 400), ({"prompt": [1] * 5000, "max_tokens": 1}, 400)):
                answer = server.request("POST", "/v1/completions", body)
                assert answer[0] == status, answer
                wanted.add({k.lower(): v for k, v in dict(answer[1]).items()}["traceparent"].split("-")[1])
        assert set(collector.requests()) == wanted
        last = collector.metrics()[-1]
        assert sum(p.as_double for p in last["reprise_requests_total"].sum.data_points) == 7


def check_requests_that_are_refused_by_the_queue():
    """Whatever becomes of a request, it has one server span."""
    seen = []
    with Collector() as collector:
        with Server(DEMO, "--otlp-endpoint", url(collector.port), "--max-num-seqs", "1", "--max-num-queued-reqs", "1") as server:
            def one(i):
                answer = server.request("POST", "/v1/completions", {"prompt": [9 + i], "max_tokens": 99, "ignore_eos": True})
                headers = {k.lower(): v for k, v in dict(answer[1]).items()}
                seen.append((headers["traceparent"].split("-")[1], answer[0]))

            threads = [threading.Thread(target=one, args=(i,)) for i in range(12)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert {status for _, status in seen} <= {200, 429}, seen
        spans = [(trace, {a.key: a.value for a in span.attributes}["http.response.status_code"].int_value)
                 for trace, span in collector.requests().items()]
        assert sorted(spans) == sorted(seen), (len(spans), seen)


def check_usage():
    for flags, words in ((("--otlp-endpoint", "localhost:4318"), "must begin with http://"),
                         (("--otlp-endpoint", "http://localhost:70000"), "the port must be"),
                         (("--otlp-sample-ratio", "1.5"), "--otlp-sample-ratio")):
        done = subprocess.run([BIN, "serve", DEMO, "--port", "0", *flags], capture_output=True, timeout=60)
        assert done.returncode == 2 and words.encode() in done.stderr, done


check_batches_and_sampling()
check_the_end_sends_what_is_left()
check_requests_that_are_refused_by_the_queue()
check_usage()
print("spans and metrics are valid, whole, and sampled")
