//! Decides which gangs may start now.
//!
//! Gangs wait in one queue: higher priority first, then the older JobSet. The first that fits
//! starts. A gang that does not fit reserves every node that it could use, and lets only those
//! gangs pass that leave enough for it ([`super::queue`]). A gang that would not fit even if no
//! JobSet ran reserves nothing.

use std::cmp::Reverse;
use std::collections::HashMap;

use jiff::Timestamp;
use lockstep_api::GangPhase;
use lockstep_mutants::mutant;

use super::fit::{Demand, Fit, QueuePosition, Room};
use super::leaving;
use super::message;
use super::order::{ExpectedPod, expected_pods};
use super::progress::Progress;
use super::queue::{Held, Queue};
use super::{Backend, Decision, Decisions, Gang, GangEvent, JobSetGangs, Pod, PodGroupRef, PodRef, World};

mod grace;
mod pod_group;

/// The wave in which a pod is released: optional workers after the minimum, and in each lower
/// priorities after higher ones.
type Wave = (bool, Reverse<i32>);

/// A gang during a decision.
struct Entry<'a> {
    jobset: &'a JobSetGangs,
    gang: &'a Gang,
    expected_pods: Vec<ExpectedPod<'a>>,
    priority: i32,
    progress: Progress<'a>,
    /// In ascending order of waves.
    ungate: Vec<(Wave, &'a Pod)>,
    pod_group: Option<PodGroupRef>,
    discard: Option<String>,
}

/// Decides about all gangs at once. The result depends only on the world and the time.
#[must_use]
pub fn decide(world: &World, now: Timestamp) -> Decisions {
    let mut entries: Vec<Entry<'_>> = world
        .jobsets
        .iter()
        .flat_map(|jobset| jobset.gangs.iter().map(move |gang| Entry::new(jobset, gang, now)))
        .collect();
    entries.sort_by_key(|entry| {
        let jobset = entry.jobset;
        let tie_break = (jobset.created, &jobset.namespace, &jobset.name, &jobset.uid);
        (Reverse(entry.priority), tie_break)
    });
    let mut queue = Queue::new(&world.nodes);
    let held: Vec<Held<'_>> = entries.iter().map(Entry::held).collect();
    for held in &held {
        queue.room.promise(&held.coming);
    }
    // Until the pods of a starting gang are bound, it is not known where they will run.
    let mut settling = entries.iter().any(Entry::is_settling);
    for entry in &mut entries {
        entry.follow(now);
        if world.pod_groups_gone {
            entry.lose_group(now);
        }
    }
    for (index, entry) in entries.iter_mut().enumerate() {
        if entry.is_ending() {
            continue;
        }
        if entry.gang.pod_group.is_some() {
            entry.ask_for_group(&mut queue, now);
            entry.discard = entry.outdated_group();
            if world.pod_groups_gone {
                // PodGroups cannot be created.
                entry.pod_group = None;
                entry.discard = None;
            }
            continue;
        }
        if entry.waits_for_room() {
            let behind = held.iter().skip(index + 1);
            settling |= entry.try_to_start(&mut queue, behind, settling, now);
        }
        // Its room is promised, and gangs behind it start after it.
        if *entry.progress.phase() == GangPhase::Scheduling {
            queue.goes_before(entry.position(), &demands(entry.gang, entry.outstanding()));
        }
    }
    for entry in &mut entries {
        entry.release(&mut queue.room, settling);
    }
    collect(entries, world, now)
}

fn collect(entries: Vec<Entry<'_>>, world: &World, now: Timestamp) -> Decisions {
    let mut decisions = Decisions {
        wake_at: entries.iter().filter_map(|entry| entry.wake_at(now)).min(),
        waiting: entries.iter().filter(|entry| entry.is_waiting()).count(),
        ..Decisions::default()
    };
    for jobset in &world.jobsets {
        let own = || {
            let own = |entry: &&Entry<'_>| std::ptr::eq(entry.jobset, jobset) && entry.gang.is_created;
            entries.iter().filter(own).filter(|entry| !entry.is_ending())
        };
        let decision = Decision {
            namespace: jobset.namespace.clone(),
            name: jobset.name.clone(),
            uid: jobset.uid.clone(),
            write: super::progress::write(jobset, own().map(|entry| &entry.progress)),
            ungate: own().flat_map(Entry::waves).collect(),
            pod_groups: own().filter_map(|entry| entry.pod_group.clone()).collect(),
            discard: own().filter_map(|entry| entry.discard.clone()).collect(),
        };
        let Decision {
            write,
            ungate,
            pod_groups,
            ..
        } = &decision;
        if write.is_some() || !ungate.is_empty() || !pod_groups.is_empty() {
            decisions.jobsets.push(decision);
        }
    }
    decisions
}

impl<'a> Entry<'a> {
    fn new(jobset: &'a JobSetGangs, gang: &'a Gang, now: Timestamp) -> Self {
        let expected_pods = expected_pods(gang);
        let pods = || gang.parts.iter().flat_map(|part| &part.pods);
        // Only pods state the priority. Until the first exists it could be any.
        let priority = pods().map(|pod| pod.priority).max().unwrap_or(i32::MAX);
        let minimum = expected_pods
            .iter()
            .filter(|expected| expected.in_minimum)
            .count();
        let counts = (minimum, expected_pods.len());
        Self {
            jobset,
            gang,
            expected_pods,
            priority,
            progress: Progress::new(jobset, gang, counts, now),
            ungate: Vec::new(),
            pod_group: None,
            discard: None,
        }
    }

    fn is_waiting(&self) -> bool {
        self.gang.is_created && self.progress.is_waiting()
    }

    fn minimum_pods(&self) -> impl Iterator<Item = &ExpectedPod<'a>> {
        self.expected_pods.iter().filter(|expected| expected.in_minimum)
    }

    /// Expected pods below the minimum that still need room.
    fn outstanding(&self) -> impl Iterator<Item = &ExpectedPod<'a>> {
        self.minimum_pods().filter(|expected| !expected.is_bound())
    }

    fn position(&self) -> QueuePosition {
        QueuePosition {
            priority: self.priority,
            created: self.jobset.created,
        }
    }

    fn held(&self) -> Held<'a> {
        let pods = self.gang.parts.iter().flat_map(|part| &part.pods);
        let bound = pods.filter(|pod| pod.node.is_some() && !pod.is_terminal());
        Held {
            bound: bound.map(AsRef::as_ref).collect(),
            coming: demands(self.gang, self.on_their_way()),
        }
    }

    /// Expected pods that may be bound at any time: those below the minimum once the gang is
    /// released, and those without a gate.
    fn on_their_way(&self) -> impl Iterator<Item = &ExpectedPod<'a>> {
        let released = self.progress.was_released();
        self.expected_pods.iter().filter(move |expected| {
            let free = expected.pod.is_some_and(|pod| !pod.gated);
            let by_pod_group = expected.in_minimum && self.gang.backend() == Backend::PodGroup && !released;
            !expected.is_bound() && (expected.in_minimum && released || free && !by_pod_group)
        })
    }

    fn is_settling(&self) -> bool {
        self.progress.was(GangPhase::Scheduling) && self.minimum_pods().any(|expected| !expected.is_bound())
    }

    /// Follows the passing of time and the progress of the scheduler.
    fn follow(&mut self, now: Timestamp) {
        let minimum = self.minimum_pods().count();
        let bound = self.minimum_pods().filter(|expected| expected.is_bound()).count();
        let holds_nodes = self
            .minimum_pods()
            .any(|expected| expected.pod.is_some_and(|pod| pod.node.is_some()));
        if !self.gang.is_created || self.is_ending() {
            return;
        }
        match self.progress.phase() {
            // If its Jobs are suspended it starts once they are resumed, which happens while it
            // waits. All of its work may already be done.
            GangPhase::Waiting if self.gang.is_stopped => {}
            // Its pods hold nodes now, whatever released them.
            GangPhase::Waiting if holds_nodes && bound < minimum => self.progress.schedule(self.gang, now),
            GangPhase::Waiting | GangPhase::Scheduling if bound >= minimum => {
                self.progress.scheduled(self.gang, now);
            }
            GangPhase::Scheduling if self.progress.is_over(now) => {
                let message = message::timed_out(bound, minimum, self.gang.timeout);
                self.progress.back_off(self.jobset, message, now);
            }
            GangPhase::BackingOff if self.progress.is_over(now) => {
                let mut pods = self.gang.parts.iter().flat_map(|part| &part.pods);
                if pods.all(|pod| pod.is_terminal()) {
                    self.progress.wait(now);
                } else if let Some(message) = leaving::of_gang(self.gang) {
                    self.progress.note_leaving_pods(message);
                }
            }
            _ => {}
        }
    }

    fn waits_for_room(&self) -> bool {
        *self.progress.phase() == GangPhase::Waiting && self.gang.backend() == Backend::Gates
    }

    fn has_pods(&self) -> bool {
        self.gang.parts.iter().any(|part| !part.pods.is_empty())
    }

    /// Starts the gang, or records what is missing. Returns true if it has started.
    fn try_to_start<'h>(
        &mut self,
        queue: &mut Queue<'a>,
        behind: impl Iterator<Item = &'h Held<'a>>,
        settling: bool,
        now: Timestamp,
    ) -> bool
    where
        'a: 'h,
    {
        let (gang, position) = (self.gang, self.position());
        let demands = demands(gang, self.outstanding());
        let uncreated = self
            .minimum_pods()
            .filter(|expected| is_awaited(gang, expected))
            .count();
        // In the beginning the pods are still being created. A gang whose pods never appear must
        // not reserve nodes forever.
        if uncreated > 0 && self.grace_ends().is_none_or(|end| end <= now) {
            if self.is_late_from().is_some_and(|late| now < late) {
                return false;
            }
            let of = self.minimum_pods().count();
            let uncreated = message::uncreated(uncreated, of);
            let message = match leaving::of_gang(gang) {
                Some(pods) => format!("{uncreated}: {pods}"),
                None => uncreated,
            };
            self.progress.note_shortage(message);
            return false;
        }
        let fit = queue.room.fits(&demands);
        // A gang that has room but waits for something else is not passed by gangs that would take
        // the room: either not by younger ones, or by none.
        let mut goes_before = position;
        let message = match &fit {
            Ok(_) if uncreated > 0 || gang.is_stopped => {
                goes_before.priority = i32::MAX;
                None
            }
            Ok(_) if !queue.may_pass(position, &demands) => Some(message::behind()),
            Ok(Fit::Perhaps) if settling => {
                goes_before = QueuePosition::FIRST;
                Some(message::settling())
            }
            Ok(_) => {
                let unknown = message::not_understood(&demands);
                self.progress.schedule(gang, now);
                if let Some(message) = unknown {
                    self.progress.announce(GangEvent::NotUnderstood, message);
                }
                queue.starts(&demands);
                return true;
            }
            Err(shortfall) => Some(message::short(&demands, shortfall)),
        };
        let never = fit.is_err().then(|| queue.empty.fits(&demands).err()).flatten();
        if let Some(message) = message.filter(|_| uncreated == 0) {
            let never = never.as_ref().map(|never| message::never(&demands, never));
            self.progress.note_shortage(never.unwrap_or(message));
        }
        if never.is_none() {
            queue.waits(goes_before, demands, behind);
        }
        false
    }

    /// Removes gates, as far as the durable state allows.
    fn release(&mut self, room: &mut Room<'a>, settling: bool) {
        if !self.progress.is_released() {
            return;
        }
        let (gang, expected_pods) = (self.gang, &self.expected_pods);
        let priorities: Vec<i32> = gang.parts.iter().map(super::Part::priority).collect();
        let gated = expected_pods.iter().filter_map(|expected| {
            let pod = expected.pod.filter(|pod| pod.gated)?;
            Some((expected.in_minimum, (wave_of(&priorities, expected), pod)))
        });
        let (minimum, optional): (Vec<_>, Vec<_>) = gated.partition(|(in_minimum, _)| *in_minimum);
        self.ungate.extend(minimum.into_iter().map(|(_, pod)| pod));
        if !self.was_scheduled() {
            return;
        }
        let optional = optional.into_iter().map(|(_, pod)| pod);
        if self.gang.backend() == Backend::PodGroup {
            // kube-scheduler would give an optional worker the room of a pod below the minimum that
            // was lost since.
            if self.minimum_is_bound() {
                self.ungate.extend(optional);
            }
            return;
        }
        let mut full: Vec<&super::Needs> = Vec::new();
        for (wave, pod) in optional {
            let demand = Demand {
                needs: &pod.needs,
                count: 1,
            };
            if full.contains(&demand.needs) {
                continue;
            }
            let fits = room.is_open_to(&[demand])
                && match room.fits(&[demand]) {
                    Ok(fit) => fit == Fit::Surely || !settling,
                    Err(_) => false,
                };
            if fits {
                room.promise(&[demand]);
                self.ungate.push((wave, pod));
            } else {
                full.push(demand.needs);
            }
        }
    }

    /// True if all pods below the minimum have been bound, according to the durable state.
    fn was_scheduled(&self) -> bool {
        mutant!(OptionalGoFirst => true);
        self.progress.was(GangPhase::Scheduled)
    }

    /// True if all pods below the minimum are bound now.
    fn minimum_is_bound(&self) -> bool {
        mutant!(OptionalGoFirst => true);
        self.minimum_pods().all(ExpectedPod::is_bound)
    }

    /// The pods to release, in waves.
    fn waves(&self) -> impl Iterator<Item = Vec<PodRef>> {
        let waves = self.ungate.chunk_by(|(a, _), (b, _)| a == b);
        waves.map(|wave| wave.iter().map(|(_, pod)| PodRef::of(pod)).collect())
    }
}

/// True if an expected pod must exist before the gang is released. Followers in an exclusively
/// placed Job are created later.
fn is_awaited(gang: &Gang, expected: &ExpectedPod<'_>) -> bool {
    let part = gang.parts.get(expected.part);
    let follows = part.is_some_and(|part| {
        let is_exclusive = part
            .needs_of(expected.ordinal)
            .is_some_and(|needs| needs.exclusive.is_some());
        is_exclusive && !expected.ordinal.is_multiple_of(part.parallelism.max(1))
    });
    !expected.done && expected.pod.is_none() && !follows
}

fn wave_of(priorities: &[i32], expected: &ExpectedPod<'_>) -> Wave {
    let priority = priorities.get(expected.part).copied().unwrap_or(0);
    (!expected.in_minimum, Reverse(priority))
}

/// The demands of expected pods, in their order: one for all with the same needs, and one for each
/// exclusively placed Job.
fn demands<'a, 's>(
    gang: &'a Gang,
    expected_pods: impl Iterator<Item = &'s ExpectedPod<'a>>,
) -> Vec<Demand<'a>>
where
    'a: 's,
{
    let mut demands: Vec<Demand<'a>> = Vec::new();
    // There may be as many demands as Jobs.
    let mut of_jobs: HashMap<&'a str, usize> = HashMap::new();
    for expected in expected_pods {
        let template = gang
            .parts
            .get(expected.part)
            .and_then(|part| part.needs_of(expected.ordinal));
        let Some(needs) = expected.pod.map(|pod| &pod.needs).or(template) else {
            continue;
        };
        let known = match &needs.exclusive {
            Some(exclusive) => {
                let next = demands.len();
                let known = *of_jobs.entry(&exclusive.job_key).or_insert(next);
                demands.get_mut(known)
            }
            None => demands.iter_mut().find(|demand| {
                let is_same = || demand.needs.exclusive.is_none() && *demand.needs == **needs;
                std::ptr::eq(demand.needs, needs.as_ref()) || is_same()
            }),
        };
        match known {
            Some(demand) => demand.count += 1,
            None => demands.push(Demand { needs, count: 1 }),
        }
    }
    demands
}

impl PodRef {
    fn of(pod: &Pod) -> Self {
        Self {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        }
    }
}
