"""Writes the pages of the reference from the CRDs and the platform API's .proto file, or checks that
they are up to date.

    python3 docs/reference/generate.py [--check]
"""

import pathlib
import sys

import crd
import proto
import service
import yaml_subset

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent

JOBSET = "charts/lockstep/crds/jobset.x-k8s.io_jobsets.yaml"
UPSTREAM = "control-plane/api/vendor/jobset.x-k8s.io_jobsets.yaml"
RAY = [f"control-plane/api/crds/ray.io_{plural}.yaml" for plural in ["rayclusters", "rayjobs", "raycronjobs"]]
PLATFORM = "proto/lockstep/platform/v1/platform.proto"

JOBSET_INTRO = """\
Every field of the JobSet resource, as the API server validates it; webhooks refuse more.
[jobset-api.md](../jobset-api.md) explains the additions, the deliberate differences from upstream,
and the [annotations](../jobset-api.md#annotations)."""
RAY_INTRO = """\
Every field of Ray's resources that Lockstep reads, as the API server validates it with Lockstep's
CRDs. [ray.md](../ray.md) explains how Lockstep runs them, and
[what webhooks refuse](../ray.md#what-is-refused) in addition. Fields that KubeRay does not have are
marked *added*; those of `gang` mean the same as [in a JobSet](jobset.md#jobsetspecgang)."""
PLATFORM_INTRO = f"""\
The gRPC API for programs, on port 9445 of the Service `lockstep-control-plane`. Its source is
[platform.proto](../../{PLATFORM}). There is
[a Python client](../../clients/python/README.md). A field that is absent from a message has the
value 0, false or empty."""


def read(path, parse):
    try:
        return parse((ROOT / path).read_text(encoding="utf-8"))
    except (yaml_subset.YamlError, proto.ProtoError) as error:
        raise SystemExit(f"{path}: {error}") from error


def pages():
    """The text of each page, by its name."""
    jobset, upstream = (read(path, yaml_subset.load) for path in (JOBSET, UPSTREAM))
    ray = [read(path, yaml_subset.load) for path in RAY]
    platform = read(PLATFORM, proto.parse)
    made = {
        "jobset.md": crd.jobset_page(jobset, upstream, JOBSET, JOBSET_INTRO),
        "ray.md": crd.ray_page(ray, "control-plane/api/crds/", RAY_INTRO),
        "platform.md": service.service_page(platform, "Reference of the platform API", PLATFORM, PLATFORM_INTRO),
    }
    return {name: page.text() for name, page in made.items()}


def outdated(made, folder):
    """Names of the pages that differ from those in the folder, and of those that are not generated."""
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    return sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))


def main(arguments):
    made = pages()
    if arguments == ["--check"]:
        if wrong := outdated(made, HERE):
            raise SystemExit("\n".join(f"docs/reference/{name} is not up to date: make reference" for name in wrong))
    elif arguments:
        raise SystemExit(__doc__)
    else:
        for name, text in made.items():
            (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
