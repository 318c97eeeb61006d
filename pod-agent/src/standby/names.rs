//! The names by which a worker that is not Python itself, such as a shell, starts Python.
//!
//! They are in a folder that comes first in the worker's PATH. Each is this program, which asks the
//! agent for a standby as it does for ranks. What it starts has the original PATH again, and finds
//! the real program there.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::command;

/// In the hook's folder: the folder with the names.
const FOLDER: &str = "path";
/// The names of interpreters, and the launcher that the hook knows.
const NAMES: [&str; 10] = [
    "python",
    "python3",
    "python3.8",
    "python3.9",
    "python3.10",
    "python3.11",
    "python3.12",
    "python3.13",
    "python3.14",
    "torchrun",
];

/// A command that is not Python, but may start it.
#[derive(Debug)]
pub(super) struct Wrapper {
    /// Its name in messages.
    pub(super) name: String,
    /// Its PATH, with the folder of the names first.
    pub(super) path: OsString,
}

/// Puts the names that exist in `path` into their own folder in the hook's folder. Returns the PATH
/// that has this folder first. `None` if there is nothing to start.
pub(super) fn create(hook: &Path, path: &OsStr) -> io::Result<Option<OsString>> {
    let folder = hook.join(FOLDER);
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => fs::set_permissions(&folder, Permissions::from_mode(0o755))?,
    }
    let program = env::current_exe()?;
    let mut any = false;
    for name in NAMES {
        let link = folder.join(name);
        match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if command::is_there(OsStr::new(name), path) {
            symlink(&program, link)?;
            any = true;
        }
    }
    let mut first = folder.into_os_string();
    first.push(":");
    first.push(path);
    Ok(any.then_some(first))
}

/// The name and the hook's folder, if the file at `called` is one of these names and so this
/// program was called by it.
pub(crate) fn called(called: &Path) -> Option<(&OsStr, &Path)> {
    let folder = called.parent()?;
    let name = called.file_name()?;
    let known = folder.file_name()? == FOLDER && NAMES.iter().any(|known| name == *known);
    Some((name, folder.parent()?)).filter(|_| known)
}

/// `path` without the folder of the file at `called`, however `path` spells it.
pub(crate) fn without(path: &OsStr, called: &Path) -> OsString {
    let place = |folder: &Path| {
        let found = fs::metadata(folder).ok()?;
        Some((found.dev(), found.ino()))
    };
    let own = called.parent().and_then(place);
    let others: Vec<PathBuf> = env::split_paths(path)
        .filter(|folder| own.is_none() || place(folder) != own)
        .collect();
    // Text that was split at colons contains none.
    env::join_paths(others).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executable(path: &Path, text: &str) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn only_names_that_start_an_interpreter_are_taken() {
        let dir = tempfile::tempdir().unwrap();
        let (hook, bin) = (dir.path().join("hook"), dir.path().join("there"));
        for folder in [&hook, &bin] {
            fs::create_dir(folder).unwrap();
        }
        assert_eq!(create(&hook, bin.as_os_str()).unwrap(), None);
        executable(&bin.join("python3"), "\x7fELF");
        // A shell script, such as pyenv's.
        executable(&bin.join("python"), "#!/bin/sh\n");
        executable(&bin.join("torchrun"), "#!/usr/bin/python3\n");
        let path = create(&hook, bin.as_os_str()).unwrap().unwrap();
        let expected = format!("{}/path:{}", hook.display(), bin.display());
        assert_eq!(path, OsString::from(expected));
        let mut found: Vec<OsString> = fs::read_dir(hook.join("path"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        found.sort();
        assert_eq!(found, ["python3", "torchrun"]);
        fs::remove_file(bin.join("torchrun")).unwrap();
        create(&hook, bin.as_os_str()).unwrap();
        assert_eq!(fs::read_dir(hook.join("path")).unwrap().count(), 1);
    }

    #[test]
    fn a_program_is_found_by_the_path_of_before() {
        let dir = tempfile::tempdir().unwrap();
        let hook = dir.path().join("hook");
        fs::create_dir_all(hook.join("path")).unwrap();
        let file = hook.join("path/python3");
        assert_eq!(called(&file), Some((OsStr::new("python3"), hook.as_path())));
        assert_eq!(called(Path::new("/x/hook/python")), None);
        assert_eq!(called(Path::new("python")), None);
        assert_eq!(called(&hook.join("path/lockstep-pod-agent")), None);
        let (own, shown) = (hook.join("path"), hook.display());
        let path = format!("/a:{}:{shown}/path/:{shown}/../hook/path:/b", own.display());
        assert_eq!(without(OsStr::new(&path), &file), OsString::from("/a:/b"));
        assert_eq!(without(OsStr::new("/a::/b"), &file), OsString::from("/a::/b"));
    }
}
