"""Goal: the page of a load test is well-formed, loads nothing from elsewhere, and shows the right values.
The C test of the reports writes the pages, with hostile names in every place.
"""
import html.parser
import os
import re
import subprocess
import sys
import tempfile

MAKER = os.path.join(os.path.dirname(os.environ["REPRISE_BIN"]), "tests", "test_bench_load_report")
VOID = {"meta", "br", "hr", "img", "input", "link"}
KNOWN = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "b", "i", "div", "span", "table", "tr",
         "th", "td", "figure", "figcaption", "svg", "g", "line", "path", "rect", "text", "code"}


class Page(html.parser.HTMLParser):
    """Checks that every element is closed, in order; collects elements and texts."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.attributes, self.text = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        assert tag in KNOWN, tag
        self.elements.append((tag, dict(attrs)))
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()

    def handle_data(self, data):
        self.text.append(data)


def page(runs):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "page.html")
        subprocess.run([MAKER, "--page", path, str(runs)], check=True, timeout=60)
        with open(path, "rb") as file:
            return file.read().decode("utf-8")  # strict


def check_pages_are_well_formed():
    for runs in (0, 1, 3):
        text = page(runs)
        assert text.startswith("<!DOCTYPE html>"), text[:40]
        parsed = Page(text)
        assert [tag for tag, _ in parsed.elements].count("body") == 1


def check_nothing_comes_from_elsewhere():
    for runs in (1, 3):
        text = page(runs)
        parsed = Page(text)
        assert "http://" not in text and "https://" not in text and "url(" not in text and "@import" not in text
        for name, _ in parsed.attributes:
            assert name not in ("src", "href", "srcset", "action", "data", "xlink:href", "style"), name
            assert not name.startswith("on"), name


def check_names_of_the_server_are_text():
    text = page(1)
    parsed = Page(text)
    assert "<script>alert('x')</script>" in "".join(parsed.text)
    assert not re.search(r"<\s*script", text)


def check_the_pictures_of_a_run():
    parsed = Page(page(1))
    figures = [attrs["aria-label"] for tag, attrs in parsed.elements if tag == "svg"]
    assert len(figures) == 5, figures
    paths = [attrs for tag, attrs in parsed.elements if tag == "path"]
    dots = {attrs["class"]: attrs["d"].count("M") for attrs in paths if attrs["class"].startswith("dots")}
    assert dots == {"dots c0": 397, "dots c1": 397, "dots c5": 3}, dots  # TTFT, E2EL, failed
    number = re.compile(r"[MLh](-?[\d.]+)(?: (-?[\d.]+))?")
    for attrs in paths:
        for command in number.findall(attrs["d"]):
            x, y = float(command[0]), float(command[1] or 0)
            assert 0 <= x <= 760 and 0 <= y <= 300, attrs
    bars = [attrs for tag, attrs in parsed.elements if tag == "rect" and attrs["class"] == "c2"]
    assert len(bars) > 10 and all(float(bar["height"]) > 0 and float(bar["width"]) > 0 for bar in bars)
    warm_up = [attrs for tag, attrs in parsed.elements if tag == "rect" and attrs["class"] == "shade"]
    assert len(warm_up) == 3  # latency, in flight, tokens


def check_runs_are_in_order_of_their_load_with_the_objective():
    parsed = Page(page(3))
    text = "".join(parsed.text)
    assert len([tag for tag, _ in parsed.elements if tag == "svg"]) == 5 + 2 * 5
    assert text.count("objective met up to 20/s") == 5 and "ttft 50 ms" in text
    first_table = text[text.index("requests/s offered"):]
    assert first_table.index("10.000") < first_table.index("20.000") < first_table.index("30.000")


def main():
    if not os.path.exists(MAKER):
        print("the C tests are not built: cmocka is missing")
        sys.exit(77)
    checks = [check_pages_are_well_formed, check_nothing_comes_from_elsewhere, check_names_of_the_server_are_text,
              check_the_pictures_of_a_run, check_runs_are_in_order_of_their_load_with_the_objective]
    for check in checks:
        check()
        print("ok", check.__name__)
    print(f"{len(checks)} passed, 0 failed")


main()
