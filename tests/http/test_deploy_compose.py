"""deploy/compose: the Compose specification's schema accepts the file, HAProxy and promtool their configurations, the files that
it mounts exist, and the server accepts the flags of the replicas."""
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile

import haproxy
from free_port import free_port
from reprise_server import BIN, SOURCE, skip

try:
    import check_jsonschema
    import jsonschema
    import yaml
except ImportError as error:
    skip(f"{error.name} is not installed")

FOLDER = os.path.join(SOURCE, "deploy", "compose")


def load(name):
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        return yaml.safe_load(file)


COMPOSE = load("compose.yaml")


def test_the_schema_accepts_it():
    schema = os.path.join(os.path.dirname(check_jsonschema.__file__), "builtin_schemas", "vendor", "compose-spec.json")
    with open(schema, encoding="utf-8") as file:
        jsonschema.validate(COMPOSE, json.load(file))


def test_mounted_files_exist_and_only_the_gateway_is_published_with_the_api():
    for name, service in COMPOSE["services"].items():
        for volume in service.get("volumes", []):
            assert os.path.isfile(os.path.join(FOLDER, volume.split(":")[0])), volume
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:") and not name.startswith("replica"), (name, port)
    known = {os.path.relpath(path, FOLDER) for path in glob.glob(FOLDER + "/**/*.y*ml", recursive=True)}
    mounted = {os.path.normpath(v.split(":")[0]) for s in COMPOSE["services"].values() for v in s.get("volumes", [])}
    assert known - mounted == {"compose.yaml"}, known - mounted


def test_replicas_get_time_to_drain_and_flags_that_exist():
    services = COMPOSE["services"]
    assert services["replica-1"] == services["replica-2"]
    command = services["replica-1"]["command"]
    seconds = {flag: float(command[command.index(flag) + 1]) for flag in ("--drain-delay", "--shutdown-timeout")}
    assert int(services["replica-1"]["stop_grace_period"].rstrip("s")) > sum(seconds.values())
    result = subprocess.run([BIN, *(word.replace("/usr/share/reprise/demo", "/nowhere") for word in command), "--port",
                             str(free_port())], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 3 and "/nowhere" in result.stderr, result.stderr  # it looked for the model


def test_haproxy_accepts_its_configuration():
    if not haproxy.program():
        print("haproxy is not installed: it did not read its configuration")
        return
    for variables in ({}, COMPOSE["services"]["gateway"]["environment"]):
        # Names of containers are unknown here.
        numeric = {name: value.replace("replica-", "127.0.0.") for name, value in variables.items()}
        result = subprocess.run([haproxy.program(), "-c", "-f", haproxy.CONFIG], env={**os.environ, **numeric},
                                capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 0 and "ALERT" not in result.stderr, result.stderr
    with open(haproxy.CONFIG, encoding="utf-8") as file:
        named = set(re.findall(r'"\$\{(\w+)-', file.read()))
    assert named == set(COMPOSE["services"]["gateway"]["environment"])


def test_prometheus_scrapes_every_server():
    config = load("prometheus.yml")
    targets = {target for job in config["scrape_configs"] for group in job["static_configs"] for target in group["targets"]}
    ports = {"replica-1": "8000", "replica-2": "8000", "gateway": COMPOSE["services"]["gateway"]["environment"]["STATUS"][2:]}
    assert targets == {f"{name}:{port}" for name, port in ports.items()}
    promtool = shutil.which("promtool") or os.path.join(SOURCE, ".venv", "bin", "promtool")
    if not os.path.exists(promtool):
        print("promtool is not installed: it did not read the configuration")
        return
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(os.path.join(FOLDER, "prometheus.yml"), folder)
        shutil.copy(os.path.join(SOURCE, "deploy", "prometheus", "alerts.yml"), folder)
        subprocess.run([promtool, "check", "config", os.path.join(folder, "prometheus.yml")], check=True, timeout=60)


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name, flush=True)
