"""/debug/ui in a headless Chromium: the page renders data of the other routes, every number on it is one of theirs,
nothing is loaded from elsewhere, and it fits wide and narrow windows, light and dark.

Skipped without a Chromium (scripts/setup --tests installs one if the distribution has it)."""
import json
import re
import sys
import threading

from debug_page import CHROMIUM, browse, check_numbers
from reprise_server import DEMO, Server, skip


def check_source(server):
    status, text, headers = server.get("/debug/ui")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "/*STYLE*/" not in text and "/*SCRIPT*/" not in text
    rest = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|@import|url\(|src=|<link", rest)
    assert server.get("/debug/ui?x=1")[0] == 400


def main():
    with Server(DEMO, "--max-num-seqs", "8", "--profile-every", "1") as server:
        check_source(server)
        if not CHROMIUM:
            skip("no Chromium on this machine")
        body = {"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True}
        threads = [threading.Thread(target=server.post, args=("/v1/completions", body)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        url = f"http://127.0.0.1:{server.port}/debug/ui"
        backs = set()
        for width, dark in ((1280, False), (1280, True), (500, False)):
            page = browse(url, width, dark)
            assert int(page.body.get("data-drawn", 0)) >= 1, page.body
            assert page.body["data-overflow"] == "false", (width, page.body)
            assert page.body["data-dark"] == str(dark).lower(), page.body
            backs.add((dark, page.body["data-back"]))
            raw = json.loads(page.raw)
            assert len(raw["requests"]["requests"]) == 4 and raw["steps"]["steps"] and raw["profile"]["rows"], page.raw[:500]
            count = check_numbers(page)
            assert count > 150, count
        assert len({back for _, back in backs}) == 2, backs
    with Server(DEMO, "--max-num-seqs", "2", "--api-key", "a-key/1%") as server:
        assert server.get("/debug/ui")[0] == 200 and server.get("/debug/status")[0] == 401
        url = f"http://127.0.0.1:{server.port}/debug/ui"
        assert "data-drawn" not in browse(url).body, "without the key there is nothing to draw"
        assert int(browse(url + "#key=a-key%2F1%25").body.get("data-drawn", 0)) >= 1
    print("ok", count, "numbers")


if __name__ == "__main__":
    sys.exit(main())
