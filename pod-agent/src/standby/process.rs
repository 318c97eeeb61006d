//! One process that waits, or is about to: its socket and its messages.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use super::family::Usage;
use super::reason;
use crate::sys::{self, Mask, Terminal, Watched};

/// Longest message of a standby that is read, in bytes.
const MAX_MESSAGE: usize = 1024;
/// Longest part of a reason that is kept, in bytes.
const MAX_REASON: usize = 200;
/// Most messages that are read at once. The rest is read in the next round.
const AT_ONCE: usize = 64;
/// Most messages that are read from a process that has ended: more than the kernel keeps for one
/// socket. Processes that it left behind could keep sending.
const TO_THE_END: usize = 4096;

/// How long the import of one module may take.
pub(super) const LONGEST_IMPORT: Duration = Duration::from_secs(900);

/// A process that imports ahead, or runs up to its call `park()`, or waits to go on.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: i32,
    socket: UnixDatagram,
    pub(super) state: State,
    /// Set once the socket can neither send nor receive any more.
    pub(super) closed: bool,
    /// True if it waits in the program's own call, not in the hook.
    pub(super) parks: bool,
    /// The module that it imports now. If the process ends, this module is the cause.
    importing: Option<String>,
    /// The module that it imported at the last check, and since when.
    looked_at: Option<(String, Duration)>,
    /// Why it is of no use, if it has reported that.
    fault: Option<Fault>,
}

/// What a standby is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Warming,
    Ready(Ready),
    /// The agent has told it to go on.
    Released,
    /// It goes on: it is the worker's process.
    Confirmed,
}

/// The imports of a standby that is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ready {
    pub(super) modules: u32,
    pub(super) memory_kib: u64,
    pub(super) ahead: Duration,
}

/// Why a standby is of no use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Because of this module, which is not imported ahead again.
    Module { name: String, why: String },
    /// For another reason.
    Other(String),
}

impl Fault {
    /// For people.
    pub(super) fn told(self) -> String {
        match self {
            Self::Module { name, why } => format!("module {name} is not imported ahead: {why}"),
            Self::Other(why) => why,
        }
    }
}

/// A message of a standby.
#[derive(Debug, PartialEq, Eq)]
enum Message {
    Importing(String),
    Ready(Ready),
    Fault(Fault),
    Started,
}

impl Process {
    pub(super) fn new(pid: i32, socket: UnixDatagram) -> Self {
        Self {
            pid,
            socket,
            state: State::Warming,
            closed: false,
            parks: false,
            importing: None,
            looked_at: None,
            fault: None,
        }
    }

    /// Starts a standby in a process group of its own. It inherits these descriptors, among them
    /// the other end of `ours`.
    pub(super) fn spawn(
        mut command: Command,
        mask: Mask,
        kept: &[RawFd],
        ours: UnixDatagram,
        watched: &Watched,
    ) -> io::Result<Self> {
        sys::hand_over(&mut command, mask, Terminal::LeftAlone);
        for fd in kept {
            sys::keep_open(&mut command, *fd);
        }
        watched.watch(ours.as_fd())?;
        let child = command.process_group(0).spawn()?;
        Ok(Self::new(child.id().cast_signed(), ours))
    }

    /// A standby whose program calls `park()`.
    pub(super) fn parking(pid: i32, socket: UnixDatagram) -> Self {
        Self::new(pid, socket).that_parks()
    }

    /// The same process, whose program calls `park()`.
    pub(super) fn that_parks(self) -> Self {
        Self { parks: true, ..self }
    }

    /// Reads its messages. The agent believes a standby only about itself, since it is a process of
    /// the container like the worker.
    pub(super) fn listen(&mut self) {
        self.read(AT_ONCE);
    }

    /// Reads all of its messages, once it has been reaped or can send no more. The last one shows
    /// whether it has gone on.
    pub(super) fn hear_out(&mut self) {
        self.read(TO_THE_END);
    }

    /// Reads its last messages before it is given up. From here on it cannot confirm that it goes
    /// on, and ends itself when it tries. True if it has confirmed before.
    pub(super) fn close_ears(&mut self) -> bool {
        // That fails only if the other end is closed: then it can say nothing either.
        let _ = self.socket.shutdown(Shutdown::Read);
        self.hear_out();
        self.state == State::Confirmed
    }

    fn read(&mut self, most: usize) {
        let mut text = [0; MAX_MESSAGE];
        for _ in 0..most {
            let length = match self.socket.recv(&mut text) {
                Ok(0) => {
                    self.closed = true;
                    // Otherwise the descriptor would always be ready.
                    if let Ok(silent) = UnixDatagram::unbound().and_then(|silent| {
                        silent.set_nonblocking(true)?;
                        Ok(silent)
                    }) {
                        self.socket = silent;
                    }
                    return;
                }
                Ok(length) => length,
                // It has ended without reading the agent's message. Its own messages come next.
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionReset) => {
                    continue;
                }
                Err(_) => return,
            };
            let message = if self.parks {
                parse_parking(&text[..length], self.pid, &self.state)
            } else {
                parse(&text[..length])
            };
            match message {
                Some(Message::Importing(name)) => self.importing = Some(name),
                Some(Message::Ready(ready)) => {
                    self.importing = None;
                    if matches!(self.state, State::Warming | State::Ready(_)) {
                        self.state = State::Ready(ready);
                    }
                }
                Some(Message::Fault(fault)) => self.fault = Some(fault),
                Some(Message::Started) if self.state == State::Released => self.state = State::Confirmed,
                Some(Message::Started) | None => {}
            }
        }
    }

    /// Tells it to go on with these changes of its environment: a value, or none to remove it.
    pub(super) fn release<'a>(
        &mut self,
        changes: impl IntoIterator<Item = (&'a OsStr, Option<&'a OsStr>)>,
    ) -> bool {
        self.release_with(changes, &[])
    }

    /// As `release`, with other standard streams.
    pub(super) fn release_with<'a>(
        &mut self,
        changes: impl IntoIterator<Item = (&'a OsStr, Option<&'a OsStr>)>,
        streams: &[BorrowedFd<'_>],
    ) -> bool {
        let mut message = b"start".to_vec();
        for (name, value) in changes {
            message.push(0);
            message.extend_from_slice(name.as_bytes());
            if let Some(value) = value {
                message.push(b'=');
                message.extend_from_slice(value.as_bytes());
            }
        }
        let sent = sys::send(self.socket.as_fd(), &message, streams).is_ok();
        if sent {
            self.state = State::Released;
        }
        sent
    }

    /// The module that it imports, if it is not released yet.
    pub(super) fn importing(&self) -> Option<&str> {
        let waits = matches!(self.state, State::Warming | State::Ready(_));
        self.importing.as_deref().filter(|_| waits)
    }

    /// Ends it, and records the module that it imports as the cause, if that takes too long.
    pub(super) fn look_at_import(&mut self, now: Duration) {
        let Some(name) = self.importing().map(str::to_owned) else {
            self.looked_at = None;
            return;
        };
        let since = match &self.looked_at {
            Some((before, since)) if *before == name => *since,
            _ => now,
        };
        if now < since + LONGEST_IMPORT {
            self.looked_at = Some((name, since));
            return;
        }
        let why = "its import does not end".to_owned();
        self.fault = Some(Fault::Module { name, why });
        self.importing = None;
        self.kill();
    }

    /// Ends it and what it has started in its process group. It is not reaped yet.
    pub(super) fn kill(&self) {
        let _ = sys::kill(self.pid, libc::SIGKILL);
        self.kill_group();
    }

    /// Ends what it has started in its process group.
    pub(super) fn kill_group(&self) {
        let _ = sys::kill(-self.pid, libc::SIGKILL);
    }

    /// Why it has ended, once it has been reaped and its last messages have been read. `sent` is
    /// true if a signal of another process ended it, so that no module is the cause.
    pub(super) fn cause(&mut self, sent: bool) -> Option<Fault> {
        self.fault.take().or_else(|| {
            let name = self.importing.take().filter(|_| !sent)?;
            let why = "it ended while it was imported".to_owned();
            Some(Fault::Module { name, why })
        })
    }
}

/// A message of a program. Its usage is measured here, since it may be any program, and only once,
/// since it may send the same again and again.
fn parse_parking(message: &[u8], pid: i32, state: &State) -> Option<Message> {
    match message {
        b"ready" if *state == State::Warming => {
            let used = Usage::of(pid);
            Some(Message::Ready(Ready {
                modules: 0,
                memory_kib: used.memory_kib,
                ahead: used.time,
            }))
        }
        b"started" => Some(Message::Started),
        _ => None,
    }
}

fn parse(message: &[u8]) -> Option<Message> {
    let text = String::from_utf8_lossy(message);
    let (what, rest) = text.split_once(' ').unwrap_or((&text, ""));
    let mut words = rest.split(' ');
    let bounded = |text: &str| {
        let text: String = text.chars().filter(|letter| !letter.is_control()).collect();
        text[..text.floor_char_boundary(MAX_REASON)].to_owned()
    };
    Some(match what {
        "importing" => Message::Importing(bounded(rest)),
        "ready" => Message::Ready(Ready {
            modules: words.next()?.parse().ok()?,
            memory_kib: words.next()?.parse().ok()?,
            ahead: Duration::from_millis(words.next()?.parse::<u32>().ok()?.into()),
        }),
        "spoiled" | "failed" => {
            let (name, why) = rest.split_once(' ').unwrap_or((rest, ""));
            Message::Fault(Fault::Module {
                name: bounded(name),
                why: reason::of_module(&bounded(why)),
            })
        }
        "refused" => Message::Fault(Fault::Other(reason::of_refusal(&bounded(rest)))),
        "started" => Message::Started,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
