//! Standbys that are told to go on as ranks: whether they do, and how ranks end.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use crate::machine::calls::RankRelease;
use crate::machine::{Exit, Source};

use super::ended;
use super::is_sent;
use super::process::State;
use super::ranks::{Ranks, Release, Stage};
use super::wire::{self, Answer, Call};

impl Ranks {
    /// Releases a ready standby as the rank that was called for.
    pub(super) fn release(
        &mut self,
        at: usize,
        kind: u32,
        call: &Call,
        streams: &[OwnedFd],
    ) -> Option<Release> {
        let caller = &self.callers[at];
        let folder = |pid: i32| {
            let found = fs::metadata(format!("/proc/{pid}/cwd")).ok()?;
            Some((found.dev(), found.ino()))
        };
        let theirs = folder(caller.pid)?;
        if !caller.is_there() {
            return None;
        }
        // Prefer the standby that still adds to the list of its kind.
        let found = self
            .waiting
            .iter()
            .enumerate()
            .filter(|(_, waiting)| waiting.stage().may_go_on())
            .filter(|(_, waiting)| waiting.kind == kind && folder(waiting.process.pid) == Some(theirs))
            .filter_map(|(at, waiting)| match waiting.process.state {
                State::Ready(ready) => Some((waiting.list.is_some(), at, ready.ahead)),
                _ => None,
            })
            .min();
        let (_, found, ahead) = found?;
        let mut waiting = self.waiting.swap_remove(found);
        let umask = OsString::from(format!("=umask{}", call.umask));
        let mut changes: Vec<(&OsStr, Option<&OsStr>)> = vec![(&umask, None)];
        changes.extend(wire::changes(&waiting.environment, &call.environment));
        let streams: Vec<BorrowedFd<'_>> = streams.iter().map(AsFd::as_fd).collect();
        if !waiting.process.release_with(changes, &streams) {
            // Its end of the socket is closed, or the message is too long: it ends, or the agent
            // ends it.
            waiting.process.kill();
            let why = "a rank's standby could not be told to go on".to_owned();
            self.failed(kind, None, waiting.skipped, why);
            return None;
        }
        Some(Release {
            kind,
            process: waiting.process,
            leads: call.leads,
            list: waiting.list,
            ahead,
            skipped: waiting.skipped,
            going: RankRelease::at(self.now),
        })
    }

    /// Reads whether the released standby of a caller has confirmed.
    pub(super) fn hear_release(&mut self, at: usize) {
        let caller = &mut self.callers[at];
        let Stage::Releasing(release) = &mut caller.stage else {
            return;
        };
        release.process.listen();
        if release.process.state != State::Confirmed {
            if release.process.closed {
                // It has ended, or sends no more messages.
                release.process.kill();
            }
            return;
        }
        let (kind, ahead) = (release.kind, release.ahead);
        let list = release.list.take();
        caller.stage = Stage::Running {
            kind,
            pid: release.process.pid,
            leads: release.leads,
            _list: list,
        };
        // If this cannot be sent, the caller has hung up.
        caller.say(Answer::Started, None);
        self.kinds.served(kind);
        self.started(kind, Source::Standby, ahead);
    }

    /// Kills released standbys that do not confirm.
    pub(super) fn press(&mut self) {
        for at in 0..self.callers.len() {
            if let Stage::Releasing(release) = &mut self.callers[at].stage
                && release.going.gives_up(self.now)
            {
                if release.process.close_ears() {
                    self.hear_release(at);
                } else {
                    release.process.kill();
                }
            }
        }
    }

    /// A child of the agent has been reaped. True if it was a rank.
    pub(super) fn rank_reaped(&mut self, pid: i32, exit: Exit) -> bool {
        if let Some(at) = self.dying.iter().position(|dying| *dying == pid) {
            self.dying.swap_remove(at);
            return true;
        }
        for at in 0..self.callers.len() {
            // Its last messages may not have been read yet.
            if let Stage::Releasing(release) = &mut self.callers[at].stage
                && release.process.pid == pid
            {
                release.process.hear_out();
                self.hear_release(at);
            }
            let caller = &mut self.callers[at];
            match &mut caller.stage {
                Stage::Releasing(release) if release.process.pid == pid => {
                    // What it has started does not outlive it.
                    release.process.kill_group();
                    let kind = release.kind;
                    let otherwise = match release.going.deadline() {
                        Some(_) => ended::told("a rank's standby", exit, " when it was released"),
                        None => "a rank's standby did not go on in time".to_owned(),
                    };
                    let (fault, skipped) = (release.process.cause(is_sent(exit)), release.skipped);
                    release.going.has_ended();
                    if release.going.is_refused() {
                        caller.stage = Stage::Refused(kind);
                    }
                    self.failed(kind, fault, skipped, otherwise);
                    return true;
                }
                Stage::Running { kind, pid: rank, .. } if *rank == pid => {
                    let kind = *kind;
                    caller.say(Answer::Ended(exit), None);
                    caller.stage = Stage::Over;
                    self.kinds.ended(kind, self.warmed.is_some());
                    return true;
                }
                _ => {}
            }
        }
        false
    }
}
