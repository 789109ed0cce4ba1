"""Chats with tools, for the training and evaluation of the demo model."""

import json
import random

import demo_tasks as tasks
from demo_tasks import IM_END, IM_START, LETTERS, TEXT
from demo_tools import DO_NOT_KNOW, ONLY_ADD, WHICH_CITY, Use, calculator, lookup, pair, two_numbers, weather
from demo_tools_other import any_tool, toolbox, words_of
from demo_words import WORDS


# ---- what the model writes ----

def calls_text(calls):
    return "\n".join('<tool_call>\n{"name": ' + json.dumps(name) + ', "arguments": '
                     + json.dumps(arguments, ensure_ascii=False) + "}\n</tool_call>" for name, arguments in calls)


def tools_text(specs):
    """What chat_template.jinja writes for the tools."""
    lines = [f"{IM_START}tools"]
    for spec in specs:
        function = spec["function"]
        parameters = function.get("parameters") or {}
        keys = []
        for key, schema in (parameters.get("properties") or {}).items():
            kind = "|".join(schema["enum"]) if "enum" in schema else schema.get("type", "any")
            keys.append(f"{key}{'' if key in parameters.get('required', ()) else '?'}: {kind}")
        description = function.get("description")
        lines.append(f"{function['name']}({', '.join(keys)})" + (f": {description}" if description else ""))
    return "\n".join(lines) + IM_END + "\n"


# ---- questions that need no call ----

_DIRECT = [(tasks.chat_sum, 30), (tasks.chat_reverse, 14), (tasks.chat_sort, 10), (tasks.chat_letters, 4),
           (tasks.chat_spell, 5),
           (tasks.chat_count, 4), (tasks.chat_compare, 4), (tasks.chat_repeat, 4), (tasks.chat_small_talk, 12),
           (tasks.chat_beyond, 6), (tasks.chat_story, 1)]


def _fits(tools, prompt):
    words = words_of(prompt)
    return any(words & t.about for t in tools)


def direct(rng, tools):
    """A task for which no tool fits: (prompt, answer, style)."""
    ops = set("".join(t.ops for t in tools))
    for _ in range(20):
        if rng.random() < 0.2:  # a question for a tool that is not there
            prompt, answer, style = missing(rng)
            if answer == ONLY_ADD and ops:
                continue
        else:
            task = tasks.pick(rng, _DIRECT)
            if task is tasks.chat_sum:
                left = [op for op in "+-" if op not in ops]
                if not left:
                    continue
                op = rng.choice(left)
                prompt, answer, style = tasks.chat_sum(rng, (*pair(rng, op, False), op))
            else:
                prompt, answer, style = task(rng)
                if answer == ONLY_ADD and ops:
                    continue
        if not _fits(tools, prompt):
            return prompt, answer, style
    return tasks.chat_spell(rng)


def missing(rng):
    """A question for a tool, without the tool."""
    while True:
        tool = any_tool(rng)
        if tool.ops == "*" or tool.ops == "/":
            return tool.ask(rng).question, ONLY_ADD, TEXT
        if not tool.ops and "largest" not in tool.about and "smallest" not in tool.about:
            return tool.ask(rng).question, DO_NOT_KNOW, TEXT


# ---- documents ----

_SYSTEM = ["Use the tools.", "You have tools.", "Call a tool if one fits.", "You are a helpful assistant with tools.",
           "You can call tools. Answer directly if none fits.",
           "You are a helpful assistant. Use the tools when needed."]


def system_prompt(rng):
    if rng.random() < 0.7:
        return rng.choice(tasks.SYSTEM_PROMPTS + _SYSTEM)
    return " ".join(rng.choices(WORDS, k=rng.randrange(2, 20)))


def _both(a, b):
    """Two questions in one."""
    question = a.question.rstrip("?.= ") + " and " + b.question[:1].lower() + b.question[1:]
    return Use(question, a.calls + b.calls, a.results + b.results, f"{a.answer} {b.answer}")


def chat(rng):
    """(specs, messages): an assistant's message has `answer`, a list of (text, learn, style), and `calls`."""
    if rng.random() < 0.06:  # without tools
        tools = []
    else:
        tools = toolbox(rng)
    messages = [dict(role="system", content=system_prompt(rng))] if rng.random() < 0.25 else []
    turns = rng.choices((1, 2, 3, 4, 6), (60, 22, 10, 5, 3))[0]
    use = used = None
    for turn in range(turns):
        if not tools:
            prompt, answer, style = missing(rng)
        elif rng.random() < 0.3:
            prompt, answer, style = direct(rng, tools)
        else:
            if use and use.more and rng.random() < 0.3:  # the tool of the turn before, asked in a few words
                use = used.ask(rng, form=rng.choice(use.more))
            else:
                used, form = rng.choice(tools), None
                if used.vague and rng.random() < 0.06:
                    messages.append(dict(role="user", content=tasks.casual(rng, rng.choice(used.vague))))
                    messages.append(dict(role="assistant", answer=[(WHICH_CITY, True, TEXT)]))
                    form = rng.choice(["In {c}.", "{c}", "{c}.", "In {c}, please.", "I mean {c}."])
                use = used.ask(rng, form=form) if form else used.ask(rng)
                if len(tools) > 1 and not form and len(use.calls) == 1 and rng.random() < 0.06:
                    use = _both(use, rng.choice([t for t in tools if t is not used]).ask(rng))
            messages.append(dict(role="user", content=use.question))
            # Several calls at once, or now and then one after another, as a client may require.
            steps = [(use.calls, use.results)] if rng.random() < 0.8 else [([c], [r]) for c, r in zip(use.calls, use.results)]
            for calls, results in steps:
                messages.append(dict(role="assistant", calls=calls, answer=[(calls_text(calls), True, TEXT)]))
                messages += [dict(role="tool", content=r) for r in results]
            messages.append(dict(role="assistant", answer=[(use.answer, True, TEXT)]))
            continue
        use = None
        messages.append(dict(role="user", content=prompt))
        again = turn < turns - 1 and style == LETTERS and rng.random() < 0.7
        messages.append(dict(role="assistant", answer=[(answer, not again, TEXT if again else style)]))
    return [t.spec for t in tools], messages


def parts_of(specs, messages, learn_all=False):
    """A document as in demo_tasks.document."""
    text, parts = tools_text(specs) if specs else "", []
    for m in messages:
        text += f"{IM_START}{m['role']}\n"
        if m["role"] == "assistant":
            parts.append((text, learn_all, TEXT))
            parts += m["answer"]
            parts.append((IM_END, True, TEXT))
            text = "\n"
        else:
            text += m["content"] + IM_END + "\n"
    parts.append((text, True, TEXT))
    return parts


def document(rng):
    return parts_of(*chat(rng), "low" if rng.random() < 0.03 else False)


# ---- evaluation ----

def _case(group, specs, messages, **expected):
    if not messages[0]["content"].isascii():
        group = "names outside ASCII"
    return dict(group=group, tools=specs, messages=messages, **expected)


def evaluation_tools(seed=5):
    """Chats with tools, as dicts: `group`, `tools`, `messages`, and the expected `calls` or `answer`. Cities, numbers of
    sums and the words that tools are named after are held out."""
    rng = random.Random(seed)
    cases = []
    makers = [("call: weather", weather, 60), ("call: calculator", calculator, 50), ("call: two numbers", two_numbers, 50),
              ("call: unseen tools", lambda rng: lookup(rng, True), 40)]
    for group, make, count in makers:
        for _ in range(count):
            tool = make(rng)
            use = tool.ask(rng, True)
            specs = [t.spec for t in toolbox(rng, tool)]
            messages = [dict(role="user", content=use.question)]
            cases.append(_case(group, specs, messages, calls=use.calls))
            if len(cases) % 2 == 0:
                cases_messages = messages + [dict(role="assistant", calls=use.calls)]
                cases_messages += [dict(role="tool", content=r) for r in use.results]
                cases.append(_case("answer from a result", specs, cases_messages, answer=use.answer))
    while sum(c["group"] == "no call" for c in cases) < 100:
        tools = toolbox(rng)
        prompt, answer, _ = direct(rng, tools)
        if not any(answer in answers for _, answers in tasks.SMALL_TALK) and not prompt.lower().count("story"):
            cases.append(_case("no call", [t.spec for t in tools], [dict(role="user", content=prompt)], answer=answer))
    return cases


def prompt_text(case):
    """The prompt that chat_template.jinja renders for a case."""
    text = tools_text(case["tools"]) if case["tools"] else ""
    for m in case["messages"]:
        text += f"{IM_START}{m['role']}\n" + (calls_text(m["calls"]) if m.get("calls") else m["content"]) + IM_END + "\n"
    return text + f"{IM_START}assistant\n"


def template_messages(messages):
    """Messages as an OpenAI request has them."""
    out, ids = [], []
    for m in messages:
        content = m.get("content", "".join(t for t, _, _ in m.get("answer", ())))
        if m.get("calls"):
            ids = [f"call_{len(out)}_{i}" for i in range(len(m["calls"]))]
            out.append(dict(role="assistant", content=None, tool_calls=[
                dict(id=i, type="function", function=dict(name=name, arguments=json.dumps(arguments, ensure_ascii=False)))
                for i, (name, arguments) in zip(ids, m["calls"])]))
            continue
        out.append(dict(role=m["role"], content=content))
        if m["role"] == "tool":
            out[-1]["tool_call_id"] = ids.pop(0)
    return out
