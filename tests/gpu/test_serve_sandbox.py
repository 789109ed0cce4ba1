"""--sandbox on with a GPU's driver: a server serves, dumps and reloads as without it, and starts no program. `auto` leaves the
filter off there, because what a driver calls differs between versions: this test says whether it holds for the one installed."""
import glob
import os
import signal
import tempfile
import time

from gpu import require_gpu
from mixed_streams import make_requests, together
from reprise_server import DEMO, Server


def main():
    require_gpu()
    with Server(DEMO, "--device", "cuda") as server:
        assert "sandbox: off (auto" in server.output(), server.output()
        expected = together(server, make_requests())
    with tempfile.TemporaryDirectory() as folder, Server(DEMO, "--device", "cuda", "--sandbox", "on", "--trace-dir", folder) as server:
        assert "sandbox: on (--sandbox on)" in server.output(), server.output()
        assert together(server, make_requests()) == expected
        for path in ("/metrics", "/debug/profile?seconds=1", "/debug/memory", "/debug/profile/counters?seconds=1"):
            assert server.get(path)[0] in (200, 403), path
        server.process.send_signal(signal.SIGUSR2)
        deadline = time.monotonic() + 30
        while not glob.glob(os.path.join(folder, "*-signal.json")):
            assert time.monotonic() < deadline, "a dump on request"
            time.sleep(0.05)
        assert server.metrics()["reprise_sandbox_refused_calls_total"] == 0, server.output()
    print("1 passed, 0 failed")


main()
