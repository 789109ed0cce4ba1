"""Tools in the chat page (wide, narrow and dark, in a headless Chromium) and in `reprise chat`, against this server with a scripted
model: calls are recognized, the user gives their results, and the answer goes on.

The page is skipped without a Chromium."""
import json
import os
import subprocess
import tempfile

from browser import CHROMIUM, Browser
from fake_server import skip
from scripted_chat import ScriptedChat


def call(city):
    return "<tool_call>\n" + json.dumps({"name": "weather", "arguments": {"city": city}}) + "\n</tool_call>"


ANSWERS = {"rain?": "<think>\nA tool knows.\n</think>\n\nI look. " + call("Rome"), "both?": call("Rome") + "\n" + call("Oslo"),
           "no rain": "It is **dry**.", "snow": "Two answers."}
TOOL = {"name": "weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
LAST = "[...document.querySelectorAll('article.assistant')].at(-1)"
ANSWERED = "!state.stream && lastOf(state.chat).role === 'assistant' && !lastOf(state.chat).calls"


def say(browser, text):
    browser.run("$('input').focus()")
    browser.type(text)
    browser.key("Enter")
    browser.until("!state.stream && document.activeElement.getAttribute('aria-label') === 'Result of weather'")


def fits(browser):
    return browser.run("document.documentElement.scrollWidth <= innerWidth && $('scroller').scrollWidth <= $('scroller').clientWidth")


def check_page(url, width, height, dark):
    with Browser(width, height, dark) as browser:
        browser.open(url)
        browser.until("typeof state !== 'undefined' && state.model")
        browser.run("showPanel(true), $('s-tools').focus()")
        browser.type(json.dumps(TOOL))
        browser.run("showPanel(false)")
        say(browser, "rain?")
        assert browser.run("JSON.parse(document.querySelector('.call pre').textContent)") == {"city": "Rome"}
        assert browser.run("document.querySelector('.think:not([hidden]) .md').textContent") == "A tool knows."
        assert "I look." in browser.run(LAST + ".textContent") and fits(browser)
        browser.type("no rain")
        browser.key("Enter")
        browser.until(ANSWERED)
        browser.until(LAST + ".querySelector('.md strong')?.textContent === 'dry'")
        assert fits(browser)
        roles = browser.run("pathOf(state.chat).map((one) => one.role)")
        assert roles == ["user", "assistant", "tool", "assistant"], roles
        # Two calls of one answer: each has its field, and the answer goes on when both have a result.
        browser.run("startChat()")
        browser.run("state.chat.settings.tools = state.chat.settings.tools || " + json.dumps(json.dumps(TOOL)))
        say(browser, "both?")
        assert browser.run("[...document.querySelectorAll('.call pre')].map((one) => JSON.parse(one.textContent).city)") == ["Rome", "Oslo"]
        assert fits(browser)
        fields = "[...document.querySelectorAll('[aria-label=\"Result of weather\"]')]"
        assert browser.run(f"document.activeElement === {fields}[0]")
        browser.type("sun")
        browser.run(f"{fields}[1].focus()")
        browser.type("snow")
        browser.key("Enter")
        browser.until(ANSWERED)
        browser.until(LAST + ".textContent.includes('Two answers.')")
        results = browser.run("pathOf(state.chat).filter((one) => one.role === 'tool').map((one) => one.content)")
        assert results == ["sun", "snow"], results
        assert not browser.errors, browser.errors


def check_terminal(url, folder):
    binary = os.environ.get("REPRISE_BIN", "")
    if not os.access(binary, os.X_OK):
        print("reprise was not built: the terminal was not tried")
        return
    path = os.path.join(folder, "tools.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(TOOL, file)
    done = subprocess.run([binary, "chat", url, "--tools", path], input="rain?\nno rain\nboth?\nsun\nsnow\n", capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    shown = done.stdout + done.stderr
    assert "I look." in done.stdout and "It is **dry**." in done.stdout and "Two answers." in done.stdout, shown
    assert shown.count("weather") >= 3 and shown.count('"Rome"') == 2 and shown.count('"Oslo"') == 1, shown


def main():
    with ScriptedChat(ANSWERS, "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3") as chat, \
            tempfile.TemporaryDirectory() as folder:
        url = f"http://127.0.0.1:{chat.server.port}"
        check_terminal(url, folder)
        if not CHROMIUM:
            skip("no Chromium on this machine")
        for size in ((1600, 1000, False), (400, 800, True)):
            check_page(url + "/", *size)
            print(f"{size[0]} pixels: ok")


main()
