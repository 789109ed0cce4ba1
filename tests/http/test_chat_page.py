"""The chat page at / in a real headless Chromium: against answers by a script (reasoning, calls of tools, errors, alternatives) and against
the demo model. Text of a model never becomes HTML, conversations survive a reload, and all of it works by keyboard and at 400 pixels.

Skipped without a Chromium (scripts/setup --tests installs one if the distribution has it)."""
import base64
import hashlib
import json
import re
import sys

from browser import CHROMIUM, Browser
from fake_chat import FakeChat, logprobs
from reprise_server import DEMO, Server, skip

HTML = {"Accept": "text/html,application/xhtml+xml"}
EVIL = "<img src=x onerror=\"document.title='evil'\"><script>document.title='evil'</script> [a](javascript:alert(1)) [b](https://example.com/x_(y)?q=\"z)"
MARKDOWN = [
    ("a *b* **c** ~~d~~ `e*f*`", "<p>a <em>b</em> <strong>c</strong> <del>d</del> <code>e*f*</code></p>"),
    ("snake_case_name and 2 * 3 * 4", "<p>snake_case_name and 2 * 3 * 4</p>"),
    ("one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"),
    ("# T #\n---", "<h3>T</h3><hr>"),
    ("1. a\n2. b\n   - c\n   - d\n3. e", "<ol><li>a</li><li>b<ul><li>c</li><li>d</li></ul></li><li>e</li></ol>"),
    ("> q\n> r", "<blockquote><p>q<br>r</p></blockquote>"),
    ("***x*** \\*y\\*", "<p><strong><em>x</em></strong> *y*</p>"),
    ("**open and `code", "<p>**open and `code</p>"),
    ("- [x] a", '<ul><li class="task">☑ a</li></ul>'),
    ("<b>&amp;</b>", "<p>&lt;b&gt;&amp;amp;&lt;/b&gt;</p>"),
    ("[x](data:text/html,y) [z](/v1/models)", "<p>x z</p>"),
    ("![i](https://e.org/p.png)", '<p><a href="https://e.org/p.png" target="_blank" rel="noopener noreferrer nofollow" title="https://e.org/p.png">i</a></p>'),
]
WORDS = ["The", " sky", " is", " caf", "é", "."]


def check_source(server):
    """The page is for browsers, and its policy allows its own script and style alone."""
    status, headers, page = server.request("GET", "/", headers=HTML)
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    text, policy = page.decode(), headers["Content-Security-Policy"]
    for name in ("script", "style"):
        inside = re.search(f"<{name}>(.*)</{name}>", text, re.S).group(1)
        assert f"{name}-src 'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'" in policy, policy
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    rest = re.sub(r"http://www\.w3\.org/\S+", "", text)
    assert not re.search(r"@import|url\(|\bsrc=|innerHTML|insertAdjacent|outerHTML|\beval\(|document\.write", rest)
    assert "/*STYLE*/" not in text and "/*SCRIPT*/" not in text
    for accept in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
        status, _, body = server.request("GET", "/", headers=accept)
        assert status == 404 and json.loads(body)["error"]["code"] == "not_found", (accept, body)
    assert server.request("HEAD", "/", headers=HTML)[0] == 200 and server.request("POST", "/", b"{}", HTML)[0] == 405
    assert server.request("GET", "/?from=mail", headers=HTML)[0] == 200
    return page, headers


def answer(body):
    """What the scripted server says: by the last message."""
    last = body["messages"][-1]
    text = (last["content"] or "").split("\n\n")[-1]
    if last["role"] == "tool":
        return [{"role": "assistant", "content": "It is "}, {"content": json.loads(text)["sky"]}]
    if body.get("continue_final_message"):
        return [{"content": word, "logprobs": logprobs(word)} for word in (" bl", "ue")]
    if "weather" in text:
        return [{"role": "assistant", "reasoning_content": "A tool "}, {"reasoning": "knows."},
                {"tool_calls": [{"index": 0, "id": "call_a", "type": "function", "function": {"name": "weather", "arguments": ""}}]},
                {"tool_calls": [{"index": 0, "function": {"arguments": "{\"city\": \"Par"}}]},
                {"tool_calls": [{"index": 0, "function": {"arguments": "is\"}"}}], "finish_reason": "tool_calls"}]
    if "fail" in text:
        return 400, "no room"
    if "break" in text:
        return [{"content": "so far"}, {"error": {"message": "the device failed"}}]
    if "evil" in text:
        return [{"content": piece} for piece in (EVIL[:9], EVIL[9:40], EVIL[40:])]
    if "wait" in text:
        return [{"content": "begun"}, None]
    if "tokens" in text:
        return [{"content": word, "logprobs": logprobs(word, allowed=i + 1)} for i, word in enumerate(WORDS)]
    return [{"role": "assistant", "content": f"answer {sum(m['role'] == 'user' for m in body['messages'])}"}]


def say(browser, text, wait=True):
    browser.run("$('input').focus()")
    browser.type(text)
    browser.key("Enter")
    if wait:
        browser.until("!state.stream")


def click(browser, key, which=-1):
    browser.run(f"[...document.querySelectorAll('[data-key^=\"{key}\"]')].at({which}).click()")


def answers(browser):
    return browser.run("[...document.querySelectorAll('article.assistant')].map((one) => one.children[1].textContent)")


def check_markdown(browser):
    browser.run("globalThis.made = (source) => { const div = document.createElement('div'); drawMarkdown(div, source); return div.innerHTML; }")
    for source, wanted in MARKDOWN:
        got = browser.run(f"made({json.dumps(source)})")
        assert got == wanted, (source, got)
    table = browser.run("made('| a | b |\\n|:-:|--:|\\n| 1 \\\\| 2 | `x|y` |')")
    assert '<td class="to-center">1 | 2</td><td class="to-right"><code>x|y</code></td>' in table, table
    code = browser.run("made('~~~js\\nlet a = \"</code>\";\\n~~~\\nafter')")
    assert "<code><span class=\"t-k\">let</span> a = <span class=\"t-s\">\"&lt;/code&gt;\"</span>;</code>" in code and code.endswith("<p>after</p>"), code
    # Each prefix of a text draws the same, whatever was drawn before; no text takes long or nests without end.
    assert browser.run("""(() => { const source = '# a\\n\\n- b\\n  - c\\n\\n```js\\nlet d;\\n```\\n\\n| e | f |\\n|---|---|\\n| g | h |\\n\\n**i** j', div = document.createElement('div');
      for (let i = 0; i <= source.length; i++) { drawMarkdown(div, source.slice(0, i)); if (div.innerHTML !== made(source.slice(0, i))) return source.slice(0, i); }
      return ''; })()""") == ""
    for unit in ("[", "**a ", "> ", "_a ", "`", "- ", "![a](", "~~", "|-", "<http://", "``a", "***", "[a](b"):
        assert browser.run(f"made({json.dumps(unit)}.repeat(5000)).length") > 0, unit


def check_evil(browser):
    say(browser, "evil <b>bold</b>")
    assert browser.run("[document.images.length, document.scripts.length, document.title.includes('evil <b>')]") == [0, 1, True]
    links = browser.run("[...document.querySelectorAll('.md a')].map((one) => one.href)")
    assert links == ["https://example.com/x_(y)?q=%22z"], links
    assert answers(browser)[-1].startswith("<img src=x"), answers(browser)


def check_tools(browser, fake):
    """A call is shown while it arrives; its result is sent with the call in OpenAI's format."""
    browser.run("showPanel(true)")
    browser.run("$('s-tools').focus()")
    browser.type('{"name": "weather", "parameters": {}}')
    say(browser, "weather?")
    assert fake.bodies[-1]["tools"] == [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    assert browser.run("document.activeElement.getAttribute('aria-label')") == "Result of weather"
    assert "\"city\": \"Paris\"" in browser.run("document.querySelector('.call pre').textContent")
    assert browser.run("document.querySelector('.think:not([hidden]) .md').textContent") == "A tool knows."
    assert not browser.run("document.querySelector('.think:not([hidden])').open")
    browser.type('{"sky": "clear"}')
    browser.key("Enter")
    browser.until("!state.stream && state.chat && lastOf(state.chat).role === 'assistant' && !lastOf(state.chat).calls")
    assert answers(browser)[-1] == "It is clear"
    sent = fake.bodies[-1]["messages"]
    assert sent[-1] == {"role": "tool", "tool_call_id": "call_a", "name": "weather", "content": '{"sky": "clear"}'}, sent
    assert sent[-2] == {"role": "assistant", "content": None, "reasoning_content": "A tool knows.", "tool_calls": [
        {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}]}, sent
    browser.run("$('reset').click(), showPanel(false)")


def check_branches(browser, fake):
    """Editing and generating again add branches, and each can be shown again."""
    browser.run("startChat()")
    say(browser, "first")
    browser.key("r", alt=True)
    browser.until("!state.stream && document.querySelectorAll('.branches').length === 1")
    assert browser.run("document.querySelector('.branches').textContent") == "‹2 / 2›"
    say(browser, "second")
    assert [m["content"] for m in fake.bodies[-1]["messages"]] == ["first", "answer 1", "second"]
    click(browser, "before:")
    assert browser.run("pathOf(state.chat).length") == 2
    click(browser, "after:")
    assert answers(browser) == ["answer 1", "answer 2"]
    browser.run("$('input').focus()")
    browser.key("ArrowUp")
    assert browser.run("document.activeElement.value") == "second"
    browser.run("document.activeElement.select()")
    browser.type("changed")
    browser.key("Enter")
    browser.until("!state.stream && !state.editing")
    assert [m["content"] for m in fake.bodies[-1]["messages"]] == ["first", "answer 1", "changed"]
    click(browser, "delete:")
    assert browser.run("pathOf(state.chat).length") == 3
    browser.run("$('toast').querySelector('button').click()")
    assert browser.run("pathOf(state.chat).length") == 4


def check_stop(browser, fake):
    say(browser, "wait", wait=False)
    browser.until("state.stream && state.stream.node.content === 'begun'")
    assert browser.run("$('send').textContent") == "Stop"
    browser.key("Escape")
    browser.until("!state.stream")
    assert fake.aborted.wait(30), "the request was not ended"
    assert "stopped" in browser.run("[...document.querySelectorAll('.stats')].at(-1).textContent")
    click(browser, "continue:")
    browser.until("!state.stream")
    assert fake.bodies[-1]["continue_final_message"] is True and fake.bodies[-1]["messages"][-1] == {"role": "assistant", "content": "begun"}
    assert answers(browser)[-1] == "begun blue"


def check_failures(browser, fake):
    say(browser, "fail")
    assert "no room" in browser.run("document.querySelector('.message .error').textContent")
    say(browser, "break")
    assert answers(browser)[-1] == "so far" and "the device failed" in browser.run("[...document.querySelectorAll('.message .error')].at(-1).textContent")
    assert fake.bodies[-1]["messages"][-1] == {"role": "user", "content": "fail\n\nbreak"}
    count = len(fake.bodies)
    browser.run("state.chat.settings.schema = '{\"type\": '")
    say(browser, "more")
    assert len(fake.bodies) == count and browser.run("document.activeElement.id") == "s-schema"
    assert "not JSON" in browser.run("$('e-schema').textContent")
    browser.run("$('reset').click(), showPanel(false)")


def check_tokens(browser, fake):
    """A token shows its alternatives; another one is chosen by keys, and the answer goes on from it."""
    browser.run("startChat(), showPanel(true), $('s-alternatives').value = '5', $('s-alternatives').onchange()")
    browser.run("$('s-temperature').focus()")
    browser.type("0.5")
    browser.run("$('s-schema').focus()")
    browser.type('{"type": "string"}')
    browser.run("showPanel(false)")
    say(browser, "tokens")
    body = fake.bodies[-1]
    assert (body["logprobs"], body["top_logprobs"], body["temperature"]) == (True, 5, 0.5) and body["include_timing"] is True
    assert body["response_format"] == {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "string"}}}
    click(browser, "tokens:")
    assert browser.run("[...document.querySelectorAll('.token')].map((one) => one.textContent)") == WORDS
    browser.run("document.querySelector('.token').focus()")
    browser.key("ArrowRight")
    browser.key("ArrowRight")
    browser.key("Enter")
    shown = browser.run("[...document.querySelectorAll('.alternative')].map((one) => one.textContent)")
    assert shown == ["·is81.9 %", "·other8.2 %", "↵1.8 %"], shown
    assert "Token 3 of 6; the grammar allowed 3 tokens" in browser.run("$('alternatives').textContent")
    browser.key("Escape")
    assert browser.run("document.activeElement.dataset.token") == "2"
    browser.key("Enter")
    browser.key("ArrowDown")
    browser.key("Enter")
    browser.until("!state.stream && answersMade() === 2".replace("answersMade()", "state.chat.nodes[lastOf(state.chat).parent].children.length"))
    assert fake.bodies[-1]["messages"][-1] == {"role": "assistant", "content": "The sky other"} and "response_format" not in fake.bodies[-1]
    assert answers(browser)[-1] == "The sky other blue"
    click(browser, "timeline:")
    assert browser.run("[...document.querySelectorAll('svg.timeline text')].map((one) => one.textContent).slice(4, 8)") == ["queue", "12.0 ms", "prefill", "85.0 ms"]
    stats = browser.run("document.querySelector('.stats').textContent")
    assert "80 % cached" in stats and "tokens/s" in stats and "to the first token" in stats, stats


def kept(browser):
    return {one["id"]: (one["nodes"], one["settings"]) for one in json.loads(browser.run("JSON.stringify([...state.chats.values()])"))}


def check_history(browser, url):
    """Conversations, branches and settings survive a reload; export and import keep them; files of others are harmless."""
    before = kept(browser)
    count = browser.run("state.chats.size")
    browser.open("about:blank")
    browser.open(url)
    browser.until("typeof state !== 'undefined' && state.model")
    assert kept(browser) == before
    assert browser.run("pathOf(state.chat).length > 0 && document.querySelectorAll('.message').length > 0")
    exported = browser.run("(() => { const made = download; let value; download = (name, text) => { value = text; }; exportChats(); download = made; return value; })()")
    browser.run("for (const id of [...state.chats.keys()]) forget(id)")
    assert browser.run("Object.keys(localStorage).filter((key) => key.startsWith(PREFIX)).length") == 0
    browser.run(f"importChats({json.dumps(exported)})")
    assert browser.run("state.chats.size") == count >= 3
    assert kept(browser) == before
    for bad in ('{"chats": [1, null, {"nodes": {}}]}', "[", '{"nodes": {"root": {"children": ["root", "__proto__", "x"]}, "x": {"role": "system"}}}'):
        browser.run(f"importChats({json.dumps(bad)})")
    loop = {"nodes": {"root": {"children": ["a"]}, "a": {"role": "user", "content": "x", "children": ["b"]}, "b": {"role": "assistant", "content": EVIL, "children": ["a", "root"]}}}
    browser.run(f"importChats({json.dumps(json.dumps(loop))})")
    assert browser.run("[state.chats.size, pathOf(state.chat).length, document.images.length]") == [count + 1, 2, 0]
    odd = {"nodes": {"root": {"children": ["a"]}, "a": {"role": "user", "content": 5, "children": ["b"]}, "b": {
        "role": "assistant", "content": "x", "calls": [1, {"name": {}, "arguments": []}], "tokens": [{"text": "x", "logprob": -1, "bytes": ["a"], "top": [1]}, 3],
        "stats": {"usage": {"completion_tokens": "x", "prompt_tokens_details": 1}, "timing": {"prompts": [{"inter_token": {"worst": {"seconds": 1, "cause": {}}}}]}}}}}
    browser.run(f"importChats({json.dumps(json.dumps(odd))})")
    click(browser, "timeline:")
    click(browser, "tokens:")
    assert browser.run("document.querySelectorAll('.token').length + document.querySelectorAll('svg.timeline').length") == 2
    browser.run("removeChat(state.chat)")
    browser.run("$('search').value = 'CHANGED', $('search').oninput()")
    assert browser.run("[...document.querySelectorAll('#chats .chat')].map((one) => one.textContent)") == ["first"]
    browser.run("$('search').value = '', $('search').oninput()")
    # Bounded: the oldest go first.
    browser.run("for (let i = 0; i < 12; i++) { const one = newChat(); addNode(one, ROOT, { role: 'user', content: 'x'.repeat(3e5) }); store(one); }")
    room = browser.run("[Object.keys(localStorage).reduce((sum, key) => sum + 2 * localStorage.getItem(key).length, 0) <= BYTES_MAX + 4096, state.chats.size]")
    assert room[0] and 5 <= room[1] < 12, room
    browser.run("$('search').focus(), startChat()")


def check_sizes(browser):
    for width, dark in ((1600, True), (400, True), (400, False)):
        browser.resize(width, 860, dark)
        browser.until(f"$('side').hidden === {str(width < 800).lower()}")
        assert browser.run("document.documentElement.scrollWidth <= innerWidth && $('scroller').scrollWidth <= $('scroller').clientWidth"), width
    browser.until("$('side').hidden && getComputedStyle(document.body).backgroundColor === 'rgb(255, 255, 255)'")
    browser.key("h", alt=True)
    assert browser.run("[$('side').hidden, $('center').inert, document.activeElement.id]") == [False, True, "new"]
    browser.key("Escape")
    assert browser.run("[$('side').hidden, $('center').inert]") == [True, False]
    browser.key("s", alt=True)
    assert browser.run("[$('panel').hidden, document.activeElement.id]") == [False, "s-system"]
    browser.key("Escape")
    assert browser.run("$('panel').hidden")
    unnamed = browser.run("[...document.querySelectorAll('button, input:not([hidden]), select, textarea')].filter((one) => "
                          "!one.textContent.trim() && !one.getAttribute('aria-label') && !(one.labels && one.labels.length)).map((one) => one.outerHTML)")
    assert not unnamed, unnamed
    browser.resize(1600, 1000)
    browser.until("!$('side').hidden")


def check_keyboard(browser):
    """From nothing to an answer, its copy and a new conversation without a pointer."""
    browser.run("document.activeElement.blur()")
    browser.key("/")
    assert browser.run("document.activeElement.id") == "input"
    browser.type("hello")
    browser.key("Enter")
    browser.until("!state.stream && document.querySelectorAll('article.assistant').length === 1")
    browser.key("ArrowUp", alt=True)
    assert browser.run("document.activeElement.className") == "message assistant"
    browser.key("Tab")
    assert browser.run("document.activeElement.textContent") == "Copy"
    browser.key("n", alt=True)
    assert browser.run("[document.activeElement.id, pathOf(state.chat).length]") == ["input", 0]
    browser.run("document.activeElement.blur()")
    browser.key("?", shift=True)
    assert browser.run("$('help').open")
    browser.key("Escape")


def check_scripted(page, headers):
    with FakeChat(page, headers, answer) as fake, Browser(1600, 1000) as browser:
        url = f"http://127.0.0.1:{fake.port}/"
        browser.open(url)
        browser.until("typeof state !== 'undefined' && state.model")
        check_markdown(browser)
        check_evil(browser)
        check_tools(browser, fake)
        check_branches(browser, fake)
        check_stop(browser, fake)
        check_failures(browser, fake)
        check_tokens(browser, fake)
        check_history(browser, url)
        check_sizes(browser)
        check_keyboard(browser)
        errors = [one for one in browser.errors if "status of 400" not in str(one) and "status of 404" not in str(one)]
        assert not errors, errors
        foreign = [one for one in browser.requests if not one.startswith((url, "data:", "about:"))]
        assert not foreign, foreign


def check_demo(server):
    """The demo model, with a key: the page asks for it, and what it shows is what the server says."""
    url = f"http://127.0.0.1:{server.port}/"
    with Browser(1200, 900) as browser:
        browser.open(url)
        browser.until("document.querySelector('#login[open]') && document.activeElement.id === 'key'")
        browser.type("a-key/1%")
        browser.key("Enter")
        browser.until("typeof state !== 'undefined' && state.model && !$('login').open")
        browser.run("Object.assign(state.chat.settings, { temperature: 0, alternatives: '3' })")
        say(browser, "What is 12 + 34?")
        assert answers(browser) == ["46"]
        assert browser.run("lastOf(state.chat).tokens.map((one) => one.text)") == ["4", "6"]
        say(browser, "Reverse the word: planet")
        assert answers(browser)[-1] == "tenalp"
        assert "cached" in browser.run("[...document.querySelectorAll('.stats')].at(-1).textContent")
        click(browser, "timeline:")
        # The request's record, from the operator's route: the moments of its tokens.
        browser.until("document.querySelectorAll('svg.timeline rect').length >= 5 + 6")
        browser.run("state.chat.settings = { temperature: 0, schema: '{\"enum\": [\"planet\", \"tenalp\"]}', alternatives: '3' }")
        say(browser, "Reverse the word: planet")
        assert json.loads(answers(browser)[-1]) == "tenalp", answers(browser)
        allowed = browser.run("lastOf(state.chat).tokens.map((one) => one.allowed)")
        assert 1 <= min(allowed) and max(allowed) < 100, allowed  # of 4,096
        browser.run("state.chat.settings = { schema: '{\"type\": \"array\", \"uniqueItems\": true}' }")
        say(browser, "What is 1 + 1?")
        assert "uniqueItems" in browser.run("document.querySelector('.message .error').textContent")
        browser.run("sessionStorage.clear()")
        browser.open("about:blank")
        browser.open(url + "#key=a-key%2F1%25")
        browser.until("typeof state !== 'undefined' && state.model && location.hash === ''")


def main():
    with Server(DEMO, "--max-num-seqs", "2", "--api-key", "a-key/1%") as server:
        assert server.request("GET", "/v1/models")[0] == 401
        page, headers = check_source(server)
        if not CHROMIUM:
            skip("no Chromium on this machine")
        check_demo(server)
    check_scripted(page, headers)
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
