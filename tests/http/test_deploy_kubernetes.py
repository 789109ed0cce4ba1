"""deploy/kubernetes: Helm renders the chart with each of its options; Kubernetes' schemas accept what comes out, its values
refuse mistakes, and the server accepts the flags that it is given."""
import json
import os
import re
import subprocess

from free_port import free_port
from reprise_server import BIN, SOURCE, skip

try:
    import helm_python as helm
    import jsonschema
    import kubernetes_validate
    import yaml
except ImportError as error:
    skip(f"{error.name} is not installed")

CHART = os.path.join(SOURCE, "deploy", "kubernetes", "reprise")
IMAGE = {"image": {"repository": "registry.example/reprise"}}
VERSIONS = ("1.30", "1.34")


def strict(required=(), **properties):
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


LABELS = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string", "maxLength": 63}}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
SELECTOR = strict(["matchLabels"], matchLabels=LABELS)
# The fields that the chart uses of three custom resources, by their definitions: InferencePool (Gateway API inference
# extension 1.0), ScaledObject (KEDA 2), PodMonitor (Prometheus operator 0.7x). Kubernetes drops fields that it does not know.
CUSTOM = {
    ("inference.networking.k8s.io/v1", "InferencePool"): strict(
        ["selector", "targetPorts", "endpointPickerRef"],
        selector=SELECTOR,
        targetPorts={"type": "array", "minItems": 1, "maxItems": 8, "items": strict(["number"], number=PORT)},
        endpointPickerRef=strict(["name", "port"], name={"type": "string", "minLength": 1}, port=strict(["number"], number=PORT),
                                 failureMode={"enum": ["FailOpen", "FailClose"]})),
    ("keda.sh/v1alpha1", "ScaledObject"): strict(
        ["scaleTargetRef", "triggers"],
        scaleTargetRef=strict(["name"], name={"type": "string", "minLength": 1}),
        minReplicaCount={"type": "integer"}, maxReplicaCount={"type": "integer"}, pollingInterval={"type": "integer"},
        advanced=strict(horizontalPodAutoscalerConfig=strict(behavior=strict(scaleDown=strict(
            stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600})))),
        triggers={"type": "array", "minItems": 1, "items": strict(
            ["type", "metadata"], type={"const": "prometheus"},
            metadata=strict(["serverAddress", "query", "threshold"], serverAddress={"type": "string", "format": "uri"},
                            query={"type": "string", "minLength": 1}, threshold={"type": "string", "pattern": "^[0-9]+$"}))}),
    ("monitoring.coreos.com/v1", "PodMonitor"): strict(
        ["selector", "podMetricsEndpoints"],
        selector=SELECTOR,
        podMetricsEndpoints={"type": "array", "minItems": 1, "items": strict(
            port={"type": "string"}, path={"type": "string"}, interval={"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
            authorization=strict(["credentials"], credentials=strict(["name", "key"], name={"type": "string"},
                                                                     key={"type": "string"})))}),
}
KINDS = {"Deployment", "Service", "PodDisruptionBudget"}


def render(**values):
    """{kind: manifest} of the chart."""
    with helm.Chart.load(CHART) as chart:
        chart.validate_schema(chart.merge_values({**IMAGE, **values}))
        files = chart.render({**IMAGE, **values}, name="chat", namespace="models")
    manifests = [part for text in files.values() for part in yaml.safe_load_all(text) if part]
    return {manifest["kind"]: manifest for manifest in manifests}


def check(manifests):
    for kind, manifest in manifests.items():
        assert manifest["metadata"]["namespace"] == "models", kind
        custom = CUSTOM.get((manifest["apiVersion"], kind))
        if custom:
            jsonschema.validate(manifest["spec"], custom)
        else:
            for version in VERSIONS:
                kubernetes_validate.validate(manifest, version, strict=True)
    return manifests


def pod_of(manifests):
    return manifests["Deployment"]["spec"]["template"]


def container_of(manifests):
    return pod_of(manifests)["spec"]["containers"][0]


FULL = {
    "image": {"repository": "registry.example/reprise", "tag": "1.2", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "pull"}],
    "model": {"path": "/model/qwen", "name": "qwen", "volume": {"persistentVolumeClaim": {"claimName": "m", "readOnly": True}}},
    "args": ["--max-num-seqs", "128"], "env": [{"name": "REPRISE_LOG_LEVEL", "value": "debug"}],
    "auth": {"secretName": "keys"}, "resources": {"limits": {"nvidia.com/gpu": 1}}, "runtimeClassName": "nvidia",
    "nodeSelector": {"gpu": "h100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}}, "podLabels": {"team": "a"}, "podAnnotations": {"note": "b"},
    "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"name": "gateway"}}}]},
    "kvEvents": {"enabled": True}, "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "autoscaling": {"kind": "keda"},
    "inferencePool": {"enabled": True, "endpointPicker": {"name": "chat-epp"}},
}


def test_defaults_and_every_option_are_valid():
    plain = check(render())
    assert set(plain) == KINDS and plain["Deployment"]["spec"]["replicas"] == 2
    full = check(render(**FULL))
    assert set(full) == KINDS | {"NetworkPolicy", "PodMonitor", "ScaledObject", "InferencePool"}
    assert "replicas" not in full["Deployment"]["spec"], "an autoscaler sets them"
    assert container_of(full)["image"] == "registry.example/reprise:1.2"
    assert set(check(render(autoscaling={"kind": "hpa"}))) == KINDS | {"HorizontalPodAutoscaler"}
    assert set(check(render(networkPolicy={"enabled": True}))) == KINDS | {"NetworkPolicy"}


def test_everything_selects_the_same_pods():
    full = render(**FULL)
    labels = pod_of(full)["metadata"]["labels"]
    selectors = [full["Service"]["spec"]["selector"],
                 *(full[kind]["spec"]["selector"]["matchLabels"]
                   for kind in ("Deployment", "PodDisruptionBudget", "PodMonitor", "InferencePool")),
                 full["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]]
    assert all(selector == selectors[0] and selector.items() <= labels.items() for selector in selectors)
    assert full["ScaledObject"]["spec"]["scaleTargetRef"]["name"] == full["Deployment"]["metadata"]["name"]
    ports = {port["name"]: port["containerPort"] for port in container_of(full)["ports"]}
    assert ports["http"] == full["InferencePool"]["spec"]["targetPorts"][0]["number"]
    assert full["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["port"] in ports


def test_the_grace_period_covers_pre_stop_and_drain():
    manifests = render(preStopSeconds=7, drainSeconds=90)
    container = container_of(manifests)
    assert container["lifecycle"]["preStop"]["sleep"]["seconds"] == 7 and "--shutdown-timeout=90" in container["args"]
    assert pod_of(manifests)["spec"]["terminationGracePeriodSeconds"] > 7 + 90
    assert "lifecycle" not in container_of(render(preStopSeconds=0))
    assert container["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == container["startupProbe"]["httpGet"]["path"] == "/health/live"


def test_the_server_accepts_the_flags():
    """It gets as far as looking for the model."""
    for values in ({}, FULL, {"kvEvents": {"enabled": True}}):
        args = [arg.replace("$(POD_IP)", "10.0.0.1") for arg in container_of(render(**values))["args"]]
        assert args[0] == "serve"
        args[1] = "/nowhere/at/all"
        args = [re.sub("^--port=.*", f"--port={free_port()}", arg) for arg in args if "--api-key-file" not in arg]
        events = [json.loads(arg.split("=", 1)[1]) for arg in args if arg.startswith("--kv-events-config=")]
        assert all(event["topic"].startswith("kv@10.0.0.1:8000@") for event in events)
        args = [arg for arg in args if not arg.startswith("--kv-events-config=")]
        env = {**os.environ, **({"REPRISE_API_KEY": "secret"} if "auth" in values else {})}
        result = subprocess.run([BIN, *args, *(["--kv-events-config", json.dumps(
            {**events[0], "endpoint": "ipc:///nowhere/x", "enable_kv_cache_events": False})] if events else [])],
            env=env, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 3 and "/nowhere/at/all" in result.stderr, (args, result.stderr)


def test_mistakes_in_values_are_refused():
    for values, named in (({"image": {"repository": ""}}, "repository"), ({"replica": 2}, "replica"),
                          ({"autoscaling": {"kind": "vpa"}}, "kind"), ({"service": {"port": 70000}}, "port"),
                          ({"inferencePool": {"enabled": True}}, "name"), ({"args": "--x"}, "args"),
                          ({"model": {"path": "relative", "name": "x"}}, "path")):
        try:
            render(**values)
        except helm.HelmError as error:
            assert named in str(error), (values, error)
        else:
            raise AssertionError(f"accepted: {values}")


def test_helm_lint_finds_nothing():
    found = helm.lint(CHART, IMAGE, strict=True)
    assert not found["errors"] and all("icon" in message["error"] for message in found["messages"]), found


def test_the_query_of_the_autoscaler_names_the_pods():
    full = render(**FULL)
    query = full["ScaledObject"]["spec"]["triggers"][0]["metadata"]["query"]
    pods = re.search(r'pod=~"([^"]*)"', query)[1]
    assert query.startswith("sum(vllm:num_requests_waiting{") and 'namespace="models"' in query
    assert re.fullmatch(pods, full["Deployment"]["metadata"]["name"] + "-7d9c-x2x4z")


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name, flush=True)
