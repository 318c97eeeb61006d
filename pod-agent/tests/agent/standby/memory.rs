//! Standbys give way when the container's memory is short.

use super::*;

/// Lets the agent see these numbers as those of its container.
fn limit(dir: &Path, limit_mib: u64, used_mib: u64) {
    let folder = dir.join("cgroup");
    for (name, mib) in [("memory.max", limit_mib), ("memory.current", used_mib)] {
        let new = folder.join("new");
        fs::write(&new, (mib << 20).to_string()).expect("write");
        fs::rename(new, folder.join(name)).expect("rename");
    }
}

#[test]
fn a_standby_is_started_and_kept_only_while_there_is_room() {
    let program = Program::new(PATIENT);
    fs::create_dir(program.dir.path().join("cgroup")).expect("mkdir");
    limit(program.dir.path(), 1000, 999);
    let own = [
        "sh",
        "-c",
        "mount --bind cgroup /sys/fs/cgroup && exec \"$@\"",
        "sh",
    ];
    let mut worker = program.start_with(|setup| setup.under(&own));
    let dir = worker.rig.dir.path().to_owned();
    worker.reason("the container's memory limit leaves less than ");
    limit(&dir, 1000, 100);
    worker.ready();
    // Less than it needs itself.
    limit(&dir, 1000, 999);
    worker.reason("the container's memory is short");
    limit(&dir, 1000, 100);
    worker.ready();
    assert!(is_from_standby(worker.restart()));
    assert!(worker.found_imported("slow"));
    let err = worker.rig.err();
    assert_eq!(
        err.matches("no standby for now: the container's memory is short\n")
            .count(),
        1,
        "{err}"
    );
}
