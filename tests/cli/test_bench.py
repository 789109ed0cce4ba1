"""`reprise bench decode`: every pair of the lists has its own row, from one engine; invalid lists are refused with the name
of the flag. `reprise bench attention`: the same for shapes and masks. Times are not checked.
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


def check_modes_have_speed_and_error_in_one_table():
    small = [*CPU, *SHORT, "--context", "8", "--batch", "1,2"]
    result = {row["mode"]: row for row in rows("modes", "--shape", "stories260k", *small)}
    assert list(result) == ["eager", "graphs", "fast", "int8", "fp8", "int8-w8a16", "pages-int8", "pages-fp8",
                            "int8+pages"], list(result)
    assert "GPU" in result["fast"]["left_out"], result["fast"]
    for name, row in result.items():
        if "left_out" in row:
            continue
        assert [decode["batch"] for decode in row["decode"]] == [1, 2] and row["decode"][0]["tokens_per_second"] > 0, row
        exact, error = name in ("eager", "graphs"), row["error"]
        assert (error["logit_max"] == 0) == (error["kl_mean"] == 0) == exact, (name, error)
        assert error["tokens"] == 256 and error["kl_mean"] <= error["kl_max"], (name, error)
        assert (error["top1_agreement"] == 1.0) >= exact, (name, error)
    assert result["int8"]["weight_bytes"] < result["graphs"]["weight_bytes"], result
    assert result["int8+pages"]["error"]["kl_mean"] > result["int8-w8a16"]["error"]["kl_mean"], result


def check_modes_of_a_model_compare_a_fixed_text():
    eager, pages = rows("modes", "--model", DEMO, *CPU, *SHORT, "--context", "8", "--batch", "1", "--modes", "pages-fp8")
    assert eager["mode"] == "eager" and pages["mode"] == "pages-fp8" and pages["model"] == DEMO, (eager, pages)
    assert pages["error"]["tokens"] > 100 and 0 < pages["error"]["kl_mean"] < 0.1, pages
    code, out, errors = run("modes", "--model", DEMO, *CPU, *SHORT, "--context", "8", "--batch", "1", "--modes", "eager")
    assert code == 0 and "max |diff|" in out and out.count("\n") == 3, (out, errors)
    refused(2, "--modes: no mode \"fats\"", "modes", "--modes", "graphs,fats")
    refused(2, "no-such-shape", "modes", "--shape", "no-such-shape")


def check_at_least_a_hundred_steps_by_default():
    row, = rows("decode", "--shape", "stories260k", *CPU, "--context", "16")
    assert row["steps"] >= 100 and (row["reliable"] or row["settled_after"] == 0), row


def check_a_group_has_room_for_any_number_of_batches():
    batches = [1, 2, 3, 4, 5, 6]
    code, out, errors = run("step", "--shape", "stories260k", "--device", "cpu", "--threads", "2",
                            "--tensor-parallel-size", "2", "--steps", "2", "--context", "8",
                            "--batch", ",".join(map(str, batches)), "--json")
    result = json.loads(out)
    assert [case["batch"] for case in result["cases"]] == batches and result["left_out"] == 0, (code, out, errors)


def check_a_model_with_its_own_weights():
    row, = rows("decode", "--model", DEMO, *CPU, *SHORT, "--context", "8")
    assert row["model"] == DEMO and "shape" not in row and row["steps"] > 0, row


def check_8_bits_are_told_with_their_error():
    """A speed with 8 bits is reported with its error."""
    for flags in (["--quantization", "int8"], ["--kv-cache-dtype", "fp8"]):
        row, = rows("decode", "--shape", "demo", *CPU, *SHORT, "--context", "8", *flags)
        error = row["error"]
        assert error["tokens"] == 64 and error["against"] == "bfloat16", row
        assert 0.95 < error["cosine_min"] <= error["cosine_mean"] < 1 and error["kl_mean"] > 0, row
        for bench in (["decode", *SHORT], ["step", "--batch", "1", "--steps", "3"], ["prefill", "--steps", "3"]):
            code, out, errors = run(*bench, "--shape", "demo", *CPU, "--context", "8", *flags)
            assert code == 0 and "logits against bfloat16" in out, (bench, out, errors)
    assert "error" not in rows("decode", "--shape", "demo", *CPU, *SHORT, "--context", "8")[0]
    refused(2, "there are: ", "step", "--shape", "no-such-shape", "--quantization", "int8", *CPU)


def check_tables():
    code, out, errors = run("decode", "--shape", "demo", *CPU, *SHORT, "--batch", "1,2", "--context", "8")
    assert code == 0, errors
    lines = out.splitlines()
    assert len(lines) == 6 and "ready after" in lines[1] and lines[3].split()[:2] == ["batch", "context"], out
    assert [line.split()[:2] for line in lines[4:]] == [["1", "8"], ["2", "8"]], out


def check_attention():
    small = ["--heads", "4", "--kv-heads", "2", "--head-dim", "16", "--case-seconds", "0.02", *CPU]
    code, out, errors = run("attention", "--kind", "prefill", "--batch", "1,2", "--length", "40", "--mask",
                            "param n = 7; causal && sliding_window(n); soft_cap(5)", "--json", *small)
    assert code == 0, errors
    result = json.loads(out)
    assert result["bench"] == "attention" and result["read_bandwidth_gb_per_second"] > 0 and result["product_tflops"] > 0, out
    assert [(c["kind"], c["batch"], c["length"], c["page_tokens"]) for c in result["cases"]] == [
        ("prefill", 1, 40, 16), ("prefill", 2, 40, 16)], out
    for case in result["cases"]:
        pairs = sum(min(p + 1, 7) for p in range(40))
        assert case["flops"] == case["batch"] * 4 * pairs * 4 * 16 and case["us_min"] <= case["us_p50"] <= case["us_p99"], case
        assert "q - kv < n" in case["mask"] and "tanh" in case["mask"], case
    code, out, errors = run("attention", "--kind", "decode", "--length", "9,30", "--window", "4", *small)
    assert code == 0 and [line.split()[:3] for line in out.splitlines()[1:3]] == [["decode", "1", "9"], ["decode", "1", "30"]], out
    refused(2, "column 11: the name foo", "attention", "--mask", "causal && foo", *CPU)
    refused(2, "--heads: 4 is not a multiple of --kv-heads 3", "attention", "--heads", "4", "--kv-heads", "3", *CPU)
    refused(2, "--page: 12 is not a power of two", "attention", "--page", "12", *CPU)


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
              check_a_group_has_room_for_any_number_of_batches, check_a_model_with_its_own_weights,
              check_8_bits_are_told_with_their_error, check_tables, check_attention,
              check_modes_have_speed_and_error_in_one_table, check_modes_of_a_model_compare_a_fixed_text,
              check_environment, check_errors]
    for check in checks:
        check()
        print("ok", check.__name__)
    print(f"{len(checks)} passed, 0 failed")


main()
