"""Reads the example JobSets with the models of Kubeflow's SDK, which are upstream's types on PyPI."""

from __future__ import annotations

import pathlib
import unittest
from typing import Any

import yaml  # type: ignore[import-untyped]
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import (  # type: ignore[import-untyped]
    JobsetV1alpha2JobSet,
)

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples"
# Fields that upstream's types do not have.
OURS = {"gang", "executionPolicy"}


def jobsets() -> dict[str, dict[str, Any]]:
    """The example JobSets by file."""
    found = {}
    for path in sorted(EXAMPLES.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if document and document["kind"] == "JobSet":
                found[path.name] = document
    return found


def passed(jobset: dict[str, Any]) -> dict[str, Any]:
    """The JobSet after a round trip through the models."""
    model = JobsetV1alpha2JobSet.from_dict(jobset)
    written: dict[str, Any] = model.to_dict()
    return written


class SdkTest(unittest.TestCase):
    def test_the_models_take_every_example_and_lose_only_two_fields(self) -> None:
        lost = {}
        for name, jobset in jobsets().items():
            with self.subTest(name):
                written = passed(jobset)
                lost[name] = set(jobset["spec"]) - set(written["spec"])
                kept = {key: value for key, value in jobset["spec"].items() if key not in lost[name]}
                self.assertEqual(written["spec"], kept)
                self.assertEqual(written["metadata"], jobset["metadata"])
        self.assertGreater(len(lost), 15)
        self.assertEqual(set().union(*lost.values()), OURS)

    def test_the_models_can_request_restarts_in_place(self) -> None:
        jobset = jobsets()["ring-allreduce.yaml"]
        model = JobsetV1alpha2JobSet.from_dict(jobset)
        assert model and model.spec and model.spec.failure_policy
        self.assertEqual(model.spec.failure_policy.restart_strategy, "InPlaceRestart")


if __name__ == "__main__":
    unittest.main()
