//! Builds container images from local files, without a registry or a container engine.
//!
//! An [`Image`] is a list of files and a configuration. [`Image::write`] writes it as an OCI
//! archive (image-spec 1.0: a tar file of an image layout), for `ctr images import`. The same image
//! always gives the same bytes: its digest changes only with the content or the permission bits of
//! a file, not with times and paths of local files.

mod archive;
mod base;
mod product;
mod python;
mod ray;
mod sbom;
#[cfg(test)]
mod tests;
mod trixie;
mod wheels;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

pub use base::{PAUSE, busybox, pause};
pub use product::{Programs, checked_program, control_plane, node_daemon, sboms};
pub use python::{python, torch};
pub use ray::ray;
pub use trixie::{jax, torch2};

use crate::command::CommandError;

/// An image could not be built.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// A file that the image is built from is missing.
    #[error("{path} is missing: {how}")]
    Missing {
        /// The missing file.
        path: PathBuf,
        /// How to get it.
        how: String,
    },
    /// A program failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The environment names an unknown build of the programs.
    #[error("{0} is neither `release` nor `checked`")]
    Programs(&'static str),
    /// The output of `cargo metadata` cannot be used.
    #[error("cargo metadata: {0}")]
    Bill(#[from] serde_json::Error),
}

/// The files of an image, and how it is run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// Name and tag, such as `localhost/busybox:1`.
    pub name: String,
    /// ENTRYPOINT.
    pub entrypoint: Vec<String>,
    /// CMD.
    pub cmd: Vec<String>,
    /// ENV, each `NAME=value`.
    pub env: Vec<String>,
    /// WORKDIR.
    pub workdir: Option<String>,
    /// USER.
    pub user: Option<String>,
    /// True if copies of local files keep their modification times; otherwise they have none.
    pub dated: bool,
    /// The entry at each absolute path. Parent folders are added as needed.
    pub files: BTreeMap<PathBuf, Entry>,
}

/// One file of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A copy of a local file.
    File {
        /// The local file.
        source: PathBuf,
        /// Permission bits.
        mode: u32,
    },
    /// A file with this content.
    Bytes {
        /// The content.
        data: Vec<u8>,
        /// Permission bits.
        mode: u32,
    },
    /// A symbolic link to this.
    Symlink(PathBuf),
    /// A folder with these permission bits.
    Dir(u32),
}

impl Image {
    /// An image with only the empty folders that a container runtime expects.
    pub fn new(name: impl Into<String>) -> Self {
        let mut image = Self {
            name: name.into(),
            ..Self::default()
        };
        for (dir, mode) in [
            ("/dev", 0o755),
            ("/etc", 0o755),
            ("/proc", 0o755),
            ("/sys", 0o755),
            ("/tmp", 0o1777),
        ] {
            image.files.insert(dir.into(), Entry::Dir(mode));
        }
        image
    }

    /// The same image under another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets ENTRYPOINT.
    #[must_use]
    pub fn entrypoint<S: Into<String>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.entrypoint = words.into_iter().map(Into::into).collect();
        self
    }

    /// Sets CMD.
    #[must_use]
    pub fn cmd<S: Into<String>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.cmd = words.into_iter().map(Into::into).collect();
        self
    }

    /// Adds to ENV.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push(format!("{name}={value}"));
        self
    }

    /// Sets WORKDIR.
    #[must_use]
    pub fn workdir(mut self, dir: impl Into<String>) -> Self {
        self.workdir = Some(dir.into());
        self
    }

    /// Sets USER.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Adds a copy of a local file, with its permission bits. Symbolic links are followed.
    pub fn file(mut self, path: impl Into<PathBuf>, source: impl Into<PathBuf>) -> Result<Self, ImageError> {
        self.add_file(path.into(), source.into())?;
        Ok(self)
    }

    /// Adds a copy of a local program as an executable, with any permission bits.
    #[must_use]
    pub fn program(mut self, path: impl Into<PathBuf>, source: impl Into<PathBuf>) -> Self {
        let (source, mode) = (source.into(), 0o755);
        self.files.insert(path.into(), Entry::File { source, mode });
        self
    }

    /// Makes copies of local files keep their modification times.
    #[must_use]
    pub fn dated(mut self) -> Self {
        self.dated = true;
        self
    }

    /// Adds a file with this content.
    #[must_use]
    pub fn bytes(mut self, path: impl Into<PathBuf>, data: impl Into<Vec<u8>>, mode: u32) -> Self {
        self.files.insert(
            path.into(),
            Entry::Bytes {
                data: data.into(),
                mode,
            },
        );
        self
    }

    /// Adds a symbolic link.
    #[must_use]
    pub fn symlink(mut self, path: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Self {
        self.files.insert(path.into(), Entry::Symlink(target.into()));
        self
    }

    /// Writes the image's OCI archive to `path` and returns the digest of its manifest.
    pub fn write(&self, path: &Path) -> Result<String, ImageError> {
        archive::write(self, path)
    }

    /// A file name for the archive.
    pub fn archive_name(&self) -> String {
        let safe = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        format!("{}.tar", self.name.chars().map(safe).collect::<String>())
    }

    fn add_file(&mut self, path: PathBuf, source: PathBuf) -> Result<(), ImageError> {
        let metadata = fs::metadata(&source).map_err(io(&source))?;
        let mode = metadata.permissions().mode() & 0o7777;
        self.files.insert(path, Entry::File { source, mode });
        Ok(())
    }
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> ImageError {
    let path = path.to_owned();
    move |source| ImageError::Io { path, source }
}
