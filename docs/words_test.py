#!/usr/bin/env python3
"""One word for each thing: docs/concepts.md defines the terms, and no file uses a former word for
one of them, nor a phrase that reads like a translation."""

import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".rs", ".md", ".proto", ".py", ".yaml", ".json", ".js", ".sh", ".tpl", ".toml"}
# What says itself what was called otherwise.
LEFT_OUT = {"CHANGELOG.md", "docs/words_test.py"}
# A former word, and the one to use.
FORMER = {
    r"\brungs?\b": "restart level",
    r"(?i)\bextras\b(?!\")": "optional workers",
    r"\b(RestartedAlone|NotAlone|AloneRequest)\b|\bhandled_?[aA]lone": "worker restart",
    r"\brestart-alone\b": "restart-workers",
    r"(?i)\banew\b": "again, or recreate",
    r"(?i)\bwho(so)?ever\b": "the component that is meant",
    r"(?i)\b(for )?so long as\b|\bfor so long\b": "while",
    r"(?i)\bthe same of\b|\bcome about\b|\bis had\b": "a plain verb",
}


def files():
    """The files of the repository, but those that are others'."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix in SUFFIXES and "vendor" not in path.parts and name not in LEFT_OUT and path.is_file():
            yield path


class Words(unittest.TestCase):
    def test_no_file_uses_a_former_word(self) -> None:
        found = []
        for path in files():
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                for former, term in FORMER.items():
                    if re.search(former, line):
                        found.append(f"{path.relative_to(ROOT)}:{number}: say {term!r}: {line.strip()[:80]}")
        self.assertEqual(found, [])


if __name__ == "__main__":
    unittest.main()
