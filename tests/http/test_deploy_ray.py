"""deploy/ray: the application starts the program, passes answers and streams on, and stops it. Needs Ray, which is large: it is not
among the test packages."""
import json
import os
import sys
import urllib.error
import urllib.request

from free_port import free_port
from reprise_server import BIN, DEMO, SOURCE, skip

try:
    import aiohttp  # noqa: F401
    import ray
    from ray import serve
except ImportError as error:
    skip(f"{error.name} is not installed")

FOLDER = os.path.join(SOURCE, "deploy", "ray")


def request(url, body=None):
    data = json.dumps(body).encode() if body else None
    with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"}), timeout=120) as answer:
        return answer.read().decode()


def main():
    os.environ.update(REPRISE_BIN=BIN, REPRISE_MODEL=DEMO, REPRISE_ARGS="--threads 1 --max-num-seqs 4", REPRISE_MAX_REPLICAS="1",
                      RAY_USAGE_STATS_ENABLED="0")
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, runtime_env={"working_dir": FOLDER})
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    sys.path.insert(0, FOLDER)
    from reprise_app import app
    serve.run(app, route_prefix="/")
    asked = {"prompt": "123 + 456 =", "temperature": 0, "max_tokens": 8}
    assert "579" in json.loads(request(url + "/v1/completions", asked))["choices"][0]["text"]
    events = request(url + "/v1/completions", {**asked, "stream": True}).strip().split("\n\n")
    assert events[-1] == "data: [DONE]" and len(events) > 3
    assert json.loads(request(url + "/v1/models"))["data"][0]["id"] == "demo"
    for path, body, status in (("/metrics", None, 404), ("/debug/env", None, 404), ("/v1/completions", {"prompt": 1.5}, 400)):
        try:
            request(url + path, body)
        except urllib.error.HTTPError as error:
            assert error.code == status, (path, error.code)
        else:
            raise AssertionError(f"{path} was answered")
    serve.shutdown()
    ray.shutdown()
    print("ok")


if __name__ == "__main__":
    main()
