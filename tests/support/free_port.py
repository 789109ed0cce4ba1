"""A port for a server that cannot choose one itself.

The system's own choice (port 0) is in the range of outgoing connections: between the probe and the server's start
another test's client may get it, and a load test opens thousands. So this draws a port below that range."""
import random
import socket

LOWEST = 10000


def first_outgoing_port():
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError):
        return 0


def free_port():
    """A port that is free on loopback and outside of the ephemeral range."""
    end = first_outgoing_port()
    for attempt in range(100):
        port = random.randrange(LOWEST, end) if end > LOWEST + 1000 and attempt < 99 else 0
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise RuntimeError("no free port")
