"""A GPU whose memory another process takes: a start that does not fit ends with exit code 4 and one line, whatever was the
allocation that failed; a server that runs is not touched, because it allocates nothing after it is ready."""
import ctypes
import subprocess

from free_port import free_port
from gpu import memory_bytes, require_gpu
from reprise_server import BIN, DEMO, START_TIMEOUT_S, Server

MIB = 1 << 20
BODY = {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0}
SMALL = ("--device", "cuda", "--kv-cache-memory-bytes", "64M", "--max-num-seqs", "4")


class Hog:
    """Device memory in the hands of this process."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.blocks = []
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        code = getattr(self.driver, name)(*arguments)
        assert code == 0, (name, code)

    def take(self, size):
        block = ctypes.c_uint64()
        code = self.driver.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(size))
        if code == 0:
            self.blocks.append(block)
        return code == 0

    def leave(self, size):
        """Takes what is free but for about `size` bytes."""
        self.give_back()
        for part in (1024 * MIB, 64 * MIB, 2 * MIB):
            while memory_bytes()[1] > size + part and self.take(min(part * 8, memory_bytes()[1] - size) // part * part):
                pass

    def give_back(self):
        while self.blocks:
            self.call("cuMemFree_v2", self.blocks.pop())


def start_with(left):
    """The exit code of a start with `left` bytes of free memory (0: it served), and its error lines."""
    command = [BIN, "serve", DEMO, "--port", str(free_port()), *SMALL, "--gpu-memory-utilization", "1"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        lines = []
        for line in process.stderr:
            lines.append(line.rstrip())
            if line.startswith("ready: "):
                process.terminate()
        code = process.wait(START_TIMEOUT_S)
    print(left // MIB, "MiB left: exit code", code, [line for line in lines if line.startswith("error")], flush=True)
    return code, lines


def check_starts(hog, needed):
    """From too little for a context to enough: each start serves, or says what is missing."""
    codes = []
    for share in (0.05, 0.3, 0.6, 0.9, 1.0, 1.1, 1.3, 2, 4):
        hog.leave(int(needed * share))
        code, lines = start_with(int(needed * share))
        assert code in (0, 4), (share, code, lines)
        errors = [line for line in lines if line.startswith("error: ")]
        assert len(errors) == (1 if code else 0), lines
        codes.append(code)
    assert codes[0] == 4 and codes[-1] == 0, codes
    hog.give_back()


def check_running(hog):
    with Server(DEMO, *SMALL) as server:
        alone = server.post("/v1/completions", BODY)[1]["choices"]
        before = server.metrics()["reprise_device_allocations_total"]
        hog.leave(0)
        while hog.take(2 * MIB):
            pass
        for _ in range(20):
            status, answer = server.post("/v1/completions", BODY)
            assert status == 200 and answer["choices"] == alone, answer
        assert server.get("/health/ready")[0] == 200
        assert server.metrics()["reprise_device_allocations_total"] == before
        hog.give_back()


def main():
    require_gpu()
    hog = Hog()
    free = memory_bytes()[1]
    with Server(DEMO, *SMALL):
        needed = free - memory_bytes()[1]
    check_starts(hog, needed)
    check_running(hog)
    print("1 passed, 0 failed")


main()
