"""A GPU's memory: the start-up table agrees with the driver within 1 %, the pool fills the requested share, and after the
server is ready nothing is allocated under any load: for two rounds of requests, or for REPRISE_SOAK_HOURS."""
import os
import time

from gpu import memory_bytes, require_gpu
from mixed_streams import make_requests, together
from reprise_server import DEMO, Server

ALLOCATIONS = "reprise_device_allocations_total"


def check_sum(server, flags, share):
    uses = {name: value for name, value in server.metrics().items() if name.startswith("reprise_device_memory_bytes")}
    total, free = memory_bytes()
    used, said = total - free, sum(uses.values())
    print(flags, {name.split('"')[1]: int(value) >> 20 for name, value in uses.items()}, "MiB; the sum", int(said) >> 20,
          "MiB, the driver", used >> 20, "MiB of", total >> 20, flush=True)
    assert abs(said - used) <= 0.01 * total, (said, used)
    if share:
        assert abs(said - share * total) <= 0.02 * total, (said, share, total)


def check(flags, share):
    with Server(DEMO, "--device", "cuda", *flags) as server:
        check_sum(server, flags, share)
        before = server.metrics()[ALLOCATIONS]
        assert before > 0
        end, rounds = time.monotonic() + 3600 * float(os.environ.get("REPRISE_SOAK_HOURS", "0")), 0
        while rounds < 2 or time.monotonic() < end:
            together(server, make_requests())
            rounds += 1
        after = server.metrics()[ALLOCATIONS]
        assert after == before, (flags, before, after)
        check_sum(server, flags, share)  # and no hidden allocations


def main():
    require_gpu()
    check([], 0.92)
    check(["--gpu-memory-utilization", "0.5", "--enforce-eager"], 0.5)
    check(["--kv-cache-memory-bytes", "256M", "--max-num-seqs", "32"], None)
    print("1 passed, 0 failed")


main()
