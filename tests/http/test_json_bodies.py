"""Every file of JSONTestSuite as a body: invalid JSON gets 400, valid JSON another answer or a named field; never a 5xx,
a hang or a crash, and the next request is served."""
import os

from fake_server import Server, skip

FOLDER = os.path.join(os.environ.get("REPRISE_TEST_DATA", "../shared/data"), "json", "test_parsing")


def main():
    if not os.path.isdir(FOLDER):
        skip(f"{FOLDER} is not there")
    names = sorted(name for name in os.listdir(FOLDER) if name.endswith(".json"))
    problems = []
    with Server() as server:
        with server.connect() as connection:
            for name in names:
                with open(os.path.join(FOLDER, name), "rb") as file:
                    body = file.read()
                for path in ("/v1/completions", "/tokenize"):
                    connection.send("POST", path, body)
                    response = connection.response()
                    # None of them is an object with a prompt.
                    if response.status != 400 or response.error["type"] != "invalid_request_error":
                        problems.append(f"{name} {path}: {response.status} {response.body[:200]}")
                    elif name.startswith("n_") and response.error["code"] != "invalid_json":
                        problems.append(f"{name}: accepted, {response.error}")
        assert server.complete("hello", max_tokens=2).text == "hellohello"
    for problem in problems:
        print(problem)
    print(f"{len(names)} bodies, {len(problems)} problems")
    assert not problems


main()
