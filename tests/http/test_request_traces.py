"""Records of requests under 32 streams on the demo model: stamps are in order, sums are right, ids are echoed, every
nanosecond of the device's busy time is charged to a request, to padding or to a wasted row; OpenTelemetry's own classes
read the OTLP."""
import json
import re
import threading

from mixed_streams import make_requests
from reprise_server import DEMO, Server

STREAMS = 32
SMALL = ["--block-size", "4", "--num-gpu-blocks-override", "60", "--max-model-len", "240", "--max-num-batched-tokens", "64"]


def ask(server, i, body, answers):
    name, trace = f"stream-{i}", f"{i + 1:032x}"
    headers = {"X-Request-Id": name, "traceparent": f"00-{trace}-00000000000000aa-01", "Content-Type": "application/json"}
    body = dict(body, stream=i % 2 == 0, include_timing=True)
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    status, headers, text = server.request("POST", "/v1/completions", json.dumps(body), headers)
    assert status == 200, text
    assert headers["X-Request-Id"] == name and headers["traceparent"].split("-")[1] == trace, headers
    whole = json.loads(text.decode().split("\n\n")[-3][6:] if body["stream"] else text)
    answers[i] = (headers, whole["usage"], whole["timing"])


def leave(server, i):
    """A client that disconnects in the middle of its stream."""
    import http.client
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    body = {"prompt": f"Tell me {i}", "max_tokens": 200, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"X-Request-Id": f"leaves-{i}", "Content-Type": "application/json"})
    connection.getresponse().read(10)
    connection.close()


def outgrow(server):
    """A request whose answers alone need more pages than SMALL has, however slowly the others arrive."""
    body = {"prompt": "Tell me", "n": 4, "max_tokens": 100, "ignore_eos": True}
    status, _, text = server.request("POST", "/v1/completions", json.dumps(body),
                                     {"X-Request-Id": "outgrows", "Content-Type": "application/json"})
    assert status == 200, text


def all_together(server, requests):
    answers, errors = [None] * STREAMS, []

    def guarded(function, *arguments):
        try:
            function(server, *arguments)
        except Exception as error:  # raised in the main thread
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(ask, i, requests[i], answers)) for i in range(STREAMS)]
    threads += [threading.Thread(target=guarded, args=(leave, i)) for i in range(4)]
    for thread in threads:
        thread.start()
    watch(server, threads)
    for thread in threads:
        thread.join()
    assert not errors, errors
    return answers


def watch(server, threads):
    """Requests records while any of the threads runs: open ones, and lists that a worker writes."""
    states = set()
    while any(thread.is_alive() for thread in threads):
        for record in listing(server, "slowest=500&finish=open")["requests"]:
            states.add(record["state"])
            assert record["device"]["nanoseconds"] == 0 and record["stamps_seconds"]["closed"] is None, record
            for form in ("json", "otlp", "perfetto"):
                status, text, _ = server.get(f"/debug/requests/{record['id']}?format={form}")
                assert status == 200 and json.loads(text), text
        listing(server, "recent=500")
    assert states & {"queued", "decode"}, states


def listing(server, query):
    status, text, _ = server.get("/debug/requests?" + query)
    assert status == 200, text
    return json.loads(text)


def settled(server):
    """The list when nothing is open and the last step was read: a run-ahead step may still be in flight."""
    before = None
    while True:
        after = listing(server, "recent=500")
        if before and not after["open_completions"] and before["device_nanoseconds"] == after["device_nanoseconds"] \
                and server.metrics()['reprise_kv_pages{state="held"}'] == 0:
            return after
        before = after


def close_to(a, b, slack=2e-6):
    return abs(a - b) <= slack


def check_record(found, usage, timing, page_tokens):
    stamps, durations, device = found["stamps_seconds"], found["durations_seconds"], found["device"]
    times = list(stamps.values())
    assert None not in times, stamps
    assert all(b >= a - 1e-5 for a, b in zip(times, times[1:])), stamps  # two clocks, 5 us apart at most
    assert found["tokens"]["prompt"] == usage["prompt_tokens"] and found["tokens"]["output"] == usage["completion_tokens"]
    assert found["tokens"]["cached"] == usage["prompt_tokens_details"]["cached_tokens"]
    tokens = found["token_seconds"]
    assert len(tokens) == usage["completion_tokens"] and tokens == sorted(tokens)
    assert close_to(tokens[0], stamps["first_token"]) and close_to(tokens[-1], stamps["last_token"])
    assert close_to(durations["time_to_first_token"] + durations["decode"], stamps["last_token"])
    chunks = found["prefill_chunks"]
    assert sum(c["tokens"] for c in chunks) == usage["prompt_tokens"] - found["tokens"]["cached"], chunks
    assert chunks[0]["start"] == found["tokens"]["cached"] and found["prefill_chunk_count"] == len(chunks)
    assert all(c["begin_seconds"] < c["end_seconds"] for c in chunks)
    assert stamps["admitted"] <= chunks[0]["begin_seconds"] and chunks[-1]["end_seconds"] <= stamps["first_token"] + 1e-6
    assert sum(b["steps"] for b in device["buckets"]) + device["other_bucket_steps"] == device["steps"]
    assert device["steps"] == device["decode_steps"] + len(chunks)
    assert device["nanoseconds"] > 0 and device["bytes"] > 0 and device["flops"] > 0 and 0 <= device["padding_ratio"] < 1
    assert device["prefill_seconds"] <= device["seconds"] <= sum(b["steps"] for b in device["buckets"])
    gaps = found["inter_token"]
    # Sampled tokens: a token that completed a stop string may have been followed by another.
    assert sum(gaps["seconds_by_cause"].values()) >= durations["decode"] - 1e-5
    if len(tokens) > 1:
        assert gaps["worst"]["cause"] in gaps["seconds_by_cause"]
        assert gaps["worst"]["seconds"] >= max(b - a for a, b in zip(tokens, tokens[1:])) - 3e-6
    assert found["memory"]["pages_peak"] * page_tokens >= usage["prompt_tokens"] and found["memory"]["page_seconds"] > 0
    assert (gaps["seconds_by_cause"]["swap"] > 0) <= (found["memory"]["swaps"] > 0)
    # The answer agrees.
    prompt = timing["prompts"][0]
    assert prompt["device_seconds"] == device["seconds"] and prompt["steps"] == device["steps"]
    assert prompt["inter_token"] == gaps and timing["trace_id"] == found["trace_id"]
    assert timing["time_to_first_token_seconds"] == durations["time_to_first_token"]
    assert timing["total_seconds"] <= durations["total"]


def check_perfetto(server, name):
    trace = json.loads(server.get(f"/debug/requests/{name}?format=perfetto")[1])
    lanes = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0, event
            lanes.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"], event["name"]))
    assert len(lanes) == 4, lanes.keys()
    for events in lanes.values():
        open_slices = []
        for begin, end, name in sorted(events, key=lambda e: (e[0], -e[1])):
            while open_slices and open_slices[-1] <= begin + 1e-6:
                open_slices.pop()
            assert not open_slices or end <= open_slices[-1] + 6, (name, begin, end, open_slices)
            open_slices.append(end)


def check_otlp(server, name, found):
    text = server.get(f"/debug/requests/{name}?format=otlp")[1]
    spans = json.loads(text)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    root = spans[0]
    assert root["kind"] == 2 and root["parentSpanId"] == "00000000000000aa" and root["spanId"] == found["span_id"]
    assert {s["name"] for s in spans[1:]} == {"receive", "tokenize", "queue", "prefill", "decode"}
    for span in spans:
        assert re.fullmatch("[0-9a-f]{32}", span["traceId"]) and re.fullmatch("[0-9a-f]{16}", span["spanId"])
        assert span["traceId"] == found["trace_id"] and int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
        assert isinstance(span["startTimeUnixNano"], str) and isinstance(span["kind"], int)
        assert span is root or span["parentSpanId"] == root["spanId"]
    assert len({s["spanId"] for s in spans}) == len(spans)
    attributes = {a["key"]: a["value"] for a in root["attributes"]}
    assert len(attributes) == len(root["attributes"])
    assert attributes["gen_ai.usage.output_tokens"] == {"intValue": str(found["tokens"]["output"])}
    return text


def check_schema(text):
    """True if OpenTelemetry's own classes accept it. Their JSON has base64 where OTLP has hexadecimal digits."""
    try:
        from google.protobuf import json_format
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    except ImportError:
        return False
    import base64
    as_base64 = re.sub('"(traceId|spanId|parentSpanId)":"([0-9a-f]+)"',
                       lambda m: f'"{m[1]}":"{base64.b64encode(bytes.fromhex(m[2])).decode()}"', text)
    request = json_format.Parse(as_base64, ExportTraceServiceRequest())
    span = request.resource_spans[0].scope_spans[0].spans[0]
    back = json.loads(text)["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert span.trace_id.hex() == back["traceId"] and span.start_time_unix_nano == int(back["startTimeUnixNano"])
    assert len(span.attributes) == len(back["attributes"])
    return True


def check(flags, swaps):
    requests = make_requests()[:STREAMS]
    with Server(DEMO, *flags) as server:
        answers = all_together(server, requests)
        if swaps:
            outgrow(server)
        whole = settled(server)
        found = {r["id"]: r for r in whole["requests"]}
        assert len(found) == STREAMS + 4 + swaps, sorted(found)
        for i, (headers, usage, timing) in enumerate(answers):
            status, text, _ = server.get(f"/debug/requests/stream-{i}")
            assert status == 200
            record = json.loads(text)["requests"][0]
            assert record["span_id"] == headers["traceparent"].split("-")[2]
            check_record(record, usage, timing, 4 if swaps else 16)
            check_perfetto(server, f"stream-{i}")
        for i in range(4):
            left = found[f"leaves-{i}"]
            assert left["finish_reason"] == "cancelled" and left["client_left"], left
        device = whole["device_nanoseconds"]
        assert sum(r["device"]["nanoseconds"] for r in whole["requests"]) == device["attributed"]
        assert device["attributed"] + device["padding"] + device["unused_rows"] == device["busy"], device
        counted = json.loads(server.get("/debug/status")[1])["device_seconds"]["busy"]  # by itself, as steps are read
        assert abs(device["busy"] * 1e-9 - counted) < 1e-8, (device, counted)
        busy = server.metrics()["reprise_step_device_seconds_sum"]  # by the device's own clock
        assert abs(device["busy"] * 1e-9 - busy) <= 0.005 * busy, (device, busy)
        # A step launched ahead for requests that had ended takes any time on a busy machine.
        assert device["attributed"] > device["padding"] + device["unused_rows"], device
        assert (sum(r["memory"]["swaps"] for r in whole["requests"]) > 0) == swaps
        causes = {cause for r in whole["requests"] for cause, value in r["inter_token"]["seconds_by_cause"].items() if value}
        assert {"step", "other_prefill"} <= causes and (not swaps or "swap" in causes), causes
        text = check_otlp(server, "stream-3", found["stream-3"])
        known = check_schema(text)
        print(f"{len(flags)} flags: busy {device['busy'] * 1e-9:.3f} s, attributed {device['attributed'] / device['busy']:.4f}, "
              f"causes {sorted(causes)}", flush=True)
        return known


known = check([], False)
check(SMALL, True)
print("2 passed, 0 failed" + ("" if known else "; opentelemetry-proto is not installed: its schema was not asked"))
