"""sd_notify: READY=1, watchdog messages at half the interval, STOPPING=1; and a server without any of them."""
import os
import socket
import tempfile
import time

from fake_server import Server

WATCHDOG_S = 1.0


def messages(receiver, seconds):
    """What arrives within this time."""
    got, end = [], time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        receiver.settimeout(left)
        try:
            got.append(receiver.recv(256).decode())
        except socket.timeout:
            break
    return got


def check_life(receiver, address):
    env = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}
    with Server(env=env) as server:
        receiver.settimeout(30)
        assert receiver.recv(256) == b"READY=1"
        got = messages(receiver, 3 * WATCHDOG_S)
        # One each half interval, at the loop's tick of 100 ms: at most 7, and never a whole interval apart.
        assert set(got) == {"WATCHDOG=1"} and 4 <= len(got) <= 7, got
        server.signal()
        server.wait()
    left = messages(receiver, 0.2)
    assert [text for text in left if text != "WATCHDOG=1"] == ["STOPPING=1"], left


def check_without_a_watchdog(receiver, address):
    with Server(env={"NOTIFY_SOCKET": address}):
        assert messages(receiver, 1.5) == ["READY=1"]


def check_a_watchdog_of_another_process(receiver, address):
    with Server(env={"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000", "WATCHDOG_PID": "1"}):
        assert messages(receiver, 1.5) == ["READY=1"]


def check_bad_sockets():
    # The server serves whether or not somebody listens.
    for address in ("/nowhere/at/all", "relative", "/" + "x" * 200):
        with Server(env={"NOTIFY_SOCKET": address}) as server:
            assert server.get("/health/live").status == 200, address


def main():
    with tempfile.TemporaryDirectory() as folder:
        for address in (os.path.join(folder, "notify"), f"@reprise-test-{os.getpid()}"):
            for check in (check_life, check_without_a_watchdog, check_a_watchdog_of_another_process):
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
                    if address[0] == "/" and os.path.exists(address):
                        os.unlink(address)
                    receiver.bind("\0" + address[1:] if address[0] == "@" else address)
                    check(receiver, address)
                    print("ok", check.__name__, address[0], flush=True)
    check_bad_sockets()


main()
