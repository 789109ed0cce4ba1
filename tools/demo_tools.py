"""Tools for the training and evaluation of the demo model: weather, arithmetic and look-ups.

A Tool has the JSON that a request would contain, and writes questions for itself. Names, descriptions, parameters,
questions and results vary, and many tools are made up of random words, so that the model reads the tools of the request
instead of remembering a few. Numbers, cities and words that are held out appear only in the evaluation.
"""

import json
import re

import demo_tasks as tasks
from demo_stories import BOYS, GIRLS
from demo_words import WORDS

DO_NOT_KNOW = f"I do not know. {tasks.SKILLS}"
ONLY_ADD = "I can only add and subtract."

_CITIES = """Rome Paris London Berlin Madrid Oslo Vienna Lisbon Athens Dublin Prague Warsaw Helsinki Stockholm Copenhagen
Amsterdam Brussels Budapest Zurich Geneva Milan Naples Venice Florence Munich Hamburg Cologne Frankfurt Barcelona Valencia
Seville Porto Lyon Nice Marseille Toulouse Edinburgh Glasgow Manchester Liverpool Leeds Oxford Cambridge Boston Chicago
Houston Dallas Denver Seattle Portland Austin Miami Atlanta Detroit Phoenix Toronto Montreal Vancouver Ottawa Calgary Mexico
Havana Lima Bogota Quito Santiago Brasilia Tokyo Osaka Kyoto Seoul Busan Beijing Shanghai Singapore Bangkok Hanoi Manila
Jakarta Delhi Mumbai Kolkata Karachi Lahore Dhaka Dubai Tehran Baghdad Cairo Tunis Algiers Lagos Accra Nairobi Kampala Dakar
Harare Lusaka Sydney Melbourne Brisbane Perth Adelaide Auckland Wellington Moscow Kiev Riga Tallinn Vilnius Minsk Istanbul
Ankara Izmir Sofia Bucharest Belgrade Zagreb Sarajevo Skopje Tirana Reykjavik Bergen Turin Bologna Genoa Palermo Basel Bern
Salzburg Graz Linz Krakow Gdansk Antwerp Ghent Rotterdam Utrecht Malaga Granada Bilbao Nantes Bordeaux Lille Dresden Leipzig
Bremen Hanover Stuttgart Bonn Aachen Trieste Verona Pisa Siena Parma""".split()
CITIES = _CITIES + ["New York", "San Francisco", "Los Angeles", "Las Vegas", "Buenos Aires", "Hong Kong", "Tel Aviv",
                    "Cape Town", "New Delhi", "San Diego", "Rio de Janeiro", "Kuala Lumpur", "Abu Dhabi", "St. Louis",
                    "S\u00e3o Paulo", "Bogot\u00e1", "Z\u00fcrich", "Malm\u00f6", "Krak\u00f3w", "D\u00fcsseldorf",
                    "K\u00f6ln", "Orl\u00e9ans"]
COUNTRIES = ["France", "Italy", "Spain", "Germany", "Norway", "Sweden", "Japan", "China", "India", "Brazil", "Peru",
             "Kenya",
             "Egypt", "Canada", "Greece", "Turkey", "Poland", "Ireland", "Austria", "Mexico", "Chile", "Cuba", "Iran",
             "UK", "USA"]
LANGUAGES = ["French", "German", "Spanish", "Italian", "Dutch", "Greek", "Latin", "Polish", "Turkish", "Japanese"]


# ---- the held-out rule ----

def name_held_out(kind, name):
    """About 6 % of the cities, and of the words that made-up tools are named after."""
    return tasks.hash_byte(f"{kind} {name}") < 16


_SPLIT = {kind: ([n for n in names if not name_held_out(kind, n)], [n for n in names if name_held_out(kind, n)])
          for kind, names in (("city", CITIES), ("tool", WORDS))}


def pick(rng, kind, held_out):
    return rng.choice(_SPLIT[kind][held_out])


def city(rng, held_out=False):
    if held_out or rng.random() < 0.7:
        name = pick(rng, "city", held_out)
        return f"{name}, {rng.choice(COUNTRIES)}" if rng.random() < 0.05 else name
    # A made-up name, so that the model learns to copy names instead of knowing them.
    name = made_up_name(rng)
    return f"{name} {made_up_name(rng)}" if rng.random() < 0.1 else name


# Letters of several scripts. The tokenizer has only their bytes.
_ACCENTED = ("\u00e0\u00e1\u00e2\u00e3\u00e4\u00e5\u00e6\u00e7\u00e8\u00e9\u00ea\u00eb\u00ec\u00ed\u00ee\u00ef\u00f1\u00f2\u00f3\u00f4"
             "\u00f5\u00f6\u00f8\u00f9\u00fa\u00fb\u00fc\u00fd\u00df\u0101\u0103\u0105\u0107\u010d\u0111\u0113\u0119\u011b\u011f\u012b"
             "\u0131\u0142\u0144\u0148\u0151\u0153\u0159\u015b\u015f\u0161\u0163\u016b\u016f\u0171\u017a\u017c\u017e\u0219\u021b")
_SCRIPTS = [(0x3b1, 0x3ca), (0x430, 0x450), (0x5d0, 0x5eb), (0x627, 0x64b), (0x905, 0x93a), (0x3041, 0x3097), (0x30a1, 0x30fb),
            (0x4e00, 0x9fa6), (0xac00, 0xd7a4)]


def made_up_name(rng):
    name = tasks.made_up_word(rng).capitalize()
    r = rng.random()
    if r < 0.2:
        for _ in range(rng.choice((1, 1, 1, 2))):
            at = rng.randrange(1, len(name))
            name = name[:at] + rng.choice(_ACCENTED) + name[at + rng.randrange(2):]
    elif r < 0.26:
        first, last = rng.choice(_SCRIPTS)
        name = "".join(chr(rng.randrange(first, last)) for _ in range(rng.randrange(2, 7)))
    return name


def pair(rng, op, held_out, large=0.0):
    while True:
        a, b = tasks.number(rng), tasks.number(rng)
        if rng.random() < large and not held_out:  # a tool takes larger numbers than the model
            a, b = rng.randrange(10 ** rng.randrange(3, 7)), rng.randrange(10 ** rng.randrange(1, 7))
        if tasks.sum_held_out(a, b, op) == held_out:
            return a, b


# ---- tools ----

class Tool:
    """`ask(rng, held_out)` returns a Use; `about`: words that a question for this tool may contain, so that a question
    without them does not fit it; `ops`: the operations that it computes; `vague`: questions that lack an argument."""
    __slots__ = ("spec", "name", "ask", "about", "ops", "vague")

    def __init__(self, rng, name, description, parameters, ask, about=(), ops="", vague=()):
        """`parameters`: a list of (key, schema, required)."""
        self.name, self.ask, self.about, self.ops, self.vague = name, ask, frozenset(about), ops, vague
        schema = {"type": "object", "properties": {k: s for k, s, _ in parameters},
                  "required": [k for k, _, r in parameters if r]}
        if not schema["required"] or rng.random() < 0.05:
            del schema["required"]
        function = {"name": name}
        if description:
            function["description"] = description
        if parameters or rng.random() < 0.7:
            function["parameters"] = schema
        self.spec = {"type": "function", "function": function}


class Use:
    """A question, the calls for it as (name, arguments), their results, the answer to the results, and forms of a short
    question that may follow it ("And in {}?")."""
    __slots__ = ("question", "calls", "results", "answer", "more")

    def __init__(self, question, calls, results, answer, more=()):
        self.question, self.calls, self.results, self.answer, self.more = question, calls, results, answer, more


def style(rng, name):
    """get_weather, getWeather or get-weather."""
    r = rng.random()
    if r < 0.85 or "_" not in name:
        return name
    head, *rest = name.split("_")
    return head + "".join(w.capitalize() for w in rest) if r < 0.95 else name.replace("_", "-")


def typed(kind="string", **more):
    return {"type": kind, **more}


def _described(rng, schema):
    """Descriptions of parameters, which the template leaves out."""
    if rng.random() < 0.3:
        schema["description"] = " ".join(rng.choices(WORDS, k=3))
    return schema


_KEYS = ["value", "result", "answer", "output", "data", "text"]


def say(subject, result):
    """The answer that reports a result: the only place that knows how."""
    error = re.match(r"(?i)error: (.*)", result)
    try:
        value = json.loads(result)
    except ValueError:
        value = result
    if isinstance(value, dict):
        value = {k: json.dumps(v) if isinstance(v, bool) else v for k, v in value.items()}
        if "error" in value:
            return f"That did not work: {value['error']}."
        if len(value) > 1:
            return subject + ": " + ", ".join(f"{k} {v}" for k, v in value.items()) + "."
        result = str(next(iter(value.values())))
    if error:
        return f"That did not work: {error.group(1)}."
    return f"{subject} is {result}."


ERRORS = ["not found", "unknown city", "no such item", "timeout", "not allowed", "try again later", "no data",
           "bad input", "service down", "unknown name", "too many requests", "no connection"]


def as_result(rng, plain, keys=()):
    """A result as text or JSON, sometimes an error."""
    r = rng.random()
    if r < 0.04:
        error = rng.choice(ERRORS) if rng.random() < 0.7 else " ".join(rng.choices(WORDS, k=rng.randrange(1, 4)))
        return json.dumps({"error": error}) if rng.random() < 0.5 else rng.choice(("error: ", "Error: ")) + error
    if r < 0.25:
        return json.dumps({rng.choice(list(keys) + _KEYS): plain})
    return str(plain)


# Weather.

_SKY = ["sunny", "cloudy", "rain", "snow", "windy", "foggy", "storm", "clear", "hot", "cold", "warm", "mild",
        "light rain",
        "heavy rain", "thunder", "hail", "partly cloudy", "overcast", "dry", "wet"]
_WEATHER_NAMES = ["get_weather", "get_weather", "weather", "current_weather", "get_current_weather", "check_weather",
                  "fetch_weather", "weather_lookup", "weather_report", "get_forecast", "forecast", "read_weather"]
_WEATHER_TEXTS = ["", "", "The weather in a city.", "The weather of a city.", "Gets the weather of a city.",
                  "Weather in a place",
                  "Returns the current weather.", "Get the current weather in a given location",
                  "Get current weather for a city", "Tells the weather.", "Current weather", "Look up the weather.",
                  "Get current temperature for a given location.", "Get the weather for a city.", "Get weather"]
_WEATHER = ["What is the weather in {c}?", "What is the weather in {c}?", "How is the weather in {c}?",
            "Weather in {c}?",
            "What's the weather in {c}?", "What is the weather like in {c}?", "What's the weather like in {c}?",
            "Tell me the weather in {c}.", "How is the weather in {c} today?", "Is it warm in {c}?",
            "Is it raining in {c}?", "Do I need an umbrella in {c}?", "Please check the weather in {c}.",
            "What is the weather in {c} today?", "What is the weather like in {c} today?",
            "What's the weather like today in {c}?",
            "How will the weather be in {c} tomorrow?", "I am in {c}. How is the weather?", "How warm is it in {c}?",
            "weather {c}", "Show me the weather in {c}."]


_VAGUE = ["What is the weather like?", "How is the weather?", "What is the weather?", "Weather?", "Is it raining?",
          "Is it warm?",
          "Tell me the weather.", "How is the weather today?", "Do I need an umbrella?", "What's the weather?"]
WHICH_CITY = "Which city?"


def _weather_result(rng):
    sky = rng.choice(_SKY) if rng.random() < 0.9 else rng.choice(WORDS)
    degrees = rng.randrange(-20, 42)
    r = rng.random()
    if r < 0.25:
        return as_result(rng, sky, ("weather", "condition"))
    if r < 0.65:
        return as_result(rng, rng.choice(["{s}, {t} degrees", "{t} degrees and {s}", "{s}, {t} C", "{t} C, {s}",
                                          "{t} degrees",
                                      "{s} and {t} degrees"]).format(s=sky, t=degrees))
    fields = [(rng.choice(["temperature", "temp", "degrees", "celsius"]), degrees),
              (rng.choice(["condition", "weather", "sky", "text"]), sky)]
    if rng.random() < 0.3:
        fields.append((rng.choice(["wind", "humidity", "rain", "wind_speed", "feels_like", "pressure"]),
                       rng.randrange(100)))
    rng.shuffle(fields)
    return json.dumps(dict(fields))


def weather(rng):
    name, key = style(rng, rng.choice(_WEATHER_NAMES)), rng.choice(["city", "city", "location", "place", "town"])
    parameters = [(key, _described(rng, typed()), True)]
    extra = rng.choice((None, None, None, "unit", "days"))
    unit_key, units = rng.choice(["unit", "units", "scale"]), rng.choice((["celsius", "fahrenheit"], ["C", "F"], ["metric", "imperial"]))
    if extra == "unit":
        parameters.append((unit_key, typed(enum=units), False))
    elif extra == "days":
        parameters.append(("days", typed("integer"), False))

    def ask(rng, held_out=False, form=None):
        c = city(rng, held_out)
        question, arguments = (form or rng.choice(_WEATHER)).format(c=c), {key: c}
        if not form and rng.random() < 0.12:  # two cities, two calls
            d = city(rng, held_out)
            question = rng.choice(_WEATHER[:9]).format(c=f"{c} and {d}")
            results = [_weather_result(rng) for _ in range(2)]
            answer = " ".join(say(f"The weather in {x}", r) for x, r in zip((c, d), results))
            return Use(tasks.casual(rng, question), [(name, {key: x}) for x in (c, d)], results, answer)
        end = question[-1] if question[-1] in ".?" else ""
        if form:
            pass
        elif extra == "unit" and rng.random() < 0.5:
            unit = rng.choice(units)
            question = question.rstrip(".?") + f" in {unit}{end}"
            arguments[unit_key] = unit
        elif extra == "days" and rng.random() < 0.5:
            days = rng.randrange(2, 15)
            question = question.rstrip(".?") + f" for {days} days{end}"
            arguments["days"] = days
        result = _weather_result(rng)
        return Use(tasks.casual(rng, question), [(name, arguments)], [result], say(f"The weather in {c}", result),
                   ["And in {c}?", "And {c}?", "What about {c}?", "How about {c}?", "and in {c}", "Now {c}."])
    return Tool(rng, name, rng.choice(_WEATHER_TEXTS), parameters, ask,
                ("weather", "warm", "cold", "raining", "umbrella", "rain"), vague=_VAGUE)


# Arithmetic.

_CALCULATOR_NAMES = ["calculator", "calculator", "calculate", "calc", "evaluate", "compute", "math", "eval_expression",
                     "solve",
                     "do_math", "evaluate_expression", "arithmetic"]
_CALCULATOR_TEXTS = ["", "", "Evaluates an expression.", "Calculates.", "Evaluates an arithmetic expression.",
                     "A calculator.",
                     "Compute the value of an expression", "Does arithmetic.", "Calculates a formula.",
                     "Evaluate a mathematical expression"]
_ASK = ["What is {e}?", "What is {e}?", "Calculate {e}.", "{e}", "{e} =", "{e}=", "{e} = ?", "Compute {e}.",
        "How much is {e}?",
        "What's {e}?", "Please calculate {e}.", "Can you compute {e}?", "Use the calculator: {e}", "Evaluate {e}."]
_WORDS_OF = {"+": ("plus",), "-": ("minus",), "*": ("times", "multiplied by"), "/": ("divided by",)}


def _value(expression):
    """Of digits, operators and parentheses that were written here."""
    value = eval(expression)
    return int(value) if value == int(value) else round(value, 2)


def _result(rng, expression):
    """Sometimes a wrong one, since the answer must say what the tool says."""
    return _value(expression) if rng.random() < 0.8 else tasks.number(rng)


def _expression(rng, held_out):
    """(as asked, as an argument)."""
    if not held_out and rng.random() < 0.1:
        a, b = tasks.number(rng), tasks.number(rng) % 20
        text = rng.choice([f"sqrt({a})", f"{a} ** {b}", f"{a}^{b}", f"{a} % {b or 1}", f"{a}.{b} * {b}", f"{a} * {b}.5",
                           f"sin({a})",
                           f"{a}.5 + {b}.25", f"({a} + {b}) / 2", f"-{a} * {b}", f"{a} // {b or 1}"])
        return text, text
    op = rng.choice("++-***/")
    a, b = pair(rng, op, held_out, 0.15)
    b = b or 1 if op == "/" else b
    if rng.random() < 0.2:
        return f"{a} {rng.choice(_WORDS_OF[op])} {b}", f"{a} {op} {b}"
    space = " " if rng.random() < 0.75 else ""
    r = rng.random()
    text = f"{a}{space}{op}{space}{b}"
    if r < 0.25:
        more = f"{space}{rng.choice('+-*')}{space}{tasks.number(rng)}"
        text = f"({text}){more}" if rng.random() < 0.5 else text + more
    return text, text


def calculator(rng):
    name = style(rng, rng.choice(_CALCULATOR_NAMES))
    key = rng.choice(["expression", "expression", "expression", "expr", "formula", "input", "query", "equation"])

    def ask(rng, held_out=False, form=None):
        asked, e = _expression(rng, held_out)
        result = as_result(rng, _result(rng, e) if re.fullmatch(r"\(?\d+ ?[-+*/] ?\d+\)?( ?[-+*] ?\d+)?",
                                                                e) else tasks.number(rng))
        return Use(tasks.casual(rng, (form or rng.choice(_ASK)).format(e=asked)), [(name, {key: e})], [result],
                   _equals(e, result),
                   ["And {e}?", "What about {e}?", "Now {e}.", "And what is {e}?"])
    return Tool(rng, name, rng.choice(_CALCULATOR_TEXTS), [(key, _described(rng, typed()), True)], ask, (), "+-*/")


def _equals(e, result):
    said = say(e, result)
    return said.replace(f"{e} is ", f"{e} = ", 1)


_TWO = {"+": (["add", "add", "add_numbers", "sum", "plus", "add_two_numbers", "addition"],
              ["", "", "Adds two numbers.", "Add two numbers", "The sum of a and b.", "Returns the sum.", "Adds."]),
        "-": (["subtract", "subtract_numbers", "minus", "difference"],
              ["", "", "Subtracts two numbers.", "Subtract two numbers", "The difference of two numbers.",
               "Subtracts."]),
        "*": (["multiply", "multiply", "times", "product", "mul", "multiply_numbers"],
              ["", "", "Multiplies two numbers.", "Multiply two numbers", "The product of two numbers.",
               "Multiplies."]),
        "/": (["divide", "div", "quotient", "divide_numbers"],
              ["", "", "Divides two numbers.", "Divide two numbers", "The quotient of two numbers.", "Divides."])}
_TWO_ASK = {"+": [t for t in tasks.ADD if t != "Add {b} to {a}."],
            "-": tasks.SUBTRACT,
            "*": ["What is {a} * {b}?", "{a} * {b}", "{a}*{b}", "{a} * {b} =", "What is {a} times {b}?",
                  "Multiply {a} by {b}.",
                  "Multiply {a} and {b}.", "Compute {a} * {b}.", "How much is {a} times {b}?",
                  "What is the product of {a} and {b}?"],
            "/": ["What is {a} / {b}?", "{a} / {b}", "{a}/{b}", "What is {a} divided by {b}?", "Divide {a} by {b}.",
                  "Compute {a} / {b}.", "How much is {a} divided by {b}?"]}
_PAIRS = [("a", "b"), ("a", "b"), ("a", "b"), ("x", "y"), ("first", "second"), ("left", "right"), ("n", "m"),
          ("number1", "number2"),
          ("num1", "num2"), ("p", "q")]


def two_numbers(rng, op=None):
    op = op or rng.choice("+++-**/")
    names, texts = _TWO[op]
    name, (x, y) = style(rng, rng.choice(names)), rng.choice(_PAIRS)
    kind = rng.choice(("integer", "number", "number"))

    def ask(rng, held_out=False):
        a, b = pair(rng, op, held_out, 0.15)
        b = b or 1 if op == "/" else b
        e = f"{a} {op} {b}"
        result = as_result(rng, _result(rng, e), ("sum",) if op == "+" else ())
        question = tasks.casual(rng, rng.choice(_TWO_ASK[op]).format(a=a, b=b))
        return Use(question, [(name, {x: a, y: b})], [result], _equals(e, result))
    return Tool(rng, name, rng.choice(texts), [(x, typed(kind), True), (y, typed(kind), True)], ask, (), op)


# Look-ups: "What is the price of the lamp?"

_ATTRIBUTES = ["price", "population", "capital", "height", "age", "color", "phone", "address", "email", "stock",
               "status",
               "distance", "rate", "currency", "language", "president", "size", "weight", "temperature", "score",
               "balance",
               "owner", "title", "year", "length", "speed", "value", "time", "date", "rank", "salary", "type",
               "version"]
_ATTRIBUTES = [w for w in _ATTRIBUTES if not name_held_out("tool", w)]
_FIELDS = _ATTRIBUTES + WORDS[::20] + ["local_time", "unit_price", "in_stock", "home_town", "wind_speed", "feels_like",
                                       "last_name",
                                       "zip_code", "user_id", "created_at", "is_open"]
_VERBS = ["get", "get", "get", "get", "find", "lookup", "fetch", "read", "check", "show", "query"]
_LOOKUP = ["What is the {w} of {x}?", "What is the {w} of {x}?", "What is the {w} of {x}?", "Tell me the {w} of {x}.",
           "Give me the {w} of {x}.", "I need the {w} of {x}.", "{w} of {x}?", "Find the {w} of {x}.",
           "Look up the {w} of {x}.",
           "Show me the {w} of {x}.", "What's the {w} of {x}?", "Do you know the {w} of {x}?", "Check the {w} of {x}."]
_NO_NAME = ["lookup", "query", "tool", "run", "call", "fetch", "function", "api", "service", "get_data", "get_info"]


def _thing(rng, held_out, kind):
    """(as asked, as an argument)."""
    r = rng.random() if kind == "string" else 0.7
    if r < 0.2:
        c = city(rng, held_out) if rng.random() < 0.7 else rng.choice(COUNTRIES)
        return c, c
    if r < 0.4:
        name = rng.choice(BOYS + GIRLS)
        return name, name
    if r < 0.65:
        w = rng.choice(WORDS) if r < 0.55 else tasks.made_up_word(rng)
        return (f"the {w}" if rng.random() < 0.5 else w), w
    if r < 0.8:
        n = tasks.number(rng)
        return f"{rng.choice(('item', 'number', 'order', 'user', 'room', 'page', 'product'))} {n}", n
    name = made_up_name(rng)
    if r < 0.9:
        return name, name
    code = "".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=rng.randrange(1, 5))) + str(tasks.number(rng) if r < 0.95 else "")
    return code, code


def _anything(rng):
    r = rng.random()
    if r < 0.4:
        return tasks.number(rng) if r < 0.3 else round(rng.random() * 100, rng.randrange(1, 3))
    if r < 0.5:
        return f"{tasks.number(rng)} {rng.choice(WORDS)}"
    if r < 0.6:
        return f"{rng.randrange(24)}:{rng.randrange(60):02}"
    if r < 0.7:
        return pick(rng, "city", False)
    if r < 0.75:
        return rng.choice(BOYS + GIRLS)
    return " ".join(rng.choices(WORDS, k=rng.choice((1, 1, 1, 2, 3, 5, 9))))


def lookup(rng, held_out=False):
    w = rng.choice(_ATTRIBUTES) if not held_out and rng.random() < 0.3 else pick(rng, "tool", held_out)
    if rng.random() < 0.15:
        w = f"{pick(rng, 'tool', held_out)} {w}"
    snake = w.replace(" ", "_")
    text = rng.choice(["", "", "The {w}.", "Gets the {w}.", "Get the {w} of something", "Returns the {w}.",
                       "Find the {w}",
                       "Look up the {w} of an item.", "The {w} of a thing."]).format(w=w)
    r = rng.random()
    name = style(rng, rng.choice(_VERBS) + "_" + snake if r < 0.65 else snake if r < 0.8 else snake + rng.choice(("_of", "_info", "_lookup")))
    if rng.random() < 0.12:  # only the description says what it does
        name = rng.choice(_NO_NAME) + rng.choice(("", "", "_1", "_2", "_a", "_b"))
        text = text or f"The {w}."
    key = rng.choice(["name", "item", "thing", "object", "query", "key", "id", "symbol", "of", "subject", "country",
                      "city", "product"])
    kind = "integer" if rng.random() < 0.12 else "string"

    def ask(rng, held_out=False, form=None):
        asked, x = _thing(rng, held_out, kind)
        template = form or rng.choice(_LOOKUP)
        of = "in" if not form and x == asked and x in CITIES and rng.random() < 0.5 else "of"
        if not form and rng.random() < 0.06:
            other, y = _thing(rng, held_out, kind)
            things = [(asked, x), (other, y)]
            asked = f"{asked} and {other}"
        else:
            things = [(asked, x)]
        values = [_anything(rng) if rng.random() < 0.8 else None for _ in things]
        results = [as_result(rng, v, (w,)) if v is not None else
                   json.dumps({k: rng.choice((rng.choice(WORDS), tasks.number(rng), bool(rng.randrange(2))))
                               for k in rng.sample(_FIELDS, rng.randrange(2, 5))}) for v in values]
        answer = " ".join(say(f"The {w} {of} {a}", r) for (a, _), r in zip(things, results))
        calls = [(name, {key: value if kind == "integer" else str(value)}) for _, value in things]
        question = template.format(w=w, x=asked) if of == "of" else template.replace(" of ", " in ").format(w=w, x=asked)
        return Use(tasks.casual(rng, question), calls, results, answer, ["And of {x}?", "And {x}?", "What about {x}?", "Now {x}."])
    return Tool(rng, name, text, [(key, _described(rng, typed(kind)), True)], ask, w.split())
