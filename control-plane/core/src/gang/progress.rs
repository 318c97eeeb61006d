//! The durable state of one gang, and the state that it should get.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{GangPhase, GangStatus};
use lockstep_mutants::mutant;

use super::{Announcement, Backend, Gang, GangEvent, JobSetGangs, Write, message};

/// The state of one gang during a decision.
pub(super) struct Progress<'a> {
    before: Option<&'a GangStatus>,
    after: GangStatus,
    backend: Backend,
    minimum: usize,
    /// All pods of the gang, including optional workers.
    pods: usize,
    announcements: Vec<Announcement>,
}

impl<'a> Progress<'a> {
    /// Begins with the durable state. The state of an earlier restart attempt is ignored: the gang
    /// starts over.
    pub(super) fn new(
        jobset: &'a JobSetGangs,
        gang: &Gang,
        (minimum, pods): (usize, usize),
        now: Timestamp,
    ) -> Self {
        let mut all = jobset.status.iter();
        let before =
            all.find(|status| status.name == gang.name && status.restart_attempt == jobset.restart_attempt);
        let mut after = before.cloned().unwrap_or_else(|| GangStatus {
            name: gang.name.clone(),
            restart_attempt: jobset.restart_attempt,
            since: Some(Time(now)),
            ..GangStatus::default()
        });
        after.min_available = i32::try_from(minimum).unwrap_or(i32::MAX);
        // An unknown phase holds nothing back and releases nothing: the gang waits again.
        if matches!(after.phase, GangPhase::Other(_)) {
            after.phase = GangPhase::Waiting;
        }
        Self {
            before,
            after,
            backend: gang.backend(),
            minimum,
            pods,
            announcements: Vec::new(),
        }
    }

    pub(super) fn phase(&self) -> &GangPhase {
        &self.after.phase
    }

    /// True if the phase is durable.
    pub(super) fn was(&self, phase: GangPhase) -> bool {
        self.before.is_some_and(|before| before.phase == phase)
    }

    /// True if the gang has no durable state.
    pub(super) fn is_new(&self) -> bool {
        self.before.is_none()
    }

    /// True if the minimum is released by the durable state.
    pub(super) fn was_released(&self) -> bool {
        self.was(GangPhase::Scheduling) || self.was(GangPhase::Scheduled)
    }

    /// The same, and it is to stay released.
    pub(super) fn is_released(&self) -> bool {
        let durable = self.was_released() || mutant!(LetGoUnwritten);
        durable && matches!(self.after.phase, GangPhase::Scheduling | GangPhase::Scheduled)
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.after.phase, GangPhase::Waiting | GangPhase::BackingOff)
    }

    /// When it began to wait after a back-off; `None`: it has not backed off, or does not wait.
    pub(super) fn waits_since(&self) -> Option<Timestamp> {
        let waits = self.after.attempt > 0 && self.after.phase == GangPhase::Waiting;
        self.after.since.as_ref().filter(|_| waits).map(|since| since.0)
    }

    pub(super) fn until(&self) -> Option<Timestamp> {
        self.after.until.as_ref().map(|until| until.0)
    }

    /// True if the time of the phase is over. A phase without an end time is over.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.until().is_none_or(|until| until <= now)
    }

    /// The minimum may be bound now, and must be bound within the gang's time-out.
    pub(super) fn schedule(&mut self, gang: &Gang, now: Timestamp) {
        self.after.attempt = self.after.attempt.saturating_add(1);
        let until = now.checked_add(gang.timeout).unwrap_or(Timestamp::MAX);
        let message = message::scheduling(self.after.min_available, gang.timeout);
        self.enter(GangPhase::Scheduling, Some(until), Some(message.clone()), now);
        self.announce(GangEvent::Scheduling, message);
    }

    /// The minimum is bound.
    pub(super) fn scheduled(&mut self, gang: &Gang, now: Timestamp) {
        let took = now
            .duration_since(gang.asked.unwrap_or(now))
            .max(SignedDuration::ZERO);
        self.enter(GangPhase::Scheduled, None, None, now);
        self.announce(
            GangEvent::Scheduled(took),
            message::scheduled(self.minimum, self.pods, took),
        );
    }

    /// The minimum was not bound in time.
    pub(super) fn back_off(&mut self, jobset: &JobSetGangs, message: String, now: Timestamp) {
        let wait = back_off(jobset, &self.after.name, self.after.attempt);
        let until = now.checked_add(wait).unwrap_or(Timestamp::MAX);
        let message = message::backing_off(&message, self.minimum, self.pods, wait);
        self.enter(GangPhase::BackingOff, Some(until), Some(message.clone()), now);
        self.announce(GangEvent::TimedOut, message);
    }

    /// Its PodGroup can no longer start the gang: its Jobs must be recreated.
    pub(super) fn lose_group(&mut self, jobset: &JobSetGangs, now: Timestamp) {
        let wait = back_off(jobset, &self.after.name, self.after.attempt);
        let until = now.checked_add(wait).unwrap_or(Timestamp::MAX);
        let message = message::group_lost();
        self.enter(GangPhase::BackingOff, Some(until), Some(message.clone()), now);
        self.announce(GangEvent::GroupLost, message);
    }

    /// The back-off is over.
    pub(super) fn wait(&mut self, now: Timestamp) {
        self.enter(GangPhase::Waiting, None, None, now);
    }

    /// Sets what a waiting gang waits for. It is announced once.
    pub(super) fn note_shortage(&mut self, message: String) {
        let known = self.before.filter(|before| before.phase == GangPhase::Waiting);
        if known.is_none_or(|known| known.message.is_none()) {
            self.announce(GangEvent::Waiting, message.clone());
        }
        self.after.message = Some(message);
    }

    /// Sets what a gang waits for after its back-off. Each message is announced once.
    pub(super) fn note_leaving_pods(&mut self, message: String) {
        if self.after.message.as_ref() != Some(&message) {
            self.announce(GangEvent::Waiting, message.clone());
            self.after.message = Some(message);
        }
    }

    /// Nothing is known to be missing.
    pub(super) fn fits(&mut self) {
        if self.after.message.is_some() {
            self.after.message = Some(message::fits());
        }
    }

    /// Records whether pods of the gang can never be bound as they are. It is announced each time
    /// it becomes true.
    pub(super) fn ungrouped(&mut self, is_so: bool) {
        let message = Some(message::ungrouped());
        let was_so = self.after.message == message;
        if is_so && !was_so {
            self.announce(GangEvent::Ungrouped, message::ungrouped());
            self.after.message = message;
        } else if was_so && !is_so {
            self.after.message = None;
        }
    }

    pub(super) fn announce(&mut self, event: GangEvent, message: String) {
        self.announcements.push(Announcement {
            gang: self.after.name.clone(),
            backend: self.backend,
            event,
            message,
        });
    }

    fn enter(&mut self, phase: GangPhase, until: Option<Timestamp>, message: Option<String>, now: Timestamp) {
        self.after.phase = phase;
        // The API stores whole seconds. Rounding up never ends a phase early.
        self.after.until = until.map(|until| Time(up_to_second(until)));
        self.after.since = Some(Time(now));
        self.after.message = message;
    }
}

fn up_to_second(at: Timestamp) -> Timestamp {
    let seconds = at.as_second() + i64::from(at.subsec_nanosecond() > 0);
    Timestamp::from_second(seconds).unwrap_or(at)
}

/// The new `status.gangs`, if it differs. States of gangs that are not part of this decision stay;
/// those of earlier restart attempts are removed.
pub(super) fn write<'p, 'a: 'p>(
    jobset: &JobSetGangs,
    all: impl Iterator<Item = &'p Progress<'a>> + Clone,
) -> Option<Write> {
    let unchanged = jobset
        .status
        .iter()
        .filter(|status| status.restart_attempt == jobset.restart_attempt)
        .filter(|status| !all.clone().any(|progress| progress.after.name == status.name));
    let after = all.clone().map(|progress| &progress.after);
    let mut gangs: Vec<GangStatus> = unchanged.chain(after).cloned().collect();
    gangs.sort_by(|a, b| a.name.cmp(&b.name));
    let without_message = |gangs: &[GangStatus]| {
        let mut gangs = gangs.to_vec();
        gangs.iter_mut().for_each(|gang| gang.message = None);
        gangs
    };
    let mut before = jobset.status.clone();
    before.sort_by(|a, b| a.name.cmp(&b.name));
    (gangs != before).then(|| Write {
        urgent: without_message(&gangs) != without_message(&before),
        gangs,
        announcements: all.flat_map(|progress| progress.announcements.clone()).collect(),
    })
}

/// The longest back-off, before the spread.
const LONGEST_BACK_OFF: SignedDuration = SignedDuration::from_secs(300);
/// The shortest back-off.
const SHORTEST_BACK_OFF: SignedDuration = SignedDuration::from_secs(5);

/// How long a gang backs off after this many attempts. It doubles each time, and is multiplied by
/// 0.5 to 1.5, by a hash of the JobSet's UID, so that two gangs that blocked each other do not do
/// so again.
fn back_off(jobset: &JobSetGangs, gang: &str, attempt: i32) -> SignedDuration {
    let doublings = u32::try_from(attempt.saturating_sub(1)).unwrap_or(0).min(16);
    let plain = SHORTEST_BACK_OFF
        .checked_mul(2_i32.saturating_pow(doublings))
        .unwrap_or(LONGEST_BACK_OFF)
        .min(LONGEST_BACK_OFF);
    // FNV-1a.
    let bytes = jobset
        .uid
        .bytes()
        .chain(gang.bytes())
        .chain(attempt.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The lowest bits of this hash are weak.
    let thousandths = i64::try_from((hash >> 20) % 1000).unwrap_or(0);
    SignedDuration::from_millis(i64::try_from(plain.as_millis()).unwrap_or(0) * (500 + thousandths) / 1000)
}
