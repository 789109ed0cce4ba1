"""Goal: `reprise trace diff` and `reprise trace critical-path` read the JSON of /debug/trace, plain or gzipped, say of the
scripted scenario (tests/support/trace_scenario.c) what its times are, and refuse other files by name.
Method: the golden trace; copies of it with the same steps many times over, some of them slower; damaged files."""
import gzip
import json
import os
import re
import subprocess
import tempfile

SOURCE = os.environ["REPRISE_SOURCE_DIR"]
BIN = os.environ["REPRISE_BIN"]
GOLDEN = os.path.join(SOURCE, "tests", "metrics", "trace_golden.json")


def run(*args, code=0):
    result = subprocess.run([BIN, "trace", *args], capture_output=True, text=True, timeout=60)
    assert result.returncode == code, (args, result)
    return result.stdout if code == 0 else result.stderr


def golden():
    with open(GOLDEN, encoding="utf-8") as file:
        return json.load(file)


def events(change):
    """The golden trace, one event a line as the server writes it, after change(event) to each."""
    trace = golden()
    for event in trace["traceEvents"]:
        change(event)
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in trace["traceEvents"])
    return '{"displayTimeUnit":"ns","traceEvents":[\n' + lines + '\n],"otherData":{}}\n'


def write(folder, name, data):
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode())
    return path


def many(factor):
    """200 replays of one size and their nodes; `factor` times as long. Times as in a trace: 3 decimals of a us."""
    lines = []
    for i in range(200):
        begin = 1000.0 * i
        dur = (500 + i % 7) * factor
        args = {"tokens": 8, "bucket": 2, "step": i}
        lines.append({"ph": "X", "pid": 4, "tid": 2001, "ts": begin, "dur": dur, "name": "decode 8", "args": args})
        lines.append({"ph": "X", "pid": 4, "tid": 3001, "ts": begin, "dur": dur / 2, "name": f"layer.{i % 4}.attn.qkv",
                      "args": {"node": 1, "bucket": 2, "step": i}})
        lines.append({"ph": "X", "pid": 4, "tid": 8001, "ts": begin + 900, "dur": 50, "name": "copy in",
                      "args": {"pages": 3, "direction": 0, "step": i + 1}})
    text = ",\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    return '{"displayTimeUnit":"ns","traceEvents":[\n' + text + "\n]}\n"


def check_paths():
    text = run("critical-path", GOLDEN)
    # Request 17 (0.11 to 11.2 ms) is whole; 9 began before the window and 18 is not over.
    assert "requests    1 of 3 are whole in the trace; mean 11.1ms" in text and "slowest is request 17" in text, text
    one = run("critical-path", GOLDEN, "--request", "17")
    parts = {name.strip(): value for name, value in re.findall(r"^  (\w[\w ]*?)  +[\d.]+ %  +([\d.]+)[mu]s", one, re.M)}
    assert parts["tokenize"] == "310" and parts["queue"] == "450", one
    assert parts["prefill chunks"] == "3.99" and parts["host gaps"] == "2.09", one
    assert re.search(r"^    launch +\d+\.\d % +1\.80ms$", one, re.M), one
    assert sum(float(share) for share in re.findall(r"^  \w.*?([\d.]+) %", one, re.M)) > 99.5, one
    assert "copies      none between host and device" in text, text
    assert "request 99 is not in it" in run("critical-path", GOLDEN, "--request", "99", code=1)
    assert "--request x" in run("critical-path", GOLDEN, "--request", "x", code=2)


def check_diffs(folder):
    plain, slow = write(folder, "a.json", many(1.0)), write(folder, "b.json", many(1.25))
    zipped = write(folder, "b.json.gz", gzip.compress(many(1.25).encode()))
    text = run("diff", plain, slow)
    for line in ("attn.qkv", "decode 8"):
        assert re.search(rf"^  {line} +200 +2\d\dus +200 +3\d\dus +\+25\.\d \+-0\.\d %  slower$|"
                         rf"^  {line} +200 +50\dus +200 +6\d\dus +\+25\.\d \+-0\.\d %  slower$", text, re.M), text
    assert re.search(r"^  copy in +200 +50.0us +200 +50.0us +\+0.0 \+-0.0 %  no change shown$", text, re.M), text
    assert run("diff", plain, zipped).replace(".json.gz", ".json") == text, "gzipped it says something else"
    assert run("diff", plain, slow) == text
    assert "faster 2, no change shown 1" in run("diff", slow, plain)
    few = run("diff", GOLDEN, GOLDEN)
    assert "slower 0, faster 0" in few and "too few" in few, few
    # Copies beside steps: 50 us each, and the replays of B reach 25 % further: none of them into a copy.
    assert "copies      200, 10.0ms between host and device; steps ran during 0.0 % of that time" in run(
        "critical-path", plain)
    beside = write(folder, "c.json", many(1.85))
    share = re.search(r"steps ran during ([\d.]+) % of", run("critical-path", beside))
    assert 40 < float(share.group(1)) < 80, share.group(0)


def check_refusals(folder):
    assert "No such file" in run("diff", GOLDEN, os.path.join(folder, "none"), code=1)
    assert "not the JSON" in run("critical-path", write(folder, "p", b"\x0a\x05abcde" * 9), code=1)
    assert "no events" in run("critical-path", write(folder, "e", "{}"), code=1)
    assert "not JSON" in run("critical-path", write(folder, "j", many(1.0).replace('"args"', '"args', 1)), code=1)
    cut = gzip.compress(many(1.0).encode())
    run("critical-path", write(folder, "g", cut[:len(cut) // 2]), code=1)
    assert run("critical-path", write(folder, "same", events(lambda event: None))).splitlines()[1:] == run(
        "critical-path", GOLDEN).splitlines()[1:]
    # Fields of other types and sizes are passed over.
    for value in (None, -1, 1e300, "x", [1], {"a": 1}):
        for key in ("pid", "tid", "ts", "dur", "name", "args", "id2", "cat"):
            odd = write(folder, "odd", events(lambda event: event.update({key: value})))
            assert "steps" in run("critical-path", odd)
    assert "usage: reprise trace" in run("--help")
    assert "--rows N" in run("diff", "--help") and "--request NUMBER" in run("critical-path", "--help")


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_paths()
        check_diffs(folder)
        check_refusals(folder)
    print("ok")


if __name__ == "__main__":
    main()
