"""More tools for the demo model: actions, whose result is only whether they are done, and others; and sets of tools."""

import re

import demo_tasks as tasks
from demo_stories import BOYS, GIRLS, THINGS
from demo_tools import (ERRORS, LANGUAGES, Tool, Use, as_result, calculator, city, lookup, pick, say, style,
                        two_numbers,
                        typed, weather)
from demo_words import WORDS

# Actions: "Set the volume to 7." The answer says that it is done.

_OK = ["ok", "OK", "done", "true", "success", '{"status": "ok"}', '{"ok": true}', '{"success": true}', "sent", "saved"]
_SWITCH = ["turn_on", "turn_off", "open", "close", "start", "stop", "play", "pause", "delete", "buy", "order", "clean",
           "paint",
           "lock", "unlock", "book", "cancel", "call", "print", "move", "remove", "repair", "wash", "sell"]


def _done(result):
    return say("", result) if re.search("(?i)error", result) else "Done."


def _ok(rng):
    return rng.choice(_OK) if rng.random() < 0.93 else "error: " + rng.choice(ERRORS)


def _act(rng, name, question, arguments):
    result = _ok(rng)
    return Use(tasks.casual(rng, question), [(name, arguments)], [result], _done(result))


def setter(rng, held_out=False):
    w = pick(rng, "tool", held_out)
    name = style(rng, rng.choice(("set", "set", "change", "update")) + "_" + w)
    key, kind = rng.choice(("value", "level", "to", "amount", w)), rng.choice(("integer", "integer", "string"))
    text = rng.choice(["", f"Sets the {w}.", f"Set the {w}", f"Changes the {w}."])

    def ask(rng, held_out=False):
        value = tasks.number(rng) if kind == "integer" else rng.choice(WORDS)
        question = rng.choice(["Set the {w} to {v}.", "Set {w} to {v}.", "Change the {w} to {v}.",
                               "Put the {w} at {v}.",
                               "Please set the {w} to {v}."]).format(w=w, v=value)
        return _act(rng, name, question, {key: value})
    return Tool(rng, name, text, [(key, typed(kind), True)], ask, (w,))


def switch(rng, held_out=False):
    verb = rng.choice(_SWITCH)
    said = verb.replace("_", " ")
    fixed = pick(rng, "tool", held_out) if rng.random() < 0.2 else None
    key = rng.choice(("device", "name", "item", "object", "what", "thing", "target"))
    name = style(rng, f"{verb}_{fixed}" if fixed else verb)
    text = rng.choice(["", f"{said.capitalize()} something.", f"Use it to {said} a thing.", said.capitalize()])

    def ask(rng, held_out=False):
        x = fixed or (rng.choice(THINGS) if rng.random() < 0.6 else pick(rng, "tool", held_out))
        question = rng.choice(["{v} the {x}.", "Please {v} the {x}.", "Can you {v} the {x}?", "{v} the {x}, please."])
        question = question.format(v=said, x=x)
        return _act(rng, name, question[0].upper() + question[1:], {} if fixed else {key: x})
    return Tool(rng, name, text, [] if fixed else [(key, typed(), True)], ask, said.split() + [said])


def message(rng):
    name = style(rng, rng.choice(["send_message", "send_email", "send_mail", "send", "email", "message",
                                  "text_message"]))
    to, body = rng.choice(["to", "recipient", "person", "name"]), rng.choice(["text", "body", "message", "content"])
    keys = [(to, typed(), True), (body, typed(), True)]
    if rng.random() < 0.3:
        keys.reverse()

    def ask(rng, held_out=False):
        who, what = rng.choice(BOYS + GIRLS), " ".join(rng.choices(WORDS, k=rng.randrange(1, 7)))
        question = rng.choice(["Send {n} the message: {t}", "Send a message to {n}: {t}", "Tell {n}: {t}",
                               "Write to {n}: {t}",
                               "Send \"{t}\" to {n}."]).format(n=who, t=what)
        values = {to: who, body: what}
        return _act(rng, name, question, {k: values[k] for k, _, _ in keys})
    return Tool(rng, name, rng.choice(["", "Sends a message.", "Send a message to somebody",
                                       "Sends text to a person."]), keys, ask,
                ("send", "message", "write", "tell"))


def timer(rng):
    name, unit = style(rng, rng.choice(["set_timer", "timer", "start_timer", "wait"])), rng.choice(["minutes", "seconds"])

    def ask(rng, held_out=False):
        n = rng.randrange(2, 120)
        question = rng.choice(["Set a timer for {n} {u}.", "Set a timer of {n} {u}.", "Timer for {n} {u}",
                               "Start a {n} {u} timer.",
                               "Wait {n} {u}."]).format(n=n, u=unit)
        return _act(rng, name, question, {unit: n})
    return Tool(rng, name, rng.choice(["", "Sets a timer.", "Starts a timer"]), [(unit, typed("integer"), True)], ask,
                ("timer", "wait"))


# Others.

def translate(rng):
    name = style(rng, rng.choice(["translate", "translate_text", "translation"]))
    text, to = rng.choice(["text", "word", "input"]), rng.choice(["language", "to", "target", "target_language"])
    schema = typed(enum=rng.sample(LANGUAGES, rng.randrange(2, 5))) if rng.random() < 0.4 else typed()

    def ask(rng, held_out=False):
        words = " ".join(rng.choices(WORDS, k=rng.choice((1, 1, 2, 3))))
        language = rng.choice(schema.get("enum", LANGUAGES))
        question = rng.choice(["Translate {w} to {l}.", "Translate {w} into {l}.", "What is {w} in {l}?",
                               "How do you say {w} in {l}?",
                               "{w} in {l}, please."]).format(w=words, l=language)
        result = as_result(rng, tasks.made_up_word(rng), ("translation",))
        return Use(tasks.casual(rng, question), [(name, {text: words, to: language})], [result],
                   say(f"{words} in {language}", result))
    return Tool(rng, name, rng.choice(["", "Translates text.", "Translate text to a language"]),
                [(text, typed(), True), (to, schema, True)], ask, ("translate", "french", "say"))


def clock(rng):
    w, questions = rng.choice([("time", ["What time is it?", "What is the time?", "Tell me the time.", "Time?"]),
                               ("date", ["What is the date?", "What date is it today?", "Tell me the date."]),
                               ("number", ["Pick a random number.", "Give me a random number.",
                                           "Random number, please."]),
                               ("dice", ["Roll a dice.", "Roll the dice.", "Throw a dice."])])
    names = {"time": ["get_time", "current_time", "clock", "now"], "date": ["get_date", "today", "current_date"],
             "number": ["random_number", "get_random_number", "random"], "dice": ["roll_dice", "dice", "roll"]}
    name = style(rng, rng.choice(names[w]))
    key = rng.choice(("city", "location", "place")) if w in ("time", "date") and rng.random() < 0.5 else None

    def ask(rng, held_out=False):
        value = (f"{rng.randrange(24)}:{rng.randrange(60):02}" if w == "time" else f"{rng.randrange(1, 29)} May {rng.randrange(1990, 2040)}"
                 if w == "date" else rng.randrange(1, 7) if w == "dice" else tasks.number(rng))
        result = as_result(rng, value, (w,))
        if key:
            c = city(rng, held_out)
            question = rng.choice([f"What {w} is it in {c}?", f"What is the {w} in {c}?", f"Tell me the {w} in {c}.",
                                   f"{w} in {c}?"])
            return Use(tasks.casual(rng, question), [(name, {key: c})], [result], say(f"The {w} in {c}", result))
        return Use(tasks.casual(rng, rng.choice(questions)), [(name, {})], [result], say(f"The {w}", result))
    return Tool(rng, name, rng.choice(["", f"The {w}.", f"Gets the {w}."]), [(key, typed(), True)] if key else [], ask,
                (w, "random", "roll", "throw", "today"))


def many_numbers(rng):
    w, names, op = rng.choice([("sum", ["sum", "add_all", "total", "sum_list"], "+"), ("average", ["average", "mean", "avg"], ""),
                               ("largest", ["max", "maximum", "largest"], ""), ("smallest", ["min", "minimum", "smallest"], "")])
    name, key = rng.choice(names), rng.choice(["numbers", "numbers", "values", "list", "items"])

    def ask(rng, held_out=False):
        values = [tasks.number(rng) for _ in range(rng.randrange(3, 7))]
        joined = ", ".join(map(str, values[:-1])) + f" and {values[-1]}"
        result = as_result(rng, {"sum": sum, "largest": max, "smallest": min,
                                 "average": lambda v: round(sum(v) / len(v), 2)}[w](values))
        question = rng.choice(["What is the {w} of {v}?", "Give me the {w} of {v}.", "{w} of {v}?",
                               "Find the {w} of {v}."])
        return Use(tasks.casual(rng, question.format(w=w, v=joined)), [(name, {key: values})], [result],
                   say(f"The {w} of {joined}", result))
    text = rng.choice(["", f"The {w} of numbers.", f"The {w} of a list."])
    return Tool(rng, name, text, [(key, {"type": "array", "items": {"type": "number"}}, True)], ask,
                (w, "sum"), op)


def search(rng):
    name, key = style(rng, rng.choice(["search", "web_search", "search_web", "google", "find"])), rng.choice(["query", "q", "text", "input"])

    def ask(rng, held_out=False):
        what = " ".join(rng.choices(WORDS, k=rng.randrange(1, 5)))
        question = rng.choice(["Search for {w}.", "Search the web for {w}.", "Search: {w}", "Find something about {w}.",
                               "Look for {w}."])
        result = as_result(rng, " ".join(rng.choices(WORDS, k=rng.randrange(2, 12))), ("results",))
        said = say("", result)
        answer = said if said.startswith("That") else "I found: " + said.removeprefix(" is ")
        return Use(tasks.casual(rng, question.format(w=what)), [(name, {key: what})], [result], answer)
    return Tool(rng, name, rng.choice(["", "Searches the web.", "Search the internet", "Finds pages."]), [(key, typed(), True)], ask,
                ("search", "find", "look"))


_TOOLS = [(weather, 22), (calculator, 20), (two_numbers, 18), (lookup, 24), (setter, 4), (switch, 5), (message, 3),
          (timer, 2),
          (translate, 3), (clock, 4), (many_numbers, 3), (search, 3)]
_MADE, _SHARES = [t for t, _ in _TOOLS], [s for _, s in _TOOLS]


def any_tool(rng):
    return rng.choices(_MADE, _SHARES)[0](rng)


def words_of(text):
    return set(re.findall("[a-z]+", text.lower()))


def _overlap(a, b):
    """Whether a question for one may fit the other."""
    return a.name == b.name or a.about & b.about or set(a.ops) & set(b.ops)


def toolbox(rng, first=None):
    """One to five tools with different purposes."""
    chosen = [first or any_tool(rng)]
    for _ in range(rng.choice((0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 4, rng.randrange(8)))):
        tool = any_tool(rng)
        if not any(_overlap(tool, t) for t in chosen):
            chosen.append(tool)
    rng.shuffle(chosen)
    return chosen
