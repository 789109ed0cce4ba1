"""/debug/graphs of the real server: every bucket with its cost, and counts that agree with the steps; device memory
and allocations in /metrics, which do not rise while serving."""
import json
import sys

from reprise_server import DEMO, Server

FIELDS = {"tokens": int, "rows": int, "logit_rows": int, "decode": bool, "captured": bool, "nodes": int, "kernels": int,
          "launches": int, "bytes": int, "arena_bytes": int, "capture_ms": (int, float), "replays": int,
          "padded_tokens": int, "fingerprint": str}
KINDS = ("context", "weights", "activations", "workspace", "graphs", "slots", "kv")


def graphs(server):
    status, body, _ = server.get("/debug/graphs")
    assert status == 200, body
    return json.loads(body)


def main():
    with Server(DEMO, "--max-num-seqs", "4", "--max-num-batched-tokens", "64") as server:
        before = graphs(server)
        assert before["failed"] == 0 and len(before["graphs"]) > 4, before
        for graph in before["graphs"]:
            assert set(graph) == set(FIELDS), graph
            for name, kind in FIELDS.items():
                assert isinstance(graph[name], kind), (name, graph)
            assert graph["captured"] and graph["replays"] == 0 and graph["padded_tokens"] == 0
            assert graph["launches"] > 0 and 0 < graph["arena_bytes"] <= before["arena_bytes"], graph
        sizes = [(g["tokens"], g["logit_rows"]) for g in before["graphs"]]
        assert sizes == sorted(sizes) and len({g["fingerprint"] for g in before["graphs"]}) == len(sizes)
        metrics = server.metrics()
        for i in range(4):
            assert server.post("/v1/completions", {"prompt": "1 2 3 " * (i + 1), "max_tokens": 9})[0] == 200
        after, now = graphs(server), server.metrics()
        assert sum(g["replays"] for g in after["graphs"]) == sum(
            now[f'reprise_steps_total{{kind="{kind}"}}'] for kind in ("decode", "mixed"))
        assert sum(g["padded_tokens"] for g in after["graphs"]) == now["reprise_padded_tokens_total"]
        for name in ["reprise_device_allocations_total"] + [f'reprise_device_memory_bytes{{kind="{k}"}}' for k in KINDS]:
            assert metrics[name] == now[name], name
        assert now['reprise_device_memory_bytes{kind="weights"}'] > 1 << 20
        assert now['reprise_device_memory_bytes{kind="activations"}'] == before["arena_bytes"]
    print("ok", len(sizes), "graphs")


if __name__ == "__main__":
    sys.exit(main())
