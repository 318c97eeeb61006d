//! The kubelet and containerd: how pods start, end and are deleted on a node.
//!
//! While the daemon is away, a container that should have an agent is not created if containerd
//! requires the plugin that injects the agent. Otherwise it is created without the agent.

use lockstep_node_daemon::worker::facts::Input;

use crate::time::{MS, SEC, Time, unix};
use crate::world::World;
use crate::world::event::{Event, NodeIndex};
use crate::world::kubernetes::api_server::PodPhase;
use crate::world::node::container::{Container, Plain};
use crate::world::node::ranks::Ranks;
use crate::world::node::{LocalPod, pod_fact};

/// Time between SIGTERM and SIGKILL of a pod that is deleted.
const TERMINATION_GRACE: Time = 30 * SEC;
/// The first and the longest pause before a container is started again, apart from the first
/// restart.
const CRASH_LOOP: (Time, Time) = (10 * SEC, 300 * SEC);
/// A container that ran this long resets its back-off.
const CRASH_LOOP_RESET: Time = 600 * SEC;

impl World {
    /// The kubelet looks at a pod after this time.
    pub(crate) fn kubelet_later(&mut self, node: NodeIndex, pod: &str, after: Time) {
        let life = self.nodes[node].life;
        let pod = pod.to_owned();
        self.queue
            .push(self.now + after, Event::Kubelet { node, life, pod });
    }

    /// Brings one pod closer to what it should be.
    pub(crate) fn kubelet(&mut self, node: NodeIndex, uid: &str) {
        let reachable = self.node_reaches_api(node);
        if reachable {
            self.kubelet_reads(node, uid);
        } else {
            self.kubelet_later(node, uid, SEC);
        }
        let Some(pod) = self.nodes[node].local.get(uid).cloned() else {
            return;
        };
        let current = pod.containers.last().cloned();
        let exit = current
            .as_ref()
            .and_then(|id| self.containers.get(id))
            .and_then(|container| container.exit);
        let runs = current.is_some() && exit.is_none();
        if pod.ended.is_none() && !runs && !pod.creating {
            match exit {
                _ if pod.terminating => self.kubelet_ends(node, uid, exit.map_or(137, |(code, _)| code)),
                Some((code, _)) if code == 0 || pod.never => self.kubelet_ends(node, uid, code),
                Some((_, at)) => {
                    let wait = self.crash_loop(&pod, current.as_deref(), at);
                    self.kubelet_creates(node, uid, wait);
                }
                None => {
                    let wait = self.rng.span(20 * MS, 800 * MS);
                    self.kubelet_creates(node, uid, wait);
                }
            }
        }
        if reachable {
            self.kubelet_reports(node, uid);
        }
    }

    /// The back-off before the next container of a pod.
    fn crash_loop(&mut self, pod: &LocalPod, current: Option<&str>, ended: Time) -> Time {
        let created = current
            .and_then(|id| self.containers.get(id))
            .map_or(ended, |container| container.created);
        if pod.restarts == 0 || ended - created > CRASH_LOOP_RESET {
            return self.rng.span(10 * MS, SEC);
        }
        let times = pod.restarts.saturating_sub(1).min(10);
        (CRASH_LOOP.0 << times).min(CRASH_LOOP.1)
    }

    /// Reads the pod from the API server.
    fn kubelet_reads(&mut self, node: NodeIndex, uid: &str) {
        let known = self.nodes[node].local.contains_key(uid);
        let seen = self.api.pods.get(uid).cloned();
        let gone = seen.is_none();
        let leaving = seen.as_ref().is_none_or(|pod| pod.deleting.is_some());
        let Some(pod) = seen else {
            if known {
                self.kubelet_terminates(node, uid);
                self.kubelet_forgets(node, uid);
            }
            return;
        };
        if pod.node != Some(node) {
            return;
        }
        if !known {
            if leaving || pod.is_terminal() {
                if !pod.is_terminal() {
                    // It was deleted before anything of it existed here.
                    self.api.change_pod(uid, |pod| pod.phase = PodPhase::Failed);
                }
                return;
            }
            let sandbox = self.api.uid("sandbox");
            let never = self.is_never(&pod.job);
            let local = LocalPod {
                uid: uid.to_owned(),
                name: pod.name.clone(),
                jobset_uid: pod.jobset_uid.clone(),
                restart_attempt: pod.restart_attempt,
                job: pod.job.clone(),
                index: pod.index,
                sandbox,
                containers: Vec::new(),
                never,
                plain: self.scenario.plain || pod.changed,
                restarts: 0,
                creating: false,
                terminating: false,
                ended: None,
                running_reported: false,
            };
            let (sandbox, fact) = pod_fact(&local);
            let is_plain = local.plain;
            self.nodes[node].local.insert(uid.to_owned(), local);
            if !is_plain {
                self.notify_daemon(node, Input::PodStarted(sandbox, fact));
            }
        }
        if leaving || gone {
            self.kubelet_terminates(node, uid);
        }
    }

    /// The kubelet has restarted: it reports the state of the pod once more.
    pub(crate) fn kubelet_restarts(&mut self, node: NodeIndex, uid: &str) {
        if let Some(pod) = self.nodes[node].local.get_mut(uid) {
            pod.running_reported = false;
        }
        let after = self.rng.span(MS, SEC);
        self.kubelet_later(node, uid, after);
    }

    fn is_never(&self, job: &str) -> bool {
        let spec = self.api.jobs.get(job).and_then(|job| job.spec.as_ref());
        let policy = spec
            .and_then(|spec| spec.template.spec.as_ref())
            .and_then(|pod| pod.restart_policy.as_deref());
        policy == Some("Never")
    }

    /// Sends SIGTERM now, and SIGKILL after the grace period.
    fn kubelet_terminates(&mut self, node: NodeIndex, uid: &str) {
        let Some(pod) = self.nodes[node].local.get_mut(uid).filter(|pod| !pod.terminating) else {
            return;
        };
        pod.terminating = true;
        let current = pod.containers.last().cloned();
        if let Some(id) = current {
            self.note_end_of_pod(&id);
            self.container_terminate(&id);
        }
        let (life, pod) = (self.nodes[node].life, uid.to_owned());
        self.queue
            .push(self.now + TERMINATION_GRACE, Event::KillPod { node, life, pod });
        self.kubelet_later(node, uid, MS);
    }

    /// The grace period is over.
    pub(crate) fn kill_pod(&mut self, node: NodeIndex, uid: &str) {
        let current = self.nodes[node]
            .local
            .get(uid)
            .and_then(|pod| pod.containers.last().cloned());
        if let Some(id) = current {
            self.note_end_of_pod(&id);
            self.container_kill(&id, 137);
        }
        self.kubelet_later(node, uid, MS);
    }

    /// The pod is gone from the API server: the kubelet forgets it once its containers have ended.
    fn kubelet_forgets(&mut self, node: NodeIndex, uid: &str) {
        let Some(pod) = self.nodes[node].local.get(uid) else {
            return;
        };
        let all_ended = pod.containers.iter().all(|id| {
            self.containers
                .get(id)
                .is_none_or(|container| container.exit.is_some())
        });
        if pod.creating || !all_ended {
            self.kubelet_later(node, uid, 500 * MS);
            return;
        }
        if let Some(pod) = self.nodes[node].local.remove(uid)
            && !pod.plain
        {
            for id in &pod.containers {
                self.notify_daemon(node, Input::Removed(id.as_str().into()));
            }
            let removed = Input::PodRemoved(pod.sandbox.as_str().into(), uid.into());
            self.notify_daemon(node, removed);
        }
    }

    fn kubelet_creates(&mut self, node: NodeIndex, uid: &str, after: Time) {
        if let Some(pod) = self.nodes[node].local.get_mut(uid) {
            pod.creating = true;
        }
        let (life, pod) = (self.nodes[node].life, uid.to_owned());
        self.queue
            .push(self.now + after, Event::CreateContainer { node, life, pod });
    }

    pub(crate) fn create_container(&mut self, node: NodeIndex, uid: &str) {
        let Some(pod) = self.nodes[node].local.get(uid).cloned() else {
            return;
        };
        if pod.terminating {
            if let Some(pod) = self.nodes[node].local.get_mut(uid) {
                pod.creating = false;
            }
            self.kubelet_later(node, uid, MS);
            return;
        }
        let misses_agent = !pod.plain && !self.nodes[node].daemon.runs;
        if misses_agent && self.scenario.plugin_required {
            self.kubelet_creates(node, uid, 500 * MS);
            return;
        }
        let is_plain = pod.plain || misses_agent;
        let id = self.api.uid("c");
        let mut container = Container::new(
            self.now,
            self.nodes[node].clock_ahead,
            (node, uid.to_owned()),
            (
                pod.jobset_uid.clone(),
                pod.restart_attempt,
                (pod.job.clone(), pod.index),
            ),
        );
        if is_plain {
            let created = unix(self.now, self.nodes[node].clock_ahead);
            container.plain = Some(Plain {
                on_purpose: pod.plain,
                attempt: u32::try_from(pod.containers.len()).unwrap_or(u32::MAX),
                created,
                ended: created,
            });
        } else {
            container.ranks = Ranks::of(self.ranks_of(&pod.job));
            if self.has_standbys(&pod.job) {
                container.machine = container.machine.with_standby();
            } else if container.ranks.number > 0 {
                container.machine = container.machine.with_standbys_of_ranks();
            }
        }
        self.say(|| {
            format!(
                "{id}: container of {}[{}] in pod {uid} on node-{node}",
                pod.job, pod.index
            )
        });
        self.containers.insert(id.clone(), container);
        if let Some(pod) = self.nodes[node].local.get_mut(uid) {
            pod.creating = false;
            pod.restarts += u32::from(!pod.containers.is_empty());
            pod.containers.push(id.clone());
        }
        if is_plain {
            self.plain_start(&id);
        } else {
            let created = Input::Created {
                pod: uid.into(),
                id: id.as_str().into(),
                name: "worker".to_owned(),
            };
            self.notify_daemon(node, created);
            self.agent_connect(&id);
        }
        let after = self.rng.span(5 * MS, 300 * MS);
        self.kubelet_later(node, uid, after);
    }

    fn kubelet_ends(&mut self, node: NodeIndex, uid: &str, code: i32) {
        if let Some(pod) = self.nodes[node].local.get_mut(uid) {
            pod.ended = Some(code);
        }
    }

    /// Writes the pod's status.
    fn kubelet_reports(&mut self, node: NodeIndex, uid: &str) {
        let Some(local) = self.nodes[node].local.get(uid) else {
            return;
        };
        let ended = local.ended;
        let is_new_start = !local.running_reported && !local.containers.is_empty();
        let Some(pod) = self.api.pods.get(uid) else { return };
        if pod.is_terminal() {
            return;
        }
        if let Some(code) = ended {
            let phase = if code == 0 {
                PodPhase::Succeeded
            } else {
                PodPhase::Failed
            };
            self.say(|| format!("{uid}: the pod ends as {phase:?}"));
            self.api.change_pod(uid, |pod| {
                pod.phase = phase;
                pod.exit_code = Some(code);
            });
        } else if is_new_start {
            if let Some(pod) = self.nodes[node].local.get_mut(uid) {
                pod.running_reported = true;
            }
            self.api.change_pod(uid, |pod| pod.phase = PodPhase::Running);
        }
    }
}
