"""/debug/profile, /debug/diagnose and /debug/profile/counters of the real server under 32 streams: tables whose self times
are the steps' time, in every grouping and format; sessions with exactly the requested steps, one at a time, ended by
timeout or by the client; a request's own table; stamping does not change answers, replayed and eager."""
import csv
import http.client
import io
import json
import os
import subprocess
import re
import sys
import threading
import time

from reprise_server import DEMO, SANITIZED, Server

GROUPS = ("op", "layer", "node", "bucket", "phase", "request", "op,bucket", "op,bucket,kv")
STREAMS = 32
SESSIONS = 3 if SANITIZED else 20
LONG = 100 if SANITIZED else 300  # tokens of streams that must not end too soon


def body(i, tokens=40):
    return {"prompt": f"stream {i} says hello " * (1 + i % 7), "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


def run_streams(server, tokens=40):
    texts = [None] * STREAMS

    def one(i):
        texts[i] = server.stream_text(body(i, tokens))
    threads = [threading.Thread(target=one, args=(i,)) for i in range(STREAMS)]
    for thread in threads:
        thread.start()
    return threads, texts


def all_streams(server):
    threads, texts = run_streams(server)
    for thread in threads:
        thread.join()
    return texts


def table(server, query=""):
    status, text, headers = server.get("/debug/profile?format=json&" + query)
    assert status == 200 and headers["Content-Type"] == "application/json", (status, text)
    return json.loads(text)


def check_sums(answer, slack_ns):
    footer, rows = answer["footer"], answer["rows"]
    assert len(rows) == footer["row_count"], (len(rows), footer)
    own = sum(row["self_ns"] for row in rows)
    assert abs(own + footer["unattributed_ns"] - footer["replay_ns"]) <= slack_ns, (own, footer)
    assert footer["unattributed_ns"] <= 0.02 * footer["replay_ns"], footer
    assert own == footer["self_ns"] and footer["launches_without_times"] == 0, footer
    for row in rows:
        assert 0 <= row["self_ns"] <= row["total_ns"] and row["calls"] > 0, row
        assert row["p50_ns"] <= row["p99_ns"] <= row["max_ns"], row
        assert abs(row["self_share"] - row["self_ns"] / footer["replay_ns"]) < 1e-9, row


def check_tables(server):
    answers = {group: table(server, f"row_limit=0&group_by={group}") for group in GROUPS}
    for group, answer in answers.items():
        # A request's share of each step is rounded to whole nanoseconds.
        check_sums(answer, STREAMS * answer["footer"]["steps_stamped"])
        assert answer["group_by"] == group and answer["rows"] == sorted(
            answer["rows"], key=lambda row: (-row["self_ns"], row["name"])), group
        assert answer["footer"]["replay_ns"] == answers["op"]["footer"]["replay_ns"], group
    footer = answers["op"]["footer"]
    # Every step was stamped: the tables' time is the device's busy time, and idle time has its causes.
    busy = footer["busy_share"] * footer["window_seconds"] * 1e9
    assert footer["steps_seen"] == footer["steps_stamped"] > 30, footer
    assert abs(busy - footer["self_ns"]) <= 0.02 * busy, (busy, footer)
    window = footer["window_seconds"] * 1e9
    assert abs(busy + sum(footer["idle_ns"].values()) - window) <= 0.02 * window, footer
    assert footer["idle_ns"]["unknown"] <= 0.02 * sum(footer["idle_ns"].values()) + 1e6, footer
    assert footer["peaks"]["read_bytes_per_second"] > 1e8 and footer["peaks"]["flops_per_second"] > 1e6, footer
    names = {row["name"] for row in answers["node"]["rows"]}
    assert "layer.3.attn.qkv" in names and "step_begin" in names and "sample" in names, names
    qkv = next(row for row in answers["op"]["rows"] if row["name"] == "attn.qkv")
    assert qkv["shape"] == "512 x 256" and qkv["calls"] == 8 * footer["steps_stamped"] and qkv["bound"], qkv
    assert footer["steps_by_replay"]["replayed"] == footer["steps_seen"], footer
    check_buckets(answers)
    assert len(answers["request"]["rows"]) == STREAMS and len(answers["phase"]["rows"]) == 2
    assert sum(row["tokens"] for row in answers["phase"]["rows"]) == qkv["tokens"]


def check_buckets(answers):
    """Grouped by bucket too, the rows of an operator are the parts of its row; their batch fits the bucket."""
    for group in ("op,bucket", "op,bucket,kv"):
        parts = {}
        for row in answers[group]["rows"]:
            name, bucket = row["name"].split(" @ ")[:2]
            kind, size = bucket.split()
            tokens, logit_rows = map(int, size.split("/"))
            assert kind in ("decode", "mixed") and 0 < row["batch"] <= max(tokens, logit_rows), row
            assert 0 < row["kv_tokens"] <= row["kv_tokens_max"], row
            if group == "op,bucket,kv":
                low, high = map(int, row["name"].split(" @ kv ")[1].split("-"))
                assert low - 1 <= row["kv_tokens"] < high + 1, row
            calls, self_ns = parts.get(name, (0, 0))
            parts[name] = (calls + row["calls"], self_ns + row["self_ns"])
        assert parts == {row["name"]: (row["calls"], row["self_ns"]) for row in answers["op"]["rows"]}, group
    assert len(answers["op,bucket"]["rows"]) <= len(answers["op,bucket,kv"]["rows"])
    batches = [row["batch"] for row in answers["op,bucket"]["rows"]]
    assert max(batches) > 4, batches


def check_formats(server):
    status, text, headers = server.get("/debug/profile?row_limit=3&sort_by=calls")
    assert status == 200 and headers["Content-Type"].startswith("text/plain"), headers
    lines = text.splitlines()
    assert lines[0].split()[:3] == ["name", "layer", "shape"] and len(lines[0]) > 100, lines[0]
    assert len([line for line in lines if line.startswith("---")]) == 2 and len(lines[2:lines.index(lines[1], 2)]) == 3
    status, text, headers = server.get("/debug/profile?format=csv&row_limit=0&group_by=node")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert headers["Content-Type"].startswith("text/csv") and len(rows) == table(server, "group_by=node&row_limit=0")[
        "footer"]["row_count"], text[:200]
    for sort in ("total", "calls", "avg", "p99", "bytes", "flops", "roof", "name"):
        assert table(server, f"sort_by={sort}")["sort_by"] == sort
    assert table(server, "seconds=0.001")["footer"]["steps_stamped"] == 0
    for bad in ("sort_by=speed", "group_by=", "format=xml", "row_limit=-1", "seconds=0", "seconds=1e9", "color=red",
                "row_limit=1&row_limit=2", "phase=warm"):
        assert server.get("/debug/profile?" + bad)[0] == 400, bad
    assert server.request("DELETE", "/debug/profile")[0] == 405


def many_sessions(server):
    """Bytes in memory after each."""
    sizes = []
    for i in range(SESSIONS):
        wanted = {"wait": i % 3, "warmup": 1, "active": 3 + i % 4, "repeat": 1 + i % 2,
                  "phase": ("any", "decode", "prefill")[i % 3], "row_limit": 0, "timeout_seconds": 300}
        status, answer = server.post("/debug/profile", wanted)
        assert status == 200, answer
        session = answer["session"]
        assert all(session[key] == wanted[key] for key in ("wait", "warmup", "active", "repeat", "phase")), session
        assert len(answer["repeats"]) == wanted["repeat"], answer
        for repeat in answer["repeats"]:
            check_sums(repeat, wanted["active"])
            assert repeat["footer"]["steps_stamped"] == wanted["active"], repeat["footer"]
        assert set(answer["slowdown"]) == {"steps_before", "during", "after"}
        assert set(answer["slowdown"]["during"]) == {"steps", "ratio", "spread"}, answer["slowdown"]
        with open(f"/proc/{server.process.pid}/statm", encoding="ascii") as file:
            sizes.append(int(file.read().split()[1]) * 4096)
    text = server.request("POST", "/debug/profile", {"active": 2, "format": "text"})[2].decode()
    assert f"session {SESSIONS + 1}, repeat 1 of 1" in text and "during" in text and "after" in text, text
    return sizes


def check_sessions(server):
    """Many in a row under load."""
    allocations = server.metrics()["reprise_device_allocations_total"]
    stop = threading.Event()

    def load():
        while not stop.is_set():
            all_streams(server)
    thread = threading.Thread(target=load)
    thread.start()
    try:
        sizes = many_sessions(server)
    finally:
        stop.set()
        thread.join()
    assert server.metrics()["reprise_device_allocations_total"] == allocations
    if not SANITIZED:  # their freed memory stays for a while
        # A leak grows with every session; a pool thread allocates memory once, at its first work.
        growth = sorted(after - before for before, after in zip(sizes[4:], sizes[5:]))
        assert growth[len(growth) // 2] < 1 << 20 and sizes[-1] - sizes[4] < 64 << 20, sizes


def check_one_session_at_a_time(server):
    first = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    first.request("POST", "/debug/profile", '{"active": 1000, "timeout_seconds": 60}', {"Content-Type": "application/json"})
    deadline = time.monotonic() + 30
    status = None
    while status != 409 and time.monotonic() < deadline:
        status, answer = server.post("/debug/profile", {"active": 1, "timeout_seconds": 0.1})
        assert status in (408, 409), answer
    assert status == 409, answer
    first.close()  # the session ends when the client disconnects
    while status == 409 and time.monotonic() < deadline:
        status, answer = server.post("/debug/profile", {"active": 1, "timeout_seconds": 0.1})
    assert status == 408 and "0 of 1 active steps" in answer["error"]["message"], answer
    for bad in ({"active": 0}, {"active": "1"}, {"wait": -1}, {"repeat": 101}, {"phase": "warm"}, {"steps": 1},
                {"active": 100000}, {"detail": "cupti"}, {"timeout_seconds": 0}, {"active": True}, []):
        assert server.post("/debug/profile", bad)[0] == 400, bad


def check_requests(server):
    """A request's own table; others' steps are not stamped for it."""
    status, answer = server.post("/v1/completions", dict(body(3), profile=True))
    assert status == 200, answer
    profile, usage = answer["profile"], answer["usage"]
    assert profile["footer"]["steps_stamped"] >= usage["completion_tokens"], profile["footer"]
    assert max(row["tokens"] for row in profile["rows"]) == usage["total_tokens"] - 1 - usage[
        "prompt_tokens_details"]["cached_tokens"], profile["rows"][0]
    chunks = server.stream(dict(body(3), profile=True))
    assert chunks[-1] == "[DONE]" and chunks[-2]["choices"] == [] and chunks[-2]["profile"]["rows"], chunks[-2]
    assert "profile" not in server.post("/v1/completions", body(3))[1]
    assert server.post("/v1/completions", dict(body(3), profile=1))[0] == 400


def check_diagnosis(server):
    threads, _ = run_streams(server, LONG)
    time.sleep(0.3)
    answer = json.loads(server.get("/debug/diagnose?seconds=5")[1])
    text = server.get("/debug/diagnose?format=text")[1]
    for thread in threads:
        thread.join()
    verdicts = ("unknown", "starved", "kv_limited", "slot_limited", "queueing", "cpu_bound", "launch_bound", "memory_bound", "compute_bound")
    assert answer["verdict"] in verdicts and answer["device_limit"] in verdicts and answer["next"], answer
    assert any(e["holds"] and e["speaks_for"] == answer["verdict"] for e in answer["evidence"]), answer
    assert text.startswith("verdict     "), text
    idle = answer["numbers"]["busy_share"] + sum(answer["numbers"]["idle_share"].values())
    assert abs(idle - 1) < 1e-6, answer["numbers"]
    assert server.get("/debug/diagnose?seconds=0")[0] == 400
    status, text, _ = server.get("/debug/profile/counters?seconds=0.05")
    assert status in (200, 403), text
    if status == 403:
        assert json.loads(text)["error"]["code"] == "counters_not_available", text
    else:
        assert any(t["name"].startswith("rp-cpu") for t in json.loads(text)["threads"]), text


def check_documented_commands(server):
    """Every curl command of the page, unchanged, under load."""
    with open(os.path.join(os.path.dirname(DEMO), "..", "docs", "observability", "profile.md"), encoding="utf-8") as file:
        commands = re.findall(r"^    \$ (curl .*)$", file.read(), re.M)
    assert len(commands) >= 3, commands
    for command in commands:
        threads, _ = run_streams(server, LONG)
        command = command.replace("localhost:8000", f"127.0.0.1:{server.port}").replace("curl -s", "curl -sf")
        result = subprocess.run(["bash", "-c", command], capture_output=True, timeout=120)
        for thread in threads:
            thread.join()
        assert result.returncode == 0 and result.stdout, (command, result)


def check_the_window(server):
    """Idle seconds before the window are not counted."""
    time.sleep(1.2)
    threads, _ = run_streams(server, LONG)
    time.sleep(0.3)
    answer = json.loads(server.get("/debug/diagnose?seconds=0.2")[1])
    footer = table(server, "seconds=0.2")["footer"]
    for thread in threads:
        thread.join()
    assert answer["numbers"]["window_seconds"] < 0.5, answer["numbers"]
    assert footer["window_seconds"] < 0.5 and footer["steps_stamped"] <= footer["steps_seen"], footer


def main():
    # A pool small enough to be touched completely at once, so that it does not add to memory growth.
    with Server(DEMO, "--profile-every", "1", "--kv-cache-memory-bytes", "48M", "--swap-space", "0") as server:
        texts = all_streams(server)
        check_tables(server)
        check_formats(server)
        check_sessions(server)
        check_diagnosis(server)
        check_the_window(server)
        check_documented_commands(server)
        assert all_streams(server) == texts
    with Server(DEMO, "--profile-every", "0") as server:
        assert all_streams(server) == texts, "stamping changes answers"
        assert table(server)["footer"]["steps_stamped"] == 0
        check_requests(server)
        check_one_session_at_a_time(server)
    with Server(DEMO, "--profile-every", "3", "--enforce-eager") as server:
        assert all_streams(server) == texts, "eager steps, stamped, change answers"
        answer = table(server, "row_limit=0")
        check_sums(answer, 1000)
        assert answer["footer"]["steps_by_replay"]["enforce_eager"] == answer["footer"]["steps_seen"], answer["footer"]
        metrics = server.metrics()
        assert metrics['reprise_graph_fallbacks_total{reason="enforce_eager"}'] == sum(
            value for name, value in metrics.items() if name.startswith("reprise_steps_total")), metrics
        assert metrics['reprise_graph_fallbacks_total{reason="capture_failed"}'] == 0
        status, text, _ = server.get("/debug/diagnose?format=text&seconds=60")
        assert status == 200 and "steps whose launches were timed" in text, text
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
