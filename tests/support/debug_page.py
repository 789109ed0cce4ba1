"""/debug/ui in a headless Chromium: the page as text with the routes of its numbers, and a check that each number equals
the route's."""
import html.parser
import json
import re

from browser import CHROMIUM, Browser

__all__ = ["CHROMIUM", "browse", "check_numbers", "read_page"]
# Numbers whose unit on the page differs from the answer's: suffix of the name -> factor.
FACTORS = ((".calls", 1), ("self_ns", 1e-6), ("_ns", 1e-3), (".count", 1), ("busy", 1), ("device_seconds.", 1), ("durations_seconds.", 1e3),
           ("worst.seconds", 1e3), ("device.seconds", 1e3), ("latency.", 1e3))
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


class Page(html.parser.HTMLParser):
    """Texts of elements with data-path, the raw answers, attributes of body."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.cells, self.raw, self.body, self.path, self.in_raw = [], "", {}, None, False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "body":
            self.body = attrs
        if attrs.get("id") == "raw":
            self.in_raw = True
        elif attrs.get("data-path"):
            self.path = attrs["data-path"]
            self.cells.append([self.path, ""])

    def handle_endtag(self, tag):
        self.path = None
        if tag == "script":
            self.in_raw = False

    def handle_data(self, data):
        if self.in_raw:
            self.raw += data
        elif self.path:
            self.cells[-1][1] += data


def browse(url):
    """The page once it has drawn twice, or wants a key."""
    with Browser() as browser:
        browser.open(url)
        browser.until("document.body && (document.body.dataset.drawn >= 2 || document.querySelector('#login:not([hidden])'))")
        return read_page(browser)


def read_page(browser):
    return Page(browser.run("document.documentElement.outerHTML"))


def look_up(raw, path):
    for part in path.split("."):
        raw = raw[int(part)] if isinstance(raw, list) else raw[part]
    return raw


def shown(text):
    if text == "–":
        return None, 0.0
    match = re.fullmatch(r"(-?[\d,]+)(\.\d+)?(?: (\w+))?", text)
    assert match, text
    factor = UNITS.get(match[3], 1)
    digits = len(match[2] or ".") - 1
    return float(match[1].replace(",", "") + (match[2] or "")) * factor, 0.5000001 * 10**-digits * factor


def check_numbers(page):
    raw = json.loads(page.raw)
    checked = 0
    for path, text in page.cells:
        value, rounding = shown(text)
        truth = look_up(raw, path)
        factor = next((f for end, f in FACTORS if path.endswith(end) or (end.endswith(".") and end in path + ".")), 1)
        if truth is None or value is None:
            assert truth is None and value is None, (path, text, truth)
        else:
            assert abs(truth * factor - value) <= rounding + 1e-9 * abs(value), (path, text, truth)
        checked += 1
    return checked
