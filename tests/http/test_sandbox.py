"""--sandbox: what somebody who runs code inside the server may call, that each refusal is counted and logged, and that the
server goes on. All other tests of a server run under the filter too, and fail when it refused a call of theirs."""
import errno
import glob
import json
import os
import re
import signal
import socket
import tempfile
import time

from reprise_server import BIN, DEMO, SANITIZED, START_TIMEOUT_S, Server, skip

PROBE = os.environ.get("REPRISE_SANDBOX_PROBE", "")
SMALL = ("--max-num-seqs", "2")
# Refused in every configuration of the CPU backend.
NEVER = {"connect", "socket_inet", "bind", "clone", "ptrace", "kill", "memfd", "io_uring", "unshare", "mprotect", "mmap", "execve"}


def wait_for(condition, what):
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def probe(server, more_may=()):
    """What each call of the probe gave: {name: errno}; checks that refusals are counted, logged and harmless."""
    server.process.send_signal(signal.SIGUSR1)
    wait_for(lambda: "probe execve" in server.output(), "the probe ends")
    results = {name: int(error) for name, error in re.findall(r"^probe (\w+) (\d+)$", server.output(), re.M)}
    refused = {name for name, error in results.items() if error == errno.EPERM}
    assert results["read_only"] == 0, results
    assert NEVER <= refused, (NEVER - refused, results)
    assert not refused & set(more_may), (refused, results)
    wait_for(lambda: server.metrics()["reprise_sandbox_refused_calls_total"] == len(refused), "each refusal is counted")
    for name in ("execve", "clone", "ptrace", "mprotect", "io_uring_setup"):
        assert f"sandbox: refused call={name} count=1" in server.output(), (name, server.output())
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 3})[0] == 200
    return results


def check_refusals(folder):
    path = os.path.join(folder, "created")
    with Server(DEMO, *SMALL, env={"LD_PRELOAD": PROBE, "PROBE_FILE": path}, may_refuse=True) as server:
        for status in glob.glob(f"/proc/{server.process.pid}/task/*/status"):
            with open(status, encoding="ascii") as file:
                text = file.read()
            assert "Seccomp:\t2" in text and "NoNewPrivs:\t1" in text, f"a thread without the filter: {text}"
        assert "sandbox: on (auto)" in server.output() and server.metrics()["reprise_sandbox_active"] == 1
        assert json.loads(server.get("/debug/env")[1])["flags"]["sandbox"] == "auto"
        results = probe(server)
        assert {results[name] for name in ("create", "append", "unlink", "socket_unix")} == {errno.EPERM}, results
        assert not os.path.exists(path)


def check_what_a_configuration_adds(folder):
    """Dumps need files, the service manager datagrams; nothing else becomes possible."""
    path, address = os.path.join(folder, "created"), os.path.join(folder, "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        env = {"LD_PRELOAD": PROBE, "PROBE_FILE": path, "NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"}
        with Server(DEMO, *SMALL, "--trace-dir", os.path.join(folder, "traces"), env=env, may_refuse=True) as server:
            probe(server, more_may=("create", "append", "unlink", "socket_unix"))
            server.process.send_signal(signal.SIGUSR2)
            wait_for(lambda: glob.glob(os.path.join(folder, "traces", "*-sigusr2.json")) or
                     glob.glob(os.path.join(folder, "traces", "*signal*.json")), "a dump on request")
            receiver.settimeout(START_TIMEOUT_S)
            messages = {receiver.recv(64)}
            while b"WATCHDOG=1" not in messages:
                messages.add(receiver.recv(64))


def check_off(folder):
    """Without the filter the probe does everything, at last becoming another program: so it can tell."""
    with Server(DEMO, *SMALL, "--sandbox", "off", env={"LD_PRELOAD": PROBE, "PROBE_FILE": os.path.join(folder, "created")}) as server:
        assert "sandbox: off (--sandbox off)" in server.output() and server.metrics()["reprise_sandbox_active"] == 0
        server.process.send_signal(signal.SIGUSR1)
        assert server.process.wait(60) == 0, "execve"
        assert "probe create 0" in server.output() and "probe execve" not in server.output()


def check_sanitizers():
    with Server(DEMO, *SMALL) as server:
        assert "sandbox: off (auto: a build with sanitizers)" in server.output()


def main():
    if SANITIZED:
        check_sanitizers()
        skip("a build with sanitizers needs more calls: --sandbox auto is off there")
    if not os.path.exists(PROBE):
        skip("libsandbox_probe.so was not built")
    with tempfile.TemporaryDirectory() as folder:
        check_refusals(folder)
        check_what_a_configuration_adds(folder)
        check_off(folder)
    print("ok")


main()
