//! Debian packages that a cluster needs to be built and to run.
//!
//! `testbed/packages.txt` lists the packages. This finds missing ones by looking for one file or
//! program of each.

use std::path::{Path, PathBuf};

/// The purpose of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Building the programs.
    Build,
    /// Running nodes.
    Run,
}

/// Missing programs or files.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("missing {}: install with `apt-get install -y --no-install-recommends {}`", what.join(", "), packages.join(" "))]
pub struct MissingPackages {
    /// The programs and files.
    pub what: Vec<String>,
    /// The Debian packages that contain them.
    pub packages: Vec<&'static str>,
}

enum Need {
    Program(&'static str),
    File(&'static [&'static str]),
}

const NEEDS: &[(Purpose, &str, Need)] = &[
    (Purpose::Build, "golang (1.26 or later)", Need::Program("go")),
    (Purpose::Build, "gcc", Need::Program("gcc")),
    (Purpose::Build, "pkg-config", Need::Program("pkg-config")),
    (
        Purpose::Build,
        "libseccomp-dev",
        Need::File(&["/usr/include/seccomp.h"]),
    ),
    (Purpose::Run, "gcc", Need::Program("gcc")),
    (
        Purpose::Run,
        "libc6-dev",
        Need::File(&[
            "/usr/lib/x86_64-linux-gnu/libc.a",
            "/usr/lib/aarch64-linux-gnu/libc.a",
        ]),
    ),
    (
        Purpose::Run,
        "python3-pip",
        Need::File(&["/usr/lib/python3/dist-packages/pip/__init__.py"]),
    ),
    (Purpose::Run, "iproute2", Need::Program("ip")),
    (Purpose::Run, "util-linux", Need::Program("nsenter")),
    (Purpose::Run, "util-linux", Need::Program("unshare")),
    (Purpose::Run, "util-linux", Need::Program("setsid")),
    (Purpose::Run, "nftables", Need::Program("nft")),
    (Purpose::Run, "iptables", Need::Program("iptables")),
    (Purpose::Run, "conntrack", Need::Program("conntrack")),
    (
        Purpose::Run,
        "busybox-static",
        Need::File(&["/bin/busybox", "/usr/bin/busybox"]),
    ),
];

/// Checks that everything for `purpose` exists.
pub fn check(purpose: Purpose) -> Result<(), MissingPackages> {
    let mut missing = MissingPackages {
        what: Vec::new(),
        packages: Vec::new(),
    };
    for (_, package, need) in NEEDS.iter().filter(|need| need.0 == purpose) {
        let lacking = match need {
            Need::Program(name) => program(name).is_none().then(|| (*name).to_owned()),
            Need::File(paths) => (!paths.iter().any(|path| Path::new(path).exists()))
                .then(|| paths.first().copied().unwrap_or_default().to_owned()),
        };
        if let Some(what) = lacking {
            missing.what.push(what);
            if !missing.packages.contains(package) {
                missing.packages.push(package);
            }
        }
    }
    if missing.what.is_empty() {
        Ok(())
    } else {
        Err(missing)
    }
}

/// All packages that are checked.
#[cfg(test)]
pub(super) fn checked() -> impl Iterator<Item = &'static str> {
    NEEDS.iter().map(|(_, package, _)| *package)
}

/// The path of a system program. `/usr/sbin` and `/sbin` are searched even if they are not
/// on `PATH`.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}
