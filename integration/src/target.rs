//! Where builds and measurements go.

use std::path::{Path, PathBuf};

/// The build's target directory: cargo's `CARGO_TARGET_DIR`, or the one beside the workspace's members.
#[must_use]
pub fn target() -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target");
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(beside, PathBuf::from)
}
