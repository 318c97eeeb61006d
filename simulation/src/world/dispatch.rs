//! Dispatches each event to the part that it concerns.

use super::World;
use crate::time::Time;
use crate::world::event::Event;

impl World {
    /// When this replica thaws, if it is frozen. Until then it does nothing.
    fn thaws(&self, replica: usize, life: u32) -> Option<Time> {
        let until = self.replicas[replica].paused_until;
        (self.replica_lives(replica, life) && until > self.now).then_some(until)
    }

    fn frozen_until(&self, event: &Event) -> Option<Time> {
        match event {
            Event::LeaseTick { replica, life }
            | Event::Watch { replica, life, .. }
            | Event::GroupStep { replica, life, .. }
            | Event::GroupStepped { replica, life, .. }
            | Event::Reconcile { replica, life, .. }
            | Event::GroupWritten { replica, life, .. }
            | Event::Planned { replica, life, .. }
            | Event::GangStep { replica, life, .. }
            | Event::GangAnswered { replica, life, .. } => self.thaws(*replica, *life),
            Event::Up { stream, .. } => {
                let stream = self.streams.get(stream)?;
                self.thaws(stream.replica, stream.replica_life)
            }
            _ => None,
        }
    }

    /// Calls the function that handles an event. It is long because it is one match with an arm for
    /// each kind of event. All that it decides is whether the process that the event is for is
    /// still alive.
    pub(super) fn dispatch(&mut self, event: Event) {
        if let Some(until) = self.frozen_until(&event) {
            self.queue.push(until, event);
            return;
        }
        match event {
            Event::Up { stream, message } => self.up(stream, message),
            Event::Down { stream, message } => self.down(stream, message),
            Event::HubEndBreaks { stream } => self.hub_end_breaks(stream),
            Event::NodeEndBreaks { stream } => self.node_end_breaks(stream),
            Event::StreamTimeout { stream } => self.stream_timeout(stream),
            Event::ReplicaStart { replica } => self.replica_start(replica),
            Event::LeaseTick { replica, life } if self.replica_lives(replica, life) => {
                self.lease_tick(replica, life)
            }
            Event::Watch {
                replica,
                life,
                kind,
                upto,
            } if self.replica_lives(replica, life) => {
                self.watch(replica, life, kind, upto);
            }
            // The API server acts on a request even if its sender has died.
            Event::GroupWriteArrives {
                replica,
                life,
                uid,
                patch,
                fate,
                ..
            } => {
                self.group_write_arrives((replica, life), uid, &patch, fate);
            }
            Event::PodRequest {
                replica,
                life,
                group,
                request,
                fate,
            } => self.pod_request((replica, life), group, request, fate),
            Event::PodAnswered {
                replica,
                life,
                group,
                request,
                done,
            } if self.replica_lives(replica, life) => {
                self.pod_answered(replica, &group, &request, done);
            }
            Event::PlanArrives {
                replica,
                life,
                plan,
                base,
                fate,
            } if self.replica_lives(replica, life) => {
                self.plan_arrives((replica, life), plan, base, fate);
            }
            Event::PlanStatusArrives {
                replica,
                life,
                plan,
                base,
                fate,
            } => {
                self.plan_status_arrives((replica, life), &plan, &base, fate);
            }
            Event::GroupStep { replica, life, due } if self.replica_lives(replica, life) => {
                self.group_event(replica, due)
            }
            Event::GroupStepped {
                replica,
                life,
                stepped,
            } if self.replica_lives(replica, life) => {
                self.group_stepped(replica, *stepped);
            }
            Event::GroupWritten {
                replica,
                life,
                uid,
                written,
            } if self.replica_lives(replica, life) => {
                self.group_written(replica, &uid, written);
            }
            Event::Reconcile { replica, life, due } if self.replica_lives(replica, life) => {
                self.reconcile(replica, due)
            }
            Event::Planned { replica, life, done } if self.replica_lives(replica, life) => {
                self.planned(replica, done)
            }
            Event::GangStep { replica, life, due } if self.replica_lives(replica, life) => {
                self.gang_step(replica, due)
            }
            Event::GangRequest {
                replica,
                life,
                request,
                fate,
            } => self.gang_request((replica, life), *request, fate),
            Event::GangAnswered {
                replica,
                life,
                known,
                made,
                then,
                done,
            } if self.replica_lives(replica, life) => {
                self.gang_answered(replica, known, made, then, done);
            }
            Event::Controllers => self.controllers(),
            Event::Kubelet { node, life, pod } if self.node_lives(node, life) => self.kubelet(node, &pod),
            Event::CreateContainer { node, life, pod } if self.node_lives(node, life) => {
                self.create_container(node, &pod)
            }
            Event::KillPod { node, life, pod } if self.node_lives(node, life) => self.kill_pod(node, &pod),
            Event::DaemonStart { node } => self.daemon_start(node),
            Event::DaemonConnect { node, daemon } => self.daemon_connect(node, daemon),
            Event::DaemonSynchronize { node, daemon } => self.daemon_synchronize(node, daemon),
            Event::DaemonList { node, daemon } => self.daemon_list(node, daemon),
            Event::DaemonInput { node, daemon, input } => self.daemon_input(node, daemon, input),
            Event::DaemonPlain { node, daemon, input } => self.daemon_plain(node, daemon, input),
            Event::DaemonListPlain { node, daemon } => self.daemon_list_plain(node, daemon),
            Event::StopContainer {
                node,
                daemon,
                container,
            } => self.stop_container(node, daemon, container),
            Event::NodeStart { node, life } if self.nodes[node].life == life => self.node_start(node),
            Event::AgentConnect { container } => self.agent_connect(&container),
            Event::AgentState {
                container,
                daemon,
                link,
                status,
            } => self.agent_state(&container, daemon, link, &status),
            Event::AgentTarget {
                container,
                link,
                target,
            } => self.agent_target(&container, link, *target),
            Event::AgentTick { container } => self.agent_tick(&container),
            Event::ProcessEnds {
                container,
                process,
                exit,
            } => self.process_ended(&container, process, exit),
            Event::Standby {
                container,
                process,
                does,
            } => self.standby_does(&container, process, does),
            Event::Pulse { container, process } => self.pulse(&container, process),
            Event::HostKill {
                container,
                before,
                rounds,
            } => self.host_kill(&container, before, rounds),
            Event::Fault { fault } => self.fault(fault),
            Event::NextFault => self.next_fault(),
            Event::Contend => self.contend(),
            Event::Lie => self.lie(),
            Event::LieOfOwn => self.lie_of_own(),
            Event::BackUp => self.back_up(),
            Event::Restore => self.restore(),
            Event::Quiesce => self.quiesce(),
            Event::Check => self.check(),
            // The process that the event is for is gone.
            _ => {}
        }
    }
}
