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
    ("moe-decode-1", "30B-A3B bf16, decode, 1 sequence", "ms", False),
    ("moe-decode-8", "30B-A3B bf16, decode, 8 sequences", "ms", False),
    ("moe-decode-32", "30B-A3B bf16, decode, 32 sequences", "ms", False),
    ("moe-decode-128", "30B-A3B bf16, decode, 128 sequences", "ms", False),
    ("moe-prefill-2048", "30B-A3B bf16, prompt of 2,048", "tok/s", True),
    ("moe-prefill-8192", "30B-A3B bf16, 4 prompts of 2,048", "tok/s", True),
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


def complete(figures, prefix, text):
    """The figures, if no row of the table that begins with `prefix` is missing."""
    missing = [row for row, *_ in ROWS if row.startswith(prefix) and row not in figures]
    if missing:
        raise SystemExit(f"no result for {', '.join(missing)}:\n{text[-4000:]}")
    return figures


def offline_figures(text, kind):
    """Of the RESULT lines of offline.py: its median, which stays the median of the samples, and its least."""
    figures = {}
    for batch, *times in re.findall(rf"RESULT {kind} decode batch=(\d+) .*tpot_ms=([\d.]+) min_ms=([\d.]+)", text):
        median, least = map(float, times)
        figures[f"{kind}-decode-{batch}"] = [least, median, median]
    for tokens, *times in re.findall(rf"RESULT {kind} prefill prompts=\d+ tokens=(\d+) ms=([\d.]+) min_ms=([\d.]+)", text):
        median, least = (int(tokens) / float(ms) * 1e3 for ms in times)
        figures[f"{kind}-prefill-{tokens}"] = [median, median, least]
    complete(figures, f"{kind}-decode-", text)
    return complete(figures, f"{kind}-prefill-", text)


def moe_figures(text):
    """Of the RESULT lines of moe.py: medians."""
    figures = {}
    for batch, ms in re.findall(r"RESULT moe bf16 decode batch=(\d+) tpot_ms=([\d.]+)", text):
        figures[f"moe-decode-{batch}"] = [float(ms)]
    for tokens, ms in re.findall(r"RESULT moe bf16 prefill (\d+) ms=([\d.]+)", text):
        figures[f"moe-prefill-{tokens}"] = [int(tokens) / float(ms) * 1e3]
    return complete(figures, "moe-", text)


def step_figures(result):
    """Of the JSON of `reprise bench step` or `bench prefill`: medians."""
    if result["bench"] == "step":
        figures = {f"moe-decode-{case['batch']}": [case["ms_p50"]] for case in result["cases"]}
        return complete(figures, "moe-decode-", str(result))
    figures = {f"moe-prefill-{case['batch'] * case['context']}": [case["tokens_per_second"]] for case in result["cases"]}
    return complete(figures, "moe-prefill-", str(result))


def saturated_figures(result):
    """Of the JSON of `reprise bench serve --save-detailed`."""
    if result["failed"]:
        raise SystemExit(f"{result['failed']} requests failed")
    firsts = [first for _, first in sorted(zip(result["start_times"], result["ttfts"]))]
    return {"saturated": [result["output_throughput"]], "saturated-ttft-mean": [statistics.mean(firsts)],
            "saturated-ttft-p50-late": [statistics.median(firsts[-512:])]}


def attention_figure(row, result):
    case = result["cases"][0]
    seconds = [case[key] * 1e-6 for key in ("us_min", "us_p50", "us_p50")]  # whose median is the median
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
        devices += [side[1] for side in (ours, theirs) if side]
        times = "-"
        if ours and theirs:
            times = ratio(ours[0], theirs[0], higher) if ours[1] == theirs[1] else "measured on different devices"
        lines.append(f"| {title} | {unit} | {figure(ours[0]) if ours else '-'} | {figure(theirs[0]) if theirs else '-'} | {times} |")
    lines += ["", "Peers: vLLM on the GPU, llama.cpp on the CPU. 30B-A3B: reprise's steps alone, vLLM's whole LLM class. Devices: " +
              ("; ".join(dict.fromkeys(devices)) or "none") + "."]
    if missing:
        lines += ["", "Missing:"] + [f"- {name}" for name in missing]
    return "\n".join(lines)
