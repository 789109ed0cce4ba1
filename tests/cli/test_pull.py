"""`reprise pull`, `reprise list` and models by name, against a local server that speaks the hub's routes: what is downloaded,
how it lies in the cache, what the package huggingface_hub sees there, and every way in which a download fails.
"""
import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

from reprise_server import BIN, DEMO

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret"


def git_hash(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repo:
    """Files, and what goes wrong: {file name: list of faults, one for each request}."""

    def __init__(self, files, large=(), needs_token=False, gated=False):
        self.files, self.large, self.needs_token, self.gated = files, set(large), needs_token, gated
        self.faults, self.listed = {}, {}

    def hash(self, name):
        data = self.files[name]
        return hashlib.sha256(data).hexdigest() if name in self.large else git_hash(data)

    def siblings(self):
        out = []
        for name, data in self.files.items():
            entry = {"rfilename": name, "size": len(data), "blobId": git_hash(data)}
            if name in self.large:
                entry["lfs"] = {"sha256": self.hash(name), "size": len(data), "pointerSize": 130}
            out.append({**entry, **self.listed.get(name, {})})
        return out


class Hub(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, repos, cdn=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos, self.cdn, self.seen, self.lock = repos, cdn, [], threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def requests(self, part):
        return [r for r in self.seen if part in r["path"]]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, code, body=b"", **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        with self.server.lock:
            self.server.seen.append({"path": self.path, "range": self.headers.get("Range"),
                                     "token": self.headers.get("Authorization")})
        parts = urllib.parse.unquote(self.path.split("?")[0]).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            return self.model("/".join(parts[2:4]), parts[5])
        if parts[0] == "cdn":
            return self.body(self.server.repos["/".join(parts[1:3])], "/".join(parts[3:]))
        return self.resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))

    def may_read(self, repo):
        if repo.gated:
            self.answer(403, b"{}", X_Error_Code="GatedRepo")
            return False
        if repo.needs_token and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer(401, b"{}", X_Error_Code="RepoNotFound")
            return False
        return True

    def model(self, name, revision):
        repo = self.server.repos.get(name)
        if not repo:
            return self.answer(404, b"{}", X_Error_Code="RepoNotFound")
        if not self.may_read(repo):
            return None
        if revision not in ("main", "v1", COMMIT):
            return self.answer(404, b"{}", X_Error_Code="RevisionNotFound")
        return self.answer(200, json.dumps({"id": name, "sha": COMMIT,
                                            "siblings": repo.siblings()}).encode())

    def resolve(self, name, commit, file):
        repo = self.server.repos[name]
        if commit != COMMIT or file not in repo.files:
            return self.answer(404, b"", X_Error_Code="EntryNotFound")
        if not self.may_read(repo):
            return None
        if file in repo.large and self.server.cdn:
            return self.answer(302, b"moved", Location=f"{self.server.cdn.url}/cdn/{name}/{file}",
                               X_Linked_Etag=f'"{repo.hash(file)}"', X_Repo_Commit=COMMIT,
                               X_Linked_Size=str(len(repo.files[file])))
        return self.body(repo, file)

    def body(self, repo, file):
        data, faults = repo.files[file], repo.faults.get(file, [])
        fault = faults.pop(0) if faults else None
        if fault == "busy":
            return self.answer(503)
        if fault == "wrong":
            data = bytes([data[0] ^ 1]) + data[1:]
        if fault == "more":
            data += b"x"
        start, asked = 0, self.headers.get("Range")
        if asked and fault != "no-range":
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.send_header("ETag", f'"{repo.hash(file)}"')
        self.end_headers()
        if fault in ("cut", "stuck"):
            self.wfile.write(data[start:start + len(data) // 3])
            self.wfile.flush()
            if fault == "stuck":
                time.sleep(20)
            self.close_connection = True
            return None
        return self.wfile.write(data[start:])


def environment(folder, hub, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "XDG_"))}
    return {**env, "HF_HOME": folder, "HF_ENDPOINT": hub.url, "NO_PROXY": "127.0.0.1", **more}


def run(env, *arguments, stdin=None):
    done = subprocess.run([BIN, *arguments], capture_output=True, timeout=120, env=env, input=stdin, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def pulled(env, *arguments):
    code, out, errors = run(env, "pull", *arguments)
    assert code == 0, (arguments, errors)
    return out.strip()


def refused(env, text, *arguments, code=None):
    got, out, errors = run(env, *arguments)
    assert got != 0 and (code is None or got == code), (arguments, got, errors)
    assert text in errors and "error: " in errors and out == "", (text, errors, out)


def demo_files():
    files = {}
    for name in os.listdir(DEMO):
        if os.path.isfile(os.path.join(DEMO, name)):
            with open(os.path.join(DEMO, name), "rb") as f:
                files[name] = f.read()
    return files


def demo_repo(**options):
    files = demo_files()
    files["onnx/model.onnx"] = b"not wanted"
    files["pytorch_model.bin"] = b"neither"
    return Repo(files, large=[n for n in files if n.endswith(".safetensors")], **options)


def check_layout(folder):
    """The whole model, by the token, from another host that must not see it."""
    repo = demo_repo(needs_token=True)
    cdn = Hub({"org/demo": repo})
    hub = Hub({"org/demo": repo}, cdn)
    env = environment(folder, hub, HF_TOKEN=TOKEN)
    snapshot = pulled(env, "org/demo")
    model = os.path.join(folder, "hub", "models--org--demo")
    assert snapshot == os.path.join(model, "snapshots", COMMIT), snapshot
    wanted = {n for n in repo.files if not n.startswith(("onnx", "pytorch", "README"))}
    names = set(os.listdir(snapshot))
    assert names <= wanted and {"config.json", "tokenizer.json", "model.safetensors"} <= names, names
    for name in names:
        path = os.path.join(snapshot, name)
        assert os.readlink(path) == f"../../blobs/{repo.hash(name)}", os.readlink(path)
        with open(path, "rb") as f:
            assert f.read() == repo.files[name]
    with open(os.path.join(model, "refs", "main"), encoding="ascii") as f:
        assert f.read() == COMMIT
    assert not [n for n in os.listdir(os.path.join(model, "blobs")) if "incomplete" in n]
    assert cdn.seen and all(r["token"] is None for r in cdn.seen), cdn.seen
    assert all(r["token"] == f"Bearer {TOKEN}" for r in hub.seen), hub.seen
    # Nothing is fetched twice; another revision of the same commit is a second ref.
    before = len(hub.seen)
    assert pulled(env, "org/demo@v1") == snapshot
    assert len(hub.seen) == before + 1, hub.seen[before:]
    assert set(os.listdir(os.path.join(model, "refs"))) == {"main", "v1"}
    return env, snapshot


def check_package(folder, snapshot):
    try:
        import huggingface_hub
    except ImportError:
        print("SKIP the comparison with the package 'huggingface_hub': it is not installed")
        return
    code = ("import sys, json, huggingface_hub as h\n"
            "cache = sys.argv[1]\n"
            "info = h.scan_cache_dir(cache)\n"
            "assert not info.warnings, info.warnings\n"
            "repo, = info.repos\n"
            "assert repo.repo_id == 'org/demo' and set(repo.refs) == {'main', 'v1'}, repo\n"
            "path = h.snapshot_download('org/demo', revision=sys.argv[2] or None, cache_dir=cache, local_files_only=True)\n"
            "print(path)\n")
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    for revision in ("", "v1", COMMIT):
        done = subprocess.run([sys.executable, "-c", code, os.path.join(folder, "hub"), revision], capture_output=True,
                              timeout=100, env=env, check=False)
        assert done.returncode == 0, done.stderr.decode()
        assert done.stdout.decode().strip() == snapshot
    assert huggingface_hub


def check_names(folder, env, snapshot):
    """Commands find the model by its name; a folder of that name wins."""
    text = b"one and two"
    expected = run(env, "tokenize", DEMO, stdin=text)
    for name in ("org/demo", "org/demo@main", "org/demo@v1", f"org/demo@{COMMIT}", f"org/demo@{COMMIT[:8]}"):
        assert run(env, "tokenize", name, stdin=text) == expected, name
    assert snapshot in run(env, "inspect", "org/demo")[1]
    refused(env, "reprise pull org/other", "inspect", "org/other", code=3)
    refused(env, "reprise pull org/demo@v9", "serve", "org/demo@v9", code=3)
    refused(env, "no such model directory", "tokenize", "../org/demo", code=3)
    local = os.path.join(folder, "work")
    os.makedirs(os.path.join(local, "org", "demo"))
    done = subprocess.run([BIN, "inspect", "org/demo"], capture_output=True, env=env, cwd=local, check=False)
    assert done.returncode == 3 and b"config.json" in done.stderr and b"pull" not in done.stderr, done.stderr
    code, out, errors = run(env, "list", "--json")
    assert code == 0, errors
    entry, = json.loads(out)
    assert (entry["name"], entry["revision"], entry["format"], entry["served"]) == ("org/demo", "main", "safetensors", True)
    assert entry["path"] == snapshot and entry["bytes"] > 100000
    assert "org/demo" in run(env, "list")[1] and "yes" in run(env, "list")[1]
    for other in ({"HF_HUB_CACHE": os.path.join(folder, "hub"), "HF_HOME": "/nowhere"},
                  {"HF_HOME": "", "XDG_CACHE_HOME": folder}):
        if "XDG_CACHE_HOME" in other:
            os.symlink(folder, os.path.join(folder, "huggingface"))
        assert run({**env, **other}, "tokenize", "org/demo", stdin=text) == expected, other


def check_shards_and_choice(folder):
    index = {"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors",
                                            "b": "model-00002-of-00002.safetensors"}}
    files = {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode(),
             "model-00001-of-00002.safetensors": b"one" * 1000, "model-00002-of-00002.safetensors": b"two" * 999,
             "consolidated.safetensors": b"the same again", "empty.txt": b""}
    quants = {f"m-{q}.gguf": q.encode() * 50 for q in ("Q4_K_M", "Q8_0")}
    split = {f"big-0000{i}-of-00002.gguf": b"%d" % i * 40 for i in (1, 2)}
    hub = Hub({"org/shards": Repo(files, large=[n for n in files if "safetensors" in n and "index" not in n]),
               "org/quants": Repo({"README.md": b"x", **quants}, large=quants),
               "org/one": Repo({"a [b]+.gguf": b"gguf", "x.bin": b""}, large=["a [b]+.gguf"]),
               "org/split": Repo(split, large=split), "org/bin": Repo({"pytorch_model.bin": b"x"})})
    env = environment(folder, hub)
    assert set(os.listdir(pulled(env, "org/shards"))) == set(files) - {"consolidated.safetensors", "empty.txt"}
    assert os.listdir(pulled(env, "org/one")) == ["a [b]+.gguf"]
    assert set(os.listdir(pulled(env, "org/split"))) == set(split)
    refused(env, "m-Q4_K_M.gguf m-Q8_0.gguf", "pull", "org/quants")
    assert os.listdir(pulled(env, "org/quants", "--include", "*Q8_0*")) == ["m-Q8_0.gguf"]
    assert "m-Q8_0.gguf" in run(env, "tokenize", "org/quants")[2]  # the file is chosen, whatever becomes of it
    refused(env, "no file matches \"*Q2*\"", "pull", "org/quants", "--include", "*Q2*")
    refused(env, "neither safetensors nor GGUF", "pull", "org/bin")
    assert "empty.txt" in os.listdir(pulled(env, "org/shards", "--include", "empty.txt,config.json"))


def check_resume(folder):
    """Cut, busy, killed, damaged, without ranges: each time the whole file is there in the end."""
    big = bytes(range(256)) * 4000
    repo = Repo({"config.json": b"{}", "model.safetensors": big}, large=["model.safetensors"])
    hub = Hub({"org/big": repo})
    env = environment(folder, hub)
    third = len(big) // 3
    repo.faults["model.safetensors"] = ["cut", "busy", "cut"]
    snapshot = pulled(env, "org/big")
    ranges = [r["range"] for r in hub.requests("model.safetensors")]
    assert ranges == [None, f"bytes={third}-", f"bytes={third}-", f"bytes={2 * third}-"], ranges
    blob = os.path.realpath(os.path.join(snapshot, "model.safetensors"))

    def again(content, faults, *expected):
        os.unlink(blob)
        if content is not None:
            with open(blob + ".incomplete", "wb") as f:
                f.write(content)
        repo.faults["model.safetensors"], before = faults, len(hub.seen)
        assert pulled(env, "org/big") == snapshot
        with open(blob, "rb") as f:
            assert f.read() == big
        got = [r["range"] for r in hub.seen[before:] if "safetensors" in r["path"]]
        assert got == list(expected), got

    again(big[:1000], [], "bytes=1000-")
    again(big[:1000], ["no-range"], "bytes=1000-")
    again(b"?" * 1000, [], "bytes=1000-", None)  # what was there is wrong: once more as a whole
    again(big, [])                               # all there, not yet checked
    again(big + b"x", [], None)
    os.unlink(blob)
    repo.faults["model.safetensors"] = ["stuck"]
    child = subprocess.Popen([BIN, "pull", "org/big"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    while not (os.path.exists(blob + ".incomplete") and os.path.getsize(blob + ".incomplete") >= third):
        time.sleep(0.01)
    child.kill()
    child.wait()
    assert "incomplete" in run(env, "list")[1]
    with open(blob + ".incomplete", "rb") as f:
        again_from = len(f.read())
    open(blob, "wb").close()
    again(None, [], f"bytes={again_from}-")
    # Failures for good leave no blob.
    shutil.rmtree(os.path.join(folder, "hub"))
    repo.faults["model.safetensors"] = ["wrong"]
    refused(env, "its bytes have the hash", "pull", "org/big")
    repo.faults["model.safetensors"] = ["more"] * 9
    refused(env, "more than the file's size", "pull", "org/big")
    assert not os.path.exists(blob)


def check_errors(folder):
    evil = {name: b"x" for name in ("../../evil.json", "/etc/evil.json", "a/../../evil.json", "a\\b.json", "a//b.json")}
    repos = {f"org/evil{i}": Repo({"config.json": b"{}", name: data}) for i, (name, data) in enumerate(evil.items())}
    short = Repo({"config.json": b"{}", "model.safetensors": b"x"}, large=["model.safetensors"])
    short.listed["model.safetensors"] = {"lfs": {"sha256": "../../../x", "size": 1}}
    hub = Hub({**repos, "org/hash": short, "org/gated": demo_repo(gated=True), "org/private": demo_repo(needs_token=True)})
    env = environment(folder, hub)
    for i in range(len(evil)):
        refused(env, "cannot be one below a folder", "pull", f"org/evil{i}")
    refused(env, "no hash", "pull", "org/hash")
    refused(env, "accept its terms at " + hub.url + "/org/gated", "pull", "org/gated")
    refused(env, "needs HF_TOKEN", "pull", "org/private")
    refused({**env, "HF_TOKEN": "wrong"}, "what the token may read", "pull", "org/private")
    refused(env, "not found, or private", "pull", "org/none")
    refused(env, "is not ORG/NAME", "pull", "../x", code=2)
    refused(env, "is not ORG/NAME", "pull", "org/x@../../y", code=2)
    refused({**env, "HF_ENDPOINT": "http://127.0.0.1:9"}, "HF_ENDPOINT", "pull", "org/x")
    with open(os.path.join(folder, "token"), "w", encoding="ascii") as f:
        f.write(TOKEN + "\n")
    refused(env, "has no revision v7", "pull", "org/private@v7")
    assert not [n for n in os.listdir(folder) if "evil" in n]
    assert "no models in" in run(env, "list")[1] and run(env, "list", "--json")[1] == "[]\n"


def main():
    with tempfile.TemporaryDirectory() as folder:
        if "built without libcurl" in run(environment(folder, Hub({})), "pull", "org/x")[2]:
            print("SKIP: the program was built without libcurl")
            sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        env, snapshot = check_layout(folder)
        check_package(folder, snapshot)
        check_names(folder, env, snapshot)
    for check in (check_shards_and_choice, check_resume, check_errors):
        with tempfile.TemporaryDirectory() as folder:
            check(folder)


if __name__ == "__main__":
    main()
