"""Driver queries for GPU tests, without any package."""
import ctypes
import os
import subprocess

from reprise_server import BIN, skip


def require_gpu(least=1):
    """Ends the test as skipped where there is no driver or there are fewer GPUs."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        skip("no CUDA driver")
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value < least:
        skip("no CUDA GPU" if least == 1 else f"fewer than {least} GPUs")


def memory_bytes(gpu=0):
    """(total, free) bytes of a GPU, over all processes."""
    command = ["nvidia-smi", f"--id={gpu}", "--query-gpu=memory.total,memory.free", "--format=csv,noheader,nounits"]
    total, free = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(",")
    return int(total) << 20, int(free) << 20


def gpu_program(name):
    """The path of a test program, in the package or in the build folder of `reprise`."""
    folder = os.path.dirname(BIN)
    for path in (os.path.join(folder, name), os.path.join(folder, "tests", name)):
        if os.path.exists(path):
            return path
    return skip(f"{name} is not built")
