//! The hook that Python loads first, in a folder of the container's own, and the environment that
//! makes Python find it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::skip::Skip;
use crate::sys;

/// Modules that Python imports by these names.
const FILES: [(&str, &str); 4] = [
    ("sitecustomize.py", include_str!("../../hook/sitecustomize.py")),
    (
        "_lockstep_standby.py",
        include_str!("../../hook/_lockstep_standby.py"),
    ),
    ("_lockstep_wait.py", include_str!("../../hook/_lockstep_wait.py")),
    (
        "_lockstep_release.py",
        include_str!("../../hook/_lockstep_release.py"),
    ),
];
/// The beginning of a list of modules, once the hook has begun to write it.
const FORM: [u8; 4] = *b"LSK1";
/// Length of the header of a list: its format, and the length of the modules.
const HEADER: usize = 8;
/// Longest list of modules.
const LONGEST_LIST: usize = 256 << 10;
/// In the hook's folder: the name of this program by which the worker starts ranks.
pub(crate) const SHIM: &str = "python";
/// In the hook's folder: the socket on which the agent accepts the calls of [`SHIM`].
pub(crate) const SOCKET: &str = "ranks";
/// The variable that names where Python looks for modules first.
pub(crate) const PYTHONPATH: &str = "PYTHONPATH";
/// The variable that tells the hook what to do. The hook removes it before anything else runs.
pub(crate) const HOOK: &str = "LOCKSTEP_HOOK";

/// What the hook does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode<'a> {
    /// It notes the imports.
    Run,
    /// It imports ahead, and waits for a message on this descriptor. It leaves these modules out.
    Wait { socket: i32, skip: &'a Skip },
}

/// The folder with the hook.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

/// The modules that attempts have imported, in memory that the worker's processes and standbys
/// share with the agent.
#[derive(Debug)]
pub(super) struct List(File);

impl List {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(File::from(sys::memory(c"lockstep-modules")?)))
    }

    /// True once the hook has run in the worker. If it has not, a standby would not stop in it
    /// either: it would run the program.
    pub(super) fn is_begun(&self) -> bool {
        let mut form = [0; FORM.len()];
        self.0.read_exact_at(&mut form, 0).is_ok() && form == FORM
    }

    /// Forgets that the hook has run, since another worker begins. The hook writes that again.
    pub(super) fn forget(&self) {
        if self.is_begun() {
            // If that fails, the last worker counts as this one.
            let _ = self.0.write_all_at(&[0; FORM.len()], 0);
        }
    }

    /// Notes that the hook has run, in a process that has another list.
    pub(super) fn begin(&self) {
        let _ = self.0.write_all_at(&FORM, 0);
    }

    /// Another list with the same modules.
    pub(super) fn copy(&self) -> io::Result<Self> {
        let copy = Self::new()?;
        copy.renew(self)?;
        Ok(copy)
    }

    /// Takes over the modules of `other`. No other process writes to this list.
    pub(super) fn renew(&self, other: &Self) -> io::Result<()> {
        let (from, to) = (other.read()?, self.read()?);
        if from != to
            && let Some((header, modules)) = from.split_at_checked(HEADER)
        {
            // The modules are written before the header that counts them.
            self.0.write_all_at(modules, header.len() as u64)?;
            self.0.write_all_at(header, 0)?;
        }
        Ok(())
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        let length = self.0.metadata()?.len();
        let mut text = vec![0; usize::try_from(length).unwrap_or(LONGEST_LIST).min(LONGEST_LIST)];
        self.0.read_exact_at(&mut text, 0)?;
        Ok(text)
    }

    /// Its descriptor, which the hook needs to inherit.
    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Folder {
    /// Writes the hook into a new folder below `dir`, which anybody in the container may write to.
    ///
    /// # Errors
    /// If the file system refuses, or if a file exists there that another user could change.
    pub(super) fn create(dir: &Path) -> io::Result<Self> {
        let folder = dir.join("hook");
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let found = fs::symlink_metadata(&folder)?;
                let own = fs::metadata("/proc/self")?.uid();
                if !found.is_dir() || found.uid() != own || found.mode() & 0o022 != 0 {
                    return Err(io::Error::other("the hook's folder belongs to another user"));
                }
            }
            made => made?,
        }
        // Set the mode whatever the container's umask is: the worker may become another user.
        fs::set_permissions(&folder, Permissions::from_mode(0o755))?;
        for (name, text) in FILES {
            let fresh = folder.join(format!(".{name}.new"));
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            options.open(&fresh)?.write_all(text.as_bytes())?;
            fs::set_permissions(&fresh, Permissions::from_mode(0o644))?;
            fs::rename(&fresh, folder.join(name))?;
        }
        Ok(Self(folder))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// The variables that make Python load the hook in this mode. All others stay as they are.
    /// `before` is the value of PYTHONPATH.
    pub(super) fn variables(
        &self,
        mode: Mode<'_>,
        list: &List,
        before: Option<&OsStr>,
    ) -> [(&'static str, OsString); 2] {
        variables(&self.0, mode, list.fd(), before)
    }
}

/// See [`Folder::variables`]. `list` is the descriptor of the list.
pub(super) fn variables(
    folder: &Path,
    mode: Mode<'_>,
    list: RawFd,
    before: Option<&OsStr>,
) -> [(&'static str, OsString); 2] {
    let mut path = folder.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        path.push(":");
        path.push(before);
    }
    let (mode, socket, skip) = match mode {
        Mode::Run => ("run", -1, String::new()),
        Mode::Wait { socket, skip } => ("wait", socket, skip.joined()),
    };
    let had = u8::from(before.is_some());
    let hook = format!("1;{mode};{list};{socket};{had};{skip}");
    [(PYTHONPATH, path), (HOOK, hook.into())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_hook_is_written_where_only_its_user_can_change_it() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            Folder::create(dir.path()).unwrap();
        }
        let folder = dir.path().join("hook");
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o755);
        for (name, _) in FILES {
            let found = fs::metadata(folder.join(name)).unwrap();
            assert_eq!(found.mode() & 0o777, 0o644, "{name}");
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), FILES.len());
    }

    #[test]
    fn a_list_is_begun_once_the_hook_has_written_to_it() {
        let list = List::new().unwrap();
        assert!(!list.is_begun());
        list.0.write_all_at(b"LSK1\x02\0\0\0x\n", 0).unwrap();
        assert!(list.is_begun());
        list.forget();
        assert!(!list.is_begun());
        list.begin();
        assert_eq!(list.read().unwrap(), b"LSK1\x02\0\0\0x\n");
    }

    #[test]
    fn a_folder_that_others_can_change_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("hook");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        assert!(Folder::create(dir.path()).is_err());
        fs::remove_dir(&folder).unwrap();
        let other = tempfile::tempdir().unwrap();
        symlink(other.path(), &folder).unwrap();
        assert!(Folder::create(dir.path()).is_err());
        assert!(Folder::create(&dir.path().join("missing")).is_err());
    }

    #[test]
    fn python_finds_the_hook_first_and_can_restore_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::create(dir.path()).unwrap();
        let hook = dir.path().join("hook").into_os_string();
        let list = List::new().unwrap();
        let fd = list.fd();
        let mut longer = hook.clone();
        longer.push(":/a:/b");
        let [(_, path), (_, text)] = folder.variables(Mode::Run, &list, Some(OsStr::new("/a:/b")));
        assert_eq!((path, text), (longer, format!("1;run;{fd};-1;1;").into()));
        let mut skip = Skip::default();
        assert!(skip.add("x", 0) && skip.add("y.z", 1));
        let wait = Mode::Wait {
            socket: 7,
            skip: &skip,
        };
        let [(_, path), (_, text)] = folder.variables(wait, &list, None);
        assert_eq!(
            (path, text),
            (hook.clone(), format!("1;wait;{fd};7;0;x,y.z").into())
        );
        let [(_, path), (_, text)] = folder.variables(Mode::Run, &list, Some(OsStr::new("")));
        assert_eq!((path, text), (hook, format!("1;run;{fd};-1;1;").into()));
    }

    #[test]
    fn a_copy_of_a_list_follows_it() {
        let list = List::new().unwrap();
        let copy = list.copy().unwrap();
        assert_eq!(copy.read().unwrap(), b"");
        list.0.write_all_at(b"LSK1\x03\0\0\0os\n", 0).unwrap();
        copy.renew(&list).unwrap();
        assert_eq!(copy.read().unwrap(), b"LSK1\x03\0\0\0os\n");
    }
}
