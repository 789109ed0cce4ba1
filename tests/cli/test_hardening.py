"""Hardening of the build and the process, read back from the program and its process."""
import os
import re
import shutil
import subprocess

from reprise_server import BIN, DEMO, Server, skip

SANITIZED = any(name in os.path.basename(os.path.dirname(BIN)) for name in ("asan", "tsan", "debug"))


def readelf(*flags):
    return subprocess.run(["readelf", "-W", *flags, BIN], capture_output=True, text=True, check=True).stdout


def check_program():
    assert "DYN (Position-Independent Executable" in readelf("-h")
    segments = readelf("-l")
    assert "GNU_RELRO" in segments
    stack = next(line for line in segments.splitlines() if "GNU_STACK" in line)
    assert " RWE " not in stack and " RW " in stack, stack
    assert "BIND_NOW" in readelf("-d") or "NOW" in readelf("-d")
    symbols = readelf("--dyn-syms")
    assert "__stack_chk_fail" in symbols
    assert len(re.findall(r"__\w+_chk@", symbols)) >= 5, "functions that check the size of what they write"


def check_process():
    with Server(DEMO, "--max-num-seqs", "2") as server:
        pid = server.process.pid
        with open(f"/proc/{pid}/limits", encoding="ascii") as file:
            core = next(line for line in file if line.startswith("Max core file size")).split()
        assert core[4] == "0", core  # a core dump contains prompts
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            umask = next(line for line in file if line.startswith("Umask:")).split()[1]
        assert umask == "0077", umask


def main():
    check_process()
    if SANITIZED or not shutil.which("readelf"):
        skip("a build with sanitizers, or no readelf")
    check_program()
    print("ok")


main()
