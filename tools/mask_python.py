"""Translates mask programs (attention/mask/mask.h) to Python source for numpy and torch: an independent implementation of
the language, used to compare our attention with others. Standard library only.

    program = mask_python.parse("causal && sliding_window(1024); soft_cap(50)", heads=32)
    program.sees, program.score        source texts over q, kv, h, layer, score; "" when there is no rule
    program.function("sees", env)      a function(q, kv, h, layer); env has where, div, mod, absolute, tanh, exp

Parameters have the program's default values, or those of `values`."""
import re

TOKEN = re.compile(r"\s*(?:(\d+\.\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)|(\d+(?!\d))|([A-Za-z_]\w*)|"
                   r"(&&|\|\||[=!<>]=|\.\.|[-+*/%<>!?:(),;=]))")
PRECEDENCE = {"||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, "<=": 4, ">": 4, ">=": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6}
FUNCTIONS = {"min": 2, "max": 2, "abs": 1, "tanh": 1, "exp": 1, "slope": 1}


class MaskError(Exception):
    pass


def tokens_of(text):
    tokens, at = [], 0
    # "1..8" is 1, "..", 8
    text = re.sub(r"\.\.", " .. ", text)
    while at < len(text):
        if text[at:].strip() == "":
            break
        match = TOKEN.match(text, at)
        if not match:
            raise MaskError(f"column {at + 1}: {text[at:at + 8]!r}")
        number, whole, name, sign = match.groups()
        tokens.append(("float", number) if number else ("int", whole) if whole else ("name", name) if name else ("sign", sign))
        at = match.end()
    return tokens


class Expression:
    """Source text with its type: bool, int or float."""

    def __init__(self, source, kind):
        self.source, self.kind = source, kind


class Parser:
    def __init__(self, text, values, heads):
        self.tokens, self.at = tokens_of(text), 0
        self.values, self.heads, self.params = dict(values or {}), heads, {}
        self.conditions, self.score = [], "score"
        self.has_score = False

    def peek(self, text):
        return self.at < len(self.tokens) and self.tokens[self.at][1] == text

    def take(self, text):
        if self.peek(text):
            self.at += 1
            return True
        return False

    def expect(self, text):
        if not self.take(text):
            found = self.tokens[self.at][1] if self.at < len(self.tokens) else "the end"
            raise MaskError(f"{text!r} expected, {found!r} found")

    def name(self):
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("", "the end")
        if kind != "name":
            raise MaskError(f"a name expected, {text!r} found")
        self.at += 1
        return text

    def integer(self):
        minus = self.take("-")
        kind, text = self.tokens[self.at]
        if kind != "int":
            raise MaskError(f"a whole number expected, {text!r} found")
        self.at += 1
        return -int(text) if minus else int(text)

    # --- clauses ---------------------------------------------------------------------------------------

    def program(self):
        while self.at < len(self.tokens):
            if self.take(";"):
                continue
            self.clause()
            if self.at < len(self.tokens):
                self.expect(";")
        if not self.conditions:
            self.conditions = ["(kv <= q)"]
        return self

    def clause(self):
        if self.take("param"):
            name = self.name()
            self.expect("=")
            value = self.integer()
            if self.take("in"):
                self.integer()
                self.expect("..")
                self.integer()
            self.params[name] = self.values.get(name, value)
        elif self.peek("score") and self.at + 1 < len(self.tokens) and self.tokens[self.at + 1][1] == "=":
            self.at += 2
            self.rule(self.expression().source)
        elif self.peek("alibi"):
            self.at += 1
            self.rule(f"(score - {self.slope('h')} * (q - kv))")
        elif self.peek("soft_cap"):
            self.at += 1
            self.expect("(")
            cap = self.expression().source
            self.expect(")")
            self.rule(f"({cap} * tanh(score / {cap}))")
        else:
            self.conditions.append(self.expression().source)

    def rule(self, source):
        self.score = re.sub(r"\bscore\b", lambda _: self.score, source) if self.has_score else source
        self.has_score = True

    # --- expressions -----------------------------------------------------------------------------------

    def expression(self):
        condition = self.binary(1)
        if not self.take("?"):
            return condition
        a = self.expression()
        self.expect(":")
        b = self.expression()
        kind = "float" if "float" in (a.kind, b.kind) else a.kind
        return Expression(f"where({condition.source}, {a.source}, {b.source})", kind)

    def binary(self, least):
        left = self.unary()
        while self.at < len(self.tokens):
            sign = self.tokens[self.at][1]
            precedence = PRECEDENCE.get(sign, 0)
            if precedence < least:
                break
            self.at += 1
            left = self.join(sign, left, self.binary(precedence + 1))
        return left

    @staticmethod
    def join(sign, a, b):
        if sign in ("&&", "||"):
            return Expression(f"({a.source} {sign[0]} {b.source})", "bool")
        if PRECEDENCE[sign] in (3, 4):
            return Expression(f"({a.source} {sign} {b.source})", "bool")
        kind = "float" if "float" in (a.kind, b.kind) else "int"
        if sign in "/%" and kind == "int":
            return Expression(f"{'div' if sign == '/' else 'mod'}({a.source}, {b.source})", kind)
        return Expression(f"({a.source} {sign} {b.source})", kind)

    def unary(self):
        if self.take("-"):
            inner = self.unary()
            return Expression(f"(-{inner.source})", inner.kind)
        if self.take("!"):
            return Expression(f"(({self.unary().source}) == False)", "bool")
        if self.take("("):
            inner = self.expression()
            self.expect(")")
            return inner
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        if kind in ("int", "float"):
            self.at += 1
            return Expression(str(int(text)) if kind == "int" else repr(float(text)), kind)
        return self.named(self.name())

    def arguments(self):
        self.expect("(")
        found = [self.expression()]
        while self.take(","):
            found.append(self.expression())
        self.expect(")")
        return found

    def named(self, name):
        if name in ("q", "kv", "h", "layer"):
            return Expression(name, "int")
        if name == "score":
            return Expression(name, "float")
        if name in ("true", "false"):
            return Expression(f"(q {'==' if name == 'true' else '!='} q)", "bool")
        if name in self.params:
            return Expression(f"({self.params[name]})", "int")
        if name == "causal":
            return Expression("(kv <= q)", "bool")
        given = self.arguments()
        n = given[0].source
        if name in FUNCTIONS:
            return self.called(name, given)
        blocks = {"sliding_window": f"((q - kv) < {n})", "sink": f"(kv < {n})", "prefix_lm": f"((kv <= q) | (kv < {n}))",
                  "chunked": f"(div(q, {n}) == div(kv, {n}))", "dilated": f"(mod(q - kv, {n}) == 0)"}
        if name == "document":
            same = [f"((q >= {begin.source}) == (kv >= {begin.source}))" for begin in given]
            return Expression(f"({' & '.join(same)})", "bool")
        if name not in blocks:
            raise MaskError(f"no name {name!r}")
        return Expression(blocks[name], "bool")

    def called(self, name, given):
        kinds = [g.kind for g in given]
        kind = "float" if "float" in kinds or name in ("tanh", "exp", "slope") else "int"
        sources = [g.source for g in given]
        if name in ("min", "max"):
            a, b = sources
            return Expression(f"where({a} {'<' if name == 'min' else '>'} {b}, {a}, {b})", kind)
        if name == "slope":
            return Expression(self.slope(sources[0]), kind)
        return Expression(f"{'absolute' if name == 'abs' else name}({sources[0]})", kind)

    def slope(self, head):
        """2^(-8 (h + 1) / heads). If heads is not a power of two: the slopes of the next lower power, then every second
        slope of the next higher one ("Train Short, Test Long")."""
        power = 1 << (self.heads.bit_length() - 1)
        step = -8.0 * 0.6931471805599453 / power
        low = f"exp(({head} + 1) * {step!r})"
        if power == self.heads:
            return low
        return f"where({head} < {power}, {low}, exp((2 * ({head} - {power}) + 1) * {step / 2!r}))"


class Program:
    def __init__(self, parser):
        self.sees = " & ".join(parser.conditions)
        self.score = parser.score if parser.has_score else ""
        self.params = parser.params

    def function(self, what, env):
        """sees(q, kv, h, layer) or score(score, q, kv, h, layer)."""
        arguments = "score, q, kv, h, layer" if what == "score" else "q, kv, h, layer"
        space = dict(env)
        exec(f"def made({arguments}):\n    return {getattr(self, what)}\n", space)
        return space["made"]


def parse(text, values=None, heads=1):
    return Program(Parser(text, values, heads).program())


def numpy_env():
    import numpy as np

    def div(a, b):
        return np.trunc(np.asarray(a) / np.asarray(b)).astype(np.int64)

    return {"where": np.where, "div": div, "mod": np.fmod, "absolute": np.abs, "tanh": np.tanh, "exp": np.exp}


def torch_env():
    import math
    import torch

    def unary(fn, plain):
        return lambda x: fn(x) if torch.is_tensor(x) else plain(x)

    def div(a, b):
        return torch.div(a, b, rounding_mode="trunc") if torch.is_tensor(a) or torch.is_tensor(b) else int(a / b)

    def mod(a, b):
        return torch.fmod(a, b) if torch.is_tensor(a) or torch.is_tensor(b) else a - b * int(a / b)

    return {"where": torch.where, "div": div, "mod": mod, "absolute": unary(torch.abs, abs), "tanh": unary(torch.tanh, math.tanh),
            "exp": unary(torch.exp, math.exp)}
