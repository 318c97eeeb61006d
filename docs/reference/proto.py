"""Reads the part of proto3 that our files use, with the comments of its items. Anything else is an error that names the line."""

import re
from dataclasses import dataclass, field

TOKEN = re.compile(r'(?P<space>\s+)|(?P<comment>//[^\n]*)|(?P<text>"(?:[^"\\]|\\.)*")|(?P<word>-?[\w.]+)|(?P<sign>[{}()<>\[\]=;,])')


class ProtoError(Exception):
    """Text that is not a .proto file, or has something that is not read here."""


@dataclass
class Token:
    text: str
    line: int
    # Lines of the comment directly above, or behind on the same line.
    comment: list = field(default_factory=list)
    behind: list = field(default_factory=list)


@dataclass
class Item:
    """A call, field or value. The type is the one in the file; for a call, it is what the call takes."""

    name: str
    comment: list
    number: int | None = None
    type: str = ""
    # "", "repeated", "optional", or "oneof " and the name of the field's `oneof`.
    label: str = ""
    # Of a call: what it returns, and which of the two are streams.
    returns: str = ""
    streams: tuple = (False, False)


@dataclass
class Block:
    """A service, message or enum."""

    kind: str
    name: str
    comment: list
    items: list = field(default_factory=list)


@dataclass
class File:
    package: str = ""
    comment: list = field(default_factory=list)
    blocks: list = field(default_factory=list)


def tokens(text):
    found, comment, last, at = [], [], 0, 0
    while at < len(text):
        match = TOKEN.match(text, at)
        line = text.count("\n", 0, at) + 1
        if not match:
            raise ProtoError(f"line {line}: {text[at:].splitlines()[0]!r} is not understood")
        at = match.end()
        if match.lastgroup == "space":
            continue
        if match.lastgroup == "comment":
            words = match[0][2:].removeprefix(" ").rstrip()
            if found and found[-1].line == line:
                found[-1].behind.append(words)
                continue
            comment = comment + [words] if line == last + 1 else [words]
        else:
            found.append(Token(match[0], line, comment if line == last + 1 and comment else []))
            comment = []
        last = line
    return found


class Parser:
    def __init__(self, text):
        self.tokens = tokens(text)
        self.at = 0

    def peek(self):
        return self.tokens[self.at].text if self.at < len(self.tokens) else ""

    def next(self, *expected):
        if self.at == len(self.tokens):
            raise ProtoError(f"ends before {' or '.join(expected) or 'the next token'}")
        token = self.tokens[self.at]
        if expected and token.text not in expected:
            raise ProtoError(f"line {token.line}: {token.text!r} instead of {' or '.join(expected)}")
        self.at += 1
        return token

    def words(self, count):
        return [self.next().text for _ in range(count)]

    def skip(self, end=";"):
        while self.next().text != end:
            pass

    def file(self):
        file = File()
        while self.peek():
            token = self.next("syntax", "package", "import", "option", "service", "message", "enum")
            match token.text:
                case "syntax" | "import" | "option":
                    self.skip()
                case "package":
                    file.package, file.comment = self.next().text, token.comment
                    self.next(";")
                case kind:
                    self.block(file, kind, token.comment, "")
        return file

    def block(self, file, kind, comment, outer):
        block = Block(kind, outer + self.next().text, comment)
        file.blocks.append(block)
        self.next("{")
        while self.peek() != "}":
            match kind:
                case "service":
                    block.items.append(self.call())
                case "message":
                    self.member(file, block)
                case "enum":
                    self.enum_value(block)
        self.next("}")

    def call(self):
        token = self.next("rpc")
        name = self.next().text
        takes, first = self.side()
        self.next("returns")
        returns, second = self.side()
        self.next(";")
        return Item(name, token.comment, type=takes, returns=returns, streams=(first, second))

    def side(self):
        self.next("(")
        name = self.next().text
        stream = name == "stream"
        if stream:
            name = self.next().text
        self.next(")")
        return name, stream

    def member(self, file, block):
        match self.peek():
            case "message" | "enum":
                token = self.next()
                self.block(file, token.text, token.comment, block.name + ".")
            case "option" | "reserved":
                self.skip()
            case "oneof":
                self.next()
                name = self.next().text
                self.next("{")
                while self.peek() != "}":
                    block.items.append(self.field("oneof " + name))
                self.next("}")
            case _:
                block.items.append(self.field(""))

    def field(self, label):
        token = self.next()
        kind = token.text
        if kind in ("repeated", "optional"):
            label, kind = kind, self.next().text
        if kind == "map":
            self.next("<")
            key = self.next().text
            self.next(",")
            kind = f"map<{key}, {self.next().text}>"
            self.next(">")
        name, _ = self.next().text, self.next("=")
        return self.end(Item(name, token.comment, self.number(), kind, label))

    def enum_value(self, block):
        if self.peek() in ("option", "reserved"):
            return self.skip()
        token = self.next()
        self.next("=")
        block.items.append(self.end(Item(token.text, token.comment, self.number())))

    def number(self):
        token = self.next()
        if not re.fullmatch(r"-?[0-9]+", token.text):
            raise ProtoError(f"line {token.line}: {token.text!r} is not a number")
        return int(token.text)

    def end(self, item):
        """Skips options, and takes the comment behind an item that has none above."""
        token = self.next(";", "[")
        if token.text == "[":
            self.skip("]")
            token = self.next(";")
        item.comment = item.comment or token.behind
        return item


def parse(text):
    return Parser(text).file()
