"""Generates the page of a gRPC service from its .proto file: its calls, then its messages and enums in the file's order."""

import re

from page import Page, code, link, prose, sentence, table


def service_page(file, title, source, intro):
    page = Page(title, source, intro)
    page.add(comment(file.comment))
    services = [block for block in file.blocks if block.kind == "service"]
    types = {block.name for block in file.blocks if block.kind != "service"}
    for service in services:
        page.heading(2, "Calls")
        page.add(f"Of the service `{file.package}.{service.name}`.")
        page.add(comment(service.comment))
        for call in service.items:
            page.heading(3, call.name)
            takes, returns = (("a stream of " if stream else "") + type_of(name, types) for name, stream in zip((call.type, call.returns), call.streams))
            page.add(f"Takes {takes}, returns {returns}.")
            page.add(comment(call.comment))
    for kind, heading, columns in [
        ("message", "Messages", ["field", "number", "type", "meaning"]),
        ("enum", "Enums", ["value", "number", "meaning"]),
    ]:
        page.heading(2, heading)
        for block in (block for block in file.blocks if block.kind == kind):
            page.heading(3, block.name)
            page.add(comment(block.comment))
            rows = [row(item, types, block) for item in block.items]
            page.add(table(columns, rows) if rows else "It has no fields.")
    return page


def row(item, types, block):
    meaning = comment(item.comment).replace("\n", " ")
    if block.kind == "enum":
        return [code(item.name), str(item.number), meaning]
    kind = type_of(item.type, types, block.name)
    if item.label == "repeated":
        kind = f"list of {kind}"
    elif item.label == "optional":
        kind = f"{kind}, may be absent"
    elif item.label:
        kind = f"{kind}, one of {code(item.label.removeprefix('oneof '))}"
    return [code(item.name), str(item.number), kind, meaning]


def type_of(name, types, inside=""):
    """The name, as a link if this file defines it. A message may name its own nested types without a prefix."""
    if match := re.match(r"map<(\w+), (.+)>$", name):
        return f"map of {match[1]} to {type_of(match[2], types, inside)}"
    scopes = inside.split(".")
    for depth in range(len(scopes), -1, -1):
        full = ".".join([*scopes[:depth], name])
        if full in types:
            return link(full, name)
    return name


def comment(lines):
    """Paragraphs of prose, and a list for lines of two columns."""
    parts, words, rows = [], [], []

    def end():
        if words:
            parts.append(sentence(prose(" ".join(words))))
        if rows:
            parts.append("\n".join(f"- {code(name)}: {prose(text)}" for name, text in rows))
        words.clear()
        rows.clear()

    for line in lines:
        if match := re.match(r"  (\S.*?)  +(\S.*)$", line):
            if words:
                end()
            rows.append(match.groups())
        elif rows and line.startswith("  "):
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line.strip()}")
        else:
            if rows or not line:
                end()
            if line:
                words.append(line.strip())
    end()
    return "\n\n".join(parts)
