"""A device that fails under the real server: every request gets an error that names the cause, none another 200, and the
process exits with 70, also when the device hangs. Faults are injected by --debug-fault."""
import http.client
import json
import socket
import subprocess
import sys
import threading
import time

from reprise_server import BIN, DEMO, Server

ENDLESS = {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True, "temperature": 0}


def ask(server, body, answers):
    """(status, text of the body), or the error of a connection that was refused or cut."""
    try:
        status, _, data = server.request("POST", "/v1/completions", body)
        answers.append((status, data.decode()))
    except (OSError, http.client.HTTPException) as error:
        answers.append((None, repr(error)))


def check_fault(kind, cause, *flags):
    with Server(DEMO, "--debug-fault", f"{kind}@20", *flags, exit_code=70) as server:
        answers, threads = [], []
        for i in range(6):
            body = dict(ENDLESS, seed=i, stream=i % 2 == 1)
            threads.append(threading.Thread(target=ask, args=(server, body, answers)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        failed_at = time.monotonic()
        assert len(answers) == 6, answers
        for status, text in answers:
            if status == 200:  # a stream that has begun ends with the error and without [DONE]
                events = [line[6:] for line in text.split("\n\n") if line]
                assert "[DONE]" not in events, text
                error = json.loads(events[-1])["error"]
            else:
                assert status in (500, 503), (status, text)
                error = json.loads(text)["error"]
            assert error["code"] == "engine_failed" and cause in error["message"], error
        late = []
        ask(server, {"prompt": "1 + 1 =", "max_tokens": 2}, late)
        assert late[0][0] in (None, 500, 503), late
        try:
            assert server.get("/health")[0] == 503
        except (OSError, http.client.HTTPException):
            pass  # it has exited
        server.process.wait(30)
        assert time.monotonic() - failed_at < 20  # seconds: bounded by two, on a machine that is busy
        log = server.output()
        assert cause in log and "exiting with code 70" in log, log
    print("ok", kind, *flags)


def check_idle_connections_do_not_hold_it_up():
    with Server(DEMO, "--debug-fault", "trap@1", exit_code=70) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as idle:
            idle.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
            answers = []
            ask(server, ENDLESS, answers)
            assert answers[0][0] in (500, 503), answers
            server.process.wait(30)
    print("ok idle connections")


def check_run():
    for kind, cause in (("trap", "injected: trap"), ("hang", "no progress for 1 s")):
        done = subprocess.run([BIN, "run", DEMO, "1 + 1 =", "--ignore-eos", "--debug-fault", kind + "@5",
                               "--watchdog-timeout", "1"], stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
        assert done.returncode == 70 and cause in done.stderr.decode(), done
    done = subprocess.run([BIN, "serve", DEMO, "--debug-fault", "fire@5"], stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=120)
    assert done.returncode == 2 and b"--debug-fault" in done.stderr, done
    shown = subprocess.run([BIN, "serve", "--help"], capture_output=True, timeout=120)
    assert b"debug-fault" not in shown.stdout and b"watchdog-timeout" in shown.stdout
    print("ok run")


def check_no_gpu():
    """--device cuda without a GPU: exit code 4, the cause, and the remedy."""
    for module in ("/nowhere/libreprise_cuda.so", DEMO + "/config.json"):
        done = subprocess.run(["env", "REPRISE_CUDA_MODULE=" + module, BIN, "run", DEMO, "x", "--device", "cuda"],
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
        text = done.stderr.decode()
        assert done.returncode == 4 and "error: --device cuda: " in text and module in text and "hint: " in text, done
    done = subprocess.run(["env", "REPRISE_CUDA_MODULE=/nowhere/x.so", BIN, "inspect", DEMO], capture_output=True,
                          timeout=120)
    assert done.returncode == 0 and b"no CUDA: there is no /nowhere/x.so" in done.stdout, done
    print("ok no GPU")


def main():
    check_no_gpu()
    check_run()
    check_fault("illegal_address", "injected: illegal address")
    check_fault("trap", "injected: trap", "--run-ahead", "0", "--enforce-eager")
    check_fault("hang", "no progress for 1 s", "--watchdog-timeout", "1")
    check_idle_connections_do_not_hold_it_up()


if __name__ == "__main__":
    sys.exit(main())
