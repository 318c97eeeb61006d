//! When the next standby of a rank is started, and which standbys are ended unused.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use crate::sys::{self, Mask};

use super::command;
use super::files::{Mode, PYTHONPATH};
use super::process::{Process, State};
use super::ranks::{Context, Ranks, Stage, Waiting};
use super::{FIRST_GUESS_KIB, memory};

/// How long one standby may import before the next one is started anyway.
const HUNG: Duration = Duration::from_secs(60);

impl Ranks {
    /// The attempt has run for long enough to know its ranks: standbys that it cannot use are
    /// ended.
    pub(super) fn settle(&mut self) {
        self.settles = None;
        self.warm(self.now);
        let mut kept = Vec::new();
        // Keep those that are ready first.
        let mut order: Vec<&mut Waiting> = self.waiting.iter_mut().collect();
        order.sort_by_key(|waiting| !matches!(waiting.process.state, State::Ready(_)));
        for waiting in order {
            let alike = kept.iter().filter(|kind| **kind == waiting.kind).count();
            if alike < self.kinds.wanted(waiting.kind) {
                kept.push(waiting.kind);
            } else {
                waiting.end();
            }
        }
        self.kinds.forget();
    }

    /// Starts one standby, if one is wanted and no other imports. Returns when to check again.
    pub(super) fn start_next(&mut self, context: &Context<'_>) -> Option<Duration> {
        let now = self.now;
        let since = self.warmed.filter(|_| context.running)?;
        let count = |id| self.waiting.iter().filter(|waiting| waiting.kind == id).count();
        let (at, id) = self.kinds.next(count)?;
        let busy = self
            .waiting
            .iter()
            .filter(|waiting| waiting.process.state == State::Warming)
            .map(|waiting| waiting.since)
            .chain(context.busy.then_some(since));
        let free = busy.map(|since| since + HUNG).filter(|at| *at > now).max();
        let at = free.unwrap_or(at).max(at);
        if at > now {
            return Some(at);
        }
        match self.start(id, context) {
            Ok(waiting) => {
                self.waiting.push(waiting);
                self.reason.clear();
                Some(now + HUNG)
            }
            Err(why) => {
                self.explain(why);
                self.kinds.failed(id, now);
                // Another kind may be due at once.
                Some(now)
            }
        }
    }

    fn start(&mut self, id: u32, context: &Context<'_>) -> Result<Waiting, String> {
        let failed = |error: io::Error| format!("cannot start a standby: {error}");
        let shared = self
            .waiting
            .iter()
            .any(|waiting| waiting.kind == id && waiting.list.is_none());
        let guess = self.largest_kib(id).min(FIRST_GUESS_KIB);
        let kind = self.kinds.get(id).ok_or_else(String::new)?;
        // An interpreter that does not load the hook would run the program at once.
        let path = kind.environment.get(OsStr::new("PATH"));
        let path = path.map_or(OsStr::new(""), OsString::as_os_str);
        command::recognise(&kind.program.command, path).map_err(|error| error.to_string())?;
        if !kind.list.is_begun() {
            return Err("the program of a rank has not loaded the hook for standbys".to_owned());
        }
        context.memory.may_take(kind.size_kib.unwrap_or(guess))?;
        let skipped = kind.skip.len();
        let list = if shared {
            Some(kind.list.copy().map_err(failed)?)
        } else {
            None
        };
        let (ours, theirs) = sys::pair().map_err(failed)?;
        let mode = Mode::Wait {
            socket: theirs.as_raw_fd(),
            skip: &kind.skip,
        };
        let read = list.as_ref().unwrap_or(&kind.list);
        let before = kind.environment.get(OsStr::new(PYTHONPATH));
        let hook = context
            .folder
            .variables(mode, read, before.map(OsString::as_os_str));
        let mut words = kind.program.command.iter();
        let mut command = Command::new(words.next().ok_or_else(String::new)?);
        command
            .args(words)
            .current_dir(&kind.program.folder)
            .env_clear()
            .envs(kind.environment.iter())
            .envs(hook);
        sys::close_others(&mut command);
        let kept = [read.fd(), theirs.as_raw_fd()];
        let process = Process::spawn(command, Mask::none(), &kept, ours, context.watched).map_err(failed)?;
        Ok(Waiting {
            kind: id,
            process,
            environment: Rc::clone(&kind.environment),
            list,
            since: self.now,
            skipped,
            ended: false,
        })
    }

    /// Memory of the largest rank of a kind, which includes more than its imports.
    fn largest_kib(&self, id: u32) -> u64 {
        let cold = self.cold.iter().map(|cold| (cold.kind, cold.pid));
        let called = self.callers.iter().filter_map(|caller| match caller.stage {
            Stage::Running { kind, pid, .. } => Some((kind, pid)),
            _ => None,
        });
        let of_kind = cold.chain(called).filter(|(kind, _)| *kind == id);
        of_kind
            .map(|(_, pid)| memory::resident_kib(pid))
            .max()
            .unwrap_or(FIRST_GUESS_KIB)
    }

    /// Copies new imports of a kind to the standbys that have their own list.
    pub(super) fn renew_lists(&self) {
        for waiting in &self.waiting {
            let kind = self.kinds.iter().find(|kind| kind.id == waiting.kind);
            if let (Some(kind), Some(list)) = (kind, &waiting.list) {
                // If this fails, the standby imports the modules that it knows.
                let _ = list.renew(&kind.list);
            }
        }
    }
}
