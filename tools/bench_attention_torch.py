#!/usr/bin/env python3
"""Compares PyTorch's attention kernels with ours, for the same shapes and masks on the same GPU.

    reprise bench attention --device cuda --json > ours.json
    tools/bench_attention_torch.py ours.json ...            prints a table; --json FILE writes it as well
    tools/bench_attention_torch.py --check DIR              compares the outputs that `bench attention --dump DIR`
                                                            wrote with those of FlexAttention

Peers: FlexAttention (FlexDecoding for a single query), compiled; scaled_dot_product_attention with cuDNN and with
FlashAttention; the flash_attn packages if they are installed. K and V rotate among as many copies as in our benchmark;
each peer's calls are captured in a CUDA graph if possible. For decode scaled_dot_product_attention needs no mask; it is
run with grouped heads and with the query heads of a KV head as queries, and the faster one is reported.

A peer that cannot run a shape is skipped, with the reason. FlexAttention's kernels are compiled for all shapes in
parallel, by separate processes, before the first measurement."""
import argparse
import json
import os
import subprocess
import sys
import time

import mask_python

SAMPLE_S, SAMPLES = 0.002, 15


def shape_name(case):
    return f"{case['kind']} {case['batch']} x {case['length']}"


def mask_of(case):
    return mask_python.parse(case["mask"], case.get("params"), case["heads"])


def window_of(case):
    """(window or 0, cap or 0) of a mask that is causal with a constant window and cap at most; None: any other mask."""
    program = mask_of(case)
    import re
    sees = program.sees.replace("(", "").replace(")", "").replace(" ", "")
    window = re.fullmatch(r"kv<=q(?:&q-kv<(\d+))?", sees)
    score = program.score.replace("(", "").replace(")", "").replace(" ", "")
    cap = re.fullmatch(r"([\d.]+)\*tanhscore/\1|", score)
    if not window or not cap:
        return None
    return int(window.group(1) or 0), float(cap.group(1) or 0)


# --- inputs ------------------------------------------------------------------------------------------------


def make_inputs(torch, case, copies):
    """`copies` of (q, k, v): (batch, heads, rows, head_dim)."""
    rows = case["length"] if case["kind"] == "prefill" else 1
    made = []
    for _ in range(copies):
        q = torch.empty(case["batch"], case["heads"], rows, case["head_dim"], dtype=torch.bfloat16, device="cuda").uniform_(-1, 1)
        k, v = (torch.empty(case["batch"], case["kv_heads"], case["length"], case["head_dim"], dtype=torch.bfloat16,
                            device="cuda").uniform_(-1, 1) for _ in range(2))
        made.append((q, k, v))
    return made


# --- peers: each returns a function of (q, k, v), or raises --------------------------------------------------


class Unsupported(Exception):
    pass


def flex_parts(torch, case, device):
    """(mask_mod or None, score_mod or None) of a case."""
    program, env = mask_of(case), mask_python.torch_env()
    offset = case["length"] - 1 if case["kind"] == "decode" else 0
    sees, mask_mod, score_mod = program.function("sees", env), None, None
    # A single query that attends to every key needs no mask.
    if not (offset and program.sees.replace(" ", "") in ("(kv<=q)", "kv<=q")):
        def mask_mod(b, h, q, kv):
            return sees(q + offset, kv, h, 0)
    if program.score:
        rule = program.function("score", env)

        def score_mod(score, b, h, q, kv):
            return rule(score, q + offset, kv, h, 0)
    return mask_mod, score_mod


def flex(torch, case, device="cuda", compiled=True):
    from torch.nn.attention import flex_attention as module
    mask_mod, score_mod = flex_parts(torch, case, device)
    rows = case["length"] if case["kind"] == "prefill" else 1
    reads_head = "h" in mask_python.re.findall(r"\w+", mask_of(case).sees)
    block_mask = None
    if mask_mod:
        make = module.create_block_mask
        block_mask = make(mask_mod, None, case["heads"] if reads_head else None, rows, case["length"], device=device)
    run = torch.compile(module.flex_attention, dynamic=False) if compiled else module.flex_attention
    # With head_dim 256 the default tiles need more shared memory than a Hopper block has.
    options = {"BLOCK_M": 64, "BLOCK_N": 64} if compiled and case["head_dim"] > 128 and rows > 1 else None

    def call(q, k, v):
        return run(q, k, v, score_mod=score_mod, block_mask=block_mask, scale=case["scale"],
                   enable_gqa=case["heads"] != case["kv_heads"], kernel_options=options)
    return call


def sdpa(torch, case, backend, packed=False):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    plain = window_of(case)
    if plain is None or plain[1] or (plain[0] and case["kind"] == "prefill"):
        raise Unsupported("only causal masks")
    if packed and case["kind"] == "prefill":
        raise Unsupported("only decode")
    which = getattr(SDPBackend, backend)
    attend = torch.nn.functional.scaled_dot_product_attention
    group = case["heads"] // case["kv_heads"]
    prompt, window = case["kind"] == "prefill", plain[0]

    def call(q, k, v):
        with sdpa_kernel(which):
            if prompt:
                return attend(q, k, v, is_causal=True, scale=case["scale"], enable_gqa=group > 1)
            if window:
                k, v = k[:, :, -window:], v[:, :, -window:]
            if not packed:
                return attend(q, k, v, scale=case["scale"], enable_gqa=group > 1)
            return attend(q.view(q.shape[0], case["kv_heads"], group, case["head_dim"]), k, v, scale=case["scale"])
    return call


def flash_package(torch, case):
    try:
        from flash_attn_interface import flash_attn_func  # for Hopper
        name = "flash_attn_interface"
    except ImportError:
        from flash_attn import flash_attn_func
        name = "flash_attn"
    plain = window_of(case)
    if plain is None:
        raise Unsupported("only windows and caps")
    window, cap = plain
    extra = {"softcap": cap} if cap else {}

    def call(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = flash_attn_func(q, k, v, softmax_scale=case["scale"], causal=True,
                              window_size=(window - 1, 0) if window else (-1, -1), **extra)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)
    call.name = name
    return call


def sdpa_variants(backend):
    return [lambda torch, case: sdpa(torch, case, backend), lambda torch, case: sdpa(torch, case, backend, packed=True)]


# Variants of each peer; the fastest is reported.
PEERS = {"cudnn": sdpa_variants("CUDNN_ATTENTION"), "flash (sdpa)": sdpa_variants("FLASH_ATTENTION"),
         "flash_attn": [flash_package], "flex": [flex]}


# --- time ---------------------------------------------------------------------------------------------------


def capture(torch, call, inputs, repeats):
    """Returns a function that runs `repeats` calls, and whether it replays a graph."""
    def plain():
        for i in range(repeats):
            call(*inputs[i % len(inputs)])
    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call(*inputs[0])
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            plain()
        graph.replay()
        torch.cuda.synchronize()
        return graph.replay, True
    except RuntimeError as error:
        print(f"  (not captured: {str(error).splitlines()[0][:100]})", file=sys.stderr)
        torch.cuda.synchronize()
        return plain, False


def sample(torch, run):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3


def time_call(torch, call, inputs, budget_s):
    """Time of a call in microseconds: (median, min, captured)."""
    with torch.no_grad():
        call(*inputs[0])
        torch.cuda.synchronize()
        once = min(sample(torch, lambda: call(*inputs[0])) for _ in range(2))
        copies = len(inputs)
        repeats = min(max(int(SAMPLE_S * 1e6 / once) + 1, copies), 256)
        repeats = -(-repeats // copies) * copies
        run, captured = capture(torch, call, inputs, repeats)
        begin, samples = time.monotonic(), []
        sample(torch, run)
        while len(samples) < SAMPLES and (len(samples) < 5 or time.monotonic() - begin < budget_s):
            samples.append(sample(torch, run) / repeats)
        samples.sort()
        return samples[len(samples) // 2], samples[0], captured


# --- the table ----------------------------------------------------------------------------------------------


def row_of(ours, case, peer, us, least, captured):
    bandwidth, product = ours["read_bandwidth_gb_per_second"] * 1e9, ours["product_tflops"] * 1e12
    return {"shape": shape_name(case), "mask": case["mask"], "peer": peer, "us": us, "us_min": least, "captured": captured,
            "tb_per_second": case["bytes"] / us * 1e-6, "bandwidth_share": case["bytes"] / us * 1e6 / bandwidth if bandwidth else 0,
            "tflops": case["flops"] / us * 1e-6, "product_share": case["flops"] / us * 1e6 / product if product else 0,
            "times_ours": us / case["us_p50"]}


def print_rows(rows, missing):
    print(f"{'shape':<18} {'peer':<13} {'us':>9} {'us min':>9} {'TB/s':>6} {'share':>6} {'TFLOP/s':>7} {'share':>6} {'/ours':>6}  mask")
    last = None
    for row in rows:
        key = (row["shape"], row["mask"])
        print(f"{row['shape'] if key != last else '':<18} {row['peer']:<13} {row['us']:>9.2f} {row['us_min']:>9.2f} "
              f"{row['tb_per_second']:>6.2f} {100 * row['bandwidth_share']:>5.1f}% {row['tflops']:>7.1f} "
              f"{100 * row['product_share']:>5.1f}% {row['times_ours']:>6.2f}  {row['mask'] if key != last else ''}"
              f"{'' if row['captured'] else ' (not captured)'}")
        last = key
    for reason in sorted(missing):
        print(f"skipped: {reason}: {', '.join(missing[reason])}")


def compile_apart(paths, count, limit_s):
    """Compiles FlexAttention for every case in separate processes, to fill the caches."""
    begin, environment = time.monotonic(), dict(os.environ, TORCHINDUCTOR_COMPILE_THREADS="1")
    running = [subprocess.Popen([sys.executable, __file__, *paths, "--compile-case", str(i)], stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True, env=environment) for i in range(count)]
    for i, process in enumerate(running):
        try:
            _, text = process.communicate(timeout=max(1.0, limit_s - (time.monotonic() - begin)))
            if process.returncode:
                print(f"compile case {i}: {text.strip().splitlines()[-1][:200] if text.strip() else 'failed'}", file=sys.stderr)
        except subprocess.TimeoutExpired:
            process.kill()
            print(f"compile case {i}: not within {limit_s} s", file=sys.stderr)
    print(f"compiled in {time.monotonic() - begin:.1f} s", file=sys.stderr)


def fastest(torch, peer, case, inputs):
    """(name, median, min, captured) of the fastest variant; raises when all fail."""
    best, failed = None, None
    for variant in PEERS[peer]:
        try:
            call = variant(torch, case)
            found = (getattr(call, "name", peer), *time_call(torch, call, inputs, 0.25))
            best = found if best is None or found[1] < best[1] else best
        except Exception as error:  # any failure of a peer must not stop the others
            failed = failed or error
    if best is None:
        raise failed
    return best


def bench(torch, paths, options):
    results = []
    for path in paths:
        with open(path) as file:
            results.append(json.load(file))
    cases, names = [case for ours in results for case in ours["cases"]], options.peers.split(",")
    begin, rows, missing = time.monotonic(), {}, {}
    if not options.no_compile_apart and "flex" in names:
        compile_apart(paths, len(cases), options.seconds * 0.6)
    for i, (ours, case) in enumerate((ours, case) for ours in results for case in ours["cases"]):
        case["ours"] = ours
        rows[i] = [row_of(ours, case, "ours", case["us_p50"], case["us_min"], True)]
    for name in names:
        for i, case in enumerate(cases):
            if time.monotonic() - begin > options.seconds:
                missing.setdefault("no time left", []).append(f"{name} {shape_name(case)}")
                continue
            try:
                inputs = make_inputs(torch, case, case["copies"])
                peer, us, least, captured = fastest(torch, name, case, inputs)
                rows[i].append(row_of(case["ours"], case, peer, us, least, captured))
            except Exception as error:
                reason = f"{name}: {type(error).__name__}: {(str(error) or '?').splitlines()[0][:90]}"
                missing.setdefault(reason, []).append(shape_name(case))
            inputs = None
            torch.cuda.empty_cache()
    flat = [row for i in sorted(rows) for row in rows[i]]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}; "
          f"{time.monotonic() - begin:.0f} s")
    print_rows(flat, missing)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "rows": flat, "missing": missing}, file, indent=1)


def compile_case(torch, paths, index):
    cases = []
    for path in paths:
        with open(path) as file:
            cases += json.load(file)["cases"]
    case = cases[index]
    with torch.no_grad():
        flex(torch, case)(*make_inputs(torch, case, 1)[0])
        torch.cuda.synchronize()


# --- the oracle ---------------------------------------------------------------------------------------------


def read_case(torch, path):
    with open(path) as file:
        case = json.load(file)
    base = path[:-len("json")]
    rows = case["length"] if case["kind"] == "prefill" else 1
    dtype = torch.float32 if case["dtype"] == "f32" else torch.bfloat16

    def read(suffix, kind, shape):
        with open(base + suffix, "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=kind).view(shape)
    q = read("q", torch.float32, (case["batch"], rows, case["heads"], case["head_dim"])).transpose(1, 2)
    k, v = (read(s, dtype, (case["batch"], case["kv_heads"], case["length"], case["head_dim"])) for s in "kv")
    out = read("out", dtype, (case["batch"], rows, case["heads"], case["head_dim"])).transpose(1, 2)
    return case, q, k, v, out


def check(torch, folder, options):
    """Every case: ||ours - Flex|| / ||Flex||. FlexAttention computes in f32 from the same numbers; on a GPU ours rounds
    the softmax's weights to bf16."""
    device = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    worst, failed, count = 0.0, 0, 0
    paths = sorted(os.path.join(root, name) for root, _, names in os.walk(folder) for name in names
                   if name.startswith("case") and name.endswith(".json"))
    torch.set_float32_matmul_precision("highest")
    for path in paths:
        case, q, k, v, out = read_case(torch, path)
        limit = options.limit or (1e-5 if case["dtype"] == "f32" and case["backend"] == device == "cpu" else 4e-3)
        try:
            q, k, v, out = (x.to(device).float().contiguous() for x in (q, k, v, out))
            with torch.no_grad():
                want = flex(torch, case, device, compiled=False)(q, k, v)
            distance = ((out - want).norm() / want.norm()).item()
        except Exception as error:
            print(f"{path}: {type(error).__name__}: {str(error).splitlines()[0][:120]}")
            failed += 1
            continue
        count += 1
        worst = max(worst, distance)
        if not distance <= limit:
            failed += 1
        if options.verbose or not distance <= limit:
            print(f"{'ok  ' if distance <= limit else 'FAR '} {distance:.2e}  {shape_name(case)} {case['heads']}/{case['kv_heads']}x"
                  f"{case['head_dim']} page {case['page_tokens']} {case['mask']}  [{os.path.basename(path)}]")
    print(f"FlexAttention agrees on {count - failed if count >= failed else 0} of {len(paths)} cases; largest distance {worst:.2e}")
    return 1 if failed or not paths else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ours", nargs="*", help="output of `reprise bench attention --json`")
    parser.add_argument("--peers", default="cudnn,flash (sdpa),flash_attn,flex")
    parser.add_argument("--seconds", type=float, default=80.0, help="time limit; cases that do not fit are skipped")
    parser.add_argument("--json", help="write the table to this file")
    parser.add_argument("--check", metavar="DIR", help="compare the dumps in this directory with FlexAttention")
    parser.add_argument("--device", default="auto", help="for --check: auto, cpu or cuda")
    parser.add_argument("--limit", type=float, default=0.0, help="for --check: maximum distance; 0: 1e-5 in f32 on the CPU, else 4e-3")
    parser.add_argument("--verbose", action="store_true", help="for --check: print every case")
    parser.add_argument("--no-compile-apart", action="store_true")
    parser.add_argument("--compile-case", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        sys.exit(f"PyTorch cannot be imported: {error}")
    if options.check:
        sys.exit(check(torch, options.check, options))
    if not options.ours:
        parser.error("give the output of `reprise bench attention --json`, or --check DIR")
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU")
    if options.compile_case is not None:
        compile_case(torch, options.ours, options.compile_case)
    else:
        bench(torch, options.ours, options)


if __name__ == "__main__":
    main()
