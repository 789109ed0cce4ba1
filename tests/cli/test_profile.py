"""Goal: `reprise profile` prints a server's profile, saves it, and says against a saved one what became slower, size by
size; other files, groups and servers are refused by name.
Method: a server whose every step is stamped; the saved profile again with its times scaled."""
import json
import os
import re
import subprocess
import tempfile

from reprise_server import BIN, DEMO, Server


def run(*args, code=0):
    result = subprocess.run([BIN, "profile", *args], capture_output=True, text=True, timeout=60)
    assert result.returncode == code, (args, result)
    return result.stdout if code == 0 else result.stderr


def scaled(profile, factor, keep=lambda row: True):
    rows = [dict(row, **{key: row[key] * factor for key in ("p25_ns", "p50_ns", "p75_ns")})
            for row in profile["rows"] if keep(row)]
    return dict(profile, rows=rows)


def write(folder, name, value):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(value if isinstance(value, str) else json.dumps(value))
    return path


def check_server(server, folder):
    url = ("--base-url", f"http://127.0.0.1:{server.port}")
    lines = run(*url, "--rows", "5").splitlines()
    assert lines[0].split()[-4:] == ["batch", "kv", "kv", "max"] and " @ decode " in "".join(lines), lines
    saved = write(folder, "saved", run(*url, "--json"))
    with open(saved, encoding="utf-8") as file:
        profile = json.load(file)
    assert profile["group_by"] == "op,bucket" and len(profile["rows"]) == profile["footer"]["row_count"] > 16
    text = run(*url, "--against", saved, "--rows", "0")
    assert re.search(r"^A  .*saved: [\d.]+ s, \d+ stamped steps of \d+$", text, re.M) and "\nB  now: " in text, text
    assert "slower 0, faster 0" in text, text
    assert json.loads(run(*url, "--json", "--group-by", "layer"))["group_by"] == "layer"
    # The spread is given, so that comparisons with these files do not depend on this machine's load.
    for row in profile["rows"]:
        row["p25_ns"], row["p75_ns"] = 0.9 * row["p50_ns"], 1.1 * row["p50_ns"]
    return write(folder, "saved", json.dumps(profile)), profile


def check_files(folder, saved, profile):
    enough = sum(1 for name in {row["name"].split(" @ ")[0] for row in profile["rows"]}
                 if any(row["calls"] >= 8 and row["p50_ns"] for row in profile["rows"]
                        if row["name"].split(" @ ")[0] == name))
    same = run(saved, "--against", saved)
    assert f"slower 0, faster 0, no change shown {enough}," in same, (enough, same)
    # Far beyond any spread: everything that has enough calls is slower, and by this much.
    slow = run(write(folder, "slow", scaled(profile, 1000)), "--against", saved, "--rows", "0")
    assert f"slower {enough}, faster 0, no change shown 0," in slow, (enough, slow)
    assert re.search(r"^  attn.qkv .* \+99900\.0 \+-[\d.]+ %  slower$", slow, re.M), slow
    only = run(write(folder, "only", scaled(profile, 1, lambda row: row["name"].startswith("mlp"))), "--against", saved)
    assert re.search(r"^  attn.qkv +\d+ +- +0 +- +- +only in A$", only, re.M), only


def check_refusals(folder, saved, profile):
    assert "saved profile is only compared" in run(saved, code=2)
    assert "No such file" in run("--against", os.path.join(folder, "none"), code=1)
    for name, bad in (("text", "x"), ("list", []), ("rows", {"group_by": "op", "rows": 1}),
                      ("request", dict(profile, group_by="request")), ("other", dict(profile, group_by="op&a=1"))):
        assert "not a profile" in run("--against", write(folder, name, bad), code=1), name
    assert "is grouped by op, not by op,bucket" in run(
        write(folder, "by_op", dict(profile, group_by="op")), "--against", saved, code=1)
    # Rows of other types are passed over.
    odd = dict(profile, rows=[1, None, {}, {"name": 3}, {"name": "a", "calls": "x"}, {"name": "b", "calls": -1, "p50_ns": 1e300}])
    assert "slower 0, faster 0" in run(write(folder, "odd", odd), "--against", saved)
    assert "--base-url" in run("--base-url", "http://127.0.0.1:1", code=1)


def main():
    with tempfile.TemporaryDirectory() as folder:
        with Server(DEMO, "--profile-every", "1") as server:
            for i in range(3):
                server.stream_text({"prompt": f"hello {i} " * 9, "max_tokens": 12, "temperature": 0, "ignore_eos": True})
            saved, profile = check_server(server, folder)
        check_files(folder, saved, profile)
        check_refusals(folder, saved, profile)
    print("ok")


if __name__ == "__main__":
    main()
