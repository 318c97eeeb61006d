"""Checks that links of the documentation within the repository lead somewhere, headings included, and tests that are named.

    python3 docs/links_test.py
"""

import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def pages():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [ROOT / line for line in listed.stdout.splitlines()]


def prose(path):
    """The page without its code."""
    return re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(path):
    """What GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.M)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)).lower().replace(" ", "-") for heading in headings}


def made(page):
    """The targets that a page has made: by commands in blocks, and in the middle of a sentence."""
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S))
    settings = r"(?:[A-Z_]+=\S+ +)*"
    commands = re.findall(rf"^(?:\$ )?{settings}make +([^#\n]*)", blocks, re.M)
    commands += re.findall(rf"`{settings}make +([^`\n]*)`", prose(page))
    for command in commands:
        yield from (word for word in command.split() if "=" not in word and not word.startswith("-"))


class LinksTest(unittest.TestCase):
    def test_what_is_made_is_a_target(self):
        targets = set(re.findall(r"^\.PHONY: ([\w-]+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
        named = [(page.relative_to(ROOT), target) for page in pages() for target in made(page)]
        self.assertEqual([(str(page), target) for page, target in named if target not in targets], [])
        self.assertGreater(len(named), 20)

    def test_links_lead_somewhere(self):
        links = 0
        for page in pages():
            for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(page))):
                if re.match(r"\w+:", target):
                    continue
                links += 1
                name, _, anchor = target.partition("#")
                there = (page.parent / name).resolve() if name else page
                self.assertTrue(there.exists(), f"{page.name}: {target}")
                if anchor:
                    self.assertIn(anchor, anchors(there), f"{page.name}: {target}")
        self.assertGreater(links, 20)

    def test_named_tests_are_where_they_are_said_to_be(self):
        page = ROOT / "docs/neighbours.md"
        named = re.findall(r"`(\w+)` in \[[^]]*\]\(([^)]+)\)", prose(page))
        self.assertGreater(len(named), 10)
        for name, target in named:
            self.assertIn(f"fn {name}(", (page.parent / target).read_text(encoding="utf-8"))

    def test_the_index_has_every_page(self):
        for page in (ROOT / "docs").rglob("*.md"):
            # The index of its own folder, if that has one.
            folder = page.parent.parent if page.name == "README.md" else page.parent
            folder = folder if (folder / "README.md").exists() else ROOT / "docs"
            if page != ROOT / "docs/README.md":
                self.assertIn(f"]({page.relative_to(folder)})", (folder / "README.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
