//! `localhost/torch:1`: PyTorch for CPUs, as `testbed/torch/unpack` leaves it in the cache, on Debian's Python.

use std::path::{Path, PathBuf};

use super::python::{add_tree, python};
use super::{Image, ImageError};
use crate::command::run;

const UNPACK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testbed/torch/unpack");

/// PyTorch with NumPy, and the libraries that both need. They are unpacked once.
pub async fn torch() -> Result<Image, ImageError> {
    let folder = run(UNPACK, [""; 0]).await?;
    let mut image = python().await?.named("localhost/torch:1");
    let unpacked = PathBuf::from(folder.trim()).join("usr/lib");
    // Whole as it is: what its libraries need lies beside them.
    let mut binaries = Vec::new();
    add_tree(&mut image, &unpacked, Path::new("/usr/lib"), &[], &mut binaries)?;
    Ok(image)
}
