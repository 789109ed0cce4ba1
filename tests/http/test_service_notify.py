"""sd_notify: READY=1, WATCHDOG=1 while the loop and the engine make progress, STOPPING=1; and a server without any."""
import os
import signal
import socket
import tempfile
import threading

from fake_server import TIMEOUT, Server

STUCK_SEED = 9003  # fake_engine.c: the step with such a request never ends


def bind(address):
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind("\0" + address[1:] if address[0] == "@" else address)
    receiver.settimeout(TIMEOUT)
    return receiver


def silent(receiver, seconds=1.0):
    """Nothing arrives in this time; earlier messages are discarded first."""
    receiver.setblocking(False)
    try:
        while True:
            receiver.recv(256)
    except BlockingIOError:
        pass
    receiver.settimeout(seconds)
    try:
        return receiver.recv(256) == b""
    except TimeoutError:
        return True
    finally:
        receiver.settimeout(TIMEOUT)


def check_life(address):
    with bind(address) as receiver:
        with Server(env={"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"}) as server:
            assert receiver.recv(256) == b"READY=1"
            for _ in range(3):
                assert receiver.recv(256) == b"WATCHDOG=1"
            server.signal(signal.SIGHUP)  # a reload without files to read
            for _ in range(3):
                assert receiver.recv(256) == b"WATCHDOG=1"
            assert server.get("/health/live").status == 200
            server.signal()
            server.wait()
        left = [receiver.recv(256)]
        while left[-1] == b"WATCHDOG=1":
            left.append(receiver.recv(256))
        assert left[-1] == b"STOPPING=1", left


def check_a_hung_step(address):
    with bind(address) as receiver, Server("--watchdog-timeout", "0", env={
            "NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000", "FAKE_STUCK_MS": "200"}) as server:
        assert receiver.recv(256) == b"READY=1" and receiver.recv(256) == b"WATCHDOG=1"
        threading.Thread(target=server.complete, args=("abc",), kwargs={"seed": STUCK_SEED, "max_tokens": 5}, daemon=True).start()
        server.until(lambda: server.get("/health/ready").status == 503, "no step ends")
        assert silent(receiver), "the service manager must see that nothing moves"


def check_no_watchdog(address, **env):
    with bind(address) as receiver, Server(env={"NOTIFY_SOCKET": address, **env}):
        assert receiver.recv(256) == b"READY=1" and silent(receiver, 0.5)


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_life(os.path.join(folder, "one"))
        check_life(f"@reprise-test-{os.getpid()}")
        check_hung = os.path.join(folder, "two")
        check_a_hung_step(check_hung)
        check_no_watchdog(os.path.join(folder, "three"))
        check_no_watchdog(os.path.join(folder, "four"), WATCHDOG_USEC="200000", WATCHDOG_PID="1")
    for address in ("/nowhere/at/all", "relative", "/" + "x" * 200):  # it serves with or without a listener
        with Server(env={"NOTIFY_SOCKET": address}) as server:
            assert server.get("/health/live").status == 200, address


main()
