//! Lockstep's own images, from the static binaries that cargo has built.

use std::path::PathBuf;

use serde_json::Value;

use super::{Image, ImageError, bill};
use crate::target::target;

/// `localhost/lockstep-control-plane:dev`.
pub fn control_plane() -> Result<Image, ImageError> {
    let binary = built("release/lockstep-control-plane")?;
    Ok(Image::new("localhost/lockstep-control-plane:dev")
        .file("/lockstep-control-plane", binary)?
        .entrypoint(["/lockstep-control-plane"]))
}

/// `localhost/lockstep-node-daemon:dev`. The pod agent, which the daemon hands to pods, is at
/// `/lockstep-pod-agent`.
pub fn node_daemon() -> Result<Image, ImageError> {
    let daemon = built("release/lockstep-node-daemon")?;
    let agent = built("agent/lockstep-pod-agent")?;
    Ok(Image::new("localhost/lockstep-node-daemon:dev")
        .file("/lockstep-node-daemon", daemon)?
        .file("/lockstep-pod-agent", agent)?
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
fn built(path: &str) -> Result<PathBuf, ImageError> {
    let path = target().join(path);
    if path.is_file() {
        return Ok(path);
    }
    Err(ImageError::Missing {
        path,
        how: "build it with `make binaries`".to_owned(),
    })
}
