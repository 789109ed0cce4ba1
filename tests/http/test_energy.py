"""Energy and cost of requests. The CPU's energy counter is a file of this test's, which counts 100 W. Joules and costs of all requests
are those of /metrics; without a counter or a price they are null, and /metrics has no sample."""
import json
import os
import tempfile
import threading
import time

from reprise_server import DEMO, Server

WATTS, PRICE = 100, 3.6  # a tenth of a cent a second


class Counter:
    """with Counter() as folder: a directory like /sys/class/powercap."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        package = os.path.join(self.folder.name, "intel-rapl:0")
        os.mkdir(package)
        self.path = os.path.join(package, "energy_uj")
        with open(os.path.join(package, "max_energy_range_uj"), "w") as file:
            file.write("262143328850\n")
        self.begin = time.monotonic()
        self.put()
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self.folder.name

    def put(self):
        with open(self.path + ".new", "w") as file:
            file.write(f"{int((time.monotonic() - self.begin) * WATTS * 1e6):>20}\n")
        if not os.path.exists(self.path):
            os.rename(self.path + ".new", self.path)
            return
        with open(self.path, "r+") as file:  # in place: the server keeps the file open
            file.write(f"{int((time.monotonic() - self.begin) * WATTS * 1e6):>20}\n")

    def run(self):
        while not self.stopping.wait(0.005):
            self.put()

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join()
        self.folder.cleanup()


def load(server, count, tokens):
    answers = []

    def ask(i):
        body = {"prompt": [20 + i] * (5 + 9 * i), "max_tokens": tokens, "ignore_eos": True, "include_timing": True}
        answers.append(json.loads(json.dumps(server.post("/v1/completions", body)[1])))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def records_of(server):
    deadline = time.monotonic() + 30
    while server.metrics()["reprise_requests_running"] and time.monotonic() < deadline:
        time.sleep(0.02)
    return json.loads(server.get("/debug/requests?recent=100")[1])["requests"]


def close(a, b, share):
    return abs(a - b) <= share * max(abs(a), abs(b))


def check_measured(server):
    deadline = time.monotonic() + 30
    while "watts" not in json.loads(server.get("/debug/status")[1]).get("power", {}) and time.monotonic() < deadline:
        time.sleep(0.02)
    answers = load(server, 6, 24)
    records = records_of(server)
    metrics = server.metrics()
    assert len(records) == 6
    joules, costs = (sum(record[part][name] for record in records) for part, name in (("energy", "joules"), ("cost", "total")))
    assert close(joules, metrics['reprise_step_energy_joules_total{use="requests"}'], 1e-3), (joules, metrics)
    assert close(costs, metrics['reprise_cost_total{use="requests"}'], 1e-6), costs
    for record in records:
        seconds = record["device"]["seconds"]
        assert close(record["cost"]["total"], seconds * PRICE / 3600, 1e-9), record
        assert close(record["energy"]["joules_per_output_token"] * 24, record["energy"]["joules"], 1e-9), record
        assert record["energy"]["joules"] > 0, record
    assert close(sum(answer["timing"]["energy_joules"] for answer in answers), joules, 1e-9)
    assert close(sum(answer["timing"]["cost"] for answer in answers), costs, 1e-9)
    # Time that costs: all uses and the idle time are the time since the engine thread began.
    whole = sum(value for name, value in metrics.items() if name.startswith("reprise_cost_total"))
    device = sum(value for name, value in metrics.items() if name.startswith(("reprise_device_busy", "reprise_device_idle")))
    assert close(whole, device * PRICE / 3600, 1e-6), (whole, device)
    assert metrics["reprise_energy_joules_total"] > 0
    otlp = json.loads(server.get(f"/debug/requests/{records[0]['id']}?format=otlp")[1])
    attributes = {a["key"]: a["value"] for a in otlp["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"]}
    assert attributes["reprise.energy.joules"]["doubleValue"] == records[0]["energy"]["joules"]
    assert attributes["reprise.cost"]["doubleValue"] == records[0]["cost"]["total"]


def check_unknown():
    with Server(DEMO, "--rapl-dir", "/nowhere") as server:
        answer = load(server, 1, 4)[0]
        record = records_of(server)[0]
        assert answer["timing"]["energy_joules"] is None and answer["timing"]["cost"] is None
        assert record["energy"] == {"joules": None, "joules_per_output_token": None}, record
        assert record["cost"] == {"total": None, "per_output_token": None}, record
        metrics = server.get("/metrics")[1]
        for name in ("reprise_step_energy_joules_total", "reprise_cost_total"):
            assert f"# TYPE {name} counter" in metrics and f"\n{name}{{" not in metrics
        assert "power of the CPU is not available: no RAPL counters in /nowhere" in server.output()


def main():
    with Counter() as folder:
        with Server(DEMO, "--rapl-dir", folder, "--price-per-hour", str(PRICE)) as server:
            check_measured(server)
    check_unknown()
    print("joules and costs of requests are those of steps")


main()
