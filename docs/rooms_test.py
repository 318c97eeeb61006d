#!/usr/bin/env python3
"""The rooms of the control plane, as docs/architecture.md has them, and the length of files.

Each room uses those below it alone.

    python3 docs/rooms_test.py
"""

import pathlib
import re
import unittest

CONTROL_PLANE = pathlib.Path(__file__).resolve().parent.parent / "control-plane"
# The rooms of each crate, the lowest first.
CRATES = {
    CONTROL_PLANE / "src": [
        "config",
        "telemetry",
        "k8s",
        "net",
        "leader",
        "hub",
        "controllers",
        "api",
        "runtime",
    ],
    CONTROL_PLANE / "core" / "src": [
        "common",
        "jobset",
        "gang",
        "admission",
        "ray",
        "restart",
        "reconcile",
    ],
}

ROOT = CONTROL_PLANE.parent
# One idea has room in that many lines.
LONGEST = 600


def product(text):
    """The text without comments and tests: tests may use what they like."""
    text = re.split(r"#\[cfg\(test\)\]\s*mod tests \{", text)[0]
    return re.sub(r"//.*", "", text)


def is_test(path):
    """Whether the file is compiled for tests alone."""
    return {path.stem, *path.parts} & {"tests", "testing"}


def used(text):
    """The rooms that a file names: `crate::a::b`, and `crate::{a::b, c}`."""
    yield from re.findall(r"\bcrate::(\w+)", text)
    for group in re.finditer(r"\bcrate::\{", text):
        depth, begin = 1, group.end()
        for end in range(begin, len(text)):
            if text[end] in ",}" and depth == 1:
                if name := re.match(r"\s*(\w+)", text[begin:end]):
                    yield name[1]
                begin = end + 1
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                break


class Rooms(unittest.TestCase):
    def test_there_are_no_other_rooms(self) -> None:
        for source, rooms in CRATES.items():
            files = (path.relative_to(source) for path in source.rglob("*.rs"))
            found = {path.parts[0].removesuffix(".rs") for path in files} - {"lib", "main"}
            self.assertEqual(found, set(rooms))

    def test_a_room_uses_those_below_it_alone(self) -> None:
        found = []
        for source, rooms in CRATES.items():
            for path in sorted(source.rglob("*.rs")):
                inside = path.relative_to(source)
                own = inside.parts[0].removesuffix(".rs")
                if own not in rooms or is_test(inside):
                    continue
                for room in used(product(path.read_text(encoding="utf-8"))):
                    if room in rooms and rooms.index(room) > rooms.index(own):
                        found.append(f"{inside} uses {room}, which is above {own}")
        self.assertEqual(found, [])

    def test_no_file_is_long(self) -> None:
        crates = [path for path in ROOT.iterdir() if path.is_dir() and path.name != "target"]
        lengths = {}
        for path in (path for crate in crates for path in crate.rglob("*.rs")):
            name = str(path.relative_to(ROOT))
            lengths[name] = len(path.read_text(encoding="utf-8").splitlines())
        self.assertEqual({name: n for name, n in lengths.items() if n > LONGEST}, {})
        self.assertGreater(len(lengths), 500)

    def test_what_is_used_is_found(self) -> None:
        text = "use crate::{a::{b, c}, d, e::f};\nlet x = crate::g::h();"
        self.assertEqual(sorted(used(text)), ["a", "d", "e", "g"])


if __name__ == "__main__":
    unittest.main()
