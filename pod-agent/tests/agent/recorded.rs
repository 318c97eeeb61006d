//! Plays back what node daemons of older versions have sent, as after a downgrade: the agent obeys,
//! and behaves as their own agents do.

#[path = "../../../proto/recorded/read.rs"]
mod read;

use lockstep_proto::agent::v1::{Phase, Target};
use prost::Message;

use crate::rig::*;

#[test]
fn a_daemon_of_the_first_version() {
    let targets = read::messages(include_str!("../../../proto/recorded/agent-1-daemon.hex"));
    let targets: Vec<Target> = targets
        .map(|message| Target::decode(&*message).expect("a target"))
        .collect();
    let [start, stop, release] = <[Target; 3]>::try_from(targets).expect("three targets");
    let text = "touch up.$LOCKSTEP_RESTART_ATTEMPT; until [ -e go ]; do sleep 0.01; done; exit 42";
    let mut rig = script(text).start();
    let mut daemon = rig.accept();
    assert_eq!(daemon.register.protocol, 1);
    daemon.until(Phase::Fresh, 0);
    daemon.send(start);
    daemon.until(Phase::Running, 0);
    rig.await_file("up.0");
    daemon.send(stop);
    daemon.until(Phase::Parked, 1);
    daemon.send(release);
    let state = daemon.until(Phase::Running, 1);
    assert_eq!((state.epoch, state.counted_restarts), (7, 1));
    rig.await_file("up.1");
    // The exit code ends the container, as that daemon has ordered.
    std::fs::write(rig.path("go"), "").expect("go");
    assert_eq!(rig.exit_code(), 42);
}
