"""deploy/: every metric, label and label value that the dashboard and the alerts name exists in /metrics of a server that has
served requests; promtool accepts the rules and the scrape."""
import json
import os
import re
import shutil
import subprocess
import sys

from reprise_server import DEMO, SOURCE, Server

DEPLOY = os.path.join(SOURCE, "deploy")
NAME = re.compile(r"\b((?:reprise|process)_[a-z0-9_]+)(?:\{([^}]*)\})?")
LABEL = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
OF_PROMETHEUS = {"instance", "job", "le"}
# Values that a server shows only after the event.
MAY_BE_ABSENT = {"reason"}


def expressions():
    with open(os.path.join(DEPLOY, "grafana", "reprise.json")) as file:
        board = json.load(file)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)) > 15
    places = [(p["gridPos"]["y"], p["gridPos"]["x"], p["gridPos"]["w"]) for p in board["panels"]]
    assert places == sorted(places) and all(x + w <= 24 for _, x, w in places), places
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert f"by ({label}" in target["expr"] or f", {label})" in target["expr"], (panel["title"], label)
    with open(os.path.join(DEPLOY, "prometheus", "alerts.yml")) as file:
        rules = file.read()
    names = re.findall(r"- alert: (\w+)", rules)
    found = re.findall(r"expr: (?:>\n((?:          .*\n)+)|(.*)\n)", rules)
    assert len(found) == len(names) > 5
    for name, (folded, plain) in zip(names, found):
        yield name, folded.replace("\n", " ") or plain


def series(text):
    known = {}
    for line in text.split("\n"):
        match = re.match(r"([a-z_0-9]+)(?:\{(.*)\})? ", line)
        if match and not line.startswith("#"):
            known.setdefault(match[1], []).append(dict(re.findall(r'(\w+)="([^"]*)"', match[2] or "")))
    return known


def check(known):
    checked = 0
    for where, expression in expressions():
        names = NAME.findall(expression)
        assert names, (where, expression)
        for name, labels in names:
            assert name in known, (where, name)
            for label, operator, value in LABEL.findall(labels):
                if label in OF_PROMETHEUS:
                    continue
                values = {one.get(label) for one in known[name]}
                assert None not in values, (where, name, label)
                if operator == "=":
                    assert value in values, (where, name, label, value)
            checked += 1
        for labels in re.findall(r"by \(([^)]*)\)", expression):
            for label in labels.split(", "):
                if label not in OF_PROMETHEUS | MAY_BE_ABSENT:
                    assert any(label in one for name, _ in names for one in known[name]), (where, label)
    return checked


def check_pickers(text):
    """docs/deploy.md's table of what endpoint pickers read: names, types and labels."""
    with open(os.path.join(SOURCE, "docs", "deploy.md"), encoding="utf-8") as file:
        rows = re.findall(r"^\| (`vllm:.*?) \| (\w+|-)[^|]*\|(.*)$", file.read(), re.M)
    assert len(rows) == 7, rows
    for names, kind, rest in rows:
        for name in re.findall(r"`(vllm:\w+)`", names):
            shown = re.findall(rf"^{name}{{(.*)}} (\S+)$", text, re.M)
            if kind == "-":
                assert not shown and "absent" in rest, name
                continue
            labels, value = dict(re.findall(r'(\w+)="([^"]*)"', shown[0][0])), float(shown[0][1])
            assert labels["engine"] == "0" and labels["model_name"] == "demo", labels
            declared = re.search(rf"^# TYPE {name} (\w+)$", text, re.M)[1]
            if kind == "info":  # a gauge of 1 in Prometheus' format
                assert value == 1 and {"block_size", "num_gpu_blocks"} <= set(labels) and declared == "gauge", (name, labels)
            else:
                assert declared == kind and (not name.endswith("_perc") or 0 <= value <= 1), (name, declared, value)


def main():
    with Server(DEMO, "--max-num-seqs", "4", "--profile-every", "1") as server:
        for _ in range(3):
            assert server.post("/v1/completions", {"prompt": "1 2 3", "max_tokens": 20})[0] == 200
        text = server.get("/metrics")[1]
    known = series(text)
    check_pickers(text)
    checked = check(known)
    assert checked > 40, checked
    promtool = shutil.which("promtool") or os.path.join(SOURCE, ".venv", "bin", "promtool")
    if os.path.exists(promtool):
        subprocess.run([promtool, "check", "config", os.path.join(DEPLOY, "prometheus", "prometheus.yml")], check=True, timeout=60)
        print("ok promtool")
    else:
        print("promtool is not installed: rules were not read by it")
    print("ok", checked)


if __name__ == "__main__":
    sys.exit(main())
