//! The SBOM of an image (CycloneDX 1.5, JSON): the crates that its binaries are built from,
//! according to Cargo.lock.
//!
//! Promises: the same Cargo.lock gives the same SBOM. It lists the crates for this platform with
//! all features that the workspace enables; a single binary may have fewer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{ImageError, io as at};
use crate::command;

/// The output of `cargo metadata`.
#[derive(Deserialize)]
pub(super) struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    /// `dev` or `build`; none for crates that are linked.
    kind: Option<String>,
}

/// The SBOM of an image with the binaries of these packages of the workspace.
pub(super) fn of(image: &str, packages: &[&str]) -> Result<Value, ImageError> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let lock = workspace.join("Cargo.lock");
    let lock = std::fs::read_to_string(&lock).map_err(at(&lock))?;
    let manifest = workspace.join("Cargo.toml").display().to_string();
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let args = [
        "metadata",
        "--format-version=1",
        "--locked",
        "--manifest-path",
        &manifest,
    ];
    let args = args.into_iter().chain(["--filter-platform", &platform]);
    let output = command::run_blocking("cargo", args)?;
    let metadata = serde_json::from_str(&output)?;
    Ok(sbom(image, packages, &metadata, &checksums(&lock)))
}

/// The checksum of each crate, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let field = |block: &str, key: &str| {
        let prefix = format!("{key} = \"");
        let value = block.lines().find_map(|line| line.strip_prefix(&prefix))?;
        value.strip_suffix('"').map(str::to_owned)
    };
    let blocks = lock.split("[[package]]");
    blocks
        .filter_map(|block| {
            let name = (field(block, "name")?, field(block, "version")?);
            Some((name, field(block, "checksum")?))
        })
        .collect()
}

fn sbom(
    image: &str,
    packages: &[&str],
    metadata: &Metadata,
    checksums: &BTreeMap<(String, String), String>,
) -> Value {
    let linked: BTreeMap<&str, Vec<&str>> = metadata
        .resolve
        .nodes
        .iter()
        .map(|node| {
            let linked = node
                .deps
                .iter()
                .filter(|dependency| dependency.dep_kinds.iter().any(|kind| kind.kind.is_none()));
            let ids = linked.map(|dependency| dependency.pkg.as_str());
            (node.id.as_str(), ids.collect())
        })
        .collect();
    let is_root = |package: &&Package| package.source.is_none() && packages.contains(&package.name.as_str());
    let roots = metadata.packages.iter().filter(is_root);
    let mut todo: Vec<&str> = roots.map(|package| package.id.as_str()).collect();
    let mut reached = BTreeSet::new();
    while let Some(id) = todo.pop() {
        if reached.insert(id) {
            todo.extend(linked.get(id).into_iter().flatten().copied());
        }
    }
    let mut listed: Vec<&Package> = metadata
        .packages
        .iter()
        .filter(|package| reached.contains(package.id.as_str()))
        .collect();
    listed.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    let references: BTreeMap<&str, String> = listed
        .iter()
        .map(|package| (package.id.as_str(), reference(package)))
        .collect();
    let components: Vec<Value> = listed
        .iter()
        .map(|package| component(package, checksums))
        .collect();
    let dependencies: Vec<Value> = listed
        .iter()
        .map(|package| {
            let on = linked.get(package.id.as_str()).into_iter().flatten();
            let on: BTreeSet<&String> = on.filter_map(|id| references.get(id)).collect();
            json!({"ref": reference(package), "dependsOn": on})
        })
        .collect();
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "bom-ref": image, "name": image, "version": env!("CARGO_PKG_VERSION")}},
        "components": components,
        "dependencies": dependencies,
    })
}

/// The package URL of a crate.
fn reference(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version)
}

fn component(package: &Package, checksums: &BTreeMap<(String, String), String>) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": reference(package),
        "name": package.name,
        "version": package.version,
        "purl": reference(package),
    });
    if let Some(license) = &package.license {
        // Cargo still accepts a slash as `OR`.
        component["licenses"] = json!([{"expression": license.replace('/', " OR ")}]);
    }
    if let Some(checksum) = checksums.get(&(package.name.clone(), package.version.clone())) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    component
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bill_lists_what_is_linked_and_nothing_else() {
        let package = |name: &str, source: Option<&str>| json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0", "source": source});
        let on = |name: &str, kind: Option<&str>| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let registry = Some("registry");
        let metadata = json!({
            "packages": [
                package("ours", None), package("other-of-ours", None), package("linked", registry),
                package("below", registry), package("of-tests", registry), package("of-builds", registry),
            ],
            "resolve": {"nodes": [
                {"id": "ours", "deps": [on("linked", None), on("of-tests", Some("dev")), on("of-builds", Some("build"))]},
                {"id": "other-of-ours", "deps": [on("of-tests", None)]},
                {"id": "linked", "deps": [on("below", None)]},
                {"id": "below", "deps": []},
            ]},
        });
        let metadata: Metadata = serde_json::from_value(metadata).unwrap();
        let lock = "version = 4\n\n[[package]]\nname = \"below\"\nversion = \"1.0.0\"\nsource = \"registry\"\nchecksum = \"abc\"\n";
        let sbom = sbom("image", &["ours"], &metadata, &checksums(lock));
        let components = sbom["components"].as_array().unwrap();
        let names: Vec<_> = components.iter().map(|component| &component["name"]).collect();
        assert_eq!(names, ["below", "linked", "ours"]);
        assert_eq!(components[0]["hashes"][0]["content"], "abc");
        assert_eq!(components[0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(
            sbom["dependencies"][2]["dependsOn"],
            json!(["pkg:cargo/linked@1.0.0"])
        );
    }

    #[test]
    fn the_sbom_of_the_control_plane_has_its_tls_library() {
        let sbom = of("lockstep-control-plane", &["lockstep-control-plane"]).unwrap();
        let components = sbom["components"].as_array().unwrap();
        let rustls = components
            .iter()
            .find(|component| component["name"] == "rustls")
            .unwrap();
        assert_eq!(rustls["hashes"][0]["content"].as_str().map(str::len), Some(64));
        assert!(components.iter().all(|component| component["name"] != "proptest"));
    }
}
