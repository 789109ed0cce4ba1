"""Random models of the families on a GPU against the transformers package, teacher forced: the argmax agrees
wherever transformers' two best logits differ by more than four times the largest difference at that position.

The reference computes in f32 on the CPU from the same rounded weights. Needs torch and transformers.
"""
import os
import subprocess
import sys
import tempfile

from gpu import gpu_program, require_gpu

require_gpu()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
try:
    import numpy as np
    import torch
    import transformers
    from random_models import write_model
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

TOKENS = 160
SIZES = {"hidden_size": 256, "intermediate_size": 448, "num_attention_heads": 4, "num_key_value_heads": 2,
         "num_hidden_layers": 2}
FAMILIES = [("llama", {"tied": True}), ("mistral", {"tied": False, "sliding_window": 48}),
            ("qwen2", {"tied": True}), ("qwen3", {"tied": False}),
            ("gemma2", {"tied": True, "sliding_window": 48, "query_pre_attn_scalar": 96, "attn_logit_softcapping": 3.0})]


def reference(directory, ids):
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                              attn_implementation="eager").eval()
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()


def gpu(directory, dtype, chunk, ids, out):
    subprocess.run([gpu_program("test_gpu_stories_cuda"), "--logits", directory, out, dtype, str(chunk),
                    *map(str, ids)], check=True)
    return np.fromfile(out, np.float32)


def check(got, want, limit, what):
    """Rows of logits against the reference's. Returns (relative error, positions where the argmax is certain)."""
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert error <= limit, (what, error)
    best = np.sort(want, axis=-1)
    certain = best[:, -1] - best[:, -2] > 4 * np.abs(got - want).max(axis=-1)
    assert (got.argmax(-1) == want.argmax(-1))[certain].all(), what
    return error, int(certain.sum())


def main():
    ids = np.random.default_rng(11).integers(0, 256, TOKENS).tolist()
    with tempfile.TemporaryDirectory() as parent:
        for seed, (family, overrides) in enumerate(FAMILIES):
            for head_dim in (64, 128):
                for dtype in ("f32", "bf16"):
                    what = f"{family} {head_dim} {dtype}"
                    directory, out = os.path.join(parent, what.replace(" ", "-")), os.path.join(parent, "logits")
                    model = write_model(directory, family, dtype=dtype, seed=seed, head_dim=head_dim, **SIZES, **overrides)
                    vocab, want = model.config["vocab_size"], reference(directory, ids)
                    line = []
                    for chunk in (0, 1, 37, TOKENS):
                        got = gpu(directory, dtype, chunk, ids, out).reshape(-1, vocab)
                        step = max(chunk, 1)
                        rows = [min(at + step, TOKENS) - 1 for at in range(0, TOKENS, step)]
                        error, certain = check(got, want[rows], 1e-2 if dtype == "bf16" else 1e-5, (what, chunk))
                        line.append(f"{error:.1e} ({certain} of {len(rows)})")
                    print(f"{what}: relative error (certain) of decode rows, chunks of 1, 37, all: {', '.join(line)}",
                          flush=True)
    print("1 passed, 0 failed")


main()
