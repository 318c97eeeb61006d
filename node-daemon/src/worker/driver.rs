//! The task that owns the table of workers. It waits for nothing but its inbox, so a slow agent or
//! control plane never holds up its senders.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use super::epochs::Epochs;
use super::facts::{Effects, HostKill, Input};
use super::outbox::Outbox;
use super::state::Table;
use super::types::{ContainerId, Epoch, LinkId, PodUid, Target};
use crate::clock::{boot_nanos, unix_nanos};
use crate::plain::facts as plain;
use crate::plain::record::Journal;
use crate::plain::state::Table as PlainTable;

mod handle;
mod log;
mod log_limit;

use handle::{Arrival, Message};
pub use handle::{Closed, Handle, NotLinked};
use log::{log_reports, log_stale};
use log_limit::LogLimit;

/// Facts that may wait for the driver before their senders have to wait.
const INBOX: usize = 1024;

/// What the driver asks for on the node. No method may block.
pub trait Host: Send + 'static {
    /// Starts killing the processes of a container whose agent may not do it.
    fn kill(&self, ask: HostKill);

    /// The agent no longer asks for that.
    fn spare(&self, container: &ContainerId);

    /// A pod is known: its agents may connect.
    fn pod_known(&self, pod: &PodUid);

    /// The pod is gone: what was kept for it may be removed.
    fn pod_gone(&self, pod: &PodUid);

    /// A listing was taken in; these pods are known now.
    fn pods_listed(&self, _pods: &BTreeSet<PodUid>) {}
}

/// Workers without an agent: their table, and what it needs.
pub struct Plain {
    /// The table.
    pub table: PlainTable,
    /// Stores its records. It may not block.
    pub journal: Box<dyn Journal + Send>,
    /// Takes the containers that are to be stopped.
    pub stops: mpsc::Sender<ContainerId>,
}

/// The task itself; see [`Driver::run`].
pub struct Driver {
    table: Table,
    plain: Option<Plain>,
    /// The highest epoch on record.
    highest: Epoch,
    epochs: Option<Box<dyn Epochs + Send>>,
    inbox: mpsc::Receiver<Message>,
    outbox: Arc<Outbox>,
    lines: LogLimit,
    links: BTreeMap<ContainerId, (LinkId, watch::Sender<Option<Target>>)>,
}

impl Driver {
    /// A driver around `table`, and its handle.
    #[must_use]
    pub fn new(table: Table) -> (Self, Handle) {
        let (sender, inbox) = mpsc::channel(INBOX);
        let outbox = Arc::new(Outbox::default());
        let handle = Handle {
            inbox: sender,
            outbox: outbox.clone(),
            health: Arc::default(),
        };
        let driver = Self {
            table,
            plain: None,
            highest: Epoch::default(),
            epochs: None,
            inbox,
            outbox,
            lines: LogLimit::default(),
            links: BTreeMap::new(),
        };
        (driver, handle)
    }

    /// The same driver, with a table of workers without an agent.
    #[must_use]
    pub fn with_plain(mut self, plain: Plain) -> Self {
        self.plain = Some(plain);
        self
    }

    /// The same driver, with this record of the highest epoch and its value from earlier daemons.
    /// The record may not block.
    #[must_use]
    pub fn with_epochs(mut self, epochs: Box<dyn Epochs + Send>, highest: Epoch) -> Self {
        self.epochs = Some(epochs);
        self.highest = highest;
        self
    }

    /// Runs until every [`Handle`] is gone.
    pub async fn run(mut self, host: impl Host) {
        self.obey_from(self.highest, &host);
        while let Some(message) = self.inbox.recv().await {
            match message {
                Message::Fact(input) => {
                    if let Some(input) = of_both(&input) {
                        self.apply_plain(input);
                    }
                    self.apply(input, &host);
                }
                Message::Plain(input) => self.apply_plain(input),
                Message::Linked(arrival, reply) => {
                    let targets = self.link(&arrival);
                    let is_linked = targets.is_some();
                    // If the connection has given up, it reports its end like any other.
                    drop(reply.send(targets));
                    if is_linked {
                        self.log_arrival(&arrival);
                        self.apply(arrival.registered, &host);
                    }
                }
                Message::Unlinked(id, link, why) => {
                    if let Some(left_out) = self.next_line(&id) {
                        info!(container = %id, why, left_out, "agent disconnected");
                    }
                    self.apply(Input::LinkDown(id, link), &host);
                }
                Message::Welcomed(epoch, reply) => drop(reply.send(self.welcomed(epoch, &host))),
                Message::Snapshot(reply) => {
                    self.outbox.clear();
                    // The caller may have given up. Nothing is lost: it asks again on its next
                    // connection.
                    let mut snapshot = self.table.snapshot();
                    snapshot.extend(self.plain.iter().flat_map(|plain| plain.table.snapshot()));
                    drop(reply.send(snapshot));
                }
                Message::Mark(reply) => drop(reply.send(self.table.mark())),
            }
        }
    }

    /// Records the epoch before anything is done under it.
    fn welcomed(&mut self, epoch: Epoch, host: &impl Host) -> io::Result<()> {
        if epoch <= self.highest {
            return Ok(());
        }
        if let Some(epochs) = &self.epochs {
            epochs.keep(epoch)?;
        }
        self.highest = epoch;
        self.obey_from(epoch, host);
        Ok(())
    }

    /// Obeys no lower epoch from now on.
    fn obey_from(&mut self, epoch: Epoch, host: &impl Host) {
        self.apply_plain(plain::Input::Welcomed(epoch));
        self.apply(Input::Welcomed(epoch), host);
    }

    /// Accepts the connection of an agent in place of the former one, unless it comes from another
    /// pod's socket.
    fn link(&mut self, arrival: &Arrival) -> Option<watch::Receiver<Option<Target>>> {
        let Input::Registered { id, pod, .. } = &arrival.registered else {
            return None;
        };
        if self.table.is_of_another(id, pod) {
            return None;
        }
        let (sender, receiver) = watch::channel(None);
        self.links.insert(id.clone(), (arrival.link, sender));
        Some(receiver)
    }

    fn apply(&mut self, input: Input, host: &impl Host) {
        if let Input::LinkDown(id, link) = &input
            && self.links.get(id).is_some_and(|(current, _)| current == link)
        {
            self.links.remove(id);
        }
        let listed = matches!(input, Input::Listed { .. });
        let effects = self.table.apply(input, unix_nanos());
        self.carry_out(effects, host);
        if listed {
            host.pods_listed(&self.table.pods());
        }
    }

    fn apply_plain(&mut self, input: plain::Input) {
        let Some(plain) = &mut self.plain else { return };
        let effects = plain.table.apply(input, moment(), &*plain.journal);
        for id in effects.stops {
            if let Err(error) = plain.stops.try_send(id.clone()) {
                warn!(container = %id, %error, "cannot stop the container now");
                plain.table.not_stopped(&id);
            } else {
                info!(container = %id, "stopping the container for a restart");
            }
        }
        for (pod, error) in effects.unwritten {
            warn!(%pod, error, "cannot write the records of a pod: its containers are not stopped");
        }
        log_reports(&effects.reports, &mut self.lines);
        log_stale(&effects.stale);
        self.outbox.put(effects.reports);
        self.outbox.put_gone(effects.gone);
    }

    fn stop_without_agents(&mut self, stops: &[ContainerId]) {
        let Some(plain) = &self.plain else { return };
        for id in stops {
            match plain.stops.try_send(id.clone()) {
                Ok(()) => {
                    info!(container = %id, "stopping a worker that started without its agent, for a restart");
                }
                Err(error) => {
                    warn!(container = %id, %error, "cannot stop a worker without its agent now");
                    self.table.not_stopped(id);
                }
            }
        }
    }

    fn carry_out(&mut self, effects: Effects, host: &impl Host) {
        // The effects that others wait for come first, then the log.
        for (id, link, target) in &effects.targets {
            if let Some((current, sender)) = self.links.get(id)
                && current == link
            {
                sender.send_replace(Some(target.clone()));
            }
        }
        self.outbox.put(effects.reports.iter().cloned());
        self.outbox.put_aside(effects.progress.iter().cloned());
        self.outbox.put_gone(effects.gone.iter().cloned());
        for id in &effects.spared {
            host.spare(id);
        }
        for ask in &effects.kills {
            host.kill(ask.clone());
        }
        self.log(&effects);
        for id in &effects.dropped {
            self.links.remove(id);
        }
        for pod in &effects.pods_gone {
            self.lines.forget(pod);
            host.pod_gone(pod);
        }
        for pod in &effects.pods_known {
            host.pod_known(pod);
        }
        self.stop_without_agents(&effects.stops);
    }
}

/// A fact that concerns workers with and without an agent, as input for the table of those without
/// one.
#[must_use]
pub fn of_both(input: &Input) -> Option<plain::Input> {
    match input {
        Input::Exited(id, ended) => Some(plain::Input::Exited(id.clone(), *ended)),
        Input::Welcomed(epoch) => Some(plain::Input::Welcomed(*epoch)),
        Input::Desired(groups) => Some(plain::Input::Desired(groups.clone())),
        Input::Forget(group, epoch) => Some(plain::Input::Forget(group.clone(), *epoch)),
        Input::StopOver(id) => Some(plain::Input::StopOver(id.clone())),
        _ => None,
    }
}

/// Now, by both clocks.
fn moment() -> plain::Moment {
    plain::Moment {
        wall: unix_nanos(),
        boot: boot_nanos(),
    }
}
