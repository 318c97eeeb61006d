//! Finds the programs of a cluster.
//!
//! Each program is looked up in `KUBEBUILDER_ASSETS`, then on `PATH` (in both only if its version
//! fits), then in a cache outside the checkout. Otherwise it is built into that cache from the
//! pinned Go modules under `testbed/tools`. The cache's folders are named by a hash of all inputs
//! of a build, so another version never finds an old program.

mod build;
pub mod catalog;
pub mod packages;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::command::{CommandError, output, run};
use crate::progress::Progress;
use catalog::{Accept, Module, Tool};

/// A program could neither be found nor built.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The program is not in the catalogue.
    #[error("{0} is not a program of the testbed")]
    Unknown(String),
    /// A variable such as `KUBERNETES` names a version that is not pinned.
    #[error("{variable}={asked} is none of {versions}")]
    Version {
        /// The variable.
        variable: &'static str,
        /// What it names.
        asked: String,
        /// What it may name.
        versions: String,
    },
    /// The cache or the module's sources could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// A program failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// `go build` failed.
    #[error("cannot build the Go module {module} ({status}):\n{log}")]
    Build {
        /// The module.
        module: &'static str,
        /// How `go build` ended.
        status: std::process::ExitStatus,
        /// The last lines that it wrote.
        log: String,
    },
    /// A Debian package is missing.
    #[error("{0}")]
    Packages(#[from] packages::MissingPackages),
    /// Neither `LOCKSTEP_CACHE`, `XDG_CACHE_HOME` nor `HOME` says where the cache is.
    #[error("no place for the cache: set LOCKSTEP_CACHE")]
    NoCache,
}

/// The path of each program.
#[derive(Debug, Clone)]
pub struct Tools {
    paths: BTreeMap<&'static str, PathBuf>,
}

impl Tools {
    /// Finds all programs of clusters, and builds missing ones.
    pub async fn all(progress: &Progress) -> Result<Self, ToolError> {
        Self::locate(catalog::of_clusters(), progress).await
    }

    /// Finds the programs in `names`, and builds missing ones.
    pub async fn locate(
        names: impl IntoIterator<Item = &'static str>,
        progress: &Progress,
    ) -> Result<Self, ToolError> {
        let cache = cache_root()?.join("tools");
        let mut paths = BTreeMap::new();
        for name in names {
            let (module, tool) = find(name)?;
            let path = match installed(tool).await {
                Some(path) => path,
                None => build::cached_or_built(&cache, module, progress).await?.join(name),
            };
            paths.insert(name, path);
        }
        Ok(Self { paths })
    }

    /// The targets of the links in `dir`.
    pub(crate) fn linked_in(dir: &Path) -> Self {
        let link = |name| Some((name, std::fs::read_link(dir.join(name)).ok()?));
        Self {
            paths: catalog::names().filter_map(link).collect(),
        }
    }

    /// The path of a program.
    pub fn path(&self, name: &str) -> Result<&Path, ToolError> {
        self.paths
            .get(name)
            .map(PathBuf::as_path)
            .ok_or_else(|| ToolError::Unknown(name.to_owned()))
    }

    /// All programs and their paths.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        self.paths.iter().map(|(name, path)| (*name, path.as_path()))
    }
}

/// The cache, which checkouts share: `LOCKSTEP_CACHE`, else the user's cache folder.
pub fn cache_root() -> Result<PathBuf, ToolError> {
    if let Some(path) = env_path("LOCKSTEP_CACHE") {
        return Ok(path);
    }
    env_path("XDG_CACHE_HOME")
        .or_else(|| env_path("HOME").map(|home| home.join(".cache")))
        .map(|cache| cache.join("lockstep"))
        .ok_or(ToolError::NoCache)
}

/// The module and the catalogue entry of a program.
fn find(name: &str) -> Result<(&'static Module, &'static Tool), ToolError> {
    for project in catalog::PROJECTS {
        let (asked, versions): (_, Vec<_>) = (project.version(), project.versions().collect());
        if !versions.contains(&asked.as_str()) {
            return Err(ToolError::Version {
                variable: project.variable,
                asked,
                versions: versions.join(", "),
            });
        }
    }
    catalog::find(name).ok_or_else(|| ToolError::Unknown(name.to_owned()))
}

/// The folder with the sources of the Go module `path`, at the version with which `program` is
/// built.
pub(crate) async fn go_module_dir(program: &str, path: &str) -> Result<PathBuf, ToolError> {
    let (module, _) = find(program)?;
    let mut command = tokio::process::Command::new("go");
    command
        .current_dir(module_dir(module))
        .args(["mod", "download", "-json", path])
        .env("GOWORK", "off");
    let said = output(command).await?;
    let download: Download = serde_json::from_str(&said).map_err(|source| ToolError::Io {
        path: PathBuf::from(path),
        source: source.into(),
    })?;
    Ok(download.dir)
}

/// What `go mod download -json` says of a module.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Download {
    dir: PathBuf,
}

/// The folder of the Go module `module`.
fn module_dir(module: &Module) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testbed/tools")
        .join(module.name)
}

/// An installed copy whose version fits.
async fn installed(tool: &Tool) -> Option<PathBuf> {
    let Accept::Version(args, min, max) = tool.accept else {
        return None;
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = env_path("KUBEBUILDER_ASSETS")
        .into_iter()
        .chain(std::env::split_paths(&path));
    for candidate in dirs.map(|dir| dir.join(tool.name)).filter(|path| path.is_file()) {
        if version_of(&candidate, args)
            .await
            .is_some_and(|found| (min..=max).contains(&found))
        {
            return Some(candidate);
        }
    }
    None
}

/// The major and minor version that `program` prints when run with `args`. `None` if it fails,
/// prints none, or takes longer than 5 s.
async fn version_of(program: &Path, args: &[&str]) -> Option<[u32; 2]> {
    let asked = tokio::time::timeout(Duration::from_secs(5), run(program, args)).await;
    parse_version(&asked.ok()?.ok()?)
}

/// The first thing in `text` that looks like a version: two numbers joined by a dot.
fn parse_version(text: &str) -> Option<[u32; 2]> {
    text.split(|c: char| !c.is_ascii_digit() && c != '.')
        .find_map(|word| {
            let mut parts = word.split('.').map(str::parse);
            match (parts.next(), parts.next()) {
                (Some(Ok(major)), Some(Ok(minor))) => Some([major, minor]),
                _ => None,
            }
        })
}

fn env_path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}
