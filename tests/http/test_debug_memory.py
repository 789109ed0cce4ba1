"""/debug/memory of the real server: owners add up, the page map agrees with the counts, a history replays to the map,
peaks rise and are reset, and PyTorch's memory_viz reads the snapshot."""
import json
import pickle
import sys
import threading
import time

from reprise_server import DEMO, Server

ACTIVE = ("held", "cached", "pending", "reserved")


def memory(server, query=""):
    status, body, _ = server.get("/debug/memory" + query)
    assert status == 200, body
    return json.loads(body)


def page_states(answer):
    pages = []
    assert answer["kv"]["map_is_whole"]
    for first, count, state, refs in answer["kv"]["map"]:
        assert first == len(pages) and count > 0 and (refs > 0) == (state == "held"), (first, count, state, refs)
        pages += [state] * count
    return pages


def at_rest(server):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        answer = memory(server, "?map=1&history=4096")
        if answer["kv"]["held"] == 0 and answer["kv"]["pending"] == 0:
            return answer
        time.sleep(0.02)
    raise AssertionError(answer)


def check_counts(answer):
    kv, pages = answer["kv"], page_states(answer)
    assert len(pages) == kv["pages"] + 1 and pages[0] == "reserved", (len(pages), kv)
    for state in ("free", "cached"):
        assert pages.count(state) == kv[state], (state, kv)
    assert kv["free"] + kv["held"] + kv["cached"] == kv["pages"], kv
    assert sum(o["bytes"] for o in answer["device"]["owners"]) == answer["device"]["owned_bytes"]
    assert all(o["peak_bytes"] >= o["bytes"] >= 0 for o in answer["host"]["owners"])
    assert 0 < answer["host"]["resident_bytes"] <= answer["host"]["peak_resident_bytes"]


def check_refusals(server):
    for query in ("?map=2", "?format=xml", "?history=5000", "?color=1", "?map=1&map=1"):
        status, body, _ = server.get("/debug/memory" + query)
        assert status == 400 and "query parameter" in json.loads(body)["error"]["message"], (query, body)
    assert server.get("/debug/memory/history")[0] == 405


def check_busy(server):
    """While requests run, pages are held and their unused positions are counted."""
    body = {"prompt": "1 2 3", "max_tokens": 400, "ignore_eos": True, "temperature": 0}
    threads = [threading.Thread(target=server.post, args=("/v1/completions", body)) for _ in range(3)]
    for thread in threads:
        thread.start()
    seen = None
    while any(thread.is_alive() for thread in threads):
        kv = memory(server)["kv"]
        assert 0 <= kv["wasted_tokens"] <= max(kv["held"], 1) * kv["page_tokens"], kv
        assert 0.0 <= kv["fragmentation_ratio"] <= 1.0, kv
        seen = kv if kv["held"] > 0 else seen
    for thread in threads:
        thread.join()
    assert seen and seen["peak_held"] >= seen["held"], seen


def check_history(before, after):
    pages = page_states(before)
    assert after["history"] and after["history_is_whole"]
    last = 0.0
    for change in after["history"]:
        assert pages[change["page"]] == change["from"], change
        pages[change["page"]] = change["to"]
        assert change["seconds"] >= last
        last = change["seconds"]
    assert pages == page_states(after)


def check_snapshot(server, answer):
    status, headers, raw = server.request("GET", "/debug/memory?format=torch")
    assert status == 200 and headers["Content-Type"] == "application/octet-stream"
    snapshot = pickle.loads(raw)
    pool = snapshot["segments"][-1]
    sizes = 0
    for segment in snapshot["segments"]:
        blocks = segment["blocks"]
        assert sum(b["size"] for b in blocks) == segment["total_size"], segment["address"]
        assert blocks[0]["address"] == segment["address"]
        for a, b in zip(blocks, blocks[1:]):
            assert a["address"] + a["size"] == b["address"]
        active = sum(b["size"] for b in blocks if b["state"] == "active_allocated")
        assert active == segment["active_size"] == segment["allocated_size"]
        assert all(b["frames"][0].keys() == {"name", "filename", "line"} for b in blocks)
        sizes += segment["total_size"]
    page = answer["kv"]["page_bytes"]
    states = page_states(answer)
    assert pool["total_size"] == len(states) * page
    assert pool["active_size"] == sum(state in ACTIVE for state in states) * page
    live = {}
    for event in snapshot["device_traces"][0]:
        if event["action"] == "alloc":
            assert event["addr"] not in live
            live[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            live.pop(event["addr"], None)  # in use before the history began
    active_pages = {pool["address"] + i * page for i, state in enumerate(states) if state in ACTIVE}
    assert {a for a in live if pool["address"] <= a < pool["address"] + pool["total_size"]} <= active_pages
    return sizes


def main():
    with Server(DEMO, "--max-num-seqs", "4", "--max-num-batched-tokens", "64") as server:
        check_refusals(server)
        assert server.post("/v1/completions", {"prompt": "1 2 3 " * 30, "max_tokens": 20})[0] == 200
        before = at_rest(server)
        check_counts(before)
        assert before["history"] == [] and before["kv"]["cached"] > 0 and not before["kv"]["history"]
        status, _, body = server.request("POST", "/debug/memory/history?on=1")
        assert status == 200 and json.loads(body)["history"] is True, body
        check_busy(server)
        after = at_rest(server)
        check_counts(after)
        assert after["kv"]["history"]
        check_history(before, after)
        check_snapshot(server, after)
        assert server.request("POST", "/debug/memory/history?on=0")[0] == 200
        assert server.post("/v1/completions", {"prompt": "7 7 7 " * 20, "max_tokens": 9})[0] == 200
        stopped = at_rest(server)
        assert stopped["history"] == after["history"] and not stopped["kv"]["history"]
        assert stopped["kv"]["peak_held"] > 0
        assert server.request("POST", "/debug/memory/reset_peak")[0] == 200
        deadline = time.monotonic() + 30
        while memory(server)["kv"]["peak_held"] != 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert memory(server)["kv"]["peak_held"] == 0
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
