"""Markdown for the pages of the reference: text that is safe in it, tables, headings and links to them."""

import re


class PageError(Exception):
    """A page that would not be right."""


class Page:
    """A page as it grows. Each heading is an anchor, so no two may be alike."""

    def __init__(self, title, source, intro):
        self.parts = []
        self.anchors = set()
        self.parts.append(f"<!-- Made by docs/reference/generate.py from {source}. Do not edit: `make reference`. -->")
        self.heading(1, title)
        self.parts.append(intro)

    def heading(self, level, title):
        name = anchor(title)
        if name in self.anchors:
            raise PageError(f"two headings are called {title}")
        self.anchors.add(name)
        self.parts.append(f"{'#' * level} {title}")

    def add(self, text):
        if text:
            self.parts.append(text)

    def text(self):
        return "\n\n".join(self.parts) + "\n"


def anchor(heading):
    """What GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-")


def link(heading, text=None):
    """A link to a heading of the same page."""
    return f"[{text or heading}](#{anchor(heading)})"


def code(text):
    return f"`{text}`"


def prose(text):
    """Text of a description, so that nothing of it but code in backticks is taken for markup."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<*\[\]])", r"\\\1", part) for part in parts)


def sentence(text):
    """The text with a full stop at its end."""
    return text if not text or text.endswith((".", ":", "!", "?")) else text + "."


def table(columns, rows):
    """A table without the columns that are empty in every row. Cells are Markdown."""
    kept = [index for index in range(len(columns)) if any(row[index] for row in rows)]
    head = "| " + " | ".join(columns[index] for index in kept) + " |"
    lines = [[" ".join(row[index].split()).replace("|", "\\|") for index in kept] for row in rows]
    return "\n".join([head, "|---" * len(kept) + "|"] + ["| " + " | ".join(line) + " |" for line in lines])
