#!/usr/bin/env python3
"""Writes unicode_tables.inc: the character data of text/, the same on every system.

    python3 -m venv v && v/bin/pip install unicodedata2==16.0.0 fonttools==4.55.0 tokenizers==0.23.3
    v/bin/pip download --no-deps --no-binary unicodedata2 unicodedata2==16.0.0
    tar xzf unicodedata2-16.0.0.tar.gz
    v/bin/python text/unicode/make_unicode_tables.py unicodedata2-16.0.0/unicodedata2/unicodetype_db.h

Sources:
- unicodedata2 16.0.0: general categories and combining classes of Unicode 16; its unicodetype_db.h,
  CPython's own table, has the case mappings and the flags of Python's str methods (Python 3.14);
- fonttools 4.55.0: scripts of Unicode 16;
- tokenizers 0.23.3, the package whose ids are reproduced. Its regular expressions (Oniguruma) have
  Unicode 16; its normal forms, about Unicode 9, its numbers, Unicode 17, its punctuation, accents
  and the characters that BertNormalizer drops, about Unicode 8, are read from its answers, and so is
  which characters (?i) equates.

Every category and script is compared with the package's answer at both ends of every run of equal
characters, and the rules that unicode.c applies to the data are checked as well: the script fails
when one differs. It runs for about a minute.
"""
import os
import re
import sys

import unicodedata2
from fontTools.unicodedata import Scripts
from tokenizers import Regex, __version__ as tokenizers_version, normalizers, pre_tokenizers

assert unicodedata2.unidata_version == "16.0.0" and tokenizers_version == "0.23.3"

CATEGORIES = ("Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf "
              "Cs Co").split()
CATEGORY_NAMES = {
    "Unassigned": "Cn", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll", "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm", "Other_Letter": "Lo", "Nonspacing_Mark": "Mn", "Spacing_Mark": "Mc",
    "Enclosing_Mark": "Me", "Decimal_Number": "Nd", "Letter_Number": "Nl", "Other_Number": "No",
    "Connector_Punctuation": "Pc", "Dash_Punctuation": "Pd", "Open_Punctuation": "Ps",
    "Close_Punctuation": "Pe", "Initial_Punctuation": "Pi", "Final_Punctuation": "Pf",
    "Other_Punctuation": "Po", "Math_Symbol": "Sm", "Currency_Symbol": "Sc", "Modifier_Symbol": "Sk",
    "Other_Symbol": "So", "Space_Separator": "Zs", "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp", "Control": "Cc", "Format": "Cf", "Surrogate": "Cs",
    "Private_Use": "Co", "Letter": "L", "Mark": "M", "Combining_Mark": "M", "Number": "N",
    "Punctuation": "P", "Punct": "P", "Symbol": "S", "Separator": "Z", "Other": "C",
    "Cased_Letter": "Lu Ll Lt", "LC": "Lu Ll Lt", "L": "L", "M": "M", "N": "N", "P": "P", "S": "S",
    "Z": "Z", "C": "C", **{c: c for c in CATEGORIES}}
FORMS = ("NFC", "NFD", "NFKC", "NFKD")
FLAGS = ("ALPHABETIC", "UPPERCASE", "LOWERCASE", "CASED", "CASE_IGNORABLE", "DIGIT", "NUMERIC",
         "SPLIT_NUMBER", "SPLIT_PUNCT") + tuple("MOVES_" + f for f in FORMS) + (
             "BERT_DROPPED", "BERT_ACCENT", "ACCENT")
BIT = {name: 1 << i for i, name in enumerate(FLAGS)}
BLOCKS = 0x20000 >> 8
CODES = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
CHARS = [chr(c) for c in CODES]
TEXT = "".join(CHARS)


def loose(name):
    return re.sub(r"[ _-]", "", name).lower()


def matched(pattern, text=TEXT):
    """The characters that the package's regular expression takes out of the text."""
    left = set(normalizers.Replace(Regex(pattern), "").normalize_str(text))
    return {c for c in text if c not in left}


def require_equal(what, ours, theirs):
    if ours != theirs:
        some = sorted(set(ours) ^ set(theirs))[:8]
        sys.exit(f"{what}: differs from the package, for example at {[hex(ord(c)) for c in some]}")


class PythonTable:
    """unicodetype_db.h: records of (upper, lower, title, decimal, digit, flags) in two stages."""
    MASKS = {"LOWERCASE": 0x08, "UPPERCASE": 0x80, "DIGIT": 0x04, "NUMERIC": 0x800,
             "CASE_IGNORABLE": 0x1000, "CASED": 0x2000}
    EXTENDED = 0x4000

    def __init__(self, path):
        with open(path, encoding="ascii") as f:
            source = f.read()
        def body(name):
            return re.search(re.escape(name) + r"\[\] = \{(.*?)\n\};", source, re.S).group(1)
        numbers = [int(n) for n in re.findall(r"-?\d+", body("_PyUnicode_TypeRecords"))]
        self.records = [numbers[i:i + 6] for i in range(0, len(numbers), 6)]
        self.extended = [int(n) for n in re.findall(r"\d+", body("_PyUnicode_ExtendedCase"))]
        self.shift = int(re.search(r"#define SHIFT (\d+)", source).group(1))
        self.index1 = [int(n) for n in re.findall(r"\d+", body("index1"))]
        self.index2 = [int(n) for n in re.findall(r"\d+", body("index2"))]

    def record(self, code):
        low = code & ((1 << self.shift) - 1)
        return self.records[self.index2[(self.index1[code >> self.shift] << self.shift) + low]]

    def flags(self, code):
        flags = self.record(code)[5]
        return sum(BIT[name] for name, mask in self.MASKS.items() if flags & mask)

    def case(self, code, kind):
        """The simple mapping; kind 0 upper, 1 lower, 2 title."""
        record = self.record(code)
        return self.extended[record[kind] & 0xFFFF] if record[5] & self.EXTENDED \
            else code + record[kind]

    def full_case(self, code, kind):
        record = self.record(code)
        if not record[5] & self.EXTENDED:
            return [code + record[kind]]
        at, count = record[kind] & 0xFFFF, record[kind] >> 24
        return self.extended[at:at + count]

    def full_fold(self, code):
        record = self.record(code)
        count = record[1] >> 20 & 7 if record[5] & self.EXTENDED else 0
        at = (record[1] & 0xFFFF) + (record[1] >> 24)
        return self.extended[at:at + count] if count else self.full_case(code, 1)


def script_of_codes():
    """Number of each code point's script, and the names by number."""
    values = sorted(set(Scripts.VALUES) - {"Zzzz"})
    number = {value: i + 1 for i, value in enumerate(values)}
    number["Zzzz"] = 0
    scripts = []
    for i, begin in enumerate(Scripts.RANGES):
        end = Scripts.RANGES[i + 1] if i + 1 < len(Scripts.RANGES) else 0x110000
        scripts += [number[Scripts.VALUES[i]]] * (end - begin)
    names = {}
    for value, i in number.items():
        for name in (value, Scripts.NAMES[value]):
            if value != "Zzzz":
                names[name] = i
    return scripts, names


def each(form, strings):
    """Normal forms of many strings in one call; a control character keeps them apart."""
    out = getattr(normalizers, form)().normalize_str("\x01".join(strings)).split("\x01")
    assert len(out) == len(strings)
    return out


def is_hangul(code):
    return 0xAC00 <= code <= 0xD7A3


class Normal:
    """The package's normal forms as tables."""

    def __init__(self):
        chars = [c for c in CHARS if c != "\x01"]
        form = {f: dict(zip(chars, each(f, chars)), **{"\x01": "\x01"}) for f in FORMS}
        marks = [c for c in chars if unicodedata2.combining(c)]
        moved = each("NFD", ["a\u0345" + c for c in marks])
        known = {c for c, got in zip(marks, moved) if got != "a\u0345" + c or c == "\u0345"
                 or form["NFD"][c] != c}
        self.combining = {ord(c): unicodedata2.combining(c) for c in known}
        plain = [c for c in chars if not unicodedata2.combining(c) and form["NFD"][c] == c]
        require_equal("order of starters", {c for c, got in
                      zip(plain, each("NFD", ["a\u0345" + c for c in plain]))
                      if got != "a\u0345" + c}, set())
        self.canonical = {ord(c): d for c, d in form["NFD"].items()
                          if d != c and not is_hangul(ord(c))}
        self.compat = {ord(c): d for c, d in form["NFKD"].items()
                       if d != form["NFD"][c] and not is_hangul(ord(c))}
        self.pairs = {}
        for code, whole in sorted(self.canonical.items()):
            if len(whole) > 1 and form["NFC"][chr(code)] == chr(code):
                head = normalizers.NFC().normalize_str(whole[:-1])
                assert len(head) == 1, hex(code)
                self.pairs[ord(head), ord(whole[-1])] = code
        joined = ["%c%c" % p for p in self.pairs]
        assert each("NFC", joined) == [chr(c) for c in self.pairs.values()]
        seconds = {s for _, s in self.pairs} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
        self.flags = {}
        for c in chars:
            code, flags = ord(c), 0
            for name in FORMS:
                joins = False
                if name in ("NFC", "NFKC"):
                    head = ord(form["NFKD" if name == "NFKC" else "NFD"][c][0])
                    joins = head in seconds or self.combining.get(head, 0) != 0
                if form[name][c] != c or self.combining.get(code) or joins:
                    flags |= BIT["MOVES_" + name]
            self.flags[code] = flags


def fold_sets(python):
    """{code: the smallest character that (?i) equates with it}, for those that have company."""
    cased = [c for c in CODES if python.full_case(c, 0) != [c] or python.full_case(c, 1) != [c]
             or python.full_fold(c) != [c] or python.case(c, 2) != c]
    text = "\x01".join(chr(c) for c in cased)
    fold = {}
    for code in cased:
        same = {ord(c) for c in matched("(?i:\\x{%x})" % code, text)} | {code}
        if len(same) > 1:
            fold[code] = min(same)
        assert all(fold.get(c, min(same)) == min(same) for c in same), hex(code)
    return {c: to for c, to in fold.items() if c != to}


def shifts(mapping):
    """[(first, count, stride, delta)] of {code: other code}."""
    runs = []
    for code, to in sorted(mapping.items()):
        if runs:
            run = runs[-1]
            last = run[0] + (run[1] - 1) * run[2]
            step = code - last
            if run[3] == to - code and step in ((1, 2) if run[1] == 1 else (run[2],)):
                run[1], run[2] = run[1] + 1, step
                continue
        runs.append([code, 1, 1, to - code])
    return runs


def utf8(codes):
    return "".join(f"\\{byte:03o}" for byte in "".join(map(chr, codes)).encode())


class Writer:
    def __init__(self):
        self.out = []

    def line(self, text=""):
        self.out.append(text)

    def array(self, declaration, items):
        self.line(declaration + " = {")
        row = "   "
        for item in items:
            if len(row) + len(item) + 2 > 100:
                self.line(row)
                row = "   "
            row += " " + item + ","
        self.line(row)
        self.line("};")


def classes_of_package(categories):
    """What the package's own splitting steps take for numbers and punctuation, and Alphabetic."""
    def cut(step):
        begins = {begin for _, (begin, _) in step.pre_tokenize_str("x".join(CHARS))}
        return {c for i, c in enumerate(CHARS) if 2 * i in begins and 2 * i + 1 in begins
                and c != "x"}
    assert matched(r"[\w]") == matched("[[:alpha:]]") | {
        c for c in CHARS if categories[ord(c)][0] == "M" or categories[ord(c)] in ("Nd", "Pc")}
    def dropped(normalizer, form=None):
        return {c for c in CHARS if normalizer.normalize_str(c) == "" and
                not (form and len(form.normalize_str(c)) != 1)}
    bert = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False,
            "lowercase": False}
    return {"ALPHABETIC": matched("[[:alpha:]]"), "SPLIT_NUMBER": cut(pre_tokenizers.Digits(True)),
            "SPLIT_PUNCT": cut(pre_tokenizers.Punctuation("isolated")),
            "BERT_DROPPED": dropped(normalizers.BertNormalizer(**{**bert, "clean_text": True})),
            "BERT_ACCENT": dropped(normalizers.BertNormalizer(**{**bert, "strip_accents": True}),
                                   normalizers.NFD()),
            "ACCENT": dropped(normalizers.StripAccents())}


def check_names(categories, scripts, script_names, python):
    # The first and the last character of every run of equal ones decide for the run.
    kind = [(categories[c], scripts[c], python.flags(c)) for c in range(0x110000)]
    edges = "".join(c for c in CHARS if ord(c) in (0, 0x10FFFF) or kind[ord(c)] != kind[ord(c) - 1]
                    or kind[ord(c)] != kind[ord(c) + 1])
    def where(test):
        return {c for c in edges if test(ord(c))}
    for name, kinds in CATEGORY_NAMES.items():
        kinds = kinds.split()
        if name not in ("Cs", "Surrogate"):
            require_equal(name, where(lambda c: categories[c] in kinds or categories[c][0] in kinds),
                          matched(r"\p{%s}" % name, edges))
    for name, number in script_names.items():
        require_equal(name, where(lambda c: scripts[c] == number), matched(r"\p{%s}" % name, edges))
    for name in ("UPPERCASE", "LOWERCASE"):
        require_equal(name, where(lambda c: python.flags(c) & BIT[name]), matched(r"\p{%s}" % name, edges))


def write_records(w, categories, scripts, normal, flags):
    records, ranges = {}, []
    for code in range(0x110000):
        record = (CATEGORIES.index(categories[code]), scripts[code], normal.combining.get(code, 0),
                  flags[code])
        number = records.setdefault(record, len(records))
        if not ranges or ranges[-1][1] != number:
            ranges.append((code, number))
    assert len(records) < 1 << 11 and len(ranges) < 1 << 16
    w.array("const struct rp_unicode_record rp_unicode_records[]",
            ["{%d, %d, %d, 0x%x}" % r for r in records])
    w.array("const uint32_t rp_unicode_ranges[]", ["0x%x" % (c << 11 | n) for c, n in ranges])
    w.line(f"const uint32_t rp_unicode_range_count = {len(ranges)};")
    first, at = [], 0
    for block in range(BLOCKS + 1):
        while at + 1 < len(ranges) and ranges[at + 1][0] <= block << 8:
            at += 1
        first.append(at)
    w.array("const uint16_t rp_unicode_first[RP_UNICODE_BLOCKS + 1]", [str(i) for i in first])


def write_decomposition(w, name, mapping):
    pool, at = [], [0]
    for code in sorted(mapping):
        pool += [ord(c) for c in mapping[code]]
        at.append(len(pool))
    assert max(len(d) for d in mapping.values()) <= 18
    w.array(f"static const uint32_t {name}_codes[]", ["0x%x" % c for c in sorted(mapping)])
    w.array(f"static const uint16_t {name}_at[]", [str(a) for a in at])
    w.array(f"static const uint32_t {name}_points[]", ["0x%x" % c for c in pool])
    w.line(f"const struct rp_unicode_decompositions rp_unicode_{name} = {{")
    w.line(f"    {name}_codes, {name}_at, {name}_points, {len(mapping)}}};")


def write_case(w, python):
    for kind, name in ((0, "upper"), (1, "lower"), (2, "title")):
        runs = shifts({c: python.case(c, kind) for c in CODES if python.case(c, kind) != c})
        write_shifts(w, name, runs)
    write_shifts(w, "fold", shifts(fold_sets(python)))
    special = [c for c in CODES if len(python.full_case(c, 0)) > 1 or len(python.full_case(c, 2)) > 1]
    w.array("const struct rp_unicode_special rp_unicode_specials[]",
            ['{0x%x, "%s", "%s"}' % (c, utf8(python.full_case(c, 0)), utf8(python.full_case(c, 2)))
             for c in special])
    w.line(f"const uint32_t rp_unicode_special_count = {len(special)};")
    assert [c for c in CODES if len(python.full_case(c, 1)) > 1] == [0x130]
    folds = [c for c in CODES if len(python.full_fold(c)) > 1]
    w.array("const struct rp_unicode_multi_fold rp_unicode_multi_folds[]",
            ["{0x%x, {%s}}" % (c, ", ".join("0x%x" % p for p in python.full_fold(c))) for c in folds])
    w.line(f"const uint32_t rp_unicode_multi_fold_count = {len(folds)};")


def write_shifts(w, name, runs):
    w.array(f"static const struct rp_unicode_shift {name}[]",
            ["{0x%x, %d, %d, %d}" % tuple(run) for run in runs])
    w.line(f"const struct rp_unicode_shifts rp_unicode_{name} = {{{name}, {len(runs)}}};")


def write_names(w, script_names):
    names = {}
    for name, kinds in CATEGORY_NAMES.items():
        bits = sum(1 << i for i, c in enumerate(CATEGORIES)
                   if c in kinds.split() or c[0] in kinds.split())
        names[loose(name)] = f"0x{bits:x}, 0"
    for name, number in script_names.items():
        names.setdefault(loose(name), f"0, {number}")
    w.array("const struct rp_unicode_name rp_unicode_names[]",
            ['{"%s", %s}' % (name, value) for name, value in sorted(names.items())])
    w.line(f"const uint32_t rp_unicode_name_count = {len(names)};")


def main():
    python, normal = PythonTable(sys.argv[1]), Normal()
    categories = [unicodedata2.category(chr(c)) for c in range(0x110000)]
    scripts, script_names = script_of_codes()
    check_names(categories, scripts, script_names, python)
    flags = [python.flags(c) | normal.flags.get(c, 0) for c in range(0x110000)]
    for name, chars in classes_of_package(categories).items():
        for c in chars:
            flags[ord(c)] |= BIT[name]
    w = Writer()
    w.line("/* Generated by make_unicode_tables.py from Unicode 16.0 and tokenizers 0.23.3: do not edit. */")
    w.line()
    write_records(w, categories, scripts, normal, flags)
    write_decomposition(w, "canonical", normal.canonical)
    write_decomposition(w, "compat", normal.compat)
    w.array("const struct rp_unicode_pair rp_unicode_pairs[]",
            ["{0x%x, 0x%x, 0x%x}" % (a, b, c) for (a, b), c in sorted(normal.pairs.items())])
    w.line(f"const uint32_t rp_unicode_pair_count = {len(normal.pairs)};")
    write_case(w, python)
    write_names(w, script_names)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "unicode_tables.inc")
    with open(path, "w", encoding="ascii") as f:
        f.write("\n".join(w.out) + "\n")


if __name__ == "__main__":
    main()
