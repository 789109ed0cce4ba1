"""/metrics: both formats, idle and under load, judged by promtool and prometheus_client; which client gets which format;
other servers' names from the same numbers; how many series."""
import gzip
import re
import threading

from fake_server import Server, skip

try:
    from exposition import promtool, samples_of
except ImportError:
    skip("prometheus_client is not installed")

OPEN = "application/openmetrics-text"
# What Prometheus 3 sends.
PROMETHEUS = (f"{OPEN};version=1.0.0;escaping=allow-utf-8;q=0.6,{OPEN};version=0.0.1;q=0.5,"
              "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2")
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*?)\})? (\S+)( # .*)?$")
SERIES_MAX = 500  # of our own names; histogram buckets count


def text_of(server, accept=None, query=""):
    response = server.get("/metrics" + query, headers=[("Accept", accept)] if accept else [])
    assert response.status == 200, response.body
    return response


def series(text):
    """name{labels} -> value"""
    values = {}
    for line in text.decode().splitlines():
        if not line.startswith("#"):
            name, labels, value, _ = SAMPLE.match(line).groups()
            values[f"{name}{{{labels}}}" if labels else name] = float(value)
    return values


def family(values, name):
    """A histogram without labels other than the model's: [(le, cumulative count)], sum, count."""
    buckets = [(float(re.search(r'le="([^"]+)"', key).group(1)), value) for key, value in values.items()
               if key.startswith(name + "_bucket{")]
    rest = {part: value for key, value in values.items() for part in ("sum", "count")
            if re.split(r"\{", key)[0] == f"{name}_{part}"}
    return buckets, rest["sum"], rest["count"]


def ask_much(server):
    for i in range(6):
        server.complete("abcdef"[i:], max_tokens=3 + 5 * i)
    server.complete("abcdef", max_tokens=9, stream=True)
    server.complete("abc", stop="b", max_tokens=5)
    server.complete("abc", seed=9001, max_tokens=9)  # a NaN
    server.get("/nothing")


def test_both_formats_pass_idle_and_used():
    with Server() as server:
        for used in (False, True):
            if used:
                ask_much(server)
            plain, opened = text_of(server), text_of(server, PROMETHEUS)
            assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert opened.headers["content-type"] == f"{OPEN}; version=1.0.0; charset=utf-8"
            assert "Accept" in plain.headers["vary"]
            assert len(samples_of(plain.body, False)) > 100
            assert len(samples_of(opened.body, True)) > 100
            own = text_of(server, query="?compat=none").body
            assert not promtool(own), promtool(own)
    if promtool(b"") is None:
        print("not done: promtool is not installed")


def test_another_parser_reads_the_same_values():
    with Server() as server:
        ask_much(server)
        for accept in (None, OPEN):
            for query in ("?compat=none", "?compat=vllm", "?compat=otel"):
                text = text_of(server, accept, query).body
                got = {}
                for sample in samples_of(text, accept == OPEN):
                    labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items())
                    got[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
                assert got == series(text), {key: (got.get(key), value) for key, value in series(text).items()
                                             if got.get(key) != value}


def test_who_gets_what():
    with Server() as server, server.connect() as connection:
        for accept, opened in ((None, False), ("*/*", False), (OPEN, True), (f"{OPEN};q=0.2, text/plain", False),
                               (f"{OPEN};q=0", False), ("image/png", False), (PROMETHEUS, True)):
            assert (OPEN in text_of(server, accept).headers["content-type"]) == opened, accept
        for encoding, packed in ((None, False), ("gzip", True), ("br, GZIP;q=0.5", True), ("gzip;q=0", False),
                                 ("*", True), ("*;q=0", False), ("identity, gzip; q=0.0, *", False), ("gzipped", False),
                                 (",,;;q,", False)):
            headers = [("Accept-Encoding", encoding)] if encoding else []
            response = server.get("/metrics", headers=headers)
            assert (response.headers.get("content-encoding") == "gzip") == packed, encoding
            body = gzip.decompress(response.body) if packed else response.body
            samples_of(body, False)
            if packed:
                assert len(response.body) < len(body) / 4
        for headers in ([], [("Accept-Encoding", "gzip")], [("Accept", OPEN)]):
            connection.send("HEAD", "/metrics", headers=headers)
            empty = connection.response(head_only=True)
            assert empty.status == 200 and int(empty.headers["content-length"]) > 1000
            assert ("content-encoding" in empty.headers) == any(name == "Accept-Encoding" for name, _ in headers)
        for query in ("?compat=prometheus", "?compat=", "?format=json", "?compat=none&compat=none"):
            response = server.get("/metrics" + query)
            assert response.status == 400 and "error" in response.json(), query


def test_buckets_name_the_last_trace_that_fell_into_them():
    traces = ["4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c"]
    with Server() as server:
        for trace in traces:
            parent = [("traceparent", f"00-{trace}-00f067aa0ba902b7-01")]
            assert server.post("/v1/completions", {"prompt": "abc", "max_tokens": 5}, headers=parent).status == 200
        plain, opened = text_of(server).body, text_of(server, OPEN)
        assert b"trace_id" not in plain
        exemplars = [sample for sample in samples_of(opened.body, True) if sample.exemplar]
        lines = [line for line in opened.body.decode().splitlines() if " # {" in line]
        assert len(lines) == len(exemplars) > 0
        for name in ("time_to_first_token", "inter_token_latency", "time_per_output_token", "request_duration", "queue_wait"):
            found = {re.search(r'# \{trace_id="([0-9a-f]{32})"\} ', line).group(1) for line in lines
                     if line.startswith(f"reprise_{name}_seconds_bucket")}
            assert found and found <= set(traces), (name, found)
        assert any("vllm:time_to_first_token_seconds_bucket" in line for line in lines)


def test_other_servers_names_show_the_same_numbers():
    with Server() as server:
        ask_much(server)
        values = series(text_of(server, query="?compat=vllm").body)
        otel = series(text_of(server, query="?compat=otel").body)
        labels = '{model_name="fake",engine="0"}'
        for theirs, ours in (("generation_tokens_total", "generated_tokens_total"), ("num_requests_running", "requests_running"),
                             ("prefix_cache_queries_total", "prefix_cache_queries_total")):
            assert values[f"vllm:{theirs}{labels}"] == values[f"reprise_{ours}"], theirs
        preempted = [value for key, value in values.items() if key.startswith("reprise_preemptions_total{")]
        assert len(preempted) == 2 and values["vllm:num_preemptions_total" + labels] == sum(preempted), preempted
        reasons = {reason: values[f'vllm:request_success_total{{model_name="fake",engine="0",finished_reason="{reason}"}}']
                   for reason in ("stop", "length", "abort", "error")}
        assert reasons == {"stop": 1, "length": 7, "abort": 0, "error": 1}, reasons
        assert values["vllm:corrupted_requests_total" + labels] == 1
        for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "request_prompt_tokens",
                     "request_generation_tokens"):
            ours, theirs = family(values, "reprise_" + name), family(values, "vllm:" + name)
            fine = dict(ours[0])
            assert ours[1:] == theirs[1:] and ours[2] > 0, name
            assert all(fine[le] == count for le, count in theirs[0]), (name, ours, theirs)
        assert [le for le, _ in family(values, "vllm:inter_token_latency_seconds")[0]] == [
            .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, float("inf")]
        assert [le for le, _ in family(values, "vllm:e2e_request_latency_seconds")[0]] == [
            .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680, float("inf")]
        # 1-2-5 up to the longest context, 4096 here.
        assert [le for le, _ in family(values, "vllm:request_params_max_tokens")[0]] == [
            1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, float("inf")]
        assert [le for le, _ in family(values, "reprise_inter_token_latency_seconds")[0]][1:4] == [.001, .002, .003]
        assert [le for le, _ in family(otel, "gen_ai_server_request_duration_seconds")[0]] == [
            *(round(.01 * 2 ** i, 2) for i in range(14)), float("inf")]
        assert family(otel, "gen_ai_server_time_to_first_token_seconds")[1:] == family(
            values, "reprise_time_to_first_token_seconds")[1:]
        assert not any(key.startswith("vllm:") for key in otel)


def test_other_servers_names_can_be_switched_off():
    with Server("--no-vllm-metrics") as server:
        assert b"vllm:" not in text_of(server).body
        assert b"vllm:" in text_of(server, query="?compat=vllm").body
    with Server(env={"REPRISE_VLLM_METRICS": "false"}) as server:
        assert b"vllm:" not in text_of(server).body
    with Server("--served-model-name", 'a "b" \\ c') as server:
        text = text_of(server)
        samples_of(text.body, False)
        samples_of(text_of(server, OPEN).body, True)
        assert b'model_name="a \\"b\\" \\\\ c"' in text.body


def test_scrapes_under_load_are_whole_and_never_go_back():
    with Server(env={"FAKE_STEP_US": "200"}) as server:
        done = threading.Event()

        def load():
            while not done.is_set():
                assert server.complete("abcdefgh", max_tokens=20, stream=True).status == 200

        threads = [threading.Thread(target=load) for _ in range(8)]
        for thread in threads:
            thread.start()
        try:
            last = {}
            for i in range(30):
                opened = text_of(server, OPEN).body
                samples_of(opened, True)
                if i % 10 == 0:
                    samples_of(text_of(server).body, False)
                counts = {key: value for key, value in series(opened).items()
                          if re.search(r"_(total|bucket|count)(\{|$)", key)}
                back = {key: (last[key], value) for key, value in counts.items() if value < last.get(key, 0)}
                assert not back, back
                last = counts
            assert last["reprise_generated_tokens_total"] > 0
        finally:
            done.set()
            for thread in threads:
                thread.join()


def test_series_are_few():
    with Server() as server:
        ask_much(server)
        own, all_of_them = text_of(server, query="?compat=none"), text_of(server)
        print(f"{len(series(own.body))} series of ours, {len(series(all_of_them.body))} with vLLM's names: "
              f"{len(own.body)} and {len(all_of_them.body)} bytes")
        assert len(series(own.body)) <= SERIES_MAX
        assert series(own.body)["reprise_metrics_dropped_series_total"] == 0


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name, flush=True)


main()
