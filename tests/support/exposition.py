"""Judges texts of /metrics by the parsers that Prometheus users run: prometheus_client for both formats, promtool for
the text format and the style of names."""
import shutil
import subprocess

from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics


def promtool(text):
    """promtool's complaints (syntax and style); None when it is not installed."""
    if not shutil.which("promtool"):
        return None
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    return done.stderr.decode().splitlines() + ([f"exit {done.returncode}"] if done.returncode not in (0, 3) else [])


def samples_of(text, is_openmetrics):
    """The samples of a text that must be valid: the parser raises ValueError otherwise."""
    read = openmetrics.text_string_to_metric_families if is_openmetrics else parser.text_string_to_metric_families
    samples = [sample for metric in read(text.decode()) for sample in metric.samples]
    keys = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in samples]
    lines = [line for line in text.splitlines() if line and not line.startswith(b"#")]
    assert len(set(keys)) == len(lines), "a series appears twice"  # the OpenMetrics parser merges them
    lowest = {}
    for sample in samples:
        if sample.name.endswith("_bucket"):
            series = sample.name, tuple(sorted(item for item in sample.labels.items() if item[0] != "le"))
            le = float(sample.labels["le"])
            low, count = lowest.get(series, (float("-inf"), 0))
            assert low < le and count <= sample.value, (sample, "buckets must be cumulative, in order")
            if sample.exemplar:
                assert low < sample.exemplar.value <= le, (sample, "the exemplar lies outside its bucket")
            lowest[series] = le, sample.value
    if not is_openmetrics and shutil.which("promtool"):
        wrong = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
        assert wrong.returncode in (0, 3), wrong.stderr.decode()[:2000]
    return samples
