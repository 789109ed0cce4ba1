"""Checks trace files: Chrome's JSON and Perfetto's protobuf. Each check raises Bad with the error.

  chrome(bytes)    -> the events, as dicts       perfetto(bytes) -> tracks, and the events, as Event
All arrows (request -> launch -> replay -> token, one for each row of a step) must exist. A token's arrow may be
missing only if its launch or replay (for prompt rows: its plan) began before the window. The decoder of the wire
format is independent of the writer; both use the field numbers of perfetto_trace.proto.
"""
import bisect
import collections
import gzip
import json
import math


NEST_MAX = 8  # nested slices


class Bad(Exception):
    pass


def need(condition, *what):
    if not condition:
        raise Bad(" ".join(str(part) for part in what))


def unzip(data):
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


# --- Chrome ----------------------------------------------------------------------------------------------

REQUIRED = {"X": ("pid", "tid", "ts", "dur", "name"), "b": ("pid", "tid", "ts", "name", "cat", "id2"),
            "e": ("pid", "tid", "ts", "name", "cat", "id2"), "n": ("pid", "tid", "ts", "name", "cat", "id2"),
            "C": ("pid", "ts", "name", "args"), "M": ("pid", "name", "args"),
            "s": ("pid", "tid", "ts", "name", "cat", "id"), "t": ("pid", "tid", "ts", "name", "cat", "id"),
            "f": ("pid", "tid", "ts", "name", "cat", "id")}
META = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}


def no_constant(text):
    raise Bad(f"{text} is not JSON")


def nanoseconds(value, event):
    need(isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value), "no number:", event)
    return round(value * 1000)


def chrome(data):
    try:
        trace = json.loads(unzip(data).decode("utf-8"), parse_constant=no_constant)
    except ValueError as error:
        raise Bad(f"not JSON: {error}") from None
    need(isinstance(trace, dict) and isinstance(trace.get("traceEvents"), list), "no traceEvents")
    about = trace.get("otherData", {})
    need(isinstance(about.get("whole"), bool) and about.get("seconds", -1) >= 0, "otherData:", about)
    events = trace["traceEvents"]
    for event in events:
        need(event.get("ph") in REQUIRED, "unknown phase:", event)
        for key in REQUIRED[event["ph"]]:
            need(key in event, "lacks", key, event)
        if "ts" in event:
            need(nanoseconds(event["ts"], event) >= 0, "before the window:", event)
    chrome_names(events)
    slices = chrome_slices(events)
    chrome_requests(events)
    chrome_counters(events)
    chrome_rows(events, chrome_flows(events, slices))
    return events


def chrome_names(events):
    named = {(e["pid"], e["tid"] if e["name"] == "thread_name" else None)
             for e in events if e["ph"] == "M" and e["name"].endswith("_name")}
    for event in events:
        if event["ph"] == "M":
            need(event["name"] in META, "unknown metadata:", event)
            continue
        need((event["pid"], None) in named, "process without a name:", event)
        need((event["pid"], event["tid"]) in named, "thread without a name:", event)


def chrome_slices(events):
    """(pid, tid) -> [(begin, end, event)], which nest and begin in order."""
    lanes = collections.defaultdict(list)
    for event in events:
        if event["ph"] != "X":
            continue
        begin, length = nanoseconds(event["ts"], event), nanoseconds(event["dur"], event)
        need(length >= 0, "negative duration:", event)
        lanes[event["pid"], event["tid"]].append((begin, begin + length, event))
    for lane, slices in lanes.items():
        nest(lane, [(begin, end, event["name"]) for begin, end, event in slices])
    return lanes


def slice_at(lane, ts):
    """The innermost slice with ts strictly inside; viewers differ when one ends where the next begins."""
    at = bisect.bisect_right(lane, ts, key=lambda entry: entry[0])
    for begin, end, event in reversed(lane[max(at - NEST_MAX, 0):at]):
        if ts < end:
            need(ts > begin or end - begin == 1, "at the edge of its slice:", ts, event)
            return event
    return None


def nest(lane, slices):
    open_ends, last = [], 0
    for begin, end, name in slices:
        need(begin >= last, "goes back in time:", lane, name)
        last = begin
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        need(not open_ends or end <= open_ends[-1], "partly overlaps:", lane, name, begin, end)
        open_ends.append(end)


def chrome_requests(events):
    tracks = collections.defaultdict(list)
    for event in events:
        if event["ph"] in "ben":
            tracks[event["id2"]["local"]].append(event)
    for identity, track in tracks.items():
        open_names, last = [], 0
        for event in track:
            ts = nanoseconds(event["ts"], event)
            need(ts >= last, "goes back in time:", event)
            last = ts
            if event["ph"] == "b":
                open_names.append(event["name"])
            elif event["ph"] == "e":
                need(open_names and open_names.pop() == event["name"], "an e without its b:", event)
        need(not open_names, "a b without an e:", identity, open_names)


def chrome_counters(events):
    last = {}
    for event in events:
        if event["ph"] != "C":
            continue
        ts = nanoseconds(event["ts"], event)
        need(ts >= last.get(event["name"], 0), "goes back in time:", event)
        last[event["name"]] = ts
        need(event["args"], "a counter without values:", event)
        for value in event["args"].values():
            need(isinstance(value, (int, float)) and math.isfinite(value) and value >= 0, "counter:", event)


def chrome_flows(events, lanes):
    """(request, step) -> time of its arrow at the token; None: it ends at the replay."""
    flows, rows = collections.defaultdict(list), {}
    for event in events:
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
    for identity, parts in flows.items():
        phases = "".join(e["ph"] for e in parts)
        need(phases in ("stf", "sttf"), "flow", identity, "is", phases)
        times = [nanoseconds(e["ts"], e) for e in parts]
        need(times == sorted(times), "a flow goes back in time:", identity, times)
        slices = [slice_at(lanes[e["pid"], e["tid"]], ts) for e, ts in zip(parts, times)]
        need(None not in slices, "no slice around", parts[slices.index(None)] if None in slices else "")
        need(parts[-1].get("bp") == "e", "would bind to the next slice:", parts[-1])
        args = [e.get("args", {}) for e in slices]
        need("request" in args[0] and args[0]["request"] == args[-1].get("request", args[0]["request"]) and
             args[-1].get("request") == (args[0]["request"] if len(parts) == 4 else None), "other requests:", slices)
        need(slices[1]["name"] == "launch" and "rows" in args[2] and args[1]["step"] == args[2]["step"], "steps:", slices)
        key = args[0]["request"], args[1]["step"]
        need(key not in rows, "two arrows of one row:", key)
        rows[key] = times[3] if len(times) == 4 else None
    return rows


def in_window(slices, kind):
    """Steps whose slice of this kind began in the window and is not empty. slices: (name, args, length)"""
    return {args["step"] for name, args, length in slices
            if (name == kind or kind == "replay" and "rows" in args and name != "plan") and length and
            "began_earlier" not in args}


def all_there(rows, tokens, chunks, slices, planned=None):
    """Every row in the window has its arrow. tokens: (request, step) -> whether it is the first, from a prompt row;
    chunks: (request, step) of prompt rows; planned: those known to be planned in the window."""
    launched = in_window(slices, "launch") & in_window(slices, "replay")
    plans = in_window(slices, "plan")
    for key in [*tokens, *chunks]:
        prompt = key in chunks or tokens[key]
        due = key[1] in launched and (not prompt or (key in planned if planned is not None else key[1] in plans))
        need(key in rows or not due, "a row without its arrow:", key)


def chrome_rows(events, rows):
    tokens, chunks, batch = {}, set(), collections.defaultdict(list)
    for event in events:
        args = event.get("args", {})
        if event["ph"] == "n" and event["name"] == "token":
            key = int(event["id2"]["local"], 16), args["step"]
            need(key not in tokens, "two tokens of one row:", key)
            tokens[key] = args["index"], nanoseconds(event["ts"], event)
        elif event["ph"] == "b" and event["name"] == "prefill chunk":
            chunks.add((int(event["id2"]["local"], 16), args["step"]))
        elif event["ph"] == "X" and "request" in args and event["name"].split()[0] in ("prefill", "decode"):
            begin = nanoseconds(event["ts"], event)
            batch[args["request"]].append((begin, begin + nanoseconds(event["dur"], event)))
    for key, ts in rows.items():
        token = tokens[key][1] if key in tokens else None
        need(ts is None or token is not None and token - 1 <= ts <= token, "an arrow without its token:", key, ts, token)
        need(ts is not None or token is None or not any(begin < token < end for begin, end in batch[key[0]]),
             "an arrow that does not reach its token:", key)
    slices = [(e["name"], e.get("args", {}), e["dur"]) for e in events if e["ph"] == "X"]
    all_there(rows, {key: index == 0 for key, (index, _) in tokens.items()}, chunks, slices)


# --- Perfetto ----------------------------------------------------------------------------------------------

Event = collections.namedtuple("Event", "type track ns name args flows last_flows value")
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


def fields(data):
    """[(number, value)]: ints for varints and fixed64, bytes for length-delimited fields."""
    at, out = 0, []

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            need(at < len(data) and shift < 70, "a varint is cut off")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            value = varint()
        elif key & 7 == 1:
            value, at = int.from_bytes(data[at:at + 8], "little"), at + 8
        elif key & 7 == 2:
            size = varint()
            value, at = data[at:at + size], at + size
        else:
            raise Bad(f"wire type {key & 7}")
        need(at <= len(data) and key >> 3, "a field is cut off")
        out.append((key >> 3, value))
    return out


def only(pairs, number, otherwise=None):
    values = [value for key, value in pairs if key == number]
    need(len(values) <= 1, "field", number, "stands twice")
    return values[0] if values else otherwise


def text(data):
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise Bad(f"not UTF-8: {data}") from None


def annotation(data, names):
    pairs = fields(data)
    iid = only(pairs, 1)
    need(iid in names, "argument", iid, "has no name")
    value = only(pairs, 3)
    return names[iid], text(only(pairs, 6)) if value is None else value


def perfetto_packets(data):
    """(tracks: uuid -> (name, parent, is counter), events, clocks)"""
    tracks, events, clocks, names, arguments = {}, [], {}, {}, {}
    for number, packet in fields(unzip(data)):
        need(number == 1 and isinstance(packet, bytes), "not a packet:", number)
        pairs = fields(packet)
        need(only(pairs, 10) == 1, "a packet without its sequence")
        flags = only(pairs, 13, 0)
        if flags & 1:
            names, arguments = {}, {}
            defaults = fields(only(pairs, 59))
            need(only(defaults, 58) == 3, "the clock of", defaults)
        for key, entry in fields(only(pairs, 12, b"")):
            entry = fields(entry)
            {2: names, 3: arguments}[key][only(entry, 1)] = text(only(entry, 2))
        for key, clock in fields(only(pairs, 6, b"")):
            if key == 1:
                clock = fields(clock)
                clocks[only(clock, 1)] = only(clock, 2)
        if only(pairs, 60) is not None:
            track = fields(only(pairs, 60))
            need(only(track, 1) not in tracks, "a track is described twice")
            tracks[only(track, 1)] = (text(only(track, 2)), only(track, 5), only(track, 8) is not None)
        if only(pairs, 11) is not None:
            need(flags & 2, "an event that needs no state")
            event = fields(only(pairs, 11))
            iid = only(event, 10)
            need(iid is None or iid in names, "name", iid, "was not interned")
            events.append(Event(only(event, 9), only(event, 11), only(pairs, 8), names.get(iid),
                                dict(annotation(v, arguments) for k, v in event if k == 4),
                                [v for k, v in event if k == 47], [v for k, v in event if k == 48], only(event, 30)))
    return tracks, events, clocks


def perfetto(data):
    tracks, events, clocks = perfetto_packets(data)
    need(set(clocks) == {1, 3, 6}, "clocks:", clocks)
    for uuid, (name, parent, _) in tracks.items():
        need(name and (parent is None or parent in tracks), "track", uuid, name, parent)
    stacks, last, flows, ended = collections.defaultdict(list), {}, {}, set()
    for event in events:
        need(event.track in tracks, "an event on no track:", event)
        need(isinstance(event.ns, int) and event.ns >= last.get(event.track, 0), "goes back in time:", event)
        last[event.track] = event.ns
        need((event.type == COUNTER) == tracks[event.track][2], "counter or not:", event)
        if event.type == BEGIN:
            stacks[event.track].append(event)
        elif event.type == END:
            need(stacks[event.track], "an end without its begin:", event)
            stacks[event.track].pop()
        elif event.type == COUNTER:
            need(isinstance(event.value, int) and 0 <= event.value < 1 << 63, "counter:", event)
        else:
            need(event.type == INSTANT, "type", event)
        need(event.type in (END, COUNTER) or event.name, "no name:", event)
        need(event.type in (BEGIN, INSTANT) or not (event.flows or event.last_flows), "a flow at", event)
        for flow in event.flows + event.last_flows:
            flows.setdefault(flow, []).append((event.ns, flow in event.last_flows, event))
    for uuid, stack in stacks.items():
        need(not stack, "not ended:", tracks[uuid], stack)
    for flow, parts in flows.items():
        parts.sort(key=lambda part: part[:2])
        need(flow and len(parts) >= 2 and [p[1] for p in parts].count(True) == 1, "flow", flow, parts)
        need(parts[-1][1], "a flow goes on behind its end:", flow, parts)
    perfetto_rows(tracks, events, flows)
    return tracks, events


def perfetto_rows(tracks, events, flows):
    def request(event):
        kind, _, number = tracks[event.track][0].partition(" ")
        return int(number) if kind == "request" else None

    rows, tokens, chunks, slices, begun = {}, {}, set(), [], collections.defaultdict(list)
    for flow, parts in flows.items():
        kinds = sorted("replay" if "rows" in e.args else e.name for _, _, e in parts)
        need(kinds in (["launch", "replay", "row"], ["launch", "replay", "row", "token"]), "flow", flow, "is", kinds)
        need(len({e.args["step"] for _, _, e in parts}) == 1, "flow", flow, "is of several steps", parts)
        owners = {request(e) for _, _, e in parts} - {None}
        need(len(owners) == 1, "flow", flow, "is of several requests", parts)
        key = owners.pop(), parts[0][2].args["step"]
        need(key not in rows, "two arrows of one row:", key)
        rows[key] = "token" in kinds
    for event in events:
        if event.type == BEGIN:
            begun[event.track].append(event)
        elif event.type == END:
            begin = begun[event.track].pop()
            slices.append((begin.name, begin.args, event.ns - begin.ns))
        elif event.name == "token" and request(event) is not None:
            tokens[request(event), event.args["step"]] = event.args["index"] == 0
        elif event.name == "row" and "samples" in event.args:
            chunks.add((request(event), event.args["step"]))
    for key, has_token in rows.items():
        need(has_token == (key in tokens), "an arrow without its token, or that does not reach it:", key)
    all_there(rows, tokens, chunks, slices, planned=chunks)
