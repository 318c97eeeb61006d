//! The ways in which a process waits for the next attempt, and what is reported about each.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use super::Standbys;
use super::files::{Folder, List};
use super::names::Wrapper;
use super::process::Process;
use super::program::{NOT_YET, Program};
use crate::sys::Mask;

/// Where a standby waits.
#[derive(Debug)]
pub(super) enum Way {
    /// Nowhere, since there are no standbys. The reason is empty if none are asked for.
    Nothing(String),
    /// In a hook that Python loads before the program. It imports ahead what the list names.
    Hook(Folder, List),
    /// In the hook, but only for Python that the worker starts.
    Wrapper(Folder, Wrapper),
    /// In the program's own call `park()`.
    Program(Box<Program>),
}

impl Way {
    /// The way of a program that parks itself, or the reason why there is none.
    pub(super) fn of_program() -> Self {
        if io::IsTerminal::is_terminal(&io::stdin()) {
            return Self::Nothing("the worker reads a terminal".to_owned());
        }
        Self::Program(Box::default())
    }

    pub(super) fn is_possible(&self) -> bool {
        !matches!(self, Self::Nothing(_))
    }

    /// Why there is no standby before the first one.
    pub(super) fn first_reason(&self) -> String {
        match self {
            Self::Nothing(reason) => reason.clone(),
            Self::Hook(..) | Self::Wrapper(..) => String::new(),
            Self::Program(_) => NOT_YET.to_owned(),
        }
    }

    pub(super) fn hook(&self) -> Option<(&Folder, &List)> {
        match self {
            Self::Hook(folder, list) => Some((folder, list)),
            Self::Nothing(_) | Self::Wrapper(..) | Self::Program(_) => None,
        }
    }

    /// The folder of the hook.
    pub(super) fn folder(&self) -> Option<&Folder> {
        match self {
            Self::Hook(folder, _) | Self::Wrapper(folder, _) => Some(folder),
            Self::Nothing(_) | Self::Program(_) => None,
        }
    }

    pub(super) fn wrapper(&self) -> Option<&Wrapper> {
        match self {
            Self::Wrapper(_, wrapper) => Some(wrapper),
            Self::Nothing(_) | Self::Hook(..) | Self::Program(_) => None,
        }
    }

    pub(super) fn program(&self) -> Option<&Program> {
        match self {
            Self::Program(program) => Some(program),
            Self::Nothing(_) | Self::Hook(..) | Self::Wrapper(..) => None,
        }
    }

    pub(super) fn program_mut(&mut self) -> Option<&mut Program> {
        match self {
            Self::Program(program) => Some(program),
            Self::Nothing(_) | Self::Hook(..) | Self::Wrapper(..) => None,
        }
    }
}

impl Standbys {
    /// The standbys of a worker whose program parks itself.
    pub(crate) fn of_program(command: &[OsString]) -> Self {
        Self::by(Way::of_program(), command)
    }

    /// Starts a standby, or returns why there is none.
    pub(super) fn start(
        &mut self,
        worker: Option<i32>,
        mask: Mask,
        now: Duration,
    ) -> Result<Process, String> {
        let Some(program) = self.way.program_mut() else {
            self.may_warm(worker)?;
            return self.spawn(mask);
        };
        program.may_start()?;
        self.memory
            .may_take(self.size_kib.unwrap_or(super::FIRST_GUESS_KIB))?;
        let failed = |error: io::Error| format!("cannot start a standby: {error}");
        let watched = self.watched.as_ref().ok_or_else(String::new)?;
        let started = program.start(&self.command, mask, watched, now);
        started.map_err(failed)
    }

    /// Reads the messages of a worker that was started cold and may park.
    pub(super) fn hear_worker(&mut self, now: Duration) {
        let memory = self
            .way
            .program_mut()
            .and_then(|program| program.hear_worker(now));
        if memory.is_some() {
            self.size_kib = memory;
            if self.reason == NOT_YET {
                self.reason.clear();
            }
        }
    }
}
