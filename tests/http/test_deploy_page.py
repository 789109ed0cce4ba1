"""docs/deploy.md: its commands, in order and in one shell, start two replicas behind HAProxy, and have the answers shown."""
import os
import re
import signal
import subprocess
import tempfile

import haproxy
from free_port import free_port
from reprise_server import BIN, SOURCE, skip

BUILD = "./dev build\nsudo apt-get install -y haproxy\n"
MARK = "--- end of block ---"


def blocks():
    """[(commands, what they print or None)] of the page, without those that build and install."""
    with open(os.path.join(SOURCE, "docs", "deploy.md"), encoding="utf-8") as file:
        found = re.findall(r"^```(\w+)\n(.*?)^```$", file.read(), re.M | re.S)
    assert found[0] == ("sh", BUILD), found[0]
    result = []
    for kind, text in found[1:]:
        if kind == "sh":
            result.append((text, None))
        else:
            assert kind == "text" and result[-1][1] is None, kind
            result[-1] = (result[-1][0], text)
    return result


def like(shown, got):
    return re.fullmatch(".*?".join(map(re.escape, shown.strip().split("..."))), got.strip(), re.S) is not None


def main():
    if not haproxy.program():
        skip("haproxy is not installed")
    if not os.access("/usr/bin/curl", os.X_OK):
        skip("curl is not installed")
    commands = blocks()
    assert len(commands) >= 7
    ports = {str(port): str(free_port()) for port in (8000, 8001, 8002, 8404)}
    assert len(set(ports.values())) == len(ports)
    script = f"\necho '{MARK}'\n".join(text for text, _ in commands) + f"\necho '{MARK}'\n"
    for shown, port in ports.items():
        script = re.sub(rf"\b{shown}\b", port, script)
    script = script.replace("build/release/reprise", BIN).replace("/usr/sbin/haproxy", haproxy.program())
    script = script.replace("deploy/compose/haproxy.cfg", haproxy.CONFIG).replace("models/demo", SOURCE + "/models/demo")
    env = {**os.environ, "GATEWAY": "127.0.0.1:" + ports["8000"], "REPLICA_1": "127.0.0.1:" + ports["8001"],
           "REPLICA_2": "127.0.0.1:" + ports["8002"], "STATUS": "127.0.0.1:" + ports["8404"]}
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(["bash", "-eu", "-c", script], cwd=folder, env=env, start_new_session=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, errors = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            out, errors = "", "the commands do not end"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # nothing, unless a command failed
            except ProcessLookupError:
                pass
        logs = "".join(f"\n{name}:\n" + open(os.path.join(folder, name), encoding="utf-8").read()
                       for name in sorted(os.listdir(folder)) if name.endswith(".log"))
    printed = out.split(MARK + "\n")
    assert process.returncode == 0 and len(printed) == len(commands) + 1, (process.returncode, out, errors, logs)
    for (text, shown), got in zip(commands, printed):
        assert like(shown or "", got), f"{text}shown: {shown}got: {got}{logs}"
        print("ok", text.splitlines()[0])


if __name__ == "__main__":
    main()
