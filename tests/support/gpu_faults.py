"""A server whose GPU fails or hangs in the middle of a step."""
import threading

from reprise_server import DEMO, Server

IN_FLIGHT = 4
BODY = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True}


def check_fault(kind, *more):
    flags = ["--device", "cuda", "--debug-fault", f"{kind}@20", "--watchdog-timeout", "2", *more]
    answers = [None] * IN_FLIGHT
    with Server(DEMO, *flags, exit_code=70) as server:

        def ask(i):
            try:
                answers[i] = server.post("/v1/completions", BODY)
            except OSError as error:  # the process ended before it answered: a failure, shown below
                answers[i] = (0, repr(error))

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(IN_FLIGHT)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(kind, more, answers[0], flush=True)
        for status, answer in answers:
            assert status in (500, 503) and "error" in answer, (kind, status, answer)
        try:  # it may be gone already
            assert server.get("/health")[0] == 503
            assert server.post("/v1/completions", BODY)[0] == 503
        except OSError:
            pass
    print("ok", kind, *more, flush=True)
