"""HAProxy with deploy/compose/haproxy.cfg in front of replicas that listen on Unix sockets: no port can be taken."""
import csv
import http.client
import os
import shutil
import socket
import subprocess
import time

from reprise_server import SOURCE

CONFIG = os.path.join(SOURCE, "deploy", "compose", "haproxy.cfg")
PATIENCE_S = 120  # far longer than anything takes


def program():
    """Its path, or None."""
    return shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def until(found, what):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        value = found()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"never: {what}")


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Gateway:
    def __init__(self, folder, replicas):
        self.socket, self.admin = f"{folder}/gateway", f"{folder}/admin"
        extra = f"{folder}/admin.cfg"
        with open(extra, "w", encoding="ascii") as file:
            file.write(f"global\n    stats socket {self.admin} level admin\n")
        self.command = [program(), "-db", "-f", CONFIG, "-f", extra]
        self.env = {**os.environ, "GATEWAY": f"unix@{self.socket}", "STATUS": f"unix@{folder}/status",
                    "REPLICA_1": f"unix@{replicas[0]}", "REPLICA_2": f"unix@{replicas[1]}"}
        self.log_path = f"{folder}/haproxy.log"

    def __enter__(self):
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(self.command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(lambda: os.path.exists(self.admin) and os.path.exists(self.socket), "HAProxy listens")
        return self

    def __exit__(self, kind, *_):
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        if kind:
            with open(self.log_path, encoding="utf-8", errors="replace") as file:
                print(file.read())

    def connect(self):
        return UnixConnection(self.socket)

    def replicas(self):
        """For both: (status, open requests)."""
        with socket.socket(socket.AF_UNIX) as admin:
            admin.settimeout(PATIENCE_S)
            admin.connect(self.admin)
            admin.sendall(b"show stat\n")
            text = b""
            while part := admin.recv(65536):
                text += part
        rows = csv.DictReader(text.decode().lstrip("# ").splitlines())
        return [(row["status"].split()[0], int(row["scur"])) for row in rows if row["svname"].startswith("replica-")]

    def wait_for(self, *statuses):
        until(lambda: tuple(status for status, _ in self.replicas()) == statuses, f"{statuses}: {self.replicas()}")

    def open_requests(self):
        return [count for _, count in self.replicas()]
