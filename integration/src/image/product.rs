//! Lockstep's own images, from the static binaries that cargo has built.
//!
//! Promises: the same binaries make the same archives, wherever they were built, and when.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Image, ImageError, bill};
use crate::target::target;

/// `localhost/lockstep-control-plane:dev`, which does not run as root, whoever starts it.
pub fn control_plane() -> Result<Image, ImageError> {
    control_plane_in(&target())
}

/// `localhost/lockstep-node-daemon:dev`. The pod agent, which the daemon hands to pods, is at
/// `/lockstep-pod-agent`.
pub fn node_daemon() -> Result<Image, ImageError> {
    node_daemon_in(&target())
}

/// [`control_plane`] of the build in another target folder.
pub fn control_plane_in(target: &Path) -> Result<Image, ImageError> {
    let binary = built(target, "release/lockstep-control-plane")?;
    Ok(Image::new("localhost/lockstep-control-plane:dev")
        .program("/lockstep-control-plane", binary)
        .entrypoint(["/lockstep-control-plane"])
        .user("65532:65532"))
}

/// [`node_daemon`] of the build in another target folder.
pub fn node_daemon_in(target: &Path) -> Result<Image, ImageError> {
    let daemon = built(target, "release/lockstep-node-daemon")?;
    let agent = built(target, "agent/lockstep-pod-agent")?;
    Ok(Image::new("localhost/lockstep-node-daemon:dev")
        .program("/lockstep-node-daemon", daemon)
        .program("/lockstep-pod-agent", agent)
        .entrypoint(["/lockstep-node-daemon"]))
}

/// What is in both images, each with the name of its bill's file.
pub fn bills() -> Result<Vec<(String, Value)>, ImageError> {
    let images = [
        ("lockstep-control-plane", ["lockstep-control-plane"].as_slice()),
        (
            "lockstep-node-daemon",
            &["lockstep-node-daemon", "lockstep-pod-agent"],
        ),
    ];
    let bill = |(name, packages)| Ok((format!("{name}.cdx.json"), bill::of(name, packages)?));
    images.into_iter().map(bill).collect()
}

/// A file in cargo's target folder.
fn built(target: &Path, path: &str) -> Result<PathBuf, ImageError> {
    let path = target.join(path);
    if path.is_file() {
        return Ok(path);
    }
    Err(ImageError::Missing {
        path,
        how: "build it with `make binaries`".to_owned(),
    })
}
