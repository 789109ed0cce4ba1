"""The demo model on a GPU answers as well as on the CPU: every held-out sum is correct, and no other task is worse than on
the CPU by more than one answer in a hundred (near ties may differ)."""
import json
import os
import subprocess
import sys

from gpu import require_gpu
from reprise_server import DEMO, SOURCE, Server


def shares(device):
    with Server(DEMO, "--device", device, "--kv-cache-memory-bytes", "1G") as server:  # beside others on a GPU
        command = [sys.executable, os.path.join(SOURCE, "tools", "eval_demo"), "--base-url",
                   f"http://127.0.0.1:{server.port}", "--stories", "0", "--show-wrong", "5", "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        print(device, done.stdout.strip(), done.stderr.strip(), flush=True)
        return json.loads(done.stdout)


def main():
    require_gpu()
    gpu, cpu = shares("cuda"), shares("cpu")
    assert cpu["sums"]["right"] == cpu["sums"]["total"] == 1000, cpu["sums"]
    assert gpu["sums"] == cpu["sums"], (gpu["sums"], cpu["sums"])
    for group, want in cpu["groups"].items():
        got = gpu["groups"][group]
        assert want["right"] - got["right"] <= max(1, want["total"] // 100), (group, got, want)
    print("1 passed, 0 failed")


main()
