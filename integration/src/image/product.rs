//! Lockstep's own images, from binaries that cargo has built.
//!
//! Promises: the same binaries give the same archives at any time and on any machine.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::python::add_libraries;
use super::{Image, ImageError, sbom};
use crate::host::target_dir;

/// Environment variable with the build of the programs in images: `release` (default) or `checked`.
const CHOICE: &str = "LOCKSTEP_PROGRAMS";
/// Subfolder of the target folder with the checked programs.
const CHECKED: &str = "checked";

/// The programs in images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    /// The control plane.
    pub control_plane: PathBuf,
    /// The node daemon.
    pub node_daemon: PathBuf,
    /// The pod agent, which the node daemon installs in pods.
    pub pod_agent: PathBuf,
    /// True if control plane and node daemon need shared libraries of this machine. The agent never
    /// does, since it runs in containers of users.
    is_dynamic: bool,
    how: &'static str,
}

impl Programs {
    /// The programs for users: static, with link-time optimisation, built by `make binaries` into
    /// this target folder.
    pub fn release(target: &Path) -> Self {
        let release = target.join("release");
        Self {
            control_plane: release.join("lockstep-control-plane"),
            node_daemon: release.join("lockstep-node-daemon"),
            pod_agent: target.join("agent/lockstep-pod-agent"),
            is_dynamic: false,
            how: "make binaries",
        }
    }

    /// The same sources with debug assertions and overflow checks, compiled as tests are, by
    /// `make test-programs` into this target folder.
    pub fn checked(target: &Path) -> Self {
        let checked = target.join(CHECKED);
        Self {
            control_plane: checked.join("lockstep-control-plane"),
            node_daemon: checked.join("lockstep-node-daemon"),
            pod_agent: checked.join("lockstep-pod-agent"),
            is_dynamic: true,
            how: "make test-programs",
        }
    }

    /// The build that `LOCKSTEP_PROGRAMS` names, in cargo's target folder.
    pub fn chosen() -> Result<Self, ImageError> {
        match std::env::var(CHOICE).as_deref() {
            Ok("checked") => Ok(Self::checked(&target_dir())),
            Ok("release") | Err(std::env::VarError::NotPresent) => Ok(Self::release(&target_dir())),
            _ => Err(ImageError::Programs(CHOICE)),
        }
    }

    /// Each program with its size, for a log.
    pub fn describe(&self) -> String {
        let programs = [&self.control_plane, &self.node_daemon, &self.pod_agent];
        let described = programs.map(|path| {
            let bytes = fs::metadata(path).map_or(0, |metadata| metadata.len());
            format!("{} ({:.1} MB)", path.display(), bytes as f64 / 1e6)
        });
        let libraries = if self.is_dynamic {
            " with shared libraries"
        } else {
            ""
        };
        format!("{}{libraries}, by `{}`", described.join(", "), self.how)
    }

    /// Adds the shared libraries that a program needs.
    fn with_libraries(&self, mut image: Image, program: PathBuf) -> Result<Image, ImageError> {
        if self.is_dynamic {
            add_libraries(&mut image, &[program])?;
        }
        Ok(image)
    }

    fn built(&self, path: &Path) -> Result<PathBuf, ImageError> {
        if path.is_file() {
            return Ok(path.to_owned());
        }
        Err(ImageError::Missing {
            path: path.to_owned(),
            how: format!("build it with `{}`", self.how),
        })
    }
}

/// A program of this workspace from `make test-programs`, if tests use those.
pub fn checked_program(name: &str) -> Option<PathBuf> {
    let is_chosen = std::env::var(CHOICE).is_ok_and(|choice| choice == "checked");
    let path = target_dir().join(CHECKED).join(name);
    (is_chosen && path.is_file()).then_some(path)
}

/// `localhost/lockstep-control-plane:dev`, which does not run as root.
pub fn control_plane(programs: &Programs) -> Result<Image, ImageError> {
    let binary = programs.built(&programs.control_plane)?;
    let image = Image::new("localhost/lockstep-control-plane:dev")
        .program("/lockstep-control-plane", &binary)
        .entrypoint(["/lockstep-control-plane"])
        .user("65532:65532");
    programs.with_libraries(image, binary)
}

/// `localhost/lockstep-node-daemon:dev`. The pod agent is at `/lockstep-pod-agent`.
pub fn node_daemon(programs: &Programs) -> Result<Image, ImageError> {
    let daemon = programs.built(&programs.node_daemon)?;
    let agent = programs.built(&programs.pod_agent)?;
    let image = Image::new("localhost/lockstep-node-daemon:dev")
        .program("/lockstep-node-daemon", &daemon)
        .program("/lockstep-pod-agent", agent)
        .entrypoint(["/lockstep-node-daemon"]);
    programs.with_libraries(image, daemon)
}

/// The SBOMs of both images, each with its file name.
pub fn sboms() -> Result<Vec<(String, Value)>, ImageError> {
    let images = [
        ("lockstep-control-plane", ["lockstep-control-plane"].as_slice()),
        (
            "lockstep-node-daemon",
            &["lockstep-node-daemon", "lockstep-pod-agent"],
        ),
    ];
    let sbom = |(name, packages)| Ok((format!("{name}.cdx.json"), sbom::of(name, packages)?));
    images.into_iter().map(sbom).collect()
}
