//! Many restarts, while standbys die at any moment.

use std::time::Duration;

use super::*;

/// How many restarts; more are worth a longer search.
fn restarts() -> u64 {
    let asked = std::env::var("LOCKSTEP_SOAK_RESTARTS").ok();
    asked.map_or(100, |asked| asked.parse().expect("a number"))
}

/// Numbers that look random and are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A number of `/proc/<pid>/status`.
fn status(pid: i32, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let value = text.lines().find_map(|line| line.strip_prefix(name)).expect(name);
    value.trim().trim_end_matches(" kB").parse().expect(name)
}

#[test]
fn restarts_with_standbys_that_die_lose_and_leak_nothing() {
    let mut worker = Program::lively(&PATIENT.replace("import slow", "import json")).start();
    let agent = worker.rig.agent();
    let descriptors = || fs::read_dir(format!("/proc/{agent}/fd")).expect("fd").count();
    worker.ready();
    let (at_first, memory) = (descriptors(), status(agent, "VmRSS:"));
    let restarts = restarts();
    let mut numbers = Numbers(0x5eed_1234_abcd_0001);
    let (mut from_standby, mut killed) = (0, 0);
    for _ in 0..restarts {
        let own = worker.pid();
        // Long enough for a standby to be ready, now and then.
        let most = if numbers.below(5) == 0 { 600 } else { 80 };
        std::thread::sleep(Duration::from_millis(numbers.below(most)));
        if numbers.below(8) == 0
            && let Some(standby) = worker.find_standby(own)
        {
            // It may have ended, or not begun yet.
            killed += u32::from(kill(Pid::from_raw(standby.pid), Signal::SIGKILL).is_ok());
        }
        let order = if numbers.below(2) == 0 { stop } else { stop_hard };
        worker.stop_by(order);
        let starts = worker.release();
        assert_eq!(starts.standby + starts.cold, 1, "{starts:?}");
        from_standby += starts.standby;
    }
    worker.pid();
    worker.assert_no_complaints();
    worker.ready();
    let now = status(agent, "VmRSS:");
    println!(
        "{from_standby} of {restarts} from a standby, {killed} killed; VmRSS {memory} kB, then {now} kB"
    );
    assert!(
        from_standby >= 3 && killed >= 1,
        "{from_standby} from a standby, {killed} killed"
    );
    assert_eq!(worker.rig.others().len(), 2, "{:?}", worker.rig.others());
    assert_eq!(descriptors(), at_first);
    assert!(now < memory + 1024, "{memory} kB, then {now} kB");
    assert_eq!(status(agent, "Threads:"), 1);
    assert!(status(agent, "RssAnon:") < 1_000);
    // A line per reason, not per standby.
    let err = worker.rig.err();
    assert!(err.matches("no standby for now: ").count() <= 3, "{err}");
}
