#!/usr/bin/env python3
"""One word for each thing, in plain English. docs/concepts.md defines the terms; no file uses a
former word for one of them, nor a phrase that reads like a translation.

    python3 docs/words_test.py
"""

import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Files that others wrote, files of bytes or numbers, this list, and scripts whose cache is named
# by their own digest: each change of a comment there unpacks gigabytes again.
FOREIGN_FOLDERS = {"vendor"}
FOREIGN_SUFFIXES = {".hex", ".lock", ".mod", ".png", ".sum", ".svg"}
FOREIGN_FILES = {
    "LICENSE",
    "docs/words_test.py",
    "integration/testbed/torch/unpack",
    "integration/testbed/trixie/unpack",
}

# What a process is called; processes are "it", so no "who" follows.
PROCESS = (
    r"(?:agent|container|control plane|controller|coordinator|daemon|kubelet|leader|node|pod|"
    r"process|program|replica|standby|task|worker)(?:e?s)?"
)
# Where a comment or a docstring begins.
COMMENT = r'(?:^\s*(?:///?|//!|/\*\*?|\*|#+|--|"""|\{\{-?\s*/\*)\s*|"""\s*)'
# A former word or phrase, and what to write instead.
FORMER = {
    # Terms.
    r"\brungs?\b": "restart level",
    r"(?i)\bextras\b(?!\")": "optional workers",
    r"\b(RestartedAlone|NotAlone|AloneRequest|RestartSome)\b": "worker restart",
    r"\bhandled_?[aA]lone|\brestart_(alone|some)\b|\brestart-alone\b": "worker restart",
    # Phrases.
    r"(?i)\banew\b": "again, or recreate",
    r"(?i)\b(for )?so long as\b|\bfor so long\b": "while",
    r"(?i)\bso long\b(?! (ago )?(as|that)\b)": "this long, or the time itself",
    r"(?i)(?<!\bare )(?<!\bwere )(?<!\bis )\bso (many|much)\b(?! (\w+ ){1,3}that\b)": "the number itself",
    r"(?i)\bthe same of\b": "a plain noun",
    r"(?i)\b(come|comes|came|coming) about\b(?! \d)": "happen, or finish",
    r"(?i)\b(is|are|was|were|be|been) had\b": "a plain verb",
    r"(?i)\bwhat is so\b": "what is true",
    r"(?i)\b(that|which|it|they) (is|are|was|were) no more\b(?! than)": "no longer exists",
    r"(?i)\bmore can be said\b": "a sentence that says what it is",
    r"(?i)\bbe it\b": "or",
    # Persons.
    r"(?i)\bwho(so)?ever\b": "the component that is meant",
    r"\b([Hh]e|[Hh]im|[Hh]is|[Hh]imself)\b": "it, or the user",
    rf"(?i)\b{PROCESS} who\b": "that",
    # Conditions.
    r"(?i)\bwhere that (is|has|does)\b": "if",
    r"(?i)(?<!that )\bwhere (there|it) (is|are) (a|an|no|none|one)\b": "if",
    r"(?i)\b(none|nothing|quiet|silent|only|even) where (it|they|nothing|none|no|something)\b": "if",
    # Documentation of a function or a value.
    rf"{COMMENT}Whether\b": "what the value is: true if, or Reports if",
    r'^\s*""".*[.:;] Whether\b': "Returns true if",
}
# What the list must find, and what it must leave alone.
BAD = (
    "/// Whether it runs.",
    '    """Whether it runs."""',
    '    """Appends a line. Whether there was room."""',
    "  // Whether it runs.",
    "# Whether it runs",
    "{{- /* Whether it runs */ -}}",
    "a leader that is no more",
    "the daemon who asks",
    "a restart does not come about",
    "after so many restarts",
    "quiet where nothing is",
    "why, where that is so",
    "he waits",
)
GOOD = (
    "It asks whether the worker runs.",
    "the first event comes about 25 s later",
    "is no more than a hint",
    "since there are so many",
    "it takes so long that others wait",
    "so many lines that none is read",
    "a user who writes JobSets",
    "where it is mounted",
    "the page says where there is room for one",
)


def files():
    """The texts of the repository, apart from those of others."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in listed.stdout.splitlines():
        path = ROOT / name
        foreign = FOREIGN_FOLDERS & set(path.parts) or path.suffix in FOREIGN_SUFFIXES or name in FOREIGN_FILES
        if not foreign and path.is_file():
            yield path


def advice(line):
    """What to write instead of the phrases of a line that are on the list."""
    return [term for former, term in FORMER.items() if re.search(former, line)]


class Words(unittest.TestCase):
    def test_no_file_uses_a_former_word(self) -> None:
        paths = list(files())
        self.assertGreater(len(paths), 1000)
        found = []
        for path in paths:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                for term in advice(line):
                    found.append(f"{path.relative_to(ROOT)}:{number}: say {term!r}: {line.strip()[:80]}")
        self.assertEqual(found, [])

    def test_the_list_reads_comments_docstrings_and_templates(self) -> None:
        suffixes = {path.suffix for path in files()}
        self.assertLessEqual({".rs", ".proto", ".py", ".tpl", ".yaml", ".md", ".txt", ".sh", ""}, suffixes)

    def test_the_list_finds_what_it_should_and_nothing_else(self) -> None:
        self.assertEqual([line for line in BAD if not advice(line)], [])
        self.assertEqual([line for line in GOOD if advice(line)], [])


if __name__ == "__main__":
    unittest.main()
