"""Questions that are answered in JSON, for the training and evaluation of the demo model.

Some ask for JSON in words, with or without the names of the keys. Others do not say a word of it: a server that holds the
answer to a schema (response_format) does not show the schema to the model. Their first token is not trained, so the model
does not begin with a brace by itself, but goes on with what was asked when it has to.
"""

import json
import random

import demo_chats as chats
import demo_tasks as tasks
from demo_stories import ANIMALS, BOYS, GIRLS, PEOPLE, THINGS, article
from demo_tasks import LETTERS, TEXT
from demo_tools import DO_NOT_KNOW, city, made_up_name, pair
from demo_words import WORDS

_PLAIN = [" Answer in JSON.", " Reply in JSON.", " Give the answer as JSON.", " JSON, please.", " Answer as JSON.",
          " Use JSON.",
          " Write the answer in JSON.", " Respond with JSON.", " Answer with a JSON object.", " Return JSON."]
_ONE = [" Answer in JSON with the key {k}.", " Answer in JSON with the key \"{k}\".",
        " Reply in JSON: {{\"{k}\": ...}}",
        " Answer as JSON with the field {k}.", " Give JSON with the key \"{k}\".", " JSON with the key {k}, please.",
        " Answer with a JSON object with the key {k}.", " Respond with JSON, key {k}."]
_MORE = [" Answer in JSON with the keys {k}.", " Reply in JSON with {k}.", " Give {k} as JSON.",
         " Answer as JSON with the fields {k}.",
         " Extract {k} as JSON.", " JSON with the keys {k}, please.", " Return {k} in JSON.", " Write JSON with {k}."]
_SCHEMA = [" Answer in JSON that fits this schema: {s}", " Schema: {s}", " Follow this JSON schema: {s}",
           " Reply with JSON of the schema {s}"]
_KEYS = ["answer", "result", "value", "output", "sum", "total", "number", "x", "n", "word", "text", "response", "reply",
         "solution"]
_FOODS = ["apples", "bread", "cheese", "cake", "soup", "rice", "honey", "plums", "pears", "nuts", "fish", "eggs"]


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


def key(rng):
    r = rng.random()
    return "answer" if r < 0.2 else rng.choice(_KEYS) if r < 0.6 else rng.choice(WORDS) if r < 0.9 else tasks.made_up_word(rng)


def _kind(value):
    return {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}[type(value)]


def schema_of(value):
    return {"type": "object", "properties": {k: {"type": _kind(v)} for k, v in value.items()}, "required": list(value)}


def _and(rng, keys):
    keys = [f'"{k}"' for k in keys] if rng.random() < 0.3 else list(keys)
    return keys[0] if len(keys) == 1 else ", ".join(keys[:-1]) + " and " + keys[-1]


def held_out(value):
    return tasks.hash_byte("json " + json.dumps(sorted(map(str, value.values())))) < 8


# ---- what is asked: (question without a word of JSON, value, default keys?, style) ----

def _one(rng, wanted):
    """A task with one answer."""
    r = rng.random()
    if r < 0.5:
        op = rng.choice("+-")
        a, b = pair(rng, op, wanted)
        return tasks.chat_sum(rng, (a, b, op))[0], tasks.result(a, b, op), TEXT
    if r < 0.62:
        prompt, word, _ = tasks.chat_reverse(rng)
        return prompt, word, LETTERS
    if r < 0.72:
        words = tasks.word_set(rng, wanted)
        return tasks.chat_sort(rng, words)[0], sorted(words), TEXT
    if r < 0.78:
        words = rng.sample(WORDS, rng.randrange(1, 6))
        return rng.choice(["List the words {w}.", "Make a list of {w}.",
                           "Put {w} into a list."]).format(w=", ".join(words)), words, TEXT
    if r < 0.84:
        a, n = rng.choice((1, 1, rng.randrange(90))), rng.randrange(3, 11)
        return f"Count from {a} to {a + n - 1}.", list(range(a, a + n)), TEXT
    a, b = rng.sample(range(1000), 2)
    if r < 0.92:
        big = rng.random() < 0.5
        return rng.choice(["Is {a} {x} than {b}?", "Is the number {a} {x} than {b}?"]).format(a=a, b=b, x=rng.choice(
            ("bigger", "greater", "larger") if big else ("smaller", "less"))), a > b if big else a < b, TEXT
    prompt, answer, _ = tasks.chat_compare(rng)
    return prompt, int(answer), TEXT


def _sums(rng, wanted):
    while True:
        a, b = tasks.number(rng), tasks.number(rng)
        if tasks.sum_held_out(a, b, "+") == tasks.sum_held_out(a, b, "-") == wanted:
            break
    value, r = {"sum": a + b, "difference": a - b}, rng.random()
    if r < 0.2:
        value = dict(reversed(value.items()))
    elif r < 0.3:
        value = {"a": a, "b": b, **value}
    return rng.choice([f"Take the numbers {a} and {b}.", f"The numbers are {a} and {b}.",
                       f"Add and subtract {a} and {b}."]), value, r < 0.3


def _person(rng):
    name = rng.choice(BOYS + GIRLS) if rng.random() < 0.6 else made_up_name(rng)
    age, where = rng.randrange(1, 100), city(rng)
    job, animal, food, color = rng.choice(PEOPLE), rng.choice(ANIMALS), rng.choice(_FOODS), rng.choice(("red", "blue", "green", "black", "white"))
    he = rng.choice((name, "She" if name in GIRLS else "He"))
    facts = [("age", age, rng.choice(["{n} is {v} years old.", "{n} is {v}.", "{n} is {v} years of age."])),
             ("city", where, rng.choice(["{n} lives in {v}.", "{n} is from {v}.", "{n}'s home is {v}."])),
             ("job", job, f"{{n}} is {article(job)}."), ("pet", animal, f"{{n}} has {article(animal)}."),
             ("food", food, "{n} likes {v}."), ("color", color, "{n} has a {v} coat."),
             ("student", rng.random() < 0.5, "")]
    chosen = [facts[0], facts[1]] if rng.random() < 0.4 else rng.sample(facts[:6], rng.randrange(1, 4))
    text, value = "", {"name": name}
    if len(chosen) == 2 and chosen[0][0] == "age" and rng.random() < 0.6:
        text = rng.choice([f"{name} is {age} years old and ", f"{name} is {age} and "])
        rest = chosen[1][2].format(n="", v=chosen[1][1]).strip()
        if not rest.startswith("'"):
            return text + rest, {"name": name, "age": age, chosen[1][0]: chosen[1][1]}
        text = ""
    for k, v, template in chosen:
        text += (" " if text else "") + template.format(n=he if text else name, v=v)
        value[k] = v
    return text, value


def _shopping(rng):
    count, price = rng.randrange(2, 100), rng.randrange(1, 200)
    item, color = rng.choice(THINGS) + "s", rng.choice(("red", "blue", "green", "black", "white", "old", "new", "big"))
    if rng.random() < 0.5:
        return f"{count} {item} cost {price} dollars.", {"item": item, "count": count, "price": price}
    name = rng.choice(BOYS + GIRLS)
    return f"{name} buys {count} {color} {item}.", {"name": name, "count": count, "color": color, "item": item}


def _event(rng):
    people = rng.sample(BOYS + GIRLS, rng.randrange(2, 4))
    what = " ".join(rng.choices(WORDS, k=rng.randrange(1, 3))) if rng.random() < 0.5 else rng.choice(
        ("party", "picnic", "science fair", "concert", "market", "race", "dance", "play"))
    day = rng.choice(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"))
    text = f"{', '.join(people[:-1])} and {people[-1]} are going to {article(what)} on {day}."
    return text, {"name": what, "date": day, "participants": people}


_OTHER = {"date": ["day", "when"], "participants": ["people", "guests", "names"],
          "name": ["person", "who", "first_name"], "age": ["years", "how_old"], "city": ["place", "town", "location", "home"],
          "job": ["work", "profession"], "pet": ["animal"], "food": ["likes"], "color": ["colour"], "item": ["thing", "product"],
          "count": ["number", "amount", "quantity"], "price": ["cost"], "sum": ["total", "plus"],
          "difference": ["minus", "diff"]}


def _record(rng, wanted):
    """Facts, of which some are asked for."""
    r = rng.random()
    while True:
        named = False
        if r < 0.8:
            text, value = _person(rng) if r < 0.55 else _shopping(rng) if r < 0.7 else _event(rng)
            if held_out(value) == wanted:
                break
        else:
            text, value, named = _sums(rng, wanted)
            break
    if rng.random() < 0.3:
        keys = rng.sample(list(value), rng.randrange(1, len(value) + 1))
        value = {k: value[k] for k in keys}
        named = True
    if rng.random() < 0.15:
        value = {rng.choice(_OTHER.get(k, [k])): v for k, v in value.items()}
        named = True
    return text, value, named


def question(rng, wanted=False):
    """(question, value, how JSON is asked for: "", "plain", "keys" or "schema", style)."""
    if rng.random() < 0.5:
        text, value, style = _one(rng, wanted)
        named = rng.random() < 0.6
        value = {key(rng) if named else "answer": value}
    else:
        (text, value, named), style = _record(rng, wanted), TEXT
    r = rng.random()
    how = "" if r < 0.45 else "schema" if r < 0.53 else "keys" if named or r < 0.7 else "plain"
    return text, value, how, style


def ask(rng, text, value, how):
    if not how:
        return text
    if how == "schema":
        schema = schema_of(value)
        if rng.random() < 0.5:
            schema.pop("required")
        asked = rng.choice(_SCHEMA).format(s=dumps(schema))
    elif how == "plain":
        asked = rng.choice(_PLAIN)
    elif len(value) == 1:
        asked = rng.choice(_ONE).format(k=next(iter(value)))
    else:
        asked = rng.choice(_MORE).format(k=_and(rng, value))
    if text[-1] not in ".?":
        text += "."
    if rng.random() < 0.15 and "\n" not in asked:  # first how, then what
        return asked.strip() + ("" if asked[-1] == "." else "\n") + (" " if asked[-1] == "." else "") + text
    return text + asked


def answer_parts(value, how, style):
    """Without a word of JSON in the question, keys count little and the first brace does not. The parts end where the
    tokenizer splits the whole text, too."""
    if how and style != LETTERS:
        return [(dumps(value), True, TEXT)]
    parts = [('{"', bool(how), TEXT)]
    for i, (k, v) in enumerate(value.items()):
        parts.append((k, True if how else "low", TEXT))
        end = '", "' if isinstance(v, str) else ', "'
        if i + 1 == len(value):
            end = '"}' if isinstance(v, str) else "}"
        if style == LETTERS:
            parts += [('": "', True, TEXT), (v, True, LETTERS), (end, True, TEXT)]
        else:
            parts.append(('": ' + dumps(v).removesuffix('"') + end, True, TEXT))
    return parts


def document(rng):
    turns = 1 if rng.random() < 0.8 else rng.randrange(2, 4)
    messages = [dict(role="system", content=chats.system_prompt(rng))] if rng.random() < 0.2 else []
    for turn in range(turns):
        if turn and rng.random() < 0.3:
            prompt, answer, style = tasks.pick(rng, tasks.CHAT[:6])(rng)
            answer = [(answer, True, style)]
        else:
            text, value, how, style = question(rng)
            prompt, answer = ask(rng, text, value, how), answer_parts(value, how, style)
            if not how and "name" in value and rng.random() < 0.3:  # a statement; nobody asks for JSON
                answer = [(DO_NOT_KNOW, True, TEXT)]
        messages += [dict(role="user", content=prompt), dict(role="assistant", answer=answer)]
    return chats.parts_of([], messages)


# ---- evaluation ----

def evaluation_json(count=100, seed=6):
    """Held-out questions: (group, question, value). In the group "JSON by schema" nothing but a schema asks for JSON."""
    rng = random.Random(seed)
    cases, counts = [], {"JSON in words": 0, "JSON by schema": 0}
    while min(counts.values()) < count:
        text, value, how, style = question(rng, True)
        group = "JSON in words" if how else "JSON by schema"
        if style != LETTERS and counts[group] < count:
            counts[group] += 1
            cases.append((group, ask(rng, text, value, how), value))
    return cases
