//! Kills at any moment: nothing hangs, and nothing is left.

use super::*;

/// A small generator of numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }
}

#[test]
fn a_stand_in_that_is_killed_takes_its_rank_along() {
    let job = Job::from_standbys(2, false);
    let shims: Vec<i32> = job.shims().iter().map(|process| process.inner).collect();
    assert_eq!(shims.len(), 2);
    kill_inner(&job.rig, shims[0]);
    assert_eq!(job.end(0), "-9");
    job.await_gone(job.rank(0).0);
    assert!(job.is_there(job.rank(1).0));
    kill_inner(&job.rig, job.rank(1).0);
    assert_eq!(job.end(1), "-9");
    assert_eq!(job.shims(), []);
}

#[test]
fn no_kill_at_any_moment_makes_it_hang_or_leaves_something() {
    const RANKS: u32 = 3;
    let mut random = Random(11);
    let mut job = Job::start(Way::Hooked, RANKS, false);
    for _ in 0..12 {
        // Whatever comes up is killed now and then: stand-ins, standbys, ranks.
        let kills = random.below(6);
        for _ in 0..kills {
            std::thread::sleep(std::time::Duration::from_millis(random.below(120) as u64));
            let found: Vec<Process> = job
                .rig
                .others()
                .into_iter()
                .filter(|process| !process.zombie && process.command.contains("rank.py"))
                .collect();
            if !found.is_empty() {
                kill_inner(&job.rig, found[random.below(found.len())].inner);
            }
        }
        if random.below(2) == 0 {
            std::thread::sleep(std::time::Duration::from_millis(random.below(1500) as u64));
        }
        job.restart();
    }
    // Undisturbed, everything runs.
    job.await_up(RANKS);
    job.attempt += 1;
    job.daemon.send(asked(stop_hard(job.attempt)));
    job.daemon.until(Phase::Parked, job.attempt);
    let waiting = job.rig.others();
    assert!(
        waiting
            .iter()
            .all(|process| !process.command.contains("/hook/python")),
        "{waiting:?}"
    );
    assert!(waiting.len() <= 1 + RANKS as usize, "{waiting:?}");
}
