//! The task that owns the table of workers. It never waits for anything but its inbox, so whoever sends to it is never held up by a slow agent or
//! control plane.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};
use tracing::{info, warn};

use super::epochs::Epochs;
use super::facts::{Effects, HostKill, Input};
use super::lines::Lines;
use super::outbox::Outbox;
use super::state::Table;
use super::types::{ContainerId, Epoch, LinkId, PodUid, StaleOrder, Target, WorkerState};
use crate::clock::{boot_nanos, unix_nanos};
use crate::health::Health;
use crate::plain::record::Journal;
use crate::plain::state as plain;

/// Facts that may wait for the driver before their senders do.
const INBOX: usize = 1024;

/// What the driver has done on the node. Neither may wait.
pub trait Host: Send + 'static {
    /// Starts killing the processes of a container whose agent may not do it.
    fn kill(&self, ask: HostKill);

    /// The agent asks for that no more.
    fn spare(&self, container: &ContainerId);

    /// A pod has become known: its agents may come.
    fn pod_known(&self, pod: &PodUid);

    /// The pod is gone: what was kept for it may go.
    fn pod_gone(&self, pod: &PodUid);

    /// A listing was taken in, and these are the pods that are known now.
    fn pods_listed(&self, _pods: &BTreeSet<PodUid>) {}
}

/// A new connection of an agent.
struct Arrival {
    /// That it has registered.
    registered: Input,
    link: LinkId,
    version: String,
}

enum Message {
    Fact(Input),
    Plain(plain::Input),
    Linked(
        Box<Arrival>,
        oneshot::Sender<Option<watch::Receiver<Option<Target>>>>,
    ),
    Unlinked(ContainerId, LinkId, Option<String>),
    Welcomed(Epoch, oneshot::Sender<io::Result<()>>),
    Snapshot(oneshot::Sender<Vec<WorkerState>>),
    Mark(oneshot::Sender<u64>),
}

/// The driver has stopped: the daemon is going down.
#[derive(Debug, thiserror::Error)]
#[error("the worker table is closed")]
pub struct Closed;

/// Why an agent's connection is not taken.
#[derive(Debug, thiserror::Error)]
pub enum NotLinked {
    /// Its socket is of another pod than its container.
    #[error("the container is another pod's than the socket")]
    OtherPod,
    /// There is no driver.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// The way to the driver.
#[derive(Clone)]
pub struct Handle {
    inbox: mpsc::Sender<Message>,
    outbox: Arc<Outbox>,
    health: Arc<Health>,
}

impl Handle {
    /// Tells the driver a fact.
    ///
    /// # Errors
    /// When the driver has stopped.
    pub async fn tell(&self, input: Input) -> Result<(), Closed> {
        self.send(Message::Fact(input)).await
    }

    /// Tells the driver a fact about workers without an agent.
    ///
    /// # Errors
    /// When the driver has stopped.
    pub async fn tell_plain(&self, input: plain::Input) -> Result<(), Closed> {
        self.send(Message::Plain(input)).await
    }

    /// Tells the driver a fact, unless its inbox is full: then the fact comes back.
    ///
    /// # Errors
    /// `Ok(Some(_))` is the fact that found no room; an error means that the driver has stopped.
    pub fn try_tell(&self, input: Input) -> Result<Option<Input>, Closed> {
        match self.inbox.try_send(Message::Fact(input)) {
            Ok(()) => Ok(None),
            Err(mpsc::error::TrySendError::Full(Message::Fact(input))) => Ok(Some(input)),
            Err(_) => Err(Closed),
        }
    }

    /// Announces a new connection of an agent, which says that it is of this version. The receiver holds the newest target; it closes when another connection of the same container
    /// takes over, or the container is gone.
    ///
    /// # Errors
    /// When the container is known to be another pod's, which changes nothing; and when the driver has stopped.
    pub async fn linked(
        &self,
        registered: Input,
        link: LinkId,
        version: String,
    ) -> Result<watch::Receiver<Option<Target>>, NotLinked> {
        let (sender, receiver) = oneshot::channel();
        let arrival = Arrival {
            registered,
            link,
            version,
        };
        self.send(Message::Linked(Box::new(arrival), sender)).await?;
        receiver.await.map_err(|_| Closed)?.ok_or(NotLinked::OtherPod)
    }

    /// A connection of an agent has ended, for this reason where it is not the agent's end.
    ///
    /// # Errors
    /// When the driver has stopped.
    pub async fn unlinked(
        &self,
        container: ContainerId,
        link: LinkId,
        why: Option<String>,
    ) -> Result<(), Closed> {
        self.send(Message::Unlinked(container, link, why)).await
    }

    /// A hub has welcomed this node under this epoch. Once that is `Ok`, no daemon of this boot obeys a lower one.
    ///
    /// # Errors
    /// When the driver has stopped; inside, when the epoch could not be written down: then nothing may be done under it.
    pub async fn welcomed(&self, epoch: Epoch) -> Result<io::Result<()>, Closed> {
        let (sender, receiver) = oneshot::channel();
        self.send(Message::Welcomed(epoch, sender)).await?;
        receiver.await.map_err(|_| Closed)
    }

    /// All states as they are now. What waited to be reported is in it, and waits no more.
    ///
    /// # Errors
    /// When the driver has stopped.
    pub async fn snapshot(&self) -> Result<Vec<WorkerState>, Closed> {
        let (sender, receiver) = oneshot::channel();
        self.send(Message::Snapshot(sender)).await?;
        receiver.await.map_err(|_| Closed)
    }

    /// See [`Table::mark`].
    ///
    /// # Errors
    /// When the driver has stopped.
    pub async fn mark(&self) -> Result<u64, Closed> {
        let (sender, receiver) = oneshot::channel();
        self.send(Message::Mark(sender)).await?;
        receiver.await.map_err(|_| Closed)
    }

    /// What waits to be reported.
    #[must_use]
    pub fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    /// What those who tell the driver find of the container runtime, and whom they refuse.
    #[must_use]
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    async fn send(&self, message: Message) -> Result<(), Closed> {
        self.inbox.send(message).await.map_err(|_| Closed)
    }
}

/// Workers without an agent: their table, and what it needs.
pub struct Plain {
    /// The table.
    pub table: plain::Table,
    /// Where its records are kept. It may not wait.
    pub journal: Box<dyn Journal + Send>,
    /// Takes the containers that are to be stopped.
    pub stops: mpsc::Sender<ContainerId>,
}

/// The task itself; see [`Driver::run`].
pub struct Driver {
    table: Table,
    plain: Option<Plain>,
    /// The highest epoch that is written down, and where.
    highest: Epoch,
    epochs: Option<Box<dyn Epochs + Send>>,
    inbox: mpsc::Receiver<Message>,
    outbox: Arc<Outbox>,
    lines: Lines,
    links: BTreeMap<ContainerId, (LinkId, watch::Sender<Option<Target>>)>,
}

impl Driver {
    /// A driver around `table`, and the way to it.
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
            lines: Lines::default(),
            links: BTreeMap::new(),
        };
        (driver, handle)
    }

    /// The same driver, which looks after workers without an agent too.
    #[must_use]
    pub fn with_plain(mut self, plain: Plain) -> Self {
        self.plain = Some(plain);
        self
    }

    /// The same driver, which has this record of the highest epoch and what a daemon of before has written there. The record may not wait.
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
                    // Whoever has given up says so, as any other that goes.
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
                    drop(self.outbox.take(usize::MAX));
                    drop(self.outbox.take_gone());
                    // The asker may have given up: nothing is lost by that, it asks again on its next connection.
                    let mut snapshot = self.table.snapshot();
                    snapshot.extend(self.plain.iter().flat_map(|plain| plain.table.snapshot()));
                    drop(reply.send(snapshot));
                }
                Message::Mark(reply) => drop(reply.send(self.table.mark())),
            }
        }
    }

    /// Written down first, then acted upon.
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

    /// From now on nobody of a lower epoch is obeyed.
    fn obey_from(&mut self, epoch: Epoch, host: &impl Host) {
        self.apply_plain(plain::Input::Welcomed(epoch));
        self.apply(Input::Welcomed(epoch), host);
    }

    /// Takes the connection of an agent in the place of the one before, unless it comes from another pod's socket.
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
                warn!(container = %id, %error, "cannot be stopped now");
                plain.table.not_stopped(&id);
            } else {
                info!(container = %id, "stopping the container for a restart");
            }
        }
        for (pod, error) in effects.unwritten {
            warn!(%pod, error, "records not written, containers are not stopped");
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
                    info!(container = %id, "stopping a worker that was started without its agent, for a restart");
                }
                Err(error) => {
                    warn!(container = %id, %error, "a worker without its agent cannot be stopped now");
                    self.table.not_stopped(id);
                }
            }
        }
    }

    fn carry_out(&mut self, effects: Effects, host: &impl Host) {
        // First what others wait for, then the log.
        for (id, link, target) in &effects.targets {
            if let Some((current, sender)) = self.links.get(id)
                && current == link
            {
                sender.send_replace(Some(target.clone()));
            }
        }
        self.outbox.put(effects.reports.iter().cloned());
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

/// What concerns workers with and without an agent, as those without one hear it.
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

impl Driver {
    /// One line per decision that changes the world, or is news of it; of each pod no more than may be.
    fn log(&mut self, effects: &Effects) {
        for (id, _, target) in &effects.targets {
            if let Some(left_out) = self.next_line(id) {
                info!(
                    container = %id,
                    epoch = target.epoch.0,
                    generation = target.generation.0,
                    release = target.release,
                    start_fresh = target.start_fresh,
                    left_out,
                    "target"
                );
            }
        }
        log_reports(&effects.reports, &mut self.lines);
        for HostKill { container, .. } in &effects.kills {
            if let Some(left_out) = self.next_line(container) {
                warn!(%container, left_out, "the agent may not kill its processes: killing them from the host");
            }
        }
        log_stale(&effects.stale);
        for pod in &effects.pods_gone {
            info!(%pod, "pod gone");
        }
    }

    /// Of a pod that is not known yet nothing is said: a State of its agent says more soon.
    fn log_arrival(&mut self, arrival: &Arrival) {
        let Input::Registered {
            id, pod, name, pid, ..
        } = &arrival.registered
        else {
            return;
        };
        let Some(namespace) = self.table.namespace_of(pod) else {
            return;
        };
        if let Some(left_out) = self.lines.next(namespace, pod) {
            let version = &arrival.version;
            info!(container = %id, name, pid, version, left_out, "agent registered");
        }
    }

    fn next_line(&mut self, id: &ContainerId) -> Option<u64> {
        let pod = self.table.pod_of(id)?;
        self.lines.next(&pod.namespace, &pod.uid)
    }
}

fn log_reports(reports: &[WorkerState], lines: &mut Lines) {
    for state in reports {
        let Some(left_out) = lines.next(&state.namespace, &state.incarnation.pod) else {
            continue;
        };
        info!(
            group = %state.group,
            pod = %state.pod_name,
            container = %state.incarnation.container,
            phase = state.phase.name(),
            heartbeat = ?state.heartbeat,
            generation = state.generation.0,
            exit_code = state.phase.exit().map(|exit| exit.code),
            detail = state.detail,
            left_out,
            "worker"
        );
    }
}

fn log_stale(stale: &[StaleOrder]) {
    for StaleOrder {
        group,
        epoch,
        highest,
    } in stale
    {
        warn!(%group, epoch = epoch.0, highest = highest.0, "desired state of a former leader ignored");
    }
}

/// Now, by both clocks.
fn moment() -> plain::Moment {
    plain::Moment {
        wall: unix_nanos(),
        boot: boot_nanos(),
    }
}
