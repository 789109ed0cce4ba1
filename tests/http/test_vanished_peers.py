"""A peer that has vanished: its machine neither acknowledges nor resets. A socket filter of the client drops every packet that
comes, so its TCP is silent as if the machine were off."""
import ctypes
import socket
import struct

from fake_server import Server

SO_ATTACH_FILTER = 26


def vanish(connection):
    """From now on nothing that the server sends reaches this socket's TCP."""
    drop = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0
    program = struct.pack("HP", 1, ctypes.addressof(drop))
    connection.socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def server_timer(server, connection):
    """(kind of timer, hundredths of a second) of the server's end of a connection: 1 retransmission, 2 keep-alive."""
    client = connection.socket.getsockname()[1]
    with open("/proc/net/tcp", encoding="ascii") as file:
        for line in file.readlines()[1:]:
            words = line.split()
            if [int(words[i].split(":")[1], 16) for i in (1, 2)] == [server.port, client]:
                return tuple(int(part, 16) for part in words[5].split(":"))
    raise AssertionError("the connection is not there")


def test_a_stream_to_a_vanished_peer_ends():
    """What it sends fits the kernel's buffers, so that only the missing acknowledgement tells."""
    with Server(env={"FAKE_TIMEOUT_MS": "500", "FAKE_STEP_US": "5000"}) as server:
        connection = server.connect()
        connection.send("POST", "/v1/completions", {"prompt": "abc", "max_tokens": 4000, "stream": True})
        connection.head()
        vanish(connection)
        server.until(lambda: server.metric("reprise_requests_running") == 0, "the request is cancelled")
        assert server.metric('reprise_requests_total{finish_reason="cancelled"}') == 1
        assert server.metric("reprise_generated_tokens_total") < 4000
        server.until(lambda: server.metric("reprise_http_connections") == 1, "its connection is closed")
        connection.close()


def test_a_peer_is_probed_while_nothing_is_sent():
    """The kernel's keep-alive runs on every connection, with half a minute at most to the first probe."""
    with Server() as server, server.connect() as connection:
        connection.send("GET", "/version")
        connection.response()
        server.until(lambda: server_timer(server, connection)[0] == 2, "keep-alive is set")
        assert server_timer(server, connection)[1] <= 3000
        connection.send("POST", "/v1/completions", {"prompt": "abc", "seed": 9003})  # a step that never ends
        server.until(lambda: server.metric("reprise_requests_running") == 1, "it runs")
        server.until(lambda: server_timer(server, connection)[0] == 2, "keep-alive is set")


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        print("ok", name, flush=True)
