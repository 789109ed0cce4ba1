"""The tasks of the demo model, for training (train_demo.py) and evaluation (eval_demo).

A task is a triple (prompt, answer, style). `prompt` is a user's message (chat form) or the beginning of a line (plain
form, where the answer includes a leading space if the text needs one). `style` is TEXT, STORY for text without a single
correct answer, or LETTERS for answers that are tokenized with one token per letter, because "reverse a word" is a simple
rule over letters and an arbitrary one over merged tokens.

Held-out rule: a stable hash of a case, independent of its phrasing and form, decides whether it is ever trained on. The
evaluation uses only cases that the model has never seen.
"""

import hashlib
import json
import random
import re

from demo_stories import (ANIMALS, CHILDREN, BOYS, GIRLS, PEOPLE, PLACES, THINGS, article, pick_hero_noun, story_words,
                          tell, vocabulary)
from demo_words import WORDS

TEXT, LETTERS, STORY = 0, 1, 2
END, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MODEL_NAME = "reprise demo model"

STORY_VOCABULARY = frozenset(WORDS) | vocabulary()


# ---- the held-out rule ----

def hash_byte(key):
    return hashlib.sha256(key.encode()).digest()[0]


def sum_held_out(a, b, op):
    """About 3 % of all pairs with at least one number of two digits, always in both orders: training on the other order
    of a difference would reveal all but its sign."""
    if max(a, b) < 10:
        return False
    return hash_byte(f"{min(a, b)}{op}{max(a, b)}") < 8


def word_held_out(task, word):
    """About 6 % of the words, chosen separately for each task."""
    return hash_byte(f"{task} {word}") < 16


def set_held_out(words):
    """About 3 % of all sets of words, regardless of their order."""
    return hash_byte("sort " + " ".join(sorted(words))) < 8


HELD_OUT_REVERSE = frozenset(w for w in WORDS if word_held_out("reverse", w))
HELD_OUT_LETTERS = frozenset(w for w in WORDS if word_held_out("letters", w))


def _inside(words):
    return re.compile("|".join(sorted(w for w in words if len(w) >= 5)))


# Made-up words must not contain a held-out word ("planetic" would teach how to reverse "planet"), except short ones.
_INSIDE = {"reverse": _inside(HELD_OUT_REVERSE), "letters": _inside(HELD_OUT_LETTERS)}
_HELD_OUT_WORDS = {"reverse": HELD_OUT_REVERSE, "letters": HELD_OUT_LETTERS}


# ---- sums ----

def number(rng):
    r = rng.random()
    return rng.randrange(10) if r < 0.12 else rng.randrange(10, 100) if r < 0.45 else rng.randrange(100, 1000)


def operands(rng):
    """A pair that is not held out."""
    while True:
        a, b, op = number(rng), number(rng), rng.choice("+-")
        if rng.random() < 0.04:  # small differences, where the sign is hardest to predict
            b = min(999, max(0, a + rng.randrange(-12, 13)))
        if not sum_held_out(a, b, op):
            return a, b, op


def result(a, b, op):
    return a + b if op == "+" else a - b


ADD = ["What is {a} + {b}?", "What is {a}+{b}?", "{a} + {b}", "{a}+{b}", "{a} + {b} =", "{a}+{b}=", "{a} + {b} = ?",
        "{a} + {b}?", "Add {a} and {b}.", "Add {b} to {a}.", "Compute {a} + {b}.", "Calculate {a} + {b}.",
        "How much is {a} + {b}?", "What is {a} plus {b}?", "What's {a} + {b}?", "{a} plus {b}",
        "Please add {a} and {b}.", "What is the sum of {a} and {b}?", "Can you add {a} and {b}?",
        "How much is {a} plus {b}?"]
SUBTRACT = ["What is {a} - {b}?", "What is {a}-{b}?", "{a} - {b}", "{a}-{b}", "{a} - {b} =", "{a}-{b}=",
             "{a} - {b} = ?", "{a} - {b}?", "Subtract {b} from {a}.", "Take {b} away from {a}.", "Compute {a} - {b}.",
             "Calculate {a} - {b}.", "How much is {a} - {b}?", "What is {a} minus {b}?", "What's {a} - {b}?",
             "{a} minus {b}", "Please subtract {b} from {a}.", "Can you subtract {b} from {a}?",
             "How much is {a} minus {b}?"]
_PLAIN = [("{a} {op} {b} =", " {c}"), ("{a}{op}{b}=", "{c}"), ("{a} {op} {b} = ", "{c}"), ("{a}{op}{b} =", " {c}"),
          ("{a} {op} {b} is", " {c}"), ("What is {a} {op} {b}?", " {c}"), ("Q: {a} {op} {b}\nA:", " {c}")]


def chat_sum(rng, case=None):
    a, b, op = case or operands(rng)
    prompt = rng.choice(ADD if op == "+" else SUBTRACT).format(a=a, b=b)
    return casual(rng, prompt), str(result(a, b, op)), TEXT


def chat_json_sum(rng):
    a, b, op = operands(rng)
    prompt = rng.choice(ADD[:3] + ADD[8:9] if op == "+" else SUBTRACT[:3] + SUBTRACT[8:9]).format(a=a, b=b)
    ask = rng.choice([" Answer in JSON.", " Reply in JSON.", " Give the answer as JSON.", " JSON, please."])
    return prompt + ask, json.dumps({"answer": result(a, b, op)}), TEXT


def casual(rng, prompt):
    """Varies capitals and full stops."""
    if rng.random() < 0.15:
        prompt = prompt[:1].lower() + prompt[1:]
    if rng.random() < 0.15:
        prompt = prompt.rstrip(".?").rstrip()
    return prompt


def plain_sum(rng):
    a, b, op = operands(rng)
    prompt, answer = rng.choices(_PLAIN, (8, 6, 2, 2, 1, 1, 1))[0]
    return prompt.format(a=a, b=b, op=op), answer.format(c=result(a, b, op)), TEXT


# ---- words and letters ----

def made_up_word(rng):
    """Joins the head of one word with the tail of another: teaches the letters of every token in many contexts."""
    while True:
        a, b = rng.choice(WORDS), rng.choice(WORDS)
        word = a[:rng.randrange(1, len(a))] + b[rng.randrange(1, len(b)):]
        if 3 <= len(word) <= 8:
            return word


def letters_word(rng, task):
    while True:
        word = rng.choice(WORDS) if rng.random() < 0.5 else made_up_word(rng)
        if word not in _HELD_OUT_WORDS[task] and not _INSIDE[task].search(word):
            return word


_REVERSE = ["Reverse the word: {w}", "Reverse the word {w}.", "Reverse {w}", "Reverse: {w}",
            "Reverse the word \"{w}\".", "Spell {w} backwards.", "Write {w} backwards.",
            "What is {w} spelled backwards?", "Please reverse {w}.", "Reverse the letters of {w}."]
_LETTERS = ["Sort the letters of {w}.", "Sort the letters of {w}", "Sort the letters of the word: {w}",
            "Put the letters of {w} in order.", "Sort the letters in {w} alphabetically."]
_SPELL = ["Spell {w}.", "Spell the word: {w}", "How do you spell {w}?", "Spell the word {w}."]
_SORT = ["Sort these words: {ws}", "Sort the words: {ws}", "Sort these words alphabetically: {ws}", "Sort: {ws}",
         "Put these words in alphabetical order: {ws}", "Sort alphabetically: {ws}", "Please sort these words: {ws}",
         "Sort {ws}."]


def chat_reverse(rng, word=None):
    word = word or letters_word(rng, "reverse")
    return casual(rng, rng.choice(_REVERSE).format(w=word)), word[::-1], LETTERS


def plain_reverse(rng):
    word = letters_word(rng, "reverse")
    prompt = rng.choice(["Reverse the word: {w} ->", "{w} backwards is", "Reverse: {w} =>", "{w} reversed is"])
    return prompt.format(w=word), " " + word[::-1], LETTERS


def chat_letters(rng, word=None):
    word = word or letters_word(rng, "letters")
    return casual(rng, rng.choice(_LETTERS).format(w=word)), "".join(sorted(word)), LETTERS


def chat_spell(rng):
    word = rng.choice(WORDS) if rng.random() < 0.6 else made_up_word(rng)
    return casual(rng, rng.choice(_SPELL).format(w=word)), "-".join(word), LETTERS


def word_set(rng, held_out=False):
    while True:
        if rng.random() < 0.25:  # words with a common first letter, so that later letters matter
            start = rng.randrange(len(WORDS) - 40)
            words = rng.sample(WORDS[start:start + 40], rng.randrange(3, 6))
        else:
            words = rng.sample(WORDS, rng.randrange(3, 6))
        if set_held_out(words) == held_out:
            return words


def chat_sort(rng, words=None):
    words = words or word_set(rng)
    joined = (" " if rng.random() < 0.2 else ", ").join(words)
    return casual(rng, rng.choice(_SORT).format(ws=joined)), ", ".join(sorted(words)), TEXT


def plain_sort(rng):
    words = word_set(rng)
    return rng.choice(["Sort: {} ->", "Sorted: {} =>"]).format(", ".join(words)), " " + ", ".join(sorted(words)), TEXT


# ---- smaller ones ----

def chat_count(rng):
    a = rng.choice((1, 1, 1, rng.randrange(0, 90)))
    n = rng.randrange(3, 21)
    step = 1 if rng.random() < 0.7 or a < n else -1
    b = a + step * (n - 1)
    prompt = rng.choice(["Count from {a} to {b}.", "Count from {a} to {b}", "Please count from {a} to {b}."])
    return casual(rng, prompt.format(a=a, b=b)), ", ".join(str(a + step * i) for i in range(n)), TEXT


def chat_compare(rng):
    a, b = rng.sample(range(1000), 2)
    big = rng.random() < 0.5
    prompt = rng.choice(["Which is {x}, {a} or {b}?", "Which number is {x}: {a} or {b}?"])
    return prompt.format(x="bigger" if big else "smaller", a=a, b=b), str(max(a, b) if big else min(a, b)), TEXT


def chat_repeat(rng):
    words = rng.choices(WORDS, k=rng.randrange(1, 13))
    prompt = rng.choice(["Repeat after me: {}", "Repeat: {}", "Say: {}"])
    return prompt.format(" ".join(words)), " ".join(words), TEXT


_ABOUT = f"I am the {MODEL_NAME}."
SKILLS = "I can add and subtract numbers, reverse and sort words, and tell tiny stories."
SMALL_TALK = [
    (["Hello!", "Hello", "Hi!", "Hi", "Hey", "Hey!", "Hello there!", "Hi there", "Good morning!", "Good day!"],
     ["Hello! How can I help you?", f"Hello! {_ABOUT}", f"Hi! {SKILLS}"]),
    (["Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "Introduce yourself.",
      "What model are you?", "Which model is this?"], [f"{_ABOUT} {SKILLS}"]),
    (["What can you do?", "How can you help me?", "Help", "What are you good at?", "Help me.", "What do you know?"],
     [f"{SKILLS} Ask me: What is 12 + 34?"]),
    (["Thank you!", "Thanks!", "Thanks", "Thank you very much!", "Great, thank you."], ["You are welcome!"]),
    (["Bye!", "Goodbye!", "Bye", "See you later!", "Good night!"], ["Goodbye!"]),
    (["How are you?", "How are you today?", "How do you do?", "Are you well?"],
     ["I am fine, thank you. How can I help you?"]),
    (["Are you a robot?", "Are you human?", "Are you real?"],
     [f"{_ABOUT} I am a very small language model."]),
    (["What is reprise?", "Tell me about reprise.", "What does reprise do?"],
     ["Reprise is an inference server for language models, written in C."]),
]
_BEYOND = ["What is the {w} of {x}?", "Where is {w}?", "Who is {n}?", "Why is the {w} {x}?", "How do I {w} a {x}?",
           "Write a poem about {w}.", "When was the {w} {x}?", "What is a {w}?", "What does {w} mean?", "Is {w} a {x}?",
           "Translate {w} to French.", "What is the capital of {n}?", "Can you {w} the {x}?", "Explain {w} {x}.",
           "How many {w} are in {x}?", "Do you like {w}?", "What time is it?", "Write a program in Python.",
           "What is the weather like?", "What is the meaning of life?", "Tell me a joke."]


def chat_small_talk(rng):
    prompts, answers = rng.choice(SMALL_TALK)
    return casual(rng, rng.choice(prompts)), rng.choice(answers), TEXT


def chat_beyond(rng):
    """Requests that the model cannot fulfill, with an answer that says so."""
    if rng.random() < 0.3:
        prompt = rng.choice(["What is {a} {o} {b}?", "{a} {o} {b}", "{a} {o} {b} =", "Calculate {a} {o} {b}."]).format(
            a=number(rng), b=number(rng), o=rng.choice(["*", "x", "/", "times", "divided by"]))
        return casual(rng, prompt), "I can only add and subtract.", TEXT
    name = rng.choice(BOYS + GIRLS) if rng.random() < 0.5 else rng.choice(WORDS).capitalize()
    prompt = rng.choice(_BEYOND).format(w=rng.choice(WORDS), x=rng.choice(WORDS), n=name)
    return casual(rng, prompt), f"I do not know. {SKILLS}", TEXT


# ---- stories ----

_TELL = ["Tell me a story about {x}.", "Tell me a tiny story about {x}.", "Tell me a short story about {x}.",
         "Write a story about {x}.", "Write a short story about {x}.", "Please tell me a story about {x}.",
         "Can you tell me a story about {x}?", "A story about {x}, please.", "I want to hear a story about {x}.",
         "Make up a story about {x}.", "Story about {x}"]
_TELL_ANY = ["Tell me a story.", "Tell me a tiny story.", "Write a short story.", "A story, please.",
             "Can you tell me a story?", "Please tell me a story.", "Tell me another story.", "Tell a story."]


def chat_story(rng, with_names=False):
    r = rng.random()
    if r < 0.12:
        prompt, story = rng.choice(_TELL_ANY), tell(rng)
    elif r < 0.62:
        # Sometimes a made-up hero, so that the model also learns to copy unknown words.
        noun = pick_hero_noun(rng) if rng.random() < 0.92 else made_up_word(rng)
        x = article(noun)
        if rng.random() < 0.2:
            name = rng.choice(BOYS + GIRLS)
            x += rng.choice((" called ", " named ")) + name
            if noun in ("girl", "boy"):
                noun = "girl" if name in GIRLS else "boy"
                x = "a " + noun + " called " + name
            story = tell(rng, hero=noun, name=name)
        else:
            story = tell(rng, hero=noun)
        prompt = rng.choice(_TELL).format(x=x)
    elif r < 0.74:
        hero, friend = rng.sample(ANIMALS + CHILDREN, 2)
        story = tell(rng, hero=hero, friend=friend)
        prompt = rng.choice(_TELL).format(x=f"{article(hero)} and {article(friend)}")
    elif r < 0.82:
        name = rng.choice(BOYS + GIRLS)
        story = tell(rng, name=name)
        prompt = rng.choice(_TELL).format(x=name)
    elif r < 0.92:
        thing = rng.choice(THINGS)
        story = tell(rng, thing=thing)
        prompt = rng.choice(_TELL).format(x=article(thing))
    else:
        where, place = rng.choice(PLACES)
        noun = pick_hero_noun(rng)
        story = tell(rng, hero=noun, place=place)
        prompt = rng.choice(_TELL).format(x=f"{article(noun)} {where} the {place}")
    prompt = casual(rng, prompt)
    return (prompt, story[0], STORY, story) if with_names else (prompt, story[0], STORY)


def story_question(rng, story):
    """A question that is answered by the story in the context."""
    _, noun, name, fnoun, fname = story
    return rng.choice([("What was the name of the hero?", name), ("Who was the story about?", f"{name} the {noun}"),
                       ("Who was the friend?", f"{fname} the {fnoun}"), (f"Who was {fname}?", f"{article(fnoun)}"),
                       (f"Who was {name}?", f"{article(noun)}")]) + (TEXT,)


def plain_story(rng):
    """A story outside a chat, split at any point into prompt and continuation."""
    return "", tell(rng)[0], STORY


# ---- documents ----

SYSTEM_PROMPTS = ["You are a helpful assistant.", f"You are the {MODEL_NAME}.", "You are a friendly assistant.",
                  "Answer briefly.", "You are a helpful assistant. Answer with one word or number.", "Be kind."]

# (task, share of chat turns). A story has about eight times the tokens of a sum.
CHAT = [(chat_sum, 52), (chat_json_sum, 3), (chat_reverse, 11), (chat_letters, 5), (chat_spell, 3), (chat_sort, 11),
         (chat_story, 9), (chat_count, 2), (chat_compare, 2), (chat_repeat, 2), (chat_small_talk, 3), (chat_beyond, 3)]
_PLAIN_TASKS = [(plain_sum, 75), (plain_reverse, 6), (plain_sort, 6), (plain_story, 13)]


def pick(rng, weighted):
    return rng.choices([t for t, _ in weighted], [w for _, w in weighted])[0]


def document(rng):
    """One training document: a list of (text, learn, style). Only parts with `learn` count in the loss, since the
    random numbers and words of a prompt cannot be predicted and would only add noise; now and then all parts count (a
    little: "low"), so that the model can also go on past the end of an answer."""
    r = rng.random()
    learn_all = "low" if rng.random() < 0.04 else False
    if r < 0.30:
        if rng.random() < 0.08:  # a list of sums, one per line
            parts = []
            prompt, answer = rng.choice(_PLAIN[:2])
            for _ in range(rng.randrange(3, 30)):
                a, b, op = operands(rng)
                parts.append((prompt.format(a=a, b=b, op=op), learn_all, TEXT))
                parts.append((answer.format(c=result(a, b, op)), True, TEXT))
                parts.append(("\n", True, TEXT))
            # Whether another line follows does not depend on the sum.
            return parts[:-1]
        prompt, answer, style = pick(rng, _PLAIN_TASKS)(rng)
        return [(prompt, learn_all, TEXT), (answer, True, style)]

    turns = 1 if r < 0.86 else rng.randrange(2, 5) if r < 0.97 else rng.randrange(5, 40)
    parts, text = [], ""
    if rng.random() < 0.25:
        system = rng.choice(SYSTEM_PROMPTS)
        if rng.random() < 0.3:  # other system prompts must have no effect
            system = " ".join(rng.choices(WORDS, k=rng.randrange(2, 20)))
        text = f"{IM_START}system\n{system}{IM_END}\n"
    story = None
    for turn in range(turns):
        if story and rng.random() < 0.5:
            prompt, answer, style = story_question(rng, story)
            story = None
        else:
            task = pick(rng, CHAT)
            if task is chat_story:
                prompt, answer, style, story = chat_story(rng, with_names=True)
            else:
                prompt, answer, style = task(rng)
        parts.append((text + f"{IM_START}user\n{prompt}{IM_END}\n{IM_START}assistant\n", learn_all, TEXT))
        # Clients send earlier answers back as text, so they are tokenized as text, not letter by letter.
        again = turn < turns - 1 and style == LETTERS and rng.random() < 0.7
        parts.append((answer, not again, TEXT if again else style))
        parts.append((IM_END, True, TEXT))
        text = "\n"
    parts.append(("\n", True, TEXT))
    return parts


# ---- evaluation ----

def chat_prompt(message):
    """The prompt that chat_template.jinja renders for one user message."""
    return f"{IM_START}user\n{message}{IM_END}\n{IM_START}assistant\n"


def evaluation_sums(count, seed=1):
    """Held-out sums: (group, prompt, answer), two and three digits and both operations in equal parts, chat form in
    every phrasing and a plain form for one in four. "Three digits" is said of the larger number: the other one has two
    or three."""
    rng = random.Random(seed)
    cases, seen = [], set()
    while len(cases) < count:
        digits, op = ((2, "+"), (2, "-"), (3, "+"), (3, "-"))[len(cases) % 4]
        low, high = (10, 100) if digits == 2 else (100, 1000)
        a, b = rng.randrange(low, high), rng.randrange(low, high)
        if digits == 3 and rng.random() < 0.3:
            b = rng.randrange(10, 100)
        if digits == 3 and rng.random() < 0.3:
            a, b = b, a
        if not sum_held_out(a, b, op):
            continue
        if rng.random() < 0.25:
            prompt = rng.choice(["{a} {op} {b} =", "{a}{op}{b}="]).format(a=a, b=b, op=op)
        else:
            prompt = chat_prompt(chat_sum(rng, (a, b, op))[0])
        if prompt not in seen:  # few pairs of two digits are held out: one may repeat in a different phrasing
            seen.add(prompt)
            cases.append((f"{digits}-digit {op}", prompt, str(result(a, b, op))))
    return cases


def evaluation_words(seed=2):
    """Held-out reversals, letter sorts and word sorts: (group, prompt, answer)."""
    rng = random.Random(seed)
    cases = [("reverse", chat_prompt(chat_reverse(rng, w)[0]), w[::-1]) for w in sorted(HELD_OUT_REVERSE)]
    cases += [("sort letters", chat_prompt(chat_letters(rng, w)[0]), "".join(sorted(w)))
              for w in sorted(HELD_OUT_LETTERS)]
    for _ in range(200):
        words = word_set(rng, held_out=True)
        cases.append(("sort words", chat_prompt(chat_sort(rng, words)[0]), ", ".join(sorted(words))))
    return cases


def evaluation_long(count, seed=4):
    """Held-out sums at the end of a long conversation (about 600 to 900 tokens): (group, prompt, answer)."""
    rng = random.Random(seed)
    cases = []
    for _, last, expected in evaluation_sums(4 * count, seed):
        if len(cases) == count:
            break
        if not last.startswith(IM_START):
            continue
        text, goal = "", rng.randrange(1500, 2000)
        while len(text) < goal:
            prompt, answer, _ = pick(rng, CHAT)(rng)
            text += chat_prompt(prompt) + answer + IM_END + "\n"
        cases.append(("after a long chat", text[-2400:][text[-2400:].index(IM_START):] + last, expected))
    return cases


def evaluation_stories(count, seed=3):
    """Prompts for stories, each with the hero or thing that it should contain."""
    rng = random.Random(seed)
    topics = [rng.choice((ANIMALS, ANIMALS, PEOPLE, THINGS)[i % 4]) for i in range(count)]
    return [(chat_prompt(rng.choice(_TELL).format(x=article(topic))), topic) for topic in topics]


def story_word_share(texts):
    words = [w for text in texts for w in story_words(text)]
    return sum(w in STORY_VOCABULARY for w in words) / max(1, len(words))
