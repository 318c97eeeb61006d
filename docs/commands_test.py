"""Checks that nothing that the documentation has its readers type goes untested: what docs/commands.py leaves out has a test elsewhere.

    python3 docs/commands_test.py
"""

import re
import subprocess
import unittest

import commands
from links_test import ROOT, pages


class CommandsTest(unittest.TestCase):
    def covers(self, by):
        """Reports if there is such a test: a part of `make test`, or a function in a file."""
        if by.startswith("make "):
            return by.removeprefix("make ") in commands.tested()
        path, _, name = by.partition("::")
        return re.search(rf"\bfn {name}\b", (ROOT / path).read_text(encoding="utf-8")) is not None

    def test_what_is_run_elsewhere_is_covered_there(self):
        every = commands.commands()
        for begin, _, by in commands.ELSEWHERE:
            self.assertTrue(any(re.match(begin, command.line) for command in every), f"nothing begins with {begin}")
            self.assertTrue(self.covers(by), by)
        run = [command for command in every if not commands.elsewhere(command.line)]
        self.assertGreater(len(run), 60)
        self.assertLess(len(every) - len(run), 35)

    def test_what_is_made_is_tested_or_covered_and_can_be_made(self):
        named = commands.targets()
        self.assertEqual(named - commands.tested() - {"test"}, set(commands.BY_HAND))
        for by in commands.BY_HAND.values():
            self.assertTrue(self.covers(by), by)
        made = subprocess.run(["make", "-n", *sorted(named)], cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(made.returncode, 0, made.stderr)

    def test_no_block_is_left_out_for_a_line_that_is_not_understood(self):
        program = re.compile(r"^(kubectl|helm|make|git|cargo|grpcurl|curl|pip|python3|sha256sum) ", re.M)
        for page in pages():
            for block in commands.blocks(page.read_text(encoding="utf-8")):
                self.assertTrue(commands.lines(block) or not program.search(block), f"{page}: {block}")

    def test_commands_are_told_from_what_they_print(self):
        page = "\n".join([
            "```mermaid", "a --> b", "```",
            "```", "$ kubectl a   # why", "NAME  AGE LAST", "b", "$ kubectl c", "```",
            "```sh", "X=1 make d \\", "  E=2", "for f in 1; do", "  echo", "done", "```",
            "```", "(new) ──> Running", "```",
            "Run `grpcurl -x y`, and `kubectl get` alone.",
        ])
        found = list(commands.of_page(page))
        lines = ["kubectl a", "kubectl c", "X=1 make d E=2", "for f in 1; do echo done", "grpcurl -x y"]
        self.assertEqual([line for line, _ in found], lines)
        self.assertEqual(found[0][1], ("NAME  AGE LAST", "b"))

    def test_answers_are_compared_by_what_does_not_change(self):
        self.assertEqual(commands.heads(("team/js  took 41.6 ms", "NODE   READY", "js-1  yes")), {"team/js took N ms", "NODE READY"})


if __name__ == "__main__":
    unittest.main()
