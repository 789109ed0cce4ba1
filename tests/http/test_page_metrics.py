"""Histograms of KV pages and bytes of swaps: what a short pool, equal prompts and a full batch must leave in /metrics agrees with
/debug/steps, /debug/memory and the trace."""
import json
import threading

from reprise_server import DEMO, Server


def count(metrics, name):
    return metrics[f"reprise_kv_page_{name}_seconds_count"]


def check_histograms(metrics):
    for name in ("lifetime", "reuse_gap", "eviction_idle"):
        buckets = [value for key, value in metrics.items() if key.startswith(f"reprise_kv_page_{name}_seconds_bucket")]
        assert buckets and max(buckets) == count(metrics, name), (name, buckets)
    assert count(metrics, "eviction_idle") <= count(metrics, "lifetime")


def check_cached_pages(server):
    prompt = {"prompt": "one two three four five six seven eight nine ten " * 4, "max_tokens": 1, "temperature": 0}
    server.post("/v1/completions", prompt)
    before = server.metrics()
    assert count(before, "reuse_gap") == 0 and count(before, "eviction_idle") == 0
    server.post("/v1/completions", prompt)
    after = server.metrics()
    hits = after["reprise_cached_prompt_tokens_total"] - before["reprise_cached_prompt_tokens_total"]
    assert hits > 0 and count(after, "reuse_gap") == hits / 16, (hits, count(after, "reuse_gap"))
    for i in range(16):  # other prompts take the cached pages
        server.post("/v1/completions", {"prompt": [50 + i] * 120, "max_tokens": 8, "ignore_eos": True})
    metrics = server.metrics()
    assert count(metrics, "eviction_idle") > 0
    check_histograms(metrics)


def check_swaps(server):
    body = {"max_tokens": 120, "ignore_eos": True}
    threads = [threading.Thread(target=server.post, args=("/v1/completions", {**body, "prompt": [60 + i] * 20}))
               for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    metrics = server.metrics()
    page_bytes = json.loads(server.get("/debug/memory")[1])["kv"]["page_bytes"]
    steps = json.loads(server.get("/debug/steps?limit=4096&seconds=3600")[1])["steps"]
    swapped = {way: sum(step[f"swap_{way}_bytes"] for step in steps) for way in ("out", "in")}
    assert swapped["out"] > 0 and swapped["out"] % page_bytes == 0, swapped
    for way, sum_of_steps in swapped.items():
        assert metrics[f'reprise_kv_swapped_bytes_total{{direction="{way}"}}'] == sum_of_steps, (way, swapped)
    assert metrics["reprise_step_swap_bytes_sum"] == sum(swapped.values())
    assert metrics["reprise_step_swap_bytes_count"] == sum(s["swap_out_bytes"] + s["swap_in_bytes"] > 0 for s in steps)
    trace = json.loads(server.get("/debug/trace?seconds=3600")[1])
    told = [event["args"] for event in trace["traceEvents"] if event["ph"] == "C" and event["name"] == "swap"]
    assert {way: sum(args[f"{way}_bytes"] for args in told) for way in ("out", "in")} == swapped, told[:4]
    check_histograms(metrics)


def main():
    with Server(DEMO, "--num-gpu-blocks-override", "40", "--max-model-len", "256", "--swap-space", "1") as server:
        check_cached_pages(server)
        check_swaps(server)
    print("pages reused, evicted and swapped are those of the histograms")


main()
