"""/debug/ui in a real headless Chromium: the page draws itself from the other routes, every number on it is one of theirs,
nothing comes from elsewhere, it fits windows of 1,600 and 400 pixels, light and dark, it works by keyboard, and shows the
past of a server from before it was opened. Names are never interpreted as HTML.

Skipped without a Chromium (scripts/setup --tests installs one if the distribution has it)."""
import json
import re
import sys
import threading

from browser import CHROMIUM, Browser
from debug_page import check_numbers, read_page
from reprise_server import DEMO, Server, skip

EVIL = "<img src=x onerror=document.title='evil'>\"'&amp;</script><script>document.title='evil'</script>"
REQUESTS, TOKENS = 4, 60
DRAWN = "Number(document.body.dataset.drawn || 0)"


def check_source(server):
    status, text, headers = server.get("/debug/ui")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "/*STYLE*/" not in text and "/*SCRIPT*/" not in text
    rest = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|@import|url\(|src=|<link|innerHTML|insertAdjacent|eval\(", rest)
    assert server.get("/debug/ui?x=1")[0] == 400


def send_requests(server):
    body = {"prompt": "Once upon a time", "max_tokens": TOKENS, "ignore_eos": True}
    threads = [threading.Thread(target=server.post, args=("/v1/completions", body)) for _ in range(REQUESTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def draw_again(browser):
    """What the page does each second, now."""
    drawn = browser.run(DRAWN)
    browser.run("update()")
    assert browser.run(DRAWN) > drawn, browser.run("$('error').textContent")


def check_sizes(browser):
    backs = set()
    for width, dark in ((1600, False), (1600, True), (400, False), (400, True)):
        browser.resize(width, 1000, dark)
        draw_again(browser)
        page = read_page(browser)
        assert page.body["data-overflow"] == "false", (width, page.body)
        assert page.body["data-dark"] == str(dark).lower(), page.body
        backs.add((dark, page.body["data-back"]))
        raw = json.loads(page.raw)
        assert len(raw["requests"]["requests"]) == REQUESTS and raw["steps"]["steps"] and raw["profile"]["rows"], page.raw[:500]
        count = check_numbers(page)
        assert count > 150, count
        # The percentiles are the first numbers, in the first column that is not a name.
        titles = browser.run("[...document.querySelectorAll('#latency th')].slice(1, 3).map((one) => one.textContent)")
        assert titles == ["p50", "p99"], titles
    assert len({back for _, back in backs}) == 2, backs
    return count


def check_verdict(browser, server):
    shown = browser.run("[$('h-verdict').textContent, $('verdict-summary').textContent, "
                        "[...document.querySelectorAll('#verdict li')].map((one) => one.textContent)]")
    raw = browser.run("state.raw.diagnose")
    assert shown[0] == raw["verdict"].replace("_", " ") and shown[1].lower() == raw["summary"].lower() + "." and shown[2] == raw["next"], shown
    first = browser.run("document.querySelector('main > section').id")
    assert first == "verdict" and json.loads(server.get("/debug/diagnose")[1])["verdict"]


def check_past(browser):
    """All was sent before the page was opened: the server's history has it."""
    browser.until(f"state.samples.reduce((sum, one) => sum + one.tokens.generated, 0) === {REQUESTS * TOKENS}")
    browser.until("document.querySelector('#chart-rate path').getAttribute('d').includes('L')")  # two samples


def check_request(browser):
    """Enter opens the waterfall, Escape closes it, and the focus is where it was, also after the table was drawn anew."""
    key = browser.run("document.querySelector('#requests button').focus(), document.activeElement.dataset.key")
    draw_again(browser)
    assert key.startswith("request:") and browser.run("document.activeElement.dataset.key") == key
    browser.key("Enter")
    browser.until("$('request').open && $('waterfall').querySelectorAll('text').length > 0")
    names = browser.run("requestPhases(state.raw.request.requests[0]).map((phase) => phase[0])")
    texts = browser.run("[...$('waterfall').querySelectorAll('text')].map((one) => one.textContent)")
    assert names == ["receive", "parse", "tokenize", "queue", "prefill", "first token", "tokens", "write"], names
    assert set(names) <= set(texts), texts
    bars = browser.run("$('waterfall').querySelectorAll('rect').length")
    times = browser.run("state.raw.request.requests[0].token_seconds")
    assert len(times) == TOKENS and bars == len(names) + 1 + TOKENS, (bars, len(times))
    assert browser.run("$('gaps').querySelectorAll('rect').length") == TOKENS - 1
    assert check_numbers(read_page(browser)) > 150
    browser.key("Escape")
    browser.until("!$('request').open")
    browser.until(f"document.activeElement.dataset.key === {json.dumps(key)}", 8)  # the event of closing comes later


def check_keys(browser):
    browser.run("$('chart-rate').focus()")
    browser.key("ArrowLeft")
    browser.key("ArrowLeft")
    draw_again(browser)
    label = browser.run("$('chart-rate').getAttribute('aria-label')")
    assert re.search(r"Throughput.*\d+ s ago: generated .*, prompt ", label), label
    assert browser.run("document.querySelectorAll('.chart line.cursor').length") == 6
    browser.key("Escape")
    assert browser.run("document.querySelectorAll('line.cursor').length") == 0
    browser.run("$('steps').focus()")
    browser.key("ArrowLeft")
    browser.key("ArrowLeft")
    note = browser.run("$('steps-note').textContent")
    steps = browser.run("state.held.steps.map((one) => one.step)")
    assert note.startswith(f"Step {steps[-2]:,}: ") and "Back to now" in note, (note, steps[-3:])
    browser.key("Escape")
    assert browser.run("state.held") is None
    browser.key("p")
    assert browser.run("$('pause').getAttribute('aria-pressed') + $('pause').textContent") == "trueResume"


def check_key_and_names():
    """A server with a key opens from the form and from #key=; its name is evil, and shown as it is."""
    with Server(DEMO, "--max-num-seqs", "2", "--api-key", "a-key/1%", "--served-model-name", EVIL) as server, Browser() as browser:
        assert server.get("/debug/ui")[0] == 200 and server.get("/debug/status")[0] == 401
        url = f"http://127.0.0.1:{server.port}/debug/ui"
        browser.open(url)
        browser.until("document.querySelector('#login:not([hidden])') && document.activeElement.id === 'key'")
        assert "data-drawn" not in read_page(browser).body, "without the key there is nothing to draw"
        browser.run("$('key').value = 'a-key/1%', document.querySelector('#login button').click()")
        browser.until("document.body.dataset.drawn >= 1 && $('login').hidden")
        assert browser.run("$('model').textContent") == EVIL
        assert browser.run("document.images.length + document.scripts.length") == 2, "the page's script and its data"
        assert browser.run("document.title").endswith(" · " + EVIL)
        browser.run("sessionStorage.clear()")
        browser.open("about:blank")
        browser.open(url + "#key=a-key%2F1%25")
        browser.until("document.body && document.body.dataset.drawn >= 1 && location.hash === ''")


def main():
    with Server(DEMO, "--max-num-seqs", "8", "--profile-every", "1") as server:
        check_source(server)
        if not CHROMIUM:
            skip("no Chromium on this machine")
        send_requests(server)
        with Browser(1600, 1000) as browser:
            browser.open(f"http://127.0.0.1:{server.port}/debug/ui")
            browser.until("document.body && document.body.dataset.drawn >= 1")
            check_past(browser)
            check_verdict(browser, server)
            count = check_sizes(browser)
            check_request(browser)
            check_keys(browser)
            assert not browser.errors, browser.errors
            foreign = [url for url in browser.requests if not url.startswith(f"http://127.0.0.1:{server.port}/debug/")]
            assert not foreign, foreign
    check_key_and_names()
    print("ok", count, "numbers")


if __name__ == "__main__":
    sys.exit(main())
