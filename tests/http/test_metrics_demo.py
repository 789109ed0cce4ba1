"""/metrics of the real engine under 32 streams: numbers that must agree do, every text is valid, and the table of
families in docs/observability/metrics.md is the one that the server shows (`test_metrics_demo.py --write` renews it)."""
import json
import os
import re
import sys
import threading
import time
import urllib.request

from reprise_server import DEMO, SOURCE, Server, skip

try:
    from exposition import promtool, samples_of
except ImportError:
    skip("prometheus_client is not installed")

PAGE = os.path.join(SOURCE, "docs", "observability", "metrics.md")
STREAMS, SERIES_MAX = 32, 510
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*?)\})? (\S+)( # .*)?$")


def scrape(server, accept="text/plain", query=""):
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/metrics{query}", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read()


def values_of(text):
    values = {}
    for line in text.decode().splitlines():
        if not line.startswith("#"):
            name, labels, value, _ = SAMPLE.match(line).groups()
            values[name, labels or ""] = float(value)
    return values


def total(values, name):
    return sum(value for (own, _), value in values.items() if own == name)


def check_load(server):
    prompts = [list(range(5, 15 + i)) for i in range(STREAMS)]
    usage, errors = [], []

    def ask(i):
        try:
            body = {"prompt": prompts[i], "max_tokens": 8 + i, "ignore_eos": True, "temperature": 0}
            usage.append(json.loads(json.dumps(server.post("/v1/completions", body)[1]["usage"])))
        except Exception as error:  # raised by the main thread
            errors.append((i, error))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(STREAMS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        samples_of(scrape(server, "application/openmetrics-text"), True)
    for thread in threads:
        thread.join()
    assert not errors, errors
    return sum(u["prompt_tokens"] for u in usage), sum(u["completion_tokens"] for u in usage)


def check_numbers(server, prompt_tokens, generated_tokens):
    deadline = time.monotonic() + 30  # a wasted run-ahead step may still be in flight
    while True:
        values = values_of(scrape(server))
        if not total(values, "reprise_requests_running") or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    steps = total(values, "reprise_steps_total")
    for name, expected in {
            "reprise_graph_replays_total": steps, "reprise_step_duration_seconds_count": steps,
            "reprise_step_device_seconds_count": steps, "reprise_step_tokens_count": steps,
            "reprise_graph_padding_slots_total": total(values, "reprise_padded_tokens_total"),
            "reprise_kv_pages": total(values, "reprise_kv_pages_capacity"),
            "reprise_graph_fallbacks_total": 0, "reprise_kv_fragmentation_ratio": 0,
            "reprise_requests_total": STREAMS, "reprise_request_duration_seconds_count": STREAMS,
            "reprise_queue_wait_seconds_count": STREAMS, "reprise_time_per_output_token_seconds_count": STREAMS,
            "reprise_request_prompt_tokens_sum": prompt_tokens, "reprise_request_generation_tokens_sum": generated_tokens,
            "reprise_generated_tokens_total": generated_tokens,
            "reprise_inter_token_latency_seconds_count": generated_tokens - STREAMS,
            "vllm:generation_tokens_total": generated_tokens, "vllm:prompt_tokens_total": prompt_tokens,
            "vllm:prompt_tokens_by_source_total": prompt_tokens, "vllm:request_success_total": STREAMS,
            "vllm:iteration_tokens_total_count": steps, "vllm:kv_cache_usage_perc": 0,
            "vllm:request_prefill_kv_computed_tokens_sum": total(values, "reprise_prompt_tokens_total")}.items():
        assert total(values, name) == expected, (name, total(values, name), expected)
    assert {labels for name, labels in values if name == "reprise_startup_seconds"} == {
        f'phase="{phase}"' for phase in ("device", "tokenizer", "weights", "engine")}
    assert total(values, "reprise_trace_events_total") > steps
    # Each second of a step on the device is charged to a request, to padding, or to a row that had ended.
    device = total(values, "reprise_step_device_seconds_sum")
    assert abs(total(values, "reprise_device_step_seconds_total") - device) < 1e-6 * steps, device
    # 7.3 million parameters: two operations per parameter and token, without the embedding.
    assert total(values, "reprise_model_flops_total") > 2 * 6e6 * total(values, "reprise_step_tokens_sum")
    assert total(values, "reprise_model_bytes_total") > 12e6 * steps
    assert all(value > 0 for (name, _), value in values.items() if name in ("reprise_device_peak_per_second", "reprise_roofline_ratio"))
    # The phases of a request add up to its whole time in the engine.
    whole = sum(total(values, f"vllm:request_{part}_time_seconds_sum") for part in ("prefill", "decode"))
    assert abs(whole - total(values, "vllm:request_inference_time_seconds_sum")) < 1e-6 * STREAMS


def families_of(text):
    """[(Prometheus' name, type, unit, labels, help)]"""
    families, current = [], None
    for line in text.decode().splitlines():
        words = line.split(" ", 3)
        if line.startswith("# TYPE "):
            current = {"name": words[2] + {"counter": "_total", "info": "_info"}.get(words[3], ""), "type": words[3],
                       "unit": "", "help": "", "labels": {}}
            families.append(current)
        elif line.startswith("# UNIT "):
            current["unit"] = words[3]
        elif line.startswith("# HELP "):
            current["help"] = words[3].replace("|", "\\|")
        elif not line.startswith("#"):
            for label in re.findall(r'(\w+)="', SAMPLE.match(line).group(2) or ""):
                if label != "le":
                    current["labels"][label] = True
    return families


def table_of(families):
    rows = [f"| `{f['name']}` | {f['type']} | {f['unit']} | {', '.join(f['labels'])} | {f['help']} |\n" for f in families]
    return "| name | type | unit | labels | |\n|---|---|---|---|---|\n" + "".join(rows)


def list_of(families):
    kinds = {}
    for f in families:
        kinds.setdefault("gauge" if f["type"] == "info" else f["type"], []).append(f"`{f['name']}`")
    return "".join(f"- {kind}s: {', '.join(names)}\n" for kind, names in kinds.items())


def check_page(server, write):
    own = families_of(scrape(server, "application/openmetrics-text", "?compat=none"))
    others = {compat: [f for f in families_of(scrape(server, "application/openmetrics-text", f"?compat={compat}"))
                       if f["name"].startswith(prefix)] for compat, prefix in (("vllm", "vllm:"), ("otel", "gen_ai_"))}
    parts = {"families": table_of(own), **{compat: list_of(families) for compat, families in others.items()}}
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    renewed = page
    for name, text in parts.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, rest = renewed.split(begin)
        renewed = before + begin + text + end + rest.split(end)[1]
    if write:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(renewed)
        return
    shown, written = renewed.splitlines(), page.splitlines()
    differences = [f"+{row}" for row in shown if row not in written] + [f"-{row}" for row in written if row not in shown]
    assert renewed == page, (f"{PAGE} is not what the server shows; renew it: tests/http/test_metrics_demo.py --write",
                             differences)


def check_nodes():
    """Every step is timed: the operators' times add up to the steps' times without the gaps between kernels."""
    with Server(DEMO, "--max-num-seqs", "4", "--profile-every", "1") as server:
        server.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True})
        values = values_of(scrape(server))
        nodes, steps = total(values, "reprise_device_node_seconds_total"), total(values, "reprise_step_device_seconds_sum")
        assert 0.2 * steps < nodes <= 1.001 * steps, (nodes, steps)
        operators = {labels: value for (name, labels), value in values.items() if name == "reprise_device_node_seconds_total"}
        assert {f'op="{op}"' for op in ("linear", "attention", "sample")} <= set(operators), operators
        assert operators['op="linear"'] > operators['op="attention"']


def main(arguments):
    with Server(DEMO, "--max-num-seqs", "16", "--profile-every", "4") as server:
        prompt_tokens, generated_tokens = check_load(server)
        check_numbers(server, prompt_tokens, generated_tokens)
        own, everything = scrape(server, query="?compat=none"), scrape(server)
        samples_of(everything, False)
        assert not promtool(own), promtool(own)
        times = []
        for _ in range(20):
            begin = time.perf_counter()
            scrape(server)
            times.append(time.perf_counter() - begin)
        print(f"{len(values_of(own))} series of ours, {len(values_of(everything))} with vLLM's names, {len(own)} and "
              f"{len(everything)} bytes, {sorted(times)[10] * 1e3:.2f} ms a scrape with its connection")
        assert len(values_of(own)) <= SERIES_MAX
        check_page(server, "--write" in arguments)
    check_nodes()


main(sys.argv[1:])
