//! What the worker starts as the interpreter of a rank: this program, called by the name `python`
//! that the hook has, or by one of those that are first in the PATH of a worker that is no Python
//! itself.
//!
//! It asks the agent for a standby. If there is one, the standby is the rank, and this process
//! stands in for it: it passes signals on, and ends as the rank ends. Otherwise it becomes the rank
//! itself, by the real interpreter, with everything as it would be without the agent.
//!
//! SIGKILL ends this process, so the agent kills the rank. SIGSTOP stops this process alone.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::machine::Exit;
use crate::standby::wire::{self, Answer, Call};
use crate::standby::{self, SHIM, SOCKET, inherited, names};
use crate::sys::{self, Interest, Mask, Received, Signals, Terminal};
use crate::worker;

/// Has launchers such as torchrun start ranks by this program.
const CALLED: &str = "PYTHON_EXEC";
/// The interpreter that they would have started.
const PYTHON: &str = "LOCKSTEP_PYTHON_EXEC";
/// Where programs are looked up.
const PATH: &str = "PATH";
/// Most links that are followed to the name by which this program is called.
const MAX_LINKS: usize = 8;
/// Longest answer of the agent.
const MAX_ANSWER: usize = 64;

/// What is to be run.
struct Rank {
    python: OsString,
    args: Vec<OsString>,
    /// The PATH that it has, if that is another than this process has.
    path: Option<OsString>,
    /// The folder of the hook.
    folder: PathBuf,
}

/// The path by which this program is called as the interpreter of a rank, if it is called by
/// `path`: that path, or one that a link there leads to.
pub(crate) fn called(path: &Path) -> Option<PathBuf> {
    let mut found = None;
    let mut path = path.to_owned();
    for _ in 0..=MAX_LINKS {
        if names::called(&path).is_some() {
            return Some(path);
        }
        let next = fs::read_link(&path).map(|link| path.parent().unwrap_or(Path::new("")).join(link));
        if path.file_name() == Some(OsStr::new(SHIM)) {
            found = Some(path);
        }
        match next {
            Ok(next) => path = next,
            Err(_) => break,
        }
    }
    found
}

/// Runs the rank. Returns only if that is impossible, or with the rank's exit code.
pub(crate) fn run(called: &Path) -> ExitCode {
    let Some(rank) = Rank::called_by(called) else {
        worker::say(&format!(
            "{PYTHON} is not set: it names the interpreter of a rank"
        ));
        return ExitCode::from(127);
    };
    if rank.is_this() {
        worker::say(&format!("{:?} is a link to the agent", rank.python));
        return ExitCode::from(127);
    }
    let call = rank.call();
    let Ok(signals) = Signals::block() else {
        return rank.run_here(None, None);
    };
    let agent = call.and_then(|call| rank.ask(&call).ok());
    match agent {
        Some((agent, Answer::Started, _)) => stand_in(&agent, &signals),
        Some((agent, Answer::Cold, list)) => {
            drop(agent);
            rank.run_here(Some(signals.before()), list)
        }
        _ => rank.run_here(Some(signals.before()), None),
    }
}

impl Rank {
    /// What is to be run if this program is called by this path. None if nothing says so.
    fn called_by(called: &Path) -> Option<Self> {
        let args = env::args_os().skip(1).collect();
        if let Some((name, hook)) = names::called(called) {
            let path = env::var_os(PATH).unwrap_or_default();
            return Some(Self {
                python: name.to_owned(),
                args,
                path: Some(names::without(&path, called)),
                folder: hook.to_owned(),
            });
        }
        Some(Self {
            python: env::var_os(PYTHON)?,
            args,
            path: None,
            folder: called.parent().map(Path::to_owned).unwrap_or_default(),
        })
    }

    /// True if what is to be run is this program again: it would never end.
    fn is_this(&self) -> bool {
        let Some(path) = &self.path else { return false };
        let place = |file: &Path| fs::metadata(file).ok().map(|found| (found.dev(), found.ino()));
        let mut found = env::split_paths(path).map(|folder| folder.join(&self.python));
        let first = found.find(|file| file.is_file());
        first.is_some_and(|file| place(&file) == place(Path::new("/proc/self/exe")))
    }

    /// What to ask the agent for. None if a standby would not be the same.
    fn call(&self) -> Option<Call> {
        if !inherited::only_streams() {
            return None;
        }
        let mut command = vec![self.python.clone()];
        command.extend(self.args.iter().cloned());
        Some(Call {
            leads: sys::leads_group(),
            umask: inherited::usual_umask()?,
            unseen: inherited::unseen(),
            folder: env::current_dir().ok()?.into(),
            command,
            environment: self.environment().collect(),
        })
    }

    /// The variables that it has.
    fn environment(&self) -> impl Iterator<Item = (OsString, OsString)> {
        // Of a wrapper, they are its own.
        let ours = self.path.is_none();
        let path = self.path.clone().map(|path| (OsString::from(PATH), path));
        let own = move |name: &OsString| {
            if ours {
                name != CALLED && name != PYTHON
            } else {
                name != PATH
            }
        };
        env::vars_os().filter(move |(name, _)| own(name)).chain(path)
    }

    /// Calls the agent, and waits for its answer: it may take until a standby has refused.
    fn ask(&self, call: &Call) -> io::Result<(UnixDatagram, Answer, Option<OwnedFd>)> {
        let agent = sys::call(&self.folder.join(SOCKET))?;
        let (input, output, error) = (io::stdin(), io::stdout(), io::stderr());
        let streams = [input.as_fd(), output.as_fd(), error.as_fd()];
        sys::send(agent.as_fd(), &call.encode(), &streams)?;
        let mut text = [0; MAX_ANSWER];
        let (length, list) = receive(&agent, &mut text)?;
        let answer = Answer::decode(&text[..length]).ok_or(ErrorKind::InvalidData)?;
        Ok((agent, answer, list.into_iter().next()))
    }

    /// Becomes the interpreter. With a list, that notes there what it imports.
    fn run_here(&self, mask: Option<Mask>, list: Option<OwnedFd>) -> ExitCode {
        let mut command = Command::new(&self.python);
        // A name without a folder is looked up in the PATH that the command has.
        command.args(&self.args).env_clear().envs(self.environment());
        if let Some(mask) = mask {
            sys::hand_over(&mut command, mask, Terminal::LeftAlone);
        }
        if let Some(list) = &list {
            let before = env::var_os(standby::PYTHONPATH);
            command.envs(standby::learning(
                &self.folder,
                list.as_raw_fd(),
                before.as_deref(),
            ));
            sys::keep_open(&mut command, list.as_raw_fd());
        }
        let error = command.exec();
        worker::say(&format!("cannot start {:?}: {error}", self.python));
        ExitCode::from(if error.kind() == ErrorKind::NotFound {
            127
        } else {
            126
        })
    }
}

fn receive(agent: &UnixDatagram, text: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    loop {
        match sys::receive(agent.as_fd(), text) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => return received,
        }
    }
}

/// Passes signals on to the rank, and ends as it does.
fn stand_in(agent: &UnixDatagram, signals: &Signals) -> ExitCode {
    sys::let_go_of_streams();
    let own = sys::peer(agent.as_fd()).map_or(-1, |peer| peer.pid);
    // Until there was a rank, the agent has sent this process what was meant for it.
    pass_on(agent, signals, |_| true);
    loop {
        let interests =
            [agent.as_raw_fd(), signals.as_raw_fd()].map(|fd| Some(Interest { fd, write: false }));
        let Ok([answered, signalled]) = sys::wait_ready(interests, None) else {
            return end(None);
        };
        if signalled {
            // The agent signals the rank itself.
            pass_on(agent, signals, |signal| signal.sender != own);
        }
        if answered {
            let mut text = [0; MAX_ANSWER];
            let answer = receive(agent, &mut text).ok();
            return match answer.and_then(|(length, _)| Answer::decode(&text[..length])) {
                Some(Answer::Ended(exit)) => end(Some(exit)),
                Some(Answer::Cold | Answer::Started) | None => end(None),
            };
        }
    }
}

/// Passes on the signals that have arrived, if they are meant for the rank.
fn pass_on(agent: &UnixDatagram, signals: &Signals, is_meant: impl Fn(&Received) -> bool) {
    while let Ok(Some(signal)) = signals.next() {
        if is_meant(&signal) {
            // If the agent is gone, its socket says so.
            let _ = sys::send(agent.as_fd(), wire::signal(signal.signo).as_bytes(), &[]);
        }
    }
}

/// Ends as the rank has ended. None: the agent is gone, and the rank with it.
fn end(exit: Option<Exit>) -> ExitCode {
    let signal = match exit {
        Some(Exit::Code(code)) => return ExitCode::from(code.to_le_bytes()[0]),
        Some(Exit::Signal(signal)) => signal,
        None => libc::SIGKILL,
    };
    sys::die_of(signal);
    ExitCode::from(Exit::Signal(signal).code().to_le_bytes()[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn it_is_called_by_its_name() {
        for name in [
            "python",
            "/.lockstep/standby/hook/python",
            "/.lockstep/standby/hook/path/python3",
            "/hook/path/torchrun",
        ] {
            assert_eq!(called(Path::new(name)).as_deref(), Some(Path::new(name)));
        }
        for name in ["", "python3", "/x/lockstep-pod-agent", "/python/agent"] {
            assert_eq!(called(Path::new(name)), None, "{name}");
        }
    }

    #[test]
    fn links_lead_to_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("hook/path")).unwrap();
        for (link, to) in [
            ("hook/path/python3", "/proc/self/exe"),
            ("hook/python", "/proc/self/exe"),
            ("python", "hook/path/python3"),
            ("py", "python"),
            ("rank", "hook/python"),
            ("other", "/proc/self/exe"),
            ("round", "round"),
        ] {
            symlink(to, at(link)).unwrap();
        }
        for (link, to) in [
            ("python", "hook/path/python3"),
            ("py", "hook/path/python3"),
            ("rank", "hook/python"),
        ] {
            assert_eq!(called(&at(link)), Some(at(to)), "{link}");
        }
        for other in ["other", "round"] {
            assert_eq!(called(&at(other)), None, "{other}");
        }
    }
}
