//! What node daemons of older versions have said is played back, as after the way back to one: the
//! agent obeys it, and goes on as their own agents do.

#[path = "../../../proto/recorded/read.rs"]
mod read;

use lockstep_proto::agent::v1::{Phase, Target};
use prost::Message;

use crate::rig::*;

#[test]
fn a_daemon_of_the_first_version() {
    let said = read::messages(include_str!("../../../proto/recorded/agent-1-daemon.hex"));
    let said: Vec<Target> = said
        .map(|message| Target::decode(&*message).expect("a target"))
        .collect();
    let [start, stop, release] = <[Target; 3]>::try_from(said).expect("three targets");
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
    assert_eq!((state.epoch, state.counter), (7, 1));
    rig.await_file("up.1");
    // The exit code ends the container, as that daemon has said.
    std::fs::write(rig.path("go"), "").expect("go");
    assert_eq!(rig.exit_code(), 42);
}
