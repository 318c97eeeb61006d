//! The network: which parts can reach each other, and the streams between node daemons and hubs.
//!
//! Like TCP, a stream delivers in order and loses nothing until it breaks; each end learns of the
//! break on its own. Messages in flight when a path is cut wait until it heals. Scenarios with bad
//! streams are worse than TCP: they lose, duplicate and reorder messages. They end by breaking
//! every stream, since lost messages are sent again only on a new stream.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockstep_control_plane::hub::{NextMessage, Outbox};
use lockstep_proto::NODE_PROTOCOL;
use lockstep_proto::node::v1 as pb;

use crate::time::{MS, SEC, Time, US};
use crate::world::World;
use crate::world::event::{Event, NodeIndex, ReplicaIndex, StreamId, Up};
use crate::world::kubernetes::api_server::node_name;

/// A path that can be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Path {
    NodeToHub(NodeIndex, ReplicaIndex),
    NodeToApi(NodeIndex),
    ReplicaToApi(ReplicaIndex),
}

/// Which paths are cut, and until when.
#[derive(Debug, Default)]
pub(crate) struct Network {
    cut: BTreeMap<Path, Time>,
    pub(crate) slow_until: Time,
    /// Watches lag until then.
    pub(crate) lag_until: Time,
}

impl Network {
    pub(crate) fn cut(&mut self, path: Path, until: Time) {
        let known = self.cut.entry(path).or_default();
        *known = until.max(*known);
    }

    pub(crate) fn heal(&mut self) {
        self.cut.clear();
        self.slow_until = 0;
        self.lag_until = 0;
    }

    fn until(&self, path: Path, now: Time) -> Option<Time> {
        self.cut.get(&path).copied().filter(|until| *until > now)
    }
}

/// A stream from one daemon to one replica.
pub(crate) struct Stream {
    pub(crate) node: NodeIndex,
    pub(crate) daemon: u32,
    pub(crate) replica: ReplicaIndex,
    pub(crate) replica_life: u32,
    outbox: Option<Arc<Outbox>>,
    session: Option<u64>,
    pub(crate) hub_end: bool,
    pub(crate) node_end: bool,
    pub(crate) welcomed: bool,
    last_up: Time,
    last_down: Time,
}

impl World {
    pub(crate) fn is_cut(&self, path: Path) -> bool {
        self.network.until(path, self.now).is_some()
    }

    /// True if this replica reaches the API server.
    pub(crate) fn replica_reaches_api(&self, replica: ReplicaIndex) -> bool {
        self.api.down_until <= self.now && !self.is_cut(Path::ReplicaToApi(replica))
    }

    /// True if the kubelet on this node reaches the API server.
    pub(crate) fn node_reaches_api(&self, node: NodeIndex) -> bool {
        self.api.down_until <= self.now && !self.is_cut(Path::NodeToApi(node))
    }

    /// How long the next message takes.
    pub(crate) fn delay(&mut self) -> Time {
        if self.now < self.network.slow_until {
            return self.rng.span(MS, 2 * SEC);
        }
        if self.rng.percent(3) {
            return self.rng.span(2 * MS, 50 * MS);
        }
        self.rng.span(50 * US, 2 * MS)
    }

    /// When the next message of an ordered channel arrives.
    pub(crate) fn in_order(&mut self, last: Time) -> Time {
        let at = self.now + self.delay();
        at.max(last + 1)
    }

    /// A daemon opens a stream to a hub that it can reach, or tries again later.
    pub(crate) fn daemon_connect(&mut self, node: NodeIndex, daemon: u32) {
        if !self.daemon_lives(node, daemon) || self.nodes[node].daemon.stream.is_some() {
            return;
        }
        let hubs: Vec<ReplicaIndex> = (0..self.replicas.len())
            .filter(|replica| self.replicas[*replica].leader.is_some())
            .filter(|replica| !self.is_cut(Path::NodeToHub(node, *replica)))
            .collect();
        let Some(replica) = self.rng.pick(&hubs).copied() else {
            self.daemon_connect_later(node);
            return;
        };
        self.last_id += 1;
        let id = self.last_id;
        let snapshot = self.daemon_hello(node);
        self.nodes[node].daemon.stream = Some(id);
        let stream = Stream {
            node,
            daemon,
            replica,
            replica_life: self.replicas[replica].life,
            outbox: None,
            session: None,
            hub_end: true,
            node_end: true,
            welcomed: false,
            last_up: self.now,
            last_down: self.now,
        };
        self.streams.insert(id, stream);
        self.say(|| format!("node-{node} connects to replica {replica} (stream {id})"));
        self.send_up(id, Up::Hello(snapshot));
    }

    pub(crate) fn daemon_connect_later(&mut self, node: NodeIndex) {
        let daemon = &mut self.nodes[node].daemon;
        let (life, pause) = (daemon.life, daemon.pause);
        daemon.pause = (pause * 2).min(5 * SEC / 2);
        let at = self.now + pause + self.rng.below(pause);
        self.queue.push(at, Event::DaemonConnect { node, daemon: life });
    }

    pub(crate) fn send_up(&mut self, id: StreamId, message: Up) {
        let Some(last) = self.streams.get(&id).map(|stream| stream.last_up) else {
            return;
        };
        let hello = matches!(message, Up::Hello(_));
        let at = self.in_order(last);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.last_up = at;
        }
        let event = Event::Up { stream: id, message };
        self.deliver(at, event, hello);
    }

    fn send_down(&mut self, id: StreamId, message: pb::hub_message::Kind) {
        let Some(last) = self.streams.get(&id).map(|stream| stream.last_down) else {
            return;
        };
        let welcome = matches!(message, pb::hub_message::Kind::Welcome(_));
        let at = self.in_order(last);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.last_down = at;
        }
        self.deliver(at, Event::Down { stream: id, message }, welcome);
    }

    /// Sends a message once. On a bad stream it may be lost, duplicated or late.
    fn deliver(&mut self, at: Time, event: Event, opening: bool) {
        if !opening && self.faults_on && self.scenario.bad_streams {
            match self.rng.below(100) {
                0..4 => return,
                4..12 => {
                    let again = at + self.rng.span(0, 500 * MS);
                    self.queue.push(again, event.clone());
                }
                12..20 => {
                    let late = at + self.rng.span(MS, 200 * MS);
                    self.queue.push(late, event);
                    return;
                }
                _ => {}
            }
        }
        self.queue.push(at, event);
    }

    /// When a message on this stream can arrive, if it cannot now.
    fn held_up(&self, stream: &Stream) -> Option<Time> {
        self.network
            .until(Path::NodeToHub(stream.node, stream.replica), self.now)
    }

    pub(crate) fn up(&mut self, id: StreamId, message: Up) {
        let Some(stream) = self.streams.get(&id).filter(|stream| stream.hub_end) else {
            return;
        };
        if let Some(until) = self.held_up(stream) {
            self.queue.push(until, Event::Up { stream: id, message });
            return;
        }
        let (replica, name, session) = (stream.replica, node_name(stream.node), stream.session);
        let Some(leader) = &self.replicas[replica].leader else {
            return;
        };
        match message {
            Up::Hello(_) if session.is_some() => return,
            Up::Hello(snapshot) => {
                let outbox = Outbox::new(pb::Welcome {
                    protocol: *NODE_PROTOCOL.end(),
                    epoch: leader.registry.epoch().0,
                });
                let session = leader
                    .registry
                    .connect(&name, &outbox, *NODE_PROTOCOL.end(), snapshot);
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.session = Some(session);
                    stream.outbox = Some(outbox);
                }
            }
            Up::Report(workers) => match session {
                Some(session) => leader.registry.report(&name, session, workers),
                None => return,
            },
        }
        self.hub_flush(replica);
        self.reports_changed(replica);
    }

    /// Sends what waits in the outboxes of this replica's hub.
    pub(crate) fn hub_flush(&mut self, replica: ReplicaIndex) {
        let open: Vec<(StreamId, Arc<Outbox>)> = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.replica == replica && stream.hub_end)
            .filter_map(|(id, stream)| Some((*id, Arc::clone(stream.outbox.as_ref()?))))
            .collect();
        for (id, outbox) in open {
            loop {
                match outbox.take() {
                    NextMessage::Message(message) => self.send_down(id, message),
                    NextMessage::Nothing => break,
                    NextMessage::Closed => {
                        self.hub_end_breaks(id);
                        break;
                    }
                }
            }
        }
    }

    pub(crate) fn down(&mut self, id: StreamId, message: pb::hub_message::Kind) {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| stream.node_end) else {
            return;
        };
        let (node, path) = (stream.node, Path::NodeToHub(stream.node, stream.replica));
        if let Some(until) = self.network.until(path, self.now) {
            self.queue.push(until, Event::Down { stream: id, message });
            return;
        }
        match message {
            pb::hub_message::Kind::Welcome(welcome) => {
                stream.welcomed = true;
                self.nodes[node].daemon.pause = 50 * MS;
                self.daemon_welcomed(node, welcome.epoch);
            }
            message if stream.welcomed => self.daemon_receives(node, message),
            _ => {}
        }
    }

    /// The hub's end of a stream is gone. The daemon learns of it soon, or after a timeout if the
    /// path is cut.
    pub(crate) fn hub_end_breaks(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| stream.hub_end) else {
            return;
        };
        stream.hub_end = false;
        let (node_end, replica, session, node) =
            (stream.node_end, stream.replica, stream.session, stream.node);
        if let (Some(leader), Some(session)) = (&self.replicas[replica].leader, session) {
            leader.registry.disconnect(&node_name(node), session);
            self.reports_changed(replica);
        }
        if node_end {
            let last = self.streams.get(&id).map_or(0, |stream| stream.last_down);
            let mut at = self.in_order(last);
            if self.is_cut(Path::NodeToHub(node, replica)) {
                at = self.now + self.rng.span(10 * SEC, 15 * SEC);
            }
            self.queue.push(at, Event::NodeEndBreaks { stream: id });
        } else {
            self.streams.remove(&id);
        }
    }

    /// The daemon's end of a stream is gone. The hub learns of it soon, or after a timeout if the
    /// path is cut.
    pub(crate) fn node_end_breaks(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| stream.node_end) else {
            return;
        };
        stream.node_end = false;
        let (hub_end, replica, node, daemon) = (stream.hub_end, stream.replica, stream.node, stream.daemon);
        if self.daemon_lives(node, daemon) && self.nodes[node].daemon.stream == Some(id) {
            self.nodes[node].daemon.stream = None;
            self.daemon_connect_later(node);
        }
        if hub_end {
            let last = self.streams.get(&id).map_or(0, |stream| stream.last_up);
            let mut at = self.in_order(last);
            if self.is_cut(Path::NodeToHub(node, replica)) {
                at = self.now + self.rng.span(10 * SEC, 15 * SEC);
            }
            self.queue.push(at, Event::HubEndBreaks { stream: id });
        } else {
            self.streams.remove(&id);
        }
    }

    /// The ends of a stream have not heard from each other for too long.
    pub(crate) fn stream_timeout(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        if self.is_cut(Path::NodeToHub(stream.node, stream.replica)) {
            self.hub_end_breaks(id);
            self.node_end_breaks(id);
        }
    }

    /// Cuts a path. The streams over it time out later.
    pub(crate) fn cut(&mut self, path: Path, until: Time) {
        self.network.cut(path, until);
        let over: Vec<StreamId> = self
            .streams
            .iter()
            .filter(|(_, stream)| Path::NodeToHub(stream.node, stream.replica) == path)
            .map(|(id, _)| *id)
            .collect();
        for stream in over {
            let at = self.now + self.rng.span(10 * SEC, 15 * SEC);
            self.queue.push(at, Event::StreamTimeout { stream });
        }
    }

    /// All streams break at once.
    pub(crate) fn break_streams(&mut self) {
        let all: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in all {
            self.node_end_breaks(id);
        }
    }
}
