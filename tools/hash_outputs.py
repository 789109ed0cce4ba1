#!/usr/bin/env python3
"""Hashes the outputs of models, to show that a change does not affect greedy text and logits.

    tools/hash_outputs.py [--bin FILE] [--device cpu|cuda] [--only REGEX] [--parallel N] [--out JSON]
    tools/hash_outputs.py --bin FILE --against FILE ...  both binaries in turn, then compares them
    tools/hash_outputs.py --compare A.json B.json        compares two files

Prints what differs; the exit code is 1 if anything does, if a case failed, or if it is in one
result only.

Each case is a model (models/demo, stories260K if the test data has it, small random checkpoints of
every family) with a set of flags, and has several hashes:

    CASE           prompts shorter and longer than a page, alone and 12 at once: text,
                   log-probabilities of the 20 most likely tokens at every position of prompt and
                   answer; NLL of a text
    CASE hits      answers to two prompts with a common prefix, for which the second one hits the
                   prefix cache; longer than a chunk if the model has 512 positions or more
    CASE batches   answers to 1, 2, 4, 8 and 16 prompts in one request
    CASE logits    `eval ppl --against` in steps of up to 350 rows: differences of raw logits from
                   the unquantized checkpoint in another type; sums in double precision
    CASE file      for cases written by `reprise quantize`: the files of the checkpoint

Log-probabilities are printed as the shortest text that reads back to the same float, sums as the
shortest that reads back to the same double: no bit is lost. A log-probability does not change when
all logits move by the same amount; the sums of `logits` do.

Hashes are comparable only between machines of the same kind: CPU kernels depend on the instruction
set, GPU kernels on the GPU. If there is a lib/ next to the binary's directory (a GPU package),
libraries are loaded from it. Needs numpy and safetensors for the random checkpoints; without them
those cases are skipped with a message."""
import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))

# Flags of `reprise quantize` for checkpoints that it writes; {text} is a file.
WRITTEN = {
    "written-fp8": ["--scheme", "fp8"],
    "written-int8": ["--scheme", "int8"],
    "written-fp8-gptq": ["--scheme", "fp8", "--calibrate", "{text}", "--calibrate-tokens", "512"],
    "written-int8-gptq": ["--scheme", "int8", "--calibrate", "{text}", "--calibrate-tokens", "512"],
}
FORMATS = {
    "auto": [],
    "f32": ["--dtype", "float32"],
    "bf16": ["--dtype", "bfloat16"],
    "int8": ["--dtype", "bfloat16", "--quantization", "int8", "--quantization-head"],
    "fp8": ["--dtype", "bfloat16", "--quantization", "fp8"],
    "int8-w8a16": ["--dtype", "bfloat16", "--quantization", "int8-w8a16"],
    "fp8-w8a16": ["--dtype", "bfloat16", "--quantization", "fp8-w8a16", "--quantization-head"],
    "fp8-pages": ["--dtype", "bfloat16", "--kv-cache-dtype", "fp8"],
    "fp8-fp8-pages": ["--dtype", "bfloat16", "--quantization", "fp8", "--kv-cache-dtype", "fp8"],
    "int8-pages": ["--dtype", "bfloat16", "--quantization", "int8", "--kv-cache-dtype", "int8"],
    "unfused": ["--dtype", "bfloat16", "--disable-fusion"],
    "mask": ["--dtype", "bfloat16", "--attention-mask", "causal && (sliding_window(24) || sink(4)); soft_cap(30)"],
    **{name: [] for name in WRITTEN},
}
TEXT = ("Once upon a time there was a little cat who lived in a house by the sea. Every day she went to the shore "
        "and counted the boats: 1, 2, 3, 4, 5. One morning 12 + 34 boats came in, and nobody knew why. ")
FAILED = "failed"  # in place of a hash
# Sizes that the tiled kernels support, and odd ones, which use the generic kernels.
SIZES = {
    "wide": dict(hidden_size=512, intermediate_size=1536, num_attention_heads=8, num_key_value_heads=2, head_dim=64,
                 num_hidden_layers=2, max_position_embeddings=1024),
    "wide128": dict(hidden_size=512, intermediate_size=1024, num_attention_heads=4, num_key_value_heads=2, head_dim=128,
                    num_hidden_layers=2, max_position_embeddings=1024),
    "odd": {},
}


def cases(folder):
    """(name, directory, format) of every case; writes the random checkpoints."""
    for name in ("auto", "f32", "int8", "fp8", "int8-w8a16", "fp8-w8a16", "fp8-pages", "int8-pages",
                 "fp8-fp8-pages", "unfused", "mask", *WRITTEN):
        yield f"demo/{name}", os.path.join(ROOT, "models", "demo"), name
    data = os.environ.get("REPRISE_TEST_DATA") or os.path.join(ROOT, "..", "shared", "data")
    stories = os.path.join(data, "weights", "stories260K", "hf_derived")
    if os.path.isdir(stories):
        for name in ("auto", "bf16", "int8", "fp8"):
            yield f"stories260K/{name}", stories, name
    try:
        from random_models import write_model
    except ImportError as error:
        print(f"skipped: random checkpoints ({error})", file=sys.stderr)
        return
    for family in ("llama", "mistral", "qwen2", "qwen3", "gemma2"):
        for size, overrides in SIZES.items():
            extra = dict(overrides)
            if family == "mistral":
                extra["sliding_window"] = 50
            directory = os.path.join(folder, f"{family}-{size}")
            os.makedirs(directory)
            write_model(directory, family, dtype="bf16", tied=size == "odd", seed=7, **extra)
            formats = ["f32", "bf16", "int8"]
            if size != "odd":
                formats += ["fp8", "fp8-w8a16", "fp8-pages"]
            if (family, size) in (("llama", "wide"), ("qwen3", "wide128")):
                formats += ["int8-w8a16", "int8-pages", "fp8-fp8-pages", "unfused", "mask",
                            *WRITTEN]
            for name in formats:
                yield f"{family}-{size}/{name}", directory, name


def complete(server, prompt, **extra):
    """The reply's choices and the number of prompt tokens that came from the prefix cache."""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 40, "ignore_eos": True,
            "logprobs": 20, **extra}
    status, _, reply = server.request("POST", "/v1/completions", body)
    if status != 200:
        raise AssertionError(f"{status}: {reply[:300]!r}")
    reply = json.loads(reply)
    choices = sorted(reply["choices"], key=lambda choice: choice["index"])
    texts = [[c.get("text"), c.get("logprobs"), c.get("prompt_logprobs")] for c in choices]
    return texts, reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def answers(server, long_prompts):
    """Prompts one at a time, then concurrently. With prompt_logprobs they do not use the prefix cache."""
    prompts = ["12 + 34 =", TEXT[:60], TEXT[:25] + " What is 7 - 3?", TEXT * (3 if long_prompts else 1)]

    def one(prompt):
        return complete(server, prompt, prompt_logprobs=20, return_tokens_as_token_ids=False)[0][0]

    alone = [one(prompt) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        together = list(pool.map(one, prompts * 3))
    return [alone, together]


def hits(server, positions):
    """Two prompts with a common prefix, longer than a chunk if the model has enough positions."""
    beginning = TEXT * (4 if positions >= 1024 else 3 if positions >= 512 else 1)
    first, _ = complete(server, beginning + "1 +", return_tokens_as_token_ids=True)
    second, cached = complete(server, beginning + "12 - 3", return_tokens_as_token_ids=True)
    if not cached:
        raise AssertionError("the second of two prompts with a common prefix did not hit the prefix cache")
    return [first, second]


def batches(server):
    def together(count):
        prompts = [f"{i} + {count * i} =" for i in range(count)]
        return complete(server, prompts, max_tokens=12, return_tokens_as_token_ids=True)[0]

    return [together(count) for count in (1, 2, 4, 8, 16)]


def evaluate(arguments, directory, folder, *flags):
    """The numbers of `reprise eval ppl --json`, without the names of device and model."""
    text = os.path.join(folder, "text.txt")
    ppl = subprocess.run([arguments.bin, "eval", "ppl", text, "--model", directory, "--json",
                          "--device", arguments.device, *flags], capture_output=True, text=True)
    if ppl.returncode:
        raise AssertionError(ppl.stderr)
    report = json.loads(ppl.stdout)
    report.get("against", {}).pop("model", None)
    return {k: v for k, v in report.items() if not isinstance(v, str)}


def quantize(arguments, directory, form, folder):
    """Writes a quantized checkpoint; returns its directory and the hashes of its files."""
    out = os.path.join(tempfile.mkdtemp(dir=folder), "out")
    flags = [flag.format(text=os.path.join(folder, "text.txt")) for flag in WRITTEN[form]]
    done = subprocess.run([arguments.bin, "quantize", directory, out, *flags],
                          capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(done.stderr)
    files = {}
    for file_name in sorted(os.listdir(out)):
        with open(os.path.join(out, file_name), "rb") as file:
            files[file_name] = hashlib.sha256(file.read()).hexdigest()
    return out, files


def run_case(case, arguments, folder):
    """Hashes by name, and the first answer's text."""
    name, directory, form = case
    from reprise_server import Server
    values = {}
    if form in WRITTEN:
        directory, values["file"] = quantize(arguments, directory, form, folder)
    flags = [*FORMATS[form], "--device", arguments.device, "--log-level", "warn", "--max-num-seqs", "16",
             "--max-num-batched-tokens", "256"]
    if arguments.device == "cuda":
        flags += ["--kv-cache-memory-bytes", "64M"]
    server = Server(directory, *flags)
    server.command[0] = arguments.bin
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        positions = json.load(file).get("max_position_embeddings", 0)
    with server:
        value = answers(server, positions >= 1024)
        values["hits"], values["batches"] = hits(server, positions), batches(server)
    eval_flags = FORMATS[form] if form != "mask" else []  # eval has no flag for masks
    numbers = evaluate(arguments, directory, folder, "--tokens", "300", "--window", "100", *eval_flags)
    if form != "mask":
        other = "bf16" if "float32" in eval_flags else "f32"
        values["logits"] = evaluate(arguments, directory, folder, "--tokens", "700", "--window",
                                    str(min(350, positions)), "--against", other, *eval_flags)
    hashes = {name: digest([value, numbers])}
    hashes.update({f"{name} {part}": digest(v) for part, v in values.items()})
    return hashes, value[0][0][0]


def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def compare(a, b):
    """Prints what differs between two results; 0 if nothing does."""
    names = sorted(set(a) | set(b))
    different = [name for name in names if a.get(name) != b.get(name) or a[name] == FAILED]
    for name in different:
        print(f"{name}: {a.get(name, 'missing')} and {b.get(name, 'missing')}")
    print(f"{len(names) - len(different)} of {len(names)} equal")
    return 1 if different or not names else 0


def write_text(folder):
    with open(os.path.join(folder, "text.txt"), "w", encoding="utf-8") as file:
        file.write(TEXT * 8)


def write_results(path, results):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1, sort_keys=True)


def read_results(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def run_cases(wanted, arguments, folder):
    """Hashes by name; FAILED for a case without an answer."""
    lib = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(arguments.bin))), "lib")
    if os.path.isdir(lib):
        os.environ["LD_LIBRARY_PATH"] = lib
    results = {}
    with concurrent.futures.ThreadPoolExecutor(arguments.parallel) as pool:
        futures = [pool.submit(run_case, case, arguments, folder) for case in wanted]
        for (name, _, _), future in zip(wanted, futures):
            try:
                hashes, text = future.result()
                print(f"{name:24} {' '.join(hashes.values())} {text[:40]!r}", flush=True)
            except (AssertionError, OSError) as error:
                hashes = {name: FAILED}
                print(f"{name:24} failed: {str(error)[:600]}", flush=True)
            results.update(hashes)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "release", "reprise"))
    parser.add_argument("--against", metavar="FILE")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--out")
    parser.add_argument("--compare", nargs=2)
    arguments = parser.parse_args()
    if arguments.compare:
        return compare(*map(read_results, arguments.compare))
    with tempfile.TemporaryDirectory() as folder:
        write_text(folder)
        wanted = [case for case in cases(folder) if re.search(arguments.only, case[0])]
        results = run_cases(wanted, arguments, folder)
        if arguments.against:
            arguments.bin = arguments.against
            others = run_cases(wanted, arguments, folder)
    if arguments.out:
        write_results(arguments.out, results)
    failed = sum(value == FAILED for value in results.values())
    print(f"{len(wanted) - failed} of {len(wanted)} cases, {len(results)} hashes")
    if arguments.against:
        return compare(results, others)
    return 1 if failed or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
