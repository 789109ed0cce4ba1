"""What tools/bench_peers reads out of its programs' outputs, and its table: pure functions."""
import re
import statistics

# Shapes of `reprise bench attention`: 32 query heads, 8 of K and V, 128 columns.
ATTENTION = {
    "attention-decode-32x4k": ["--kind", "decode", "--batch", "32", "--length", "4096"],
    "attention-decode-128x2k": ["--kind", "decode", "--batch", "128", "--length", "2048"],
    "attention-prefill-8k": ["--kind", "prefill", "--length", "8192"],
    "attention-prefill-16k": ["--kind", "prefill", "--length", "16384"],
    "attention-window-16k": ["--kind", "prefill", "--length", "16384", "--window", "1024"],
}

# (key, title, unit, higher is better). The peer of a cpu- row is llama.cpp, else vLLM; attention rows have none.
ROWS = [
    ("bf16-prefill-2048", "prompt of 2,048, bf16", "tok/s", True),
    ("fp8-prefill-2048", "prompt of 2,048, FP8", "tok/s", True),
    ("bf16-prefill-8192", "4 prompts of 2,048, bf16", "tok/s", True),
    ("fp8-prefill-8192", "4 prompts of 2,048, FP8", "tok/s", True),
    ("bf16-ttft-16384", "prompt of 16,384, bf16, first token", "ms", False),
    ("saturated", "FP8, 1,000 in and out, 512 in flight", "tok/s", True),
    ("saturated-ttft-mean", "- first token, mean of all", "s", False),
    ("saturated-ttft-p50-late", "- first token, p50 of the last 512", "s", False),
    ("bf16-decode-128", "decode, 128 sequences, bf16", "ms", False),
    ("fp8-decode-128", "decode, 128 sequences, FP8", "ms", False),
    ("fp8-decode-32", "decode, 32 sequences, FP8", "ms", False),
    ("attention-decode-32x4k", "attention, decode, 32 x 4,096", "TB/s", True),
    ("attention-decode-128x2k", "attention, decode, 128 x 2,048", "TB/s", True),
    ("attention-prefill-8k", "attention, prompt of 8,192", "TFLOP/s", True),
    ("attention-prefill-16k", "attention, prompt of 16,384", "TFLOP/s", True),
    ("attention-window-16k", "attention, prompt of 16,384, window 1,024", "us", False),
    ("cpu-bf16-decode-1", "CPU, 1B bf16, decode", "tok/s", True),
    ("cpu-bf16-prefill-128", "CPU, 1B bf16, prompt of 128", "tok/s", True),
    ("cpu-int8-decode-1", "CPU, 1B INT8 (Q8_0), decode", "tok/s", True),
    ("cpu-int8-prefill-128", "CPU, 1B INT8 (Q8_0), prompt of 128", "tok/s", True),
]


def offline_figures(text, kind):
    """Of the RESULT lines of offline.py: its median and its least."""
    figures = {}
    for batch, median, least in re.findall(rf"RESULT {kind} decode batch=(\d+) .*tpot_ms=([\d.]+) min_ms=([\d.]+)", text):
        figures[f"{kind}-decode-{batch}"] = [float(least), float(median)]
    for tokens, median, least in re.findall(rf"RESULT {kind} prefill prompts=\d+ tokens=(\d+) ms=([\d.]+) min_ms=([\d.]+)", text):
        figures[f"{kind}-prefill-{tokens}"] = [int(tokens) / float(ms) * 1e3 for ms in (median, least)]
    if not figures:
        raise SystemExit(f"offline.py gave no result:\n{text[-2000:]}")
    return figures


def saturated_figures(result):
    """Of the JSON of `reprise bench serve --save-detailed`."""
    if result["failed"]:
        raise SystemExit(f"{result['failed']} requests failed")
    firsts = [first for _, first in sorted(zip(result["start_times"], result["ttfts"]))]
    return {"saturated": [result["output_throughput"]], "saturated-ttft-mean": [statistics.mean(firsts)],
            "saturated-ttft-p50-late": [statistics.median(firsts[-512:])]}


def attention_figure(row, result):
    case = result["cases"][0]
    seconds = [case[key] * 1e-6 for key in ("us_min", "us_p50")]
    unit = next(unit for key, _, unit, _ in ROWS if key == row)
    if unit == "us":
        return [s * 1e6 for s in seconds]
    return [case["bytes" if unit == "TB/s" else "flops"] / s / 1e12 for s in seconds]


# --- the table -----------------------------------------------------------------------------------------------------------

def side_of(step):
    return step.split("-", 1)[0]


def collect(steps):
    """{row: {side: (samples, device)}} of the newest step of each side."""
    found = {}
    for step in steps:
        for row, samples in step["figures"].items():
            found.setdefault(row, {})[side_of(step["step"])] = (sorted(samples), step["device"])
    return found


def figure(samples):
    """The median, and the range if there are several: 7.24 (7.20 to 7.31)."""
    def short(value):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    middle = short(statistics.median(samples))
    return middle if len(samples) == 1 else f"{middle} ({short(samples[0])} to {short(samples[-1])})"


def ratio(ours, theirs, higher):
    """Above 1: reprise is faster. The median's, and the range that both ranges allow."""
    def of(a, b):
        return a / b if higher else b / a
    ends = sorted([of(ours[0], theirs[-1]), of(ours[-1], theirs[0])])
    return f"{of(statistics.median(ours), statistics.median(theirs)):.2f} ({ends[0]:.2f} to {ends[1]:.2f})"


def render(steps):
    """A table in Markdown, the devices, the rows that are missing."""
    found, missing, devices = collect(steps), [], []
    lines = ["| what | unit | reprise | peer | times as fast |", "|---|---|---|---|---|"]
    for key, title, unit, higher in ROWS:
        peer = "llama" if key.startswith("cpu-") else "" if key.startswith("attention-") else "vllm"
        sides = found.get(key, {})
        ours, theirs = sides.get("reprise"), sides.get(peer)
        missing += [f"{title}: {name}" for name, side in (("reprise", ours), (peer, theirs)) if name and not side]
        devices += [side[1] for side in (ours, theirs) if side and side[1] not in devices]
        times = "-"
        if ours and theirs:
            times = ratio(ours[0], theirs[0], higher) if ours[1] == theirs[1] else "measured on different devices"
        lines.append(f"| {title} | {unit} | {figure(ours[0]) if ours else '-'} | {figure(theirs[0]) if theirs else '-'} | {times} |")
    lines += ["", "Peers: vLLM on the GPU, llama.cpp on the CPU. Devices: " + ("; ".join(devices) or "none") + "."]
    if missing:
        lines += ["", "Missing:"] + [f"- {name}" for name in missing]
    return "\n".join(lines)
