"""Attention with mask programs on a GPU agrees with numpy in f64 (attention_oracle.py), and with FlexAttention if PyTorch
is installed. Pages of a sequence are not adjacent; batches, head dims and pages of every kind."""
import os
import sys
import tempfile

from gpu import require_gpu

require_gpu()
ROOT = os.environ["REPRISE_SOURCE_DIR"]
sys.path[:0] = [os.path.join(ROOT, "tests", "oracle"), os.path.join(ROOT, "tools")]
import attention_oracle  # ends the test as skipped where numpy is missing

SHAPES = [
    ["--kind", "decode", "--batch", "3", "--length", "437", "--heads", "16", "--kv-heads", "4", "--head-dim", "128"],
    ["--kind", "prefill", "--batch", "2", "--length", "309", "--heads", "8", "--kv-heads", "2", "--head-dim", "128"],
]
OTHER_SHAPES = [
    ["--kind", "decode", "--batch", "2", "--length", "1,300", "--heads", "4", "--kv-heads", "4", "--head-dim", "64", "--page", "16"],
    ["--kind", "decode", "--batch", "5", "--length", "200", "--heads", "16", "--kv-heads", "1", "--head-dim", "96", "--page", "32"],
    ["--kind", "decode", "--batch", "2", "--length", "260", "--heads", "8", "--kv-heads", "4", "--head-dim", "256"],
    ["--kind", "prefill", "--batch", "2", "--length", "131", "--heads", "4", "--kv-heads", "4", "--head-dim", "64", "--page", "16"],
    ["--kind", "prefill", "--batch", "3", "--length", "131", "--heads", "8", "--kv-heads", "1", "--head-dim", "96", "--page", "32"],
    ["--kind", "prefill", "--batch", "2", "--length", "200", "--heads", "4", "--kv-heads", "2", "--head-dim", "256"],
]
OTHER_MASKS = [attention_oracle.MASKS[i] for i in (3, 4, 11, 13)]


def main():
    with tempfile.TemporaryDirectory() as parent:
        folders = [os.path.join(parent, name) for name in ("all", "other")]
        for folder in folders:
            os.mkdir(folder)
        paths = attention_oracle.dump(folders[0], attention_oracle.MASKS, SHAPES, "cuda")
        paths += attention_oracle.dump(folders[1], OTHER_MASKS, OTHER_SHAPES, "cuda")
        worst = max(attention_oracle.check(path)[1] for path in paths)
        print(f"{len(paths)} cases, relative error beside numpy at most {worst:.1e}", flush=True)
        try:
            import torch
        except ImportError:
            print("skipped: FlexAttention: PyTorch is missing")
        else:
            import types
            import bench_attention_torch
            options = types.SimpleNamespace(device="cuda", limit=4e-3, verbose=False)
            assert bench_attention_torch.check(torch, parent, options) == 0
    print("1 passed, 0 failed")


main()
