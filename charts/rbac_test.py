"""Checks that the control plane's roles and the tables of docs/threat-model.md have the same rights.

    python3 charts/rbac_test.py RENDERED        # the chart with all values that add rights
"""

import collections
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAME = "lockstep-control-plane"


def items(text):
    """The items of a list on one line."""
    return [item.strip() for item in text.split(",")]


def roles(kind, name=None):
    """The rendered roles of this kind."""
    manifests = re.split(r"^---$", RENDERED.read_text(encoding="utf-8"), flags=re.M)
    of_kind = [manifest for manifest in manifests if re.search(rf"^kind: {kind}$", manifest, re.M)]
    return [manifest for manifest in of_kind if name is None or re.search(rf"^  name: {name}$", manifest, re.M)]


def granted(kind):
    """The verbs of the control plane's role for each resource and URL."""
    (manifest,) = roles(kind, NAME)
    rights = collections.defaultdict(set)
    rules = re.split(r"^  - ", manifest.split("\nrules:\n")[1], flags=re.M)[1:]
    for rule in rules:
        rule = re.sub(r"^ *#.*$", "", rule, flags=re.M)
        what = re.search(r"(?:\bresources|nonResourceURLs): \[(.*?)\]", rule)
        verbs = re.search(r"\bverbs: \[(.*?)\]", rule)
        for one in items(what[1]):
            rights[one].update(items(verbs[1]))
    return rights


def documented(*headings):
    """The verbs that the tables below these lines give each."""
    text = (ROOT / "docs/threat-model.md").read_text(encoding="utf-8")
    rights = collections.defaultdict(set)
    for heading in headings:
        table = text.split(heading, 1)[1].split("|---|---|---|\n", 1)[1].split("\n\n", 1)[0]
        named = []
        for row in table.splitlines():
            what, verbs, why = (cell.strip() for cell in row.strip("|").split("|"))
            # A row without a resource is about the one above it. Names follow a colon.
            named = re.findall(r"`(.*?)`", what.split(":")[0]) or named
            assert named and why, row
            for one in named:
                rights[one].update(items(verbs))
    return rights


class Roles(unittest.TestCase):
    def test_the_tables_are_the_roles(self):
        everywhere = documented("## Rights of the control plane", "With `ray.enabled` besides:")
        self.assertEqual(granted("ClusterRole"), everywhere)
        self.assertEqual(granted("Role"), documented("In its own namespace:"))

    def test_no_cluster_role_names_secrets_or_everything(self):
        self.assertGreater(len(roles("ClusterRole")), 1)
        for role in roles("ClusterRole"):
            self.assertNotRegex(re.sub(r"#.*", "", role), r"\bsecrets\b|\*")


if __name__ == "__main__":
    RENDERED = pathlib.Path(sys.argv.pop())
    unittest.main()
