//! The calls of stand-ins: what they ask for, the agent's answers, and their end.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::machine::{Source, calls};
use crate::sys::{self, Interest};

use super::command;
use super::inherited::{self, Inherited};
use super::kinds::{MAX_RANKS, Program};
use super::ranks::{Called, Caller, Cold, Context, Ranks, Stage};
use super::wire::{self, Answer, Call, MAX_MESSAGE};

/// Most messages that are read from one caller at once. The rest is read in the next round.
const AT_ONCE: usize = 64;
/// How long a caller may take to send its call.
pub(super) const CALL: Duration = Duration::from_secs(10);
/// How long no calls are accepted after one could not be.
pub(super) const DEAF: Duration = Duration::from_secs(1);
/// Longest message of a caller that stands in.
const MAX_SIGNAL: usize = 64;

/// Signals that launchers send to a group, to end it or have it wait. All others are for one
/// process. The stand-in cannot tell which was meant.
const TO_GROUPS: [i32; 6] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGTSTP,
    libc::SIGCONT,
];

/// What was read from a caller.
enum Heard {
    Nothing,
    HungUp,
    Message(Vec<u8>, Vec<OwnedFd>),
}

impl Ranks {
    /// Accepts new callers. Closes the connections of other users, and those beyond the limit.
    pub(super) fn accept(&mut self, context: &Context<'_>) {
        if self.deaf_until.is_some_and(|until| until > self.now) {
            return;
        }
        if self.deaf_until.take().is_some() && context.watched.watch(self.listener.as_fd()).is_err() {
            self.deaf_until = Some(self.now + DEAF);
            return;
        }
        for _ in 0..MAX_RANKS {
            let socket = match sys::accept(&self.listener) {
                Ok(socket) => socket,
                Err(error) => {
                    if error.kind() != ErrorKind::WouldBlock {
                        // The caller still waits, and the next attempt would fail as well.
                        context.watched.ignore(self.listener.as_fd());
                        self.deaf_until = Some(self.now + DEAF);
                    }
                    return;
                }
            };
            let peer = sys::peer(socket.as_fd());
            let Some(peer) = peer
                .ok()
                .filter(|peer| peer.uid == sys::own_uid() && peer.pid > 0)
            else {
                continue;
            };
            if self.is_full() || context.watched.watch(socket.as_fd()).is_err() {
                continue;
            }
            self.number += 1;
            self.callers.push(Caller {
                number: self.number,
                socket,
                pid: peer.pid,
                stage: Stage::Open(self.now + CALL),
            });
        }
    }

    /// Reads the messages of callers and of released standbys.
    pub(super) fn hear_callers(&mut self) {
        for at in 0..self.callers.len() {
            self.hear_release(at);
            for _ in 0..AT_ONCE {
                match self.callers[at].hear() {
                    Heard::Nothing => break,
                    Heard::HungUp => {
                        self.hang_up(at);
                        break;
                    }
                    Heard::Message(text, streams) => match self.callers[at].stage {
                        Stage::Open(_) => self.take_call(at, &text, streams),
                        Stage::Running { pid, leads, .. } => {
                            if let Some(signal) = wire::parse_signal(&text) {
                                let group = leads && TO_GROUPS.contains(&signal);
                                // It is not reaped, so the PID is its own.
                                let _ = sys::kill(if group { -pid } else { pid }, signal);
                            }
                        }
                        Stage::Called(_) | Stage::Releasing(_) | Stage::Refused(_) | Stage::Over => {}
                    },
                }
            }
        }
    }

    /// A caller has ended, or gives its rank up: the rank ends too.
    fn hang_up(&mut self, at: usize) {
        match std::mem::replace(&mut self.callers[at].stage, Stage::Over) {
            Stage::Releasing(release) => {
                release.process.kill();
                self.dying.push(release.process.pid);
            }
            Stage::Running { kind, pid, leads, .. } => {
                let _ = sys::kill(if leads { -pid } else { pid }, libc::SIGKILL);
                self.dying.push(pid);
                self.kinds.ended(kind, self.warmed.is_some());
            }
            Stage::Open(_) | Stage::Called(_) | Stage::Refused(_) | Stage::Over => {}
        }
    }

    /// Closes the connections of callers that do not send their call.
    pub(super) fn hang_up_on_silent(&mut self) {
        for caller in &mut self.callers {
            if matches!(caller.stage, Stage::Open(by) if by <= self.now) {
                caller.stage = Stage::Over;
            }
        }
    }

    /// Keeps a call until it is answered.
    fn take_call(&mut self, at: usize, text: &[u8], streams: Vec<OwnedFd>) {
        match Call::decode(text).filter(|_| streams.len() == 3) {
            Some(call) => self.callers[at].stage = Stage::Called(Box::new(Called { call, streams })),
            None => self.callers[at].dismiss(),
        }
    }

    /// Answers calls, unless a rank whose caller has gone is still dying: without the agent, a
    /// launcher would have waited for its end before it starts the next one.
    pub(super) fn answer_calls(&mut self, context: &Context<'_>) {
        if !calls::may_be_answered(self.dying.len()) {
            return;
        }
        for at in 0..self.callers.len() {
            match std::mem::replace(&mut self.callers[at].stage, Stage::Over) {
                Stage::Called(called) => self.answer_call(at, &called, context),
                other => self.callers[at].stage = other,
            }
        }
    }

    /// Answers by the release of a standby, or by letting the caller run the program itself.
    fn answer_call(&mut self, at: usize, called: &Called, context: &Context<'_>) {
        let kind = if context.running && self.is_alike(at, &called.call) {
            self.kind_of(&called.call)
        } else {
            None
        };
        let Some(kind) = kind else {
            self.callers[at].dismiss();
            return;
        };
        self.callers[at].stage = match self.release(at, kind, &called.call, &called.streams) {
            Some(release) => Stage::Releasing(Box::new(release)),
            None => Stage::Refused(kind),
        };
    }

    /// True if a caller has inherited the same as the agent, and so as its standbys. Both are read
    /// at each call, since the CPUs of a container may change.
    fn is_alike(&mut self, at: usize, call: &Call) -> bool {
        let own = Inherited::own();
        // It waits for the answer, so the PID is still its own.
        let theirs = Inherited::of(self.callers[at].pid);
        let (Some(own), Some(theirs)) = (own, theirs) else {
            return false;
        };
        let told =
            || (call.unseen != inherited::unseen()).then_some("personality, I/O priority or NUMA policy");
        let other = own.difference(&theirs).or_else(told);
        if let Some(what) = other {
            let than = "than the container's first process";
            self.explain(format!("a rank has inherited another value of {what} {than}"));
        }
        other.is_none()
    }

    /// Returns `None` if such ranks can have no standbys.
    fn kind_of(&mut self, call: &Call) -> Option<u32> {
        let path = call.environment.get(OsStr::new("PATH"));
        let path = path.map_or(OsStr::new(""), OsString::as_os_str);
        command::recognise(&call.command, path).ok()?;
        let program = Program {
            command: call.command.clone(),
            folder: call.folder.clone(),
        };
        self.kinds.admit(&program, &call.environment).ok()?
    }

    /// Lets callers without a standby run the program themselves.
    pub(super) fn answer_refused(&mut self, context: &Context<'_>) {
        for at in 0..self.callers.len() {
            let caller = &mut self.callers[at];
            let Stage::Refused(id) = caller.stage else {
                continue;
            };
            caller.stage = Stage::Over;
            // It waits for the answer, so the PID is still its own.
            let process = sys::hold(caller.pid);
            let kind = self.kinds.get(id).filter(|_| context.running);
            let (Ok(process), Some(kind)) = (process, kind) else {
                caller.say(Answer::Cold, None);
                continue;
            };
            if context.watched.watch(process.as_fd()).is_err() {
                caller.say(Answer::Cold, None);
                continue;
            }
            let learns = kind.learner.is_none();
            if caller.say(Answer::Cold, learns.then(|| kind.list.as_fd())) {
                let number = caller.number;
                if learns {
                    kind.learner = Some(number);
                }
                let pid = caller.pid;
                self.cold.push(Cold {
                    number,
                    pid,
                    kind: id,
                    process,
                });
                self.started(id, Source::Cold, Duration::ZERO);
            }
        }
    }

    /// Finds the cold ranks that have ended.
    pub(super) fn look_at_cold(&mut self) {
        let ended = |cold: &Cold| {
            let interest = Interest {
                fd: cold.process.as_raw_fd(),
                write: false,
            };
            sys::wait_ready([Some(interest)], Some(Duration::ZERO)).is_ok_and(|[ended]| ended)
        };
        let (gone, left): (Vec<Cold>, Vec<Cold>) = self.cold.drain(..).partition(ended);
        self.cold = left;
        for cold in gone {
            self.kinds.ended(cold.kind, self.warmed.is_some());
            if let Some(kind) = self.kinds.get(cold.kind) {
                kind.learner.take_if(|number| *number == cold.number);
            }
        }
    }
}

impl Caller {
    fn hear(&self) -> Heard {
        let longest = match self.stage {
            Stage::Over => return Heard::Nothing,
            Stage::Open(_) => MAX_MESSAGE,
            _ => MAX_SIGNAL,
        };
        let mut text = vec![0; longest];
        match sys::receive(self.socket.as_fd(), &mut text) {
            Ok((0, _)) => Heard::HungUp,
            Ok((length, streams)) => {
                text.truncate(length);
                Heard::Message(text, streams)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Heard::Nothing
            }
            Err(_) => Heard::HungUp,
        }
    }

    /// True if the caller has not hung up. It sends nothing while it waits for the answer to its
    /// call.
    pub(super) fn is_there(&self) -> bool {
        let heard = sys::receive(self.socket.as_fd(), &mut [0]);
        heard.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Lets the caller run the program itself. The program does not count as a rank.
    fn dismiss(&mut self) {
        self.say(Answer::Cold, None);
        self.stage = Stage::Over;
    }

    /// Returns false if the message cannot be sent.
    pub(super) fn say(&self, answer: Answer, list: Option<BorrowedFd<'_>>) -> bool {
        let text = answer.encode();
        sys::send(self.socket.as_fd(), text.as_bytes(), list.as_slice()).is_ok()
    }
}
