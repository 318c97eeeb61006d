"""Reads the YAML of our CRDs, since the standard library has no YAML: block and flow collections,
plain and quoted scalars, literal blocks, anchors and aliases. Anything else is an error that names
the line, and is never misread.
"""

import json
import re

KEY = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s"'{\[#&*!|>%@`-][^#]*?):(?:[ ]+(.*))?$""")
PLAIN_IN_FLOW = re.compile(r"[^\s,:{}\[\]\"'&*][^,{}\[\]]*?(?=\s*(?:,|\]|\}|:(?:\s|$)|$))")
QUOTED = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')""")
WORDS = {"": None, "null": None, "~": None, "true": True, "false": False}


class YamlError(Exception):
    """Text that is not YAML, or YAML of a kind that is not read here."""


def load(text):
    """The only document of the text."""
    reader = _Reader(text)
    here = reader.peek()
    value = reader.block(here[0]) if here else None
    if reader.peek():
        reader.fail("is not part of what precedes it")
    return value


class _Reader:
    def __init__(self, text):
        self.lines = text.split("\n")
        self.at = 0
        self.anchors = {}

    def fail(self, why):
        line = self.lines[self.at].strip() if self.at < len(self.lines) else "the end"
        raise YamlError(f"line {self.at + 1}: {line!r} {why}")

    def peek(self):
        """Indentation and text of the next line that is neither blank nor a comment."""
        while self.at < len(self.lines):
            text = self.lines[self.at].strip()
            if text and text != "---" and not text.startswith("#"):
                return len(self.lines[self.at]) - len(self.lines[self.at].lstrip(" ")), text
            self.at += 1
        return None

    def block(self, indent):
        """The collection, or the scalar, that begins at the next line."""
        text = self.peek()[1]
        if text.startswith("- "):
            return self.sequence(indent)
        if KEY.match(text):
            return self.mapping(indent)
        return self.value(text, indent)

    def mapping(self, indent):
        found = {}
        while (here := self.peek()) and here[0] == indent and not here[1].startswith("- "):
            match = KEY.match(here[1])
            if not match:
                self.fail("has no key")
            key = self.scalar(match[1])
            if key in found:
                self.fail("is there twice")
            found[key] = self.value(match[2] or "", indent)
        if here and here[0] > indent:
            self.fail("is indented too far")
        return found

    def sequence(self, indent):
        found = []
        while (here := self.peek()) and here[0] == indent and here[1].startswith("- "):
            item = here[1][2:].lstrip()
            deeper = indent + len(here[1]) - len(item)
            if KEY.match(item):
                self.lines[self.at] = " " * deeper + item
                found.append(self.mapping(deeper))
            else:
                found.append(self.value(item, indent))
        return found

    def value(self, text, indent):
        """The value of `text`, the rest of the current line, and of the lines below that are indented more than `indent`."""
        if match := re.match(r"&(\w+)\s*(.*)$", text):
            value = self.anchors[match[1]] = self.value(match[2], indent)
            return value
        if match := re.match(r"\*(\w+)$", text):
            if match[1] not in self.anchors:
                self.fail("names an unknown anchor")
            self.at += 1
            return self.anchors[match[1]]
        if text in ("|", "|-"):
            return self.literal(indent, text)
        if text and text[0] in "!|>%@`":
            self.fail("is of an unsupported kind")
        if text:
            value, end = self.flow(text, 0) if text[0] in "{[" else self.line(text)
            if text[end:].strip() and not re.match(r"\s+#", text[end:]):
                self.fail("goes on after its value")
            self.at += 1
            return value
        self.at += 1
        below = self.peek()
        if below and (below[0] > indent or below[0] == indent and below[1].startswith("- ")):
            return self.block(below[0])
        return None

    def literal(self, indent, style):
        self.at += 1
        lines = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.strip() and len(line) - len(line.lstrip(" ")) <= indent:
                break
            lines.append(line)
            self.at += 1
        depth = min((len(line) - len(line.lstrip(" ")) for line in lines if line.strip()), default=0)
        text = "\n".join(line[depth:].rstrip() for line in lines).rstrip("\n")
        return text if style == "|-" else text + "\n"

    def line(self, text):
        """A scalar that fills the line, and where it ends."""
        if text[0] in "\"'":
            match = QUOTED.match(text)
            if not match:
                self.fail("has a quote that is not closed")
            return self.scalar(match[1]), match.end()
        end = re.search(r"\s+#|$", text).start()
        if re.search(r":(\s|$)", text[:end]):
            self.fail("has a second key")
        return self.scalar(text[:end].strip()), end

    def flow(self, text, at):
        """The value in flow style that begins at `at`, and where it ends."""
        at = re.compile(r"\s*").match(text, at).end()
        if text[at : at + 1] == "[":
            return self.items(text, at + 1, "]", [])
        if text[at : at + 1] == "{":
            return self.items(text, at + 1, "}", {})
        if alias := re.compile(r"\*(\w+)").match(text, at):
            if alias[1] not in self.anchors:
                self.fail("names an unknown anchor")
            return self.anchors[alias[1]], alias.end()
        match = QUOTED.match(text, at) or PLAIN_IN_FLOW.match(text, at)
        if not match:
            self.fail(f"is not understood at {text[at:]!r}")
        return self.scalar(match[0].strip()), match.end()

    def items(self, text, at, close, found):
        space = re.compile(r"\s*")
        while True:
            at = space.match(text, at).end()
            if text[at : at + 1] == close:
                return found, at + 1
            value, at = self.flow(text, at)
            at = space.match(text, at).end()
            if isinstance(found, dict):
                if text[at : at + 1] != ":":
                    self.fail("has a key without a value")
                key = value
                value, at = self.flow(text, at + 1)
                at = space.match(text, at).end()
                found[key] = value
            else:
                found.append(value)
            if text[at : at + 1] == ",":
                at += 1
            elif text[at : at + 1] != close:
                self.fail("is not closed on its line")

    def scalar(self, text):
        if text.startswith("'"):
            return text[1:-1].replace("''", "'")
        if text.startswith('"'):
            return json.loads(text)
        if text in WORDS:
            return WORDS[text]
        if re.fullmatch(r"[-+]?(0|[1-9][0-9]*)", text):
            return int(text)
        if re.fullmatch(r"[-+]?[0-9]+\.[0-9]+", text):
            return float(text)
        return text
