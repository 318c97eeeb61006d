use std::collections::BTreeSet;
use std::fs;

use super::catalog::{self, CONTAINERD, KUBERNETES, MODULES, Module, PROJECTS};
use super::{build, module_dir, packages, parse_version};

#[test]
fn versions_are_found_in_what_programs_print() {
    for (printed, expected) in [
        ("Kubernetes v1.36.3", Some([1, 36])),
        (
            "Client Version: v1.32.4-dispatcher\nKustomize Version: v5.5.0",
            Some([1, 32]),
        ),
        (
            "containerd github.com/containerd/containerd/v2 2.4.2+unknown",
            Some([2, 4]),
        ),
        ("containerd-shim-runc-v2:\n  Version:  v2.4.2", Some([2, 4])),
        ("CoreDNS-1.15.0\nlinux/amd64, go1.26", Some([1, 15])),
        ("etcd Version: 3.6.16\nGit SHA: Not provided", Some([3, 6])),
        ("v3.22+g", Some([3, 22])),
        ("promtool, version 3.13.5 (branch: HEAD)", Some([3, 13])),
        ("no version here, only 7 words.", None),
    ] {
        assert_eq!(parse_version(printed), expected, "{printed}");
    }
}

#[test]
fn each_program_is_in_one_module_and_imported_there() {
    let mut seen = BTreeSet::new();
    let versioned = PROJECTS.into_iter().flat_map(|project| project.modules);
    for module in versioned.chain(MODULES) {
        let imports = fs::read_to_string(module_dir(module).join("tools.go")).unwrap();
        for tool in module.tools {
            // Some projects have the same programs in each version.
            let first = seen.insert(tool.name);
            let repeats = PROJECTS
                .iter()
                .any(|project| project.modules[1..].contains(module));
            assert!(first != repeats, "{} is listed twice", tool.name);
            assert!(
                imports.contains(&format!("\"{}\"", tool.package)),
                "{} does not pin {}",
                module.name,
                tool.package
            );
        }
    }
    let mut named = [catalog::API_SERVER_TOOLS, catalog::CHECKERS, catalog::NEIGHBOURS]
        .into_iter()
        .flatten();
    assert!(named.all(|name| seen.contains(name)));
}

/// The version of a Go module that this one pins.
fn pinned(module: &Module, path: &str) -> String {
    let text = fs::read_to_string(module_dir(module).join("go.mod")).unwrap();
    let found = text.lines().find_map(|line| {
        let line = line.trim().trim_start_matches("require ");
        line.strip_prefix(path)?.strip_prefix(' ')
    });
    found.unwrap_or_default().to_owned()
}

#[test]
fn each_version_of_containerd_is_the_pinned_one() {
    for module in CONTAINERD.modules {
        let pinned = pinned(module, "github.com/containerd/containerd/v2");
        let minor = module.name.replace("containerd-", "v") + ".";
        assert!(pinned.starts_with(&minor), "{}: {pinned}", module.name);
    }
    assert!(CONTAINERD.versions().any(|version| version == "2.4"));
}

#[test]
fn each_version_of_kubernetes_is_the_pinned_one() {
    for module in KUBERNETES.modules {
        let pinned = pinned(module, "k8s.io/kubernetes");
        let flag = format!("gitVersion={pinned} ");
        assert!(
            module.ldflags.contains(&flag),
            "{}: {}",
            module.name,
            module.ldflags
        );
        let minor = module.name.replace("kubernetes-", "v") + ".";
        assert!(pinned.starts_with(&minor), "{}: {pinned}", module.name);
    }
    assert!(KUBERNETES.versions().any(|version| version == "1.37"));
}

#[test]
fn the_cache_key_depends_on_each_file_of_the_module() {
    let module = &MODULES[0];
    let dir = tempfile::tempdir().unwrap();
    for file in ["go.mod", "go.sum", "tools.go"] {
        fs::write(dir.path().join(file), file).unwrap();
    }
    let before = build::key(module, dir.path()).unwrap();
    assert_eq!(before, build::key(module, dir.path()).unwrap());
    let mut keys = BTreeSet::from([before]);
    for file in ["go.mod", "go.sum", "tools.go"] {
        fs::write(dir.path().join(file), "changed").unwrap();
        assert!(
            keys.insert(build::key(module, dir.path()).unwrap()),
            "{file} does not count"
        );
    }
    assert!(keys.insert(build::key(&MODULES[1], dir.path()).unwrap()));
}

#[test]
fn the_list_of_packages_has_whatever_is_checked_for() {
    let list = include_str!("../../testbed/packages.txt");
    let listed: BTreeSet<_> = list.lines().collect();
    for package in packages::checked().filter(|package| !package.starts_with("golang")) {
        assert!(listed.contains(package), "{package} is not in packages.txt");
    }
}
