#!/usr/bin/env python3
"""Shows what the ranks of a group did in the same steps, from a trace (GET /debug/trace) of a server with
--tensor-parallel-size and --profile-every 1, or of its profiled steps.

    tools/trace_ranks.py trace.json [--steps 3] [--layer 40] [--json reduced.json.gz]

Prints the last steps, one layer of the last one with the ranks side by side, and the sums by operator. --json writes these
steps alone, for chrome://tracing or https://ui.perfetto.dev.

GPUs have clocks of their own, and the server maps them all by the first one's: here each rank is moved so that the launches
that exchange data, which end together, do so in the median. The offset is printed."""
import argparse
import collections
import gzip
import json
import re
import statistics


def read_nodes(path):
    """{step: {rank: [(begin, duration, name), ...] in order}}, times in us; and the bucket's name of each step."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    steps, names = collections.defaultdict(lambda: collections.defaultdict(list)), {}
    for event in events:
        track = tracks.get((event["pid"], event.get("tid")), "")
        if event["ph"] != "X":
            continue
        if track.startswith("nodes"):
            args = event["args"]
            steps[args["step"]][args.get("rank", 0)].append((args["node"], event["ts"], event["dur"], event["name"]))
        elif track.startswith("replays"):
            names[event["args"]["step"]] = event["name"]
    return {step: {rank: [node[1:] for node in sorted(nodes)] for rank, nodes in ranks.items()}
            for step, ranks in steps.items()}, names


def exchanges(name):
    return "reduce" in name or "gather" in name.split("+")[0]


def whole(steps, names, phase):
    """Steps of that phase in which all ranks have the same nodes."""
    most = max((len(ranks) for ranks in steps.values()), default=0)
    return [step for step, ranks in sorted(steps.items())
            if names.get(step, "").startswith(phase) and len(ranks) == most > 1
            and len({tuple(node[2] for node in nodes) for nodes in ranks.values()}) == 1]


def align(steps, chosen):
    """Moves every rank onto the first one's clock; the offsets in us."""
    offsets = {}
    for rank in steps[chosen[0]]:
        apart = [mine[0] + mine[1] - first[0] - first[1] for step in chosen
                 for mine, first in zip(steps[step][rank], steps[step][0]) if exchanges(first[2])]
        offsets[rank] = statistics.median(apart) if apart else 0.0
        for step in chosen:
            steps[step][rank] = [(begin - offsets[rank], took, name) for begin, took, name in steps[step][rank]]
    return offsets


def print_steps(steps, chosen, names):
    print("step        size          rank   begin us  length us  until the next begin us")
    first = min(nodes[0][0] for nodes in steps[chosen[0]].values())
    for at, step in enumerate(chosen):
        following = steps[chosen[at + 1]] if at + 1 < len(chosen) and chosen[at + 1] == step + 1 else None
        for rank, nodes in sorted(steps[step].items()):
            end = max(begin + took for begin, took, _ in nodes)
            gap = f"{following[rank][0][0] - end:10.1f}" if following else ""
            print(f"{step:<11} {names[step]:<12} {rank:5} {nodes[0][0] - first:10.1f} {end - nodes[0][0]:10.1f} {gap}")


def print_layer(ranks, layer):
    wanted = [at for at, node in enumerate(ranks[0]) if re.search(rf"(^|\+)layer\.{layer}\.", node[2])]
    if not wanted:
        print(f"no layer {layer}")
        return
    start = min(nodes[wanted[0]][0] for nodes in ranks.values())
    print(f"\nlayer {layer}, us: " + ", ".join(f"rank {rank} begin, length" for rank in sorted(ranks)))
    for at in wanted:
        times = " ".join(f"{nodes[at][0] - start:8.1f} {nodes[at][1]:7.1f}" for _, nodes in sorted(ranks.items()))
        print(f"{times}  {ranks[0][at][2]}")


def print_sums(ranks):
    sums = collections.defaultdict(lambda: collections.defaultdict(list))
    for rank, nodes in ranks.items():
        for _, took, name in nodes:
            sums[re.sub(r"layer\.\d+", "layer.*", name)][rank].append(took)
    print("\nthe last step by operator: count, us together and mean of " + ", ".join(f"rank {rank}" for rank in sorted(ranks)))
    for name, by_rank in sorted(sums.items(), key=lambda item: -sum(item[1][0])):
        times = " ".join(f"{sum(took):9.1f} {statistics.mean(took):7.2f}" for _, took in sorted(by_rank.items()))
        print(f"{len(by_rank[0]):5} {times}  {name}")


def write_json(path, steps, chosen):
    events = [{"ph": "M", "pid": 1, "tid": rank, "name": "thread_name", "args": {"name": f"GPU {rank}"}} for rank in steps[chosen[0]]]
    first = min(nodes[0][0] for nodes in steps[chosen[0]].values())
    for step in chosen:
        for rank, nodes in sorted(steps[step].items()):
            events += [{"ph": "X", "pid": 1, "tid": rank, "ts": round(begin - first, 2), "dur": round(took, 2), "name": name}
                       for begin, took, name in nodes]
    with gzip.GzipFile(path, "wb", 9, mtime=0) as file:
        file.write(json.dumps({"traceEvents": events}, separators=(",", ":")).encode())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--layer", type=int, default=40)
    parser.add_argument("--phase", default="decode", help="of the size's name: decode (default) or mixed")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    steps, names = read_nodes(options.trace)
    chosen = whole(steps, names, options.phase)[-options.steps:]
    if not chosen:
        raise SystemExit(f"{options.trace}: no {options.phase} step with the nodes of several ranks")
    offsets = align(steps, chosen)
    print("clocks moved by, us: " + ", ".join(f"rank {rank} {offset:.1f}" for rank, offset in sorted(offsets.items())))
    print_steps(steps, chosen, names)
    print_layer(steps[chosen[-1]], options.layer)
    print_sums(steps[chosen[-1]])
    if options.json:
        write_json(options.json, steps, chosen)


if __name__ == "__main__":
    main()
