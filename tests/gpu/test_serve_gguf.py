"""GGUF files on a GPU, as the server serves them: the demo model in Q8_0 and Q4_K_M answers the held-out sums as on the CPU, and no
other task is worse by more than one answer in a hundred (near ties may differ)."""
import json
import os
import subprocess
import sys
import tempfile

from gpu import require_gpu
from reprise_server import DEMO, SOURCE, Server, skip

require_gpu()
try:
    import numpy as np
    from gguf_files import write_gguf
except ImportError as error:
    skip(str(error))


def shares(path, device):
    with Server(path, "--device", device, "--kv-cache-memory-bytes", "1G") as server:  # beside others on a GPU
        name = os.path.basename(path)
        command = [sys.executable, os.path.join(SOURCE, "tools", "eval_demo"), "--base-url", f"http://127.0.0.1:{server.port}",
                   "--model", name, "--stories", "0", "--show-wrong", "5", "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        print(name, device, done.stdout.strip(), done.stderr.strip(), flush=True)
        return json.loads(done.stdout)


def main():
    checked = 0
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("Q8_0", "Q4_K_M"):
            path = os.path.join(folder, kind + ".gguf")
            with np.errstate(all="ignore"):
                write_gguf(DEMO, path, kind)
            gpu, cpu = shares(path, "cuda"), shares(path, "cpu")
            assert cpu["sums"]["right"] == cpu["sums"]["total"] == 1000, (kind, cpu["sums"])
            allowed = 0 if kind == "Q8_0" else 10  # the CPU rounds inputs to 8 bits, the GPU to bf16
            assert gpu["sums"]["total"] == 1000 and gpu["sums"]["right"] >= 1000 - allowed, (kind, gpu["sums"])
            for group, want in cpu["groups"].items():
                got = gpu["groups"][group]
                assert want["right"] - got["right"] <= max(1, want["total"] // 100), (kind, group, got, want)
                checked += 1
    assert checked >= 2
    print("1 passed, 0 failed")


if __name__ == "__main__":
    main()
