//! What an agent costs while it does nothing.

use std::fs;
use std::path::{Path, PathBuf};

use lockstep_proto::agent::v1::Phase;

use crate::rig::*;

/// The static build of the `agent` profile, if there is one; else the binary under test.
fn binary() -> (PathBuf, bool) {
    let target = Path::new(AGENT).ancestors().nth(2).expect("target directory");
    let small = target.join("agent/lockstep-pod-agent");
    if small.exists() {
        (small, true)
    } else {
        (AGENT.into(), false)
    }
}

/// True if an ELF file has a PT_INTERP program header.
fn has_interpreter(elf: &[u8]) -> bool {
    let number = |at: usize, size: usize| {
        elf[at..at + size]
            .iter()
            .rev()
            .fold(0_usize, |number, byte| number << 8 | usize::from(*byte))
    };
    let (offset, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    (0..count).any(|index| number(offset + index * size, 4) == 3)
}

#[test]
fn the_release_binary_is_small_and_static() {
    let (binary, release) = binary();
    let size = fs::metadata(&binary).expect("metadata").len();
    println!("{}: {size} bytes", binary.display());
    if release {
        assert!(size < 2_000_000);
        assert!(
            !has_interpreter(&fs::read(&binary).expect("read")),
            "it needs a dynamic linker"
        );
    }
}

#[test]
fn idle_it_takes_less_than_3_mb_and_restarts_leak_nothing() {
    let (binary, release) = binary();
    let (rig, mut daemon) = patient().binary(&binary).running();
    let fds = || {
        fs::read_dir(format!("/proc/{}/fd", rig.agent()))
            .expect("fd")
            .count()
    };
    let at_first = fds();
    for generation in 1..=50 {
        daemon.restart(generation);
    }
    daemon.send(stop(51));
    daemon.until(Phase::Parked, 51);
    let read = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", rig.agent())).expect(file);
    let status = read("status");
    let field = |name: &str| {
        let value = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .expect(name);
        value.trim().trim_end_matches(" kB").parse::<u64>().expect(name)
    };
    println!(
        "{}: VmRSS {} kB, RssAnon {} kB",
        binary.display(),
        field("VmRSS:"),
        field("RssAnon:")
    );
    assert_eq!(field("Threads:"), 1);
    assert!(field("RssAnon:") < 1_000);
    if release {
        assert!(field("VmRSS:") < 3_000);
    }
    assert_eq!(fds(), at_first);
}
