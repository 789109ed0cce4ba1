"""`reprise bench decode`: every pair of the lists is a row with numbers of its own, from one
engine; lists that are none are refused by the name of their flag. No time is looked at.
"""
import json
import os
import subprocess

from reprise_server import BIN, DEMO

CPU = ["--device", "cpu", "--threads", "1"]
SHORT = ["--tokens", "16", "--rounds", "1", "--warm-up", "1"]
READY = {"seconds", "weights_seconds", "graphs", "graphs_failed", "capture_ms", "capture_ms_median",
         "capture_ms_largest", "arena_bytes", "graph_device_bytes", "graph_host_bytes", "kv_tokens"}


def run(*arguments, **environment):
    done = subprocess.run([BIN, "bench", *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=280,
                          env=dict(os.environ, **environment))
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def rows(*arguments, **environment):
    code, out, errors = run(*arguments, "--json", **environment)
    assert code == 0, (arguments, errors)
    result = json.loads(out)
    assert isinstance(result, list), out
    return result


def refused(code, text, *arguments):
    got, out, errors = run(*arguments)
    assert got == code and "error: " in errors and text in errors and out == "", (arguments, got, out, errors)


def check_every_pair_is_a_row():
    result = rows("decode", "--shape", "demo", *CPU, *SHORT, "--batch", "1,3", "--context", "8,20")
    assert [(r["batch"], r["context"]) for r in result] == [(1, 8), (1, 20), (3, 8), (3, 20)], result
    for row in result:
        assert row["bench"] == "decode" and row["shape"] == "demo" and not row["left_out"], row
        assert set(row["ready"]) == READY and row["ready"] == result[0]["ready"], row
        assert row["ready"]["graphs"] > 0 and row["ready"]["graphs_failed"] == 0, row
        assert row["ready"]["seconds"] >= row["ready"]["weights_seconds"] > 0, row
        assert not row["reliable"] and row["settled_after"] == 0, row  # fewer than 100 steps
        assert row["steps"] > 0 and 0 < row["ms_per_step_p50"] <= row["ms_per_step_p99"], row
        assert row["device_ms_per_step_p50"] > 0 and row["host_us_p50"] > 0, row
    # K and V of each sequence are read: more of them, more bytes.
    assert result[0]["bytes_per_step"] < result[1]["bytes_per_step"] < result[3]["bytes_per_step"], result


def check_at_least_a_hundred_steps_by_default():
    row, = rows("decode", "--shape", "stories260k", *CPU, "--context", "16")
    assert row["steps"] >= 100 and (row["reliable"] or row["settled_after"] == 0), row


def check_a_model_with_its_own_weights():
    row, = rows("decode", "--model", DEMO, *CPU, *SHORT, "--context", "8")
    assert row["model"] == DEMO and "shape" not in row and row["steps"] > 0, row


def check_tables():
    code, out, errors = run("decode", "--shape", "demo", *CPU, *SHORT, "--batch", "1,2", "--context", "8")
    assert code == 0, errors
    lines = out.splitlines()
    assert len(lines) == 6 and "ready after" in lines[1] and lines[3].split()[:2] == ["batch", "context"], out
    assert [line.split()[:2] for line in lines[4:]] == [["1", "8"], ["2", "8"]], out


def check_environment():
    result = rows("decode", "--shape", "demo", *CPU, *SHORT, REPRISE_BATCH="1,2", REPRISE_CONTEXT="8")
    assert [r["batch"] for r in result] == [1, 2], result


def check_errors():
    for text in ("", "x", "1,x", "1,", ",1", "1,,2", "1 2", "-1", "+1", "0", "4097", "1,0", "99999999999999999999",
                 ",".join("1" * 17)):
        refused(2, "--batch", "decode", "--shape", "demo", *CPU, "--batch", text)
    refused(2, "--context", "decode", "--shape", "demo", *CPU, "--context", "8,1048577")
    refused(2, "there are: ", "decode", "--shape", "no-such-shape", *CPU)
    refused(3, "config.json", "decode", "--model", "/nowhere", *CPU)
    refused(4, "max_position", "decode", "--shape", "demo", *CPU, "--context", "100000")


def main():
    checks = [check_every_pair_is_a_row, check_at_least_a_hundred_steps_by_default,
              check_a_model_with_its_own_weights, check_tables, check_environment, check_errors]
    for check in checks:
        check()
        print("ok", check.__name__)
    print(f"{len(checks)} passed, 0 failed")


main()
