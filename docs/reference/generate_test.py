"""Tests of the generator of the reference.

    python3 docs/reference/generate_test.py
"""

import pathlib
import re
import tempfile
import unittest
from unittest import mock

import crd
import generate
import proto
import service
import yaml_subset
from page import Page, PageError

DEFINITION = """\
# A comment.
---
spec:
  group: example.dev
  scope: Namespaced
  names: {kind: Toy, plural: toys}
  versions:
  - name: v1
    schema:
      openAPIV3Schema:
        description: A toy
        properties:
          spec:
            type: object
            description: What is wanted.
            required: [size]
            properties:
              size: {type: integer, format: int32, minimum: 1, description: "How large: in <mm>."}
              colour:
                default: Red
                description: |-
                  Its colour, `a|b`.

                  Twice a line.
                enum:
                - Red
                - 'Blue'
                type: string
              parts:
                type: array
                maxItems: 3
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items: &part
                  type: object
                  properties:
                    name: {type: string}
              spares: {type: array, items: *part}
              template:
                properties:
                  metadata: {type: object, properties: {secret: {type: string}}}
                type: object
            x-kubernetes-validations:
            - {rule: self == oldSelf, message: Value is immutable}
            - fieldPath: .size
              message: too large
              rule: '!(self.size > 9)'
"""

PROTO = """\
syntax = "proto3";

// What toys are.
//
// Codes:
//   NOT_FOUND  there is none
//   ABORTED    another client
//              was first
package example.v1;

// Lost, as a blank line comes.

service Toys {
  // Watches them.
  rpc Watch(Toy) returns (stream Toy);
}

message Toy {
  // Its name,
  // in full.
  string name = 1 [deprecated = true];
  repeated Part parts = 2; // Behind it.
  map<string, Part> spares = 3;
  reserved 4, 5;
  oneof end {
    bool lost = 6;
  }
  message Part {}
}

enum Size {
  SIZE_SMALL = 0;
}
"""


def definition(*left_out):
    """The definition without the lines that hold one of these."""
    lines = DEFINITION.splitlines(keepends=True)
    return yaml_subset.load("".join(line for line in lines if not any(text in line for text in left_out)))


class YamlTest(unittest.TestCase):
    def test_reads_what_definitions_are_written_in(self):
        spec = crd.schema_of(definition())["properties"]["spec"]
        self.assertEqual(spec["required"], ["size"])
        self.assertEqual(spec["properties"]["size"]["description"], "How large: in <mm>.")
        self.assertEqual(spec["properties"]["size"]["minimum"], 1)
        self.assertEqual(spec["properties"]["colour"]["description"], "Its colour, `a|b`.\n\nTwice a line.")
        self.assertEqual(spec["properties"]["colour"]["enum"], ["Red", "Blue"])
        self.assertEqual(spec["properties"]["spares"]["items"], spec["properties"]["parts"]["items"])
        self.assertEqual(spec["x-kubernetes-validations"][1]["rule"], "!(self.size > 9)")
        read = yaml_subset.load("a: 'it''s'\nb: \"1\\n\"\nc: -1.5 # no\nd:\n- e: true\n  f: null\n- [g, {h: 2}]\n")
        self.assertEqual(read, {"a": "it's", "b": "1\n", "c": -1.5, "d": [{"e": True, "f": None}, ["g", {"h": 2}]]})

    def test_refuses_what_it_would_misread(self):
        for text in ["a: >-\n  b", "a: b: c", "a: 1\na: 2", "a: b\n  c", "a: [b", "a: 'b", "a: *b", "a: !b c", "a\nb", "a: 1\n- b"]:
            with self.assertRaisesRegex(yaml_subset.YamlError, r"^line \d+: ", msg=text):
                yaml_subset.load(text)


class CrdTest(unittest.TestCase):
    def page(self, *upstream_lacks):
        page = Page("Toys", "here", "Intro.")
        crd.Resource(page, definition(), definition(*upstream_lacks) if upstream_lacks else None).write()
        return page.text()

    def test_a_field_with_all_that_is_known_of_it(self):
        text = self.page()
        self.assertIn("\n### Toy.spec\n\nWhat is wanted.\n", text)
        self.assertIn("| `size` *required* | integer (int32) |  | How large: in \\<mm>. At least 1. |\n", text)
        self.assertIn("| `colour` | one of `Red`, `Blue` | `Red` | Its colour, `a\\|b`. Twice a line. |\n", text)
        self.assertIn("| `parts` | list of [object](#toyspecparts) |  | At most 3 items. One item for each `name`. |\n", text)
        self.assertIn("| Value is immutable | `self == oldSelf` |\n| `size`: too large | `!(self.size > 9)` |\n", text)
        self.assertIn("| `spec` | [object](#toyspec) | What is wanted. 2 [rules](#toyspec). |\n", text)

    def test_kubernetes_types_are_linked_and_not_opened(self):
        text = self.page()
        self.assertIn("[ObjectMeta](https://kubernetes.io/", text)
        self.assertNotIn("secret", text)

    def test_an_object_of_a_resource_before_is_not_written_again(self):
        page, known = Page("Toys", "here", "Intro."), {}
        crd.Resource(page, definition(), known=known).write()
        other = definition("{rule: self", "fieldPath", "message: too", "rule: '!", "x-kubernetes-validations")
        other["spec"]["names"]["kind"] = "Game"
        crd.Resource(page, other, known=known).write()
        self.assertIn("| `spec` | [object](#toyspec) | What is wanted. As [Toy.spec](#toyspec), without its rules. |\n", page.text())
        self.assertIn("### Toy.spec.spares[]\n", page.text())
        self.assertNotIn("### Game.spec", page.text())

    def test_a_field_that_upstream_lacks_is_marked(self):
        text = self.page("size: {", "Blue", "fieldPath", "too large", "self.size")
        self.assertIn("| `size` *required* *added* |", text)
        self.assertIn("| one of `Red`, `Blue` *added* |", text)
        self.assertIn("| `size`: too large *added* |", text)
        self.assertEqual(text.count("dded"), 3)

    def test_additions_are_those_that_the_schema_test_allows(self):
        ours, upstream = (crd.schema_of(generate.read(path, yaml_subset.load)) for path in (generate.JOBSET, generate.UPSTREAM))
        found = {path if rule is None else f"{path}.{crd.RULES}: {rule.split('`: ')[-1]}" for path, rule in crd.additions(ours, upstream)}
        test = (generate.ROOT / "control-plane/api/src/crd/tests.rs").read_text(encoding="utf-8")
        allowed = re.findall(r'"\+ spec\.versions\[0\]\.schema\.openAPIV3Schema\.properties\.(.*)",', test)
        self.assertEqual(found, {path.replace(".properties.", ".") for path in allowed})

    def test_every_type_of_kubernetes_is_met(self):
        text = "".join(generate.pages().values())
        for name, url in [*crd.FOREIGN.values(), *crd.DESCRIBED.values()]:
            self.assertIn(f"[{name}]({url})", text)


class ProtoTest(unittest.TestCase):
    def test_the_page_has_what_the_file_says(self):
        text = service.service_page(proto.parse(PROTO), "Toys", "here", "Intro.").text()
        for expected in [
            "What toys are.\n\nCodes:\n\n- `NOT_FOUND`: there is none\n- `ABORTED`: another client was first\n",
            "### Watch\n\nTakes [Toy](#toy), returns a stream of [Toy](#toy).\n\nWatches them.\n",
            "| `name` | 1 | string | Its name, in full. |\n",
            "| `parts` | 2 | list of [Part](#toypart) | Behind it. |\n",
            "| `spares` | 3 | map of string to [Part](#toypart) |  |\n",
            "| `lost` | 6 | bool, one of `end` |  |\n",
            "### Toy.Part\n\nIt has no fields.\n",
            "### Size\n\n| value | number |\n|---|---|\n| `SIZE_SMALL` | 0 |\n",
        ]:
            self.assertIn(expected, text)
        self.assertNotIn("Lost", text)

    def test_refuses_what_it_does_not_know(self):
        for text in [PROTO + "extend Toy {}", "message A {", "message A { string b; }", "enum A { B = C; }", "message A { ? }"]:
            with self.assertRaisesRegex(proto.ProtoError, r"^line \d+: |^ends ", msg=text):
                proto.parse(text)


class GenerateTest(unittest.TestCase):
    def test_headings_must_differ(self):
        page = Page("Toys", "here", "Intro.")
        with self.assertRaisesRegex(PageError, "toys"):
            page.heading(2, "toys")

    def test_check_names_the_pages_that_are_not_up_to_date(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(generate, "HERE", pathlib.Path(folder)):
            generate.main([])
            generate.main(["--check"])
            jobset = generate.HERE / "jobset.md"
            jobset.write_text(jobset.read_text(encoding="utf-8") + "\n", encoding="utf-8")
            (generate.HERE / "ray.md").unlink()
            (generate.HERE / "old.md").touch()
            with self.assertRaises(SystemExit) as caught:
                generate.main(["--check"])
            self.assertEqual(re.findall(r"docs/reference/(\w+)\.md is not", str(caught.exception)), ["jobset", "old", "ray"])
            self.assertNotEqual(caught.exception.code, 0)


if __name__ == "__main__":
    unittest.main()
