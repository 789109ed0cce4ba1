#!/usr/bin/env python3
"""The perplexity of stories260K in every 4-bit format stays within a bound of bf16's, and GPTQ and smaller groups lose less.

Method: tools/format_perplexity.py on the first 4,000 tokens of tinystories; everything on the way is deterministic on the CPU, so
bounds are near what is measured (docs/quantization.md has the whole text).
"""
import os
import sys

SOURCE = os.environ.get("REPRISE_SOURCE_DIR", ".")
DATA = os.environ.get("REPRISE_TEST_DATA", os.path.join(SOURCE, "..", "shared", "data"))
sys.path += [os.path.join(SOURCE, "tools"), os.path.join(SOURCE, "tests", "support")]
try:
    import gguf  # noqa: F401
    import format_perplexity
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

# format -> the most that its NLL may be above bf16's; a small model with rows of 64 columns loses much
BOUNDS = {"int4, group 64": 0.13, "int4, group 64, GPTQ": 0.11, "int4, group 32": 0.09, "int4, group 32, GPTQ": 0.08,
          "nvfp4": 0.08, "nvfp4, GPTQ": 0.06, "mxfp4": 0.15, "mxfp4, GPTQ": 0.12, "int4, at load": 0.17, "nvfp4, at load": 0.10,
          "mxfp4, at load": 0.19, "GGUF Q4_0": 0.13, "GGUF Q4_1": 0.13, "GGUF IQ4_NL": 0.13, "GGUF MXFP4": 0.25}


def main():
    model = os.path.join(DATA, "weights", "stories260K", "hf_derived")
    texts = [os.path.join(DATA, "text", name) for name in ("tinystories_197k.txt", "tinyshakespeare.txt")]
    if os.path.basename(os.path.dirname(format_perplexity.BIN)) in ("asan", "tsan"):
        print("SKIP: sanitizers are too slow for a text in 16 formats")
        sys.exit(77)
    if not all(map(os.path.exists, (model, *texts))):
        print(f"SKIP: no {model}")
        sys.exit(77)
    found = {one["name"]: one for one in format_perplexity.measure(model, *texts, tokens=4000, threads=1, only=[*BOUNDS, "bf16"])}
    assert found.keys() == {*BOUNDS, "bf16"}, found.keys()
    plain = found["bf16"]
    assert plain["nll_difference"] == 0 and 4 < plain["perplexity"] < 5, plain
    for name, bound in BOUNDS.items():
        one = found[name]
        assert one["tokens"] == plain["tokens"] and one["nll"] == plain["nll"], (name, one)
        assert 0 < one["nll_difference"] < bound and one["kl_mean"] > 0, (name, one, bound)
        assert one["bytes"] < 0.6 * plain["bytes"], (name, one["bytes"], plain["bytes"])
        if name + ", GPTQ" in found:
            assert found[name + ", GPTQ"]["kl_mean"] < one["kl_mean"], name
    assert found["int4, group 32"]["kl_mean"] < found["int4, group 64"]["kl_mean"]
    assert found["nvfp4"]["kl_mean"] < found["mxfp4"]["kl_mean"]
    print(f"{len(BOUNDS)} formats are within their bounds")


main()
