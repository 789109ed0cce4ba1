"""/debug/profile/counters with a GPU's hardware counters (a fake GPU and a fake CUPTI): both parts, as JSON and text,
during running streams; every refusal names the cause and the remedy; one call at a time."""
import http.client
import json
import os
import re
import threading
import time

from reprise_server import BIN, DEMO, Server

GPU = os.environ.get("REPRISE_FAKE_GPU", "")
SMALL = ["--max-num-seqs", "8", "--max-num-batched-tokens", "64"]
ROUTE = "/debug/profile/counters"


def gpu(kind):
    os.environ.update(REPRISE_CUDA_MODULE=GPU)
    os.environ.pop("FAKE_GPU_COUNTERS", None)
    if kind:
        os.environ.update(FAKE_GPU_COUNTERS=kind)
    return Server(DEMO, *SMALL)


def get(server, query):
    status, text, headers = server.get(ROUTE + query)
    return status, json.loads(text) if "json" in headers["Content-Type"] else text


def body(i):
    return {"prompt": f"Once {i}", "max_tokens": 60, "temperature": 0, "ignore_eos": True}


def answer(server, i):
    return server.post("/v1/completions", body(i))[1]["choices"][0]["text"]


def check_device(server):
    status, out = get(server, "?source=device&seconds=0.2")
    assert status == 200, out
    device = out["device"]
    assert set(out) == {"device"} and device["chip"] == "GH100" and device["source"] == "CUPTI 130001", out
    assert device["interval_us"] == 1000 and device["samples"] >= 80 and not device["overflowed"], device
    assert device["seconds"] >= 0.2 and abs(device["covered_seconds"] - device["samples"] * 1e-3) < 1e-6, device
    counters = {c["name"]: c for c in device["counters"]}
    assert {"sm_active", "tensor_active", "ipc", "dram_read", "dram_read_bytes", "l2_hit_rate"} <= set(counters), counters
    for c in counters.values():
        assert c["samples"] == device["samples"] and 1 <= c["p50"] <= c["p99"] <= c["max"] <= 100, c
        assert c["unit"] and c["about"] and c["metric"], c
    assert [c["name"] for c in device["left_out"]] == ["nvlink_read_bytes"], device["left_out"]
    assert "this GPU does not give it" in device["left_out"][0]["why"], device["left_out"]
    cost = device["cost"]
    assert cost["cpu_seconds"] < device["seconds"] and cost["hardware_buffer_bytes"] > 0 and cost["host_bytes"] > 0, cost
    assert set(cost["slowdown"]) == {"steps_before", "during", "after"}, cost


def check_host(server):
    """The processor's counters, where permitted, are the same with the device's as alone."""
    status, alone = get(server, "?source=host&seconds=0.05")
    both_status, both = get(server, "?seconds=0.05")
    assert both_status == 200 and both["device"]["samples"] > 0, both
    if status == 200:
        assert "device" not in alone and len(alone["threads"]) > 2, alone
        assert {t["name"] for t in alone["threads"]} <= {t["name"] for t in both["threads"]}, (alone, both)
        assert both["seconds"] >= both["device"]["seconds"], both
    else:
        assert status == 403 and alone["error"]["code"] == "counters_not_available", alone
        assert both["host"]["error"] == alone["error"]["message"] and "threads" not in both, both
    assert set(get(server, "?source=all&seconds=0.05")[1]) == set(both)


def check_text(server):
    status, text = get(server, "?source=all&seconds=0.05&format=text")
    assert status == 200, text
    assert re.search(r"^device      GH100, CUPTI 130001; \d+ samples of 1000 us in \d+\.\d+ s, 0 missing$", text, re.M), text
    assert re.search(r"^cost        setup \d+ ms", text, re.M), text
    assert re.search(r"^sm_active +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +% ", text, re.M), text
    assert re.search(r"^left out: nvlink_read_bytes: this GPU does not give it", text, re.M), text
    assert re.search(r"^host        (none: |\d+ threads)", text, re.M), text


def check_query(server):
    for bad in ("source=gpu", "source=", "seconds=0", "seconds=11", "seconds=x", "interval_us=99", "interval_us=1e9",
                "format=csv", "metric=sm", "source=device&source=host"):
        status, out = get(server, "?" + bad)
        assert status == 400, (bad, out)
    status, out = get(server, "?source=device&seconds=0.05&interval_us=100")
    assert status == 200 and out["device"]["interval_us"] == 100, out
    assert server.post(ROUTE, {})[0] == 405


def check_under_load(server):
    """Streams continue meanwhile; a second call is refused; answers are unchanged."""
    texts = [answer(server, i) for i in range(4)]
    for attempt in range(6):  # on a busy machine the first may arrive after the second
        results, running = [], []
        counting = threading.Thread(target=lambda: running.append(get(server, "?source=device&seconds=3")))
        counting.start()
        time.sleep(0.3 * (attempt + 1))
        status, out = get(server, "?source=device&seconds=0.01")
        while counting.is_alive() or not results:
            results.append([answer(server, i) for i in range(4)])
        counting.join()
        assert all(r == texts for r in results), (texts, results)
        if status == 409 and running[0][0] == 200:
            break
    assert status == 409 and out["error"]["code"] == "counters_in_use", (status, out)
    assert running[0][0] == 200, running
    slowdown = running[0][1]["device"]["cost"]["slowdown"]
    assert slowdown["steps_before"] > 0 and slowdown["during"]["steps"] > 0, slowdown
    assert slowdown["during"]["ratio"] > 0 and slowdown["during"]["spread"] >= 0, slowdown
    assert get(server, "?source=device&seconds=0.05")[0] == 200


def check_a_client_that_leaves(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", ROUTE + "?source=device&seconds=0.5")
    time.sleep(0.1)
    connection.close()
    deadline = time.monotonic() + 30
    while get(server, "?source=device&seconds=0.01")[0] == 409:
        assert time.monotonic() < deadline


REFUSALS = {
    "privileges": (403, "counters_not_available", ["administrators", "NVreg_RestrictProfilingToAdminUsers=0", "CAP_SYS_ADMIN"]),
    "busy": (403, "counters_not_available", ["another profiler", "dcgmi profile --pause"]),
    "old": (403, "counters_not_available", ["version 18", "12.9"]),
    "absent": (403, "counters_not_available", ["libcupti"]),
    None: (403, "counters_not_available", ["has no counters"]),
    "fails": (500, "counters_failed", ["cuptiPmSamplingDecodeData"]),
}


def check_refusals():
    for kind, (code, name, parts) in REFUSALS.items():
        with gpu(kind) as server:
            before = answer(server, 1)
            for _ in range(2):
                status, out = get(server, "?source=device&seconds=0.1")
                assert status == code and out["error"]["code"] == name, (kind, out)
                assert all(part in out["error"]["message"] for part in parts), (kind, out)
            status, out = get(server, "?source=all&seconds=0.05")
            if status == 200:  # the processor's are there
                assert all(part in json.dumps(out["device"]) for part in parts) and out["threads"], out
                assert out["seconds"] >= 0.05, out
                assert "device      none: " in get(server, "?source=all&seconds=0.05&format=text")[1]
            else:
                message = out["error"]["message"]
                assert status == code and message.startswith("host: ") and "; device: " in message, out
                assert all(part in message for part in parts), out
            assert answer(server, 1) == before


def check_overflow():
    with gpu("overflow") as server:
        status, out = get(server, "?source=device&seconds=5")
        assert status == 200 and out["device"]["overflowed"] and out["device"]["samples"] == 40, out
        assert out["device"]["seconds"] < 5, out
        assert "ended early" in get(server, "?source=device&seconds=0.1&format=text")[1]


def main():
    assert BIN and GPU
    with gpu("works") as server:
        check_device(server)
        check_host(server)
        check_text(server)
        check_query(server)
        check_under_load(server)
        check_a_client_that_leaves(server)
    check_refusals()
    check_overflow()
    os.environ.pop("FAKE_GPU_COUNTERS")
    with Server(DEMO, "--device", "cpu") as server:
        status, out = get(server, "?source=device&seconds=0.05")
        assert status == 403 and "cpu backend has no counters" in out["error"]["message"], out
    print("1 passed, 0 failed")


main()
