"""Generates tiny stories for the demo model from a small grammar.

A template is a string in which `[a|b|c]` picks one of its alternatives and `{slot}` is filled from the cast of the
story. A plot is a list of steps, a step a list of alternative templates. tell() casts a hero, a friend, a thing and a
place, and strings together an opening, a plot and an ending: about 60 to 200 tokens.
"""

import random
import re

from demo_words import ANIMAL_WORDS, FOOD_WORDS, NATURE_WORDS, PEOPLE_WORDS, PLACE_WORDS, THING_WORDS

# Heroes have names from the first half of each list, friends from the second: a small model does not learn that two
# characters must have different names, but it does learn these two sets.
GIRLS = """Mia Lily Anna Nora Ella Ruby Rosa Ivy Lucy Zoe Emma Clara Maya Sara Tina Daisy Molly Penny Nina Luna Bella
Alice Hazel Olive Willow Poppy""".split()
BOYS = """Tom Ben Max Leo Sam Finn Jack Oscar Hugo Milo Theo Noah Tim Dan Felix Otto Rex Toby Charlie Gus Archie Louis
Jasper Rufus Barney Albert""".split()
HALF = 13

ANIMALS = """cat dog fox bear rabbit mouse owl frog duck pig horse lion tiger elephant monkey squirrel hedgehog turtle
penguin goat sheep cow wolf deer otter beaver mole badger raccoon panda koala kitten puppy pony parrot crow hen rooster
goose swan donkey camel giraffe zebra hippo crab whale dolphin dragon bee ant snail butterfly bird fish lamb""".split()
ANIMALS += [w for w in ANIMAL_WORDS if w not in ANIMALS]
CHILDREN = ["girl", "boy"]
PEOPLE = """farmer baker king queen princess prince knight wizard witch sailor pirate fisherman gardener painter
teacher doctor robot giant""".split()
PEOPLE += [w for w in PEOPLE_WORDS if w not in PEOPLE + CHILDREN]

THINGS = """kite ball lamp drum book boat hat key bell basket blanket lantern ring clock scarf flute cup map balloon
wagon umbrella pebble shell feather button crown coin mirror box teapot pillow puzzle trumpet violin sled whistle
ladder bucket broom coat candle apple cake pie cookie pumpkin flower""".split()
THINGS += [w for w in THING_WORDS if w not in THINGS]
ODD_HEROES = FOOD_WORDS + PLACE_WORDS + THING_WORDS + NATURE_WORDS
PLACES = [  # (preposition for "where", noun)
    ("in", "forest"), ("in", "garden"), ("by", "sea"), ("on", "hill"), ("near", "river"), ("in", "meadow"),
    ("by", "lake"), ("on", "farm"), ("in", "village"), ("in", "park"), ("near", "castle"), ("in", "valley"),
    ("on", "island"), ("by", "pond"), ("in", "wood"), ("at", "market"), ("near", "mill"), ("in", "town"),
    ("in", "jungle"), ("by", "bridge"), ("on", "beach"), ("in", "orchard"), ("near", "mountain"), ("in", "barn"),
]
TRAITS = """brave kind clever gentle shy curious happy cheerful quiet funny patient careful friendly playful honest
sleepy grumpy lonely proud polite hungry lively""".split()
LOOKS = "little small big tiny young old brown white black gray fluffy round spotted".split()  # animals
BUILDS = "little small tall young cheerful busy".split()  # people
COLORS = "red blue green yellow purple orange pink white golden silver".split()
FOODS = """apples berries bread cheese soup honey nuts carrots cookies cake pears corn pancakes plums jam milk peas
cherries""".split()
HOBBIES = ["sing", "dance", "run", "read", "paint", "climb", "swim", "draw", "explore", "sleep", "play games",
           "watch the clouds", "count the stars", "tell jokes", "help others", "bake bread", "look for shells",
           "jump over puddles", "listen to the wind", "chase the leaves"]
HOMES = ["a small house", "a cozy hut", "a warm nest", "a tiny cottage", "an old tree", "a little cave", "a red barn",
         "a blue house", "a quiet burrow", "a stone tower"]
WEATHERS = "sunny rainy windy cold warm foggy snowy bright cloudy quiet".split()
TIMES = ["morning", "day", "afternoon", "evening"]

OPENINGS = [
    ["Once upon a time there was {an} called {n}.", "Once there was {an}. {His} name was {n}.",
     "Long ago, {an} called {n} lived {in_p}.", "{n} was {an} who lived {in_p}.",
     "There was once {an} named {n} who lived in {home}.", "{In_p} lived {an} called {n}.",
     "Once upon a time, {an} named {n} lived in {home} {in_p}."],
    ["", "{He} was [very|always|quite|really] {trait} and loved to {hobby}.", "{n} loved {food} more than anything.",
     "Every [morning|day|evening] {he} [played|walked|sang|sat] {in_p}.",
     "{He} liked to {hobby}, and {he} liked {food} too.", "Everyone said that {n} was the most {trait} {a} of all."],
]

ENDINGS = [
    ["{n} and {f} were friends [from that day on|ever after|for the rest of their lives].",
     "{n} went home with a [happy|warm|full|light] heart.", "That night {n} slept very well.",
     "They [laughed|danced|sang|smiled] until the [sun went down|moon came up|stars came out].",
     "Then they shared {food} and told each other [jokes|stories|secrets].",
     "{n} [hugged|thanked] {f} and [smiled|laughed|danced for joy].",
     "From then on, {n} and {f} met {in_p} every [day|week|morning]."],
    ["", "", "{n} had learned that [it is good to share|friends make hard things easy|being brave means trying|"
     "it is fine to ask for help|kind words can open any door|small friends can be a big help|"
     "good things take time|nobody is too small to help|the truth is always best]."],
    ["", "", "The end."],
]

_GIVE_HELP = ["\"Do not worry,\" said {f}. \"[I will help you|We can do it together|Two are better than one].\"",
              "\"Why are you so sad?\" asked {f}. {n} told {fhim} everything.",
              "{f} thought for a [moment|while] and had a [good|clever|funny] idea."]

# Each plot: (needs a thing, steps).
PLOTS = [
    (True, [  # lost thing
        ["One {weather} {time}, {n} could not find {his} {t}.", "One {time}, {his} {color} {t} was gone.",
         "But one {weather} {time}, {n} lost {his} {t} {in_p}."],
        ["{He} looked [under the bed|behind the door|in every corner|under the stones], but it was not there.",
         "{He} looked and looked, and then {he} [began to cry|sat down and sighed]."],
        ["Then {fan} called {f} came by.", "{Fan} called {f} heard {him} and came over."],
        _GIVE_HELP,
        ["Together they looked [near the old well|along the path|in the tall grass|under the big tree].",
         "They followed the [small|muddy|tiny] tracks {in_p}."],
        ["At last {f} found the {t} [in a bush|behind a rock|under some leaves|on top of a fence].",
         "And there was the {t}, [safe and dry|shining in the sun|right under {his} nose]!"]]),
    (True, [  # found thing, whose is it
        ["One {weather} {time}, {n} found {at} {in_p}.", "One {time}, {n} saw something {color} {in_p}. It was {at}!"],
        ["\"Who has lost it?\" {he} asked.", "{He} wanted to keep it, but {he} knew that it was not {his_own}."],
        ["So {he} asked everyone {in_p}.", "{He} walked from door to door and asked [every neighbor|all the animals]."],
        ["\"It is mine!\" said {fan} called {f}. \"I looked for it all day!\"",
         "At last {he} met {fan} called {f}, who was looking for a {t}."],
        ["{n} gave the {t} back at once.", "\"Here it is,\" said {n}, and gave {fhim} the {t}."],
        ["{f} was so [happy|glad|grateful] that {fhe} gave {n} some {food}.",
         "\"Thank you, {n}! You are very [kind|honest|good],\" said {f}."]]),
    (False, [  # lost in the fog
        ["One {weather} {time}, {n} went for a long walk {in_p}.", "One {time}, {n} walked too far from home."],
        ["Soon it grew dark and {he} did not know the way home.", "Then the fog came, and {he} was lost."],
        ["{He} was [cold|scared|tired] and called for help.", "\"Hello? Is anyone there?\" {he} called."],
        ["{Fan} called {f} heard {him} and came with a [lamp|lantern|candle].",
         "\"I am here!\" said a voice. It was {fan} called {f}."],
        ["\"I know every [path|stone|tree] {in_p},\" said {f}. \"Follow me!\"",
         "{f} took {him} by the hand and showed {him} the way."],
        ["Step by step they walked, and soon {n} saw [the lights of {his} home|{his} own door].",
         "When they came home, there was [hot soup|warm milk|fresh bread] for both of them."]]),
    (False, [  # afraid of the dark
        ["There was only one problem: {n} was afraid of [the dark|thunder|deep water|loud noises].",
         "But {n} had a secret. {He} was afraid of [the dark|thunder|the night]."],
        ["One {time}, a [loud|strange|soft] noise came from [the roof|outside|under the bed].",
         "One night the wind was loud and {n} could not sleep."],
        ["{n} hid under {his} blanket and [shook|waited|listened].", "{His} heart beat fast."],
        ["Then {he} heard a small voice. It was {fan} called {f}, who was afraid too.",
         "But it was only {fan} called {f}, who had [fallen into a bucket|lost the way|come to say hello]."],
        ["\"Let us be brave together,\" said {n}.", "\"Come in and sit with me,\" said {n}."],
        ["They [sang a song|lit a candle|counted to ten], and soon they were not afraid any more.",
         "They looked at the [stars|moon] and felt safe."]]),
    (False, [  # sharing food
        ["One {weather} {time}, {n} had a basket full of {food}.", "One {time}, {n} picked a lot of {food} {in_p}."],
        ["{He} wanted to eat it all alone.", "\"It is all for me!\" {he} said."],
        ["Then {he} saw {fan} called {f}, who had nothing to eat.", "{Fan} called {f} looked at it with hungry eyes."],
        ["\"Please, may I have a little?\" asked {f}.", "{f} did not say a word, but {fhis} tummy growled."],
        ["{n} thought about it and gave {f} half of it.", "\"Sit down with me,\" said {n}. \"We can share.\""],
        ["It tasted much better together.", "They ate until they were both full and [sleepy|happy]."]]),
    (True, [  # broken thing
        ["One {weather} {time}, {n} played with {his} new {t}.", "{n} had {at} that {he} took everywhere."],
        ["Suddenly it [fell|slipped] from {his} hands and broke.", "But then [the wind|a stone] hit it, and it broke."],
        ["{n} was [sad|upset] and sat down {in_p}.", "\"Oh no!\" cried {n}. \"What can I do now?\""],
        ["{Fan} called {f} came along with a bag of tools.", "{His} neighbor {f}, {fan}, saw what had happened."],
        _GIVE_HELP[:2],
        ["They worked all {time} with glue and string.",
         "{f} held the pieces, and {n} tied them with a {color} ribbon."],
        ["Soon the {t} was as good as new.", "In the end the {t} looked even better than before."]]),
    (False, [  # race
        ["One {weather} {time}, there was a big race {in_p}.", "One {time}, {f}, {fan}, asked {n} to race to the {p}."],
        ["\"I am the fastest!\" said {f}, {fan}.", "Everyone came to watch. {f}, {fan}, was very fast."],
        ["{n} was [slow|small], but {he} did not give up.", "{n} ran as fast as {he} could."],
        ["Then {f} [fell into a puddle|slipped in the mud|hurt {fhis} foot].",
         "Half way there, {f} stopped because {fhis} foot hurt."],
        ["{n} could have won, but {he} stopped to help.", "\"Lean on me,\" said {n}, and helped {f} up."],
        ["They crossed the line side by side, and everyone [cheered|clapped].",
         "They both came last, but they got the loudest cheers."]]),
    (True, [  # gift
        ["It was {f}'s birthday, and {n} wanted to give {fhim} {at}.",
         "Soon it was the birthday of {f}, {fan}, the best friend of {n}."],
        ["But {n} had no money to buy a {t}.", "\"What shall I give {fhim}?\" {n} wondered. \"Maybe a {t}?\""],
        ["So {he} made one {himself} from [old paper|wood and string|cloth and buttons].",
         "So {he} worked at the {place2} for [three days|a week] to get a {t}."],
        ["It was not perfect. It was a bit [round|crooked|small] on one side.",
         "It took a long time, and {n} was tired when it was done."],
        ["{f} opened the box and smiled. \"It is the best {t} in the world!\"",
         "When {f} saw the {t}, {fhe} jumped for joy."]]),
    (False, [  # learning something
        ["{n} wanted to learn to [swim|dance|fly a kite|whistle|ride a bicycle|skate].",
         "All {his} friends could [swim|dance|whistle|skate], but {n} could not."],
        ["{He} tried once and [fell down|fell over]. {He} tried again and fell again.",
         "The first time it went wrong, and everyone laughed."],
        ["\"I will never learn it,\" {he} said.", "{n} wanted to give up."],
        ["\"I can teach you,\" said {fan} called {f}.", "{Fan} called {f} said, \"I fell a hundred times too.\""],
        ["Every {time} they met {in_p} and tried again.", "They started slowly, one small step after the other."],
        ["After [a week|many days|a month], {n} could do it all alone!",
         "And then, one {weather} {time}, it worked. {n} could not stop smiling."]]),
    (False, [  # garden
        ["One {weather} {time}, {n} put a tiny seed into the ground.", "One {time}, {n} found a strange seed {in_p}."],
        ["Every day {he} gave it water, but nothing happened.", "{He} waited and waited, but it did not grow."],
        ["\"You must sing to it,\" said {f}, {fan}.",
         "\"Be patient,\" said {fan} called {f}. \"Good things take time.\""],
        ["So they [sang|sat and waited|told it stories] together.", "So {n} waited through the rain and the sun."],
        ["One morning there was a small green leaf.",
         "Then, one {weather} day, something green came out of the ground."],
        ["It grew into a tree full of {food}!", "Soon there was a big {color} flower, taller than the house.",
         "Now everyone {in_p} had {food} to eat."]]),
    (False, [  # stuck
        ["One {weather} {time}, {n} climbed [a tall tree|a big rock|an old wall] {in_p}.",
         "One {time}, {n} fell into a deep hole {in_p}."],
        ["But then {he} could not get down or up.", "{He} could not get out, and nobody was near."],
        ["\"Help!\" {he} called. \"Please help me!\"", "{He} shouted as loud as {he} could."],
        ["{Fan} called {f} was on the way to the {place2} and stopped.", "At last {fan} called {f} came by."],
        ["{f} ran to get [a rope|a ladder|a long branch].", "{f} was small, but {fhe} called all {fhis} friends."],
        ["They pulled and pulled, and suddenly {n} was free.", "Slowly, step by step, {n} came back to the ground."]]),
    (False, [  # wish
        ["One night {n} saw a [falling|bright|golden] star {in_p}.",
         "One {time}, {n} helped an old [fish|bird|woman] {in_p}."],
        ["\"You may make one wish,\" said [a soft voice|the wind|a tiny voice].", "And {he} was given one wish."],
        ["{n} thought of [gold|toys|a castle|a mountain of {food}], but then {he} thought of {f}, {fan} who was "
         "[sick|alone|sad].",
         "{n} had always wanted [a crown|a boat|new shoes]. But {f}, {fan}, was [ill|alone|far from home]."],
        ["\"I wish that {f} will be [well|happy] again,\" {he} said.", "So {he} gave {his} wish away to help {f}."],
        ["The next morning {f} [knocked at the door|came running|stood at the window], [well|happy] and smiling.",
         "And so it was. {f} [laughed|danced] like never before."]]),
    (False, [  # soup for the storm
        ["One {weather} {time}, a big storm came {to_p}.",
         "In the winter, snow fell {in_p} for [three|five|seven] days."],
        ["{Fan} called {f} knocked at the door. {FHis} house was gone.", "{f}, {fan}, had no roof and no fire."],
        ["\"Come in, come in!\" said {n}. \"There is room for two.\"",
         "{n} opened the door and gave {fhim} a blanket."],
        ["They had only some {food}, so they made [soup|tea] for two.", "They cooked {food} and sat near the fire."],
        ["When the storm was over, they built a new house together.",
         "In the morning the sky was [blue|clear], and they went out to fix the roof."]]),
    (True, [  # the thing with magic
        ["One {weather} {time}, {n} got {at} from {his} [grandma|grandpa|uncle|aunt].",
         "One {time}, {n} bought {at} at the market. It was very old."],
        ["It was no common {t}. When {he} touched it, it [began to sing|began to glow|could talk].",
         "\"Be careful,\" said the {t}. \"I am magic!\""],
        ["The {t} took {n} {to_p}, where {fan} called {f} [sat and cried|was all alone].",
         "{n} showed it to {f}, {fan}, but {f} only [laughed|shook {fhis} head]."],
        ["\"Can your {t} help me to find my way?\" asked {f}.",
         "\"Can it make {food}?\" asked {f}. \"I am so hungry!\""],
        ["The {t} [shone|sang] brightly, and {f} [laughed|smiled] again.",
         "And with a bang there was {food} for everyone."]]),
    (False, [  # a quarrel
        ["One {time}, {n} and {f}, {fan}, had a fight about [{food}|a game|who was the tallest].",
         "{n} and {f}, {fan}, did everything together. But one {weather} {time} they had a fight."],
        ["\"I will never play with you again!\" said {n}.", "{f} ran away, and {n} walked home alone."],
        ["{n} sat in {his} room. It was too quiet.", "The whole {time} {n} felt bad about it."],
        ["So {he} took some {food} and went to see {f}.", "Then there was a knock at the door. It was {f}."],
        ["\"I am sorry,\" said {n}. \"Me too,\" said {f}.",
         "They both said sorry at the same time and had to laugh."]]),
    (False, [  # show
        ["One {weather} {time}, {n} heard that there would be a show at the {place2}.",
         "{n} dreamed of singing in front of everyone."],
        ["But {he} was too shy to sing alone.", "But when {he} stood there, {he} forgot every word."],
        ["\"I will stand next to you,\" said {fan} called {f}.",
         "{Fan} called {f} began to play a [drum|flute|trumpet]."],
        ["{n} took a deep breath and began.", "Softly at first, then louder and louder, {n} sang."],
        ["Everyone clapped and asked for one more song.",
         "It was the most [lovely|beautiful|funny] song of the year."]]),
]

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")


def article(noun_phrase):
    vowel = noun_phrase[0] in "aeiou" or noun_phrase.startswith("honest")
    return ("an " if vowel else "a ") + noun_phrase


def _capital(text):
    return text[:1].upper() + text[1:]


def expand(rng, template, slots):
    """Fills a template: alternatives first, so that slots in unused alternatives are not filled."""
    template = _CHOICE.sub(lambda m: rng.choice(m.group(1).split("|")), template)

    def fill(m):
        value = slots[m.group(1)]
        return rng.choice(value) if isinstance(value, list) else value
    text = _SLOT.sub(fill, template)
    return _capital(text)


_FEMALE = "girl queen princess witch hen cow aunt mother grandma sister niece nanny lady maid woman".split()
_MALE = """boy king prince wizard rooster bull monk uncle father grandpa brother nephew son man cowboy pirate
knight""".split()


def _character(rng, noun, name, sex, half):
    if sex is None:
        sex = "f" if noun in _FEMALE else "m" if noun in _MALE else rng.choice("mf")
    if name is None:
        name = rng.choice((GIRLS if sex == "f" else BOYS)[half])
    style = rng.random()
    if style < 0.15:
        phrase = article(noun)
    elif style < 0.55:
        phrase = article(rng.choice(LOOKS if noun in ANIMALS else BUILDS) + " " + noun)
    elif style < 0.85:
        phrase = article(rng.choice(TRAITS) + " " + noun)
    else:
        phrase = article(rng.choice(TRAITS) + " " + rng.choice(("little", "young", "old")) + " " + noun)
    pronouns = ("he", "his", "him") if sex == "m" else ("she", "her", "her")
    return noun, name, phrase, pronouns, sex


def pick_hero_noun(rng):
    r = rng.random()
    return rng.choice(ANIMALS if r < 0.66 else CHILDREN if r < 0.8 else PEOPLE if r < 0.96 else ODD_HEROES)


def tell(rng, hero=None, name=None, friend=None, thing=None, place=None):
    """One story; returns (text, hero noun, hero name, friend noun, friend name)."""
    sex = None
    if name is not None:
        sex = "f" if name in GIRLS else "m"
        if hero is None:
            hero = rng.choice(ANIMALS + ["girl" if sex == "f" else "boy"] * 40)
    noun, name, phrase, pro, sex = _character(rng, hero or pick_hero_noun(rng), name, sex, slice(0, HALF))
    while True:
        fnoun, fname, fphrase, fpro, _ = _character(rng, friend or rng.choice(ANIMALS + CHILDREN * 3), None, None,
                                                    slice(HALF, None))
        if fname != name and (friend or fnoun != noun):
            break
    where, where_noun = next((p for p in PLACES if p[1] == place), None) or rng.choice(PLACES)
    thing_phrase = thing or rng.choice(THINGS)
    foods = rng.sample(FOODS, 2)
    slots = {
        "n": name, "a": noun, "an": phrase, "he": pro[0], "He": _capital(pro[0]), "his": pro[1],
        "His": _capital(pro[1]), "him": pro[2], "himself": "himself" if sex == "m" else "herself",
        "his_own": "his" if sex == "m" else "hers",
        "f": fname, "fan": fphrase, "Fan": _capital(fphrase), "fhe": fpro[0], "fhis": fpro[1],
        "FHis": _capital(fpro[1]), "fhim": fpro[2],
        "t": thing_phrase, "at": article(rng.choice(COLORS + ["new", "shiny", "lovely", "small"]) + " " + thing_phrase),
        "p": where_noun, "in_p": f"{where} the {where_noun}", "In_p": f"{_capital(where)} the {where_noun}",
        "to_p": f"to the {where_noun}", "place2": rng.choice(PLACES)[1],
        "home": HOMES, "trait": TRAITS, "hobby": HOBBIES, "food": foods[0], "color": COLORS, "weather": WEATHERS,
        "time": TIMES,
    }
    plots = [p for p in PLOTS if p[0]] if thing else PLOTS
    steps = OPENINGS + rng.choice(plots)[1] + ENDINGS
    sentences, told = [], set()
    for step in steps:
        template = rng.choice(step)
        if template and template not in told:
            told.add(template)
            sentences.append(expand(rng, template, slots))
    return " ".join(sentences), noun, name, fnoun, fname


def vocabulary():
    """Every word (lower case) that a story can contain."""
    words = set()
    lists = [GIRLS, BOYS, ANIMALS, CHILDREN, PEOPLE, THINGS, ODD_HEROES, TRAITS, LOOKS, BUILDS, COLORS, FOODS, HOBBIES,
             HOMES, WEATHERS, TIMES, [w for pair in PLACES for w in pair], _GIVE_HELP]
    lists += OPENINGS + ENDINGS + [step for _, plot in PLOTS for step in plot]
    for items in lists:
        for item in items:
            words.update(story_words(_SLOT.sub(" ", item)))
    words.update("he she his her him hers himself herself a an the to new shiny lovely small".split())
    return words


def story_words(text):
    return re.findall(r"[a-z]+", text.lower())


if __name__ == "__main__":  # prints some stories
    rng = random.Random(1)
    lengths = []
    for i in range(6):
        print(tell(rng)[0], "\n")
    vocab = vocabulary()
    stray = set()
    for _ in range(20000):
        text = tell(rng)[0]
        lengths.append(len(text.split()))
        stray.update(w for w in story_words(text) if w not in vocab)
    lengths.sort()
    print(f"{len(vocab)} words; outside: {stray}; words a story, 1/50/99 %:", *(lengths[i] for i in (200, 10000, -200)))
