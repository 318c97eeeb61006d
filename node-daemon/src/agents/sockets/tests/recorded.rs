//! Plays back what agents of older versions have sent: the daemon serves them, and sends nothing
//! that they cannot read.

use super::*;
use crate::recorded;

/// The fields of a target that the first version knows.
#[derive(Clone, PartialEq, prost::Message)]
struct OldTarget {
    #[prost(uint64, tag = "1")]
    epoch: u64,
    #[prost(uint64, tag = "2")]
    generation: u64,
    #[prost(bool, tag = "4")]
    release: bool,
}

#[tokio::test]
async fn an_agent_of_the_first_version() {
    let daemon = Daemon::start().with_pod().await;
    let mut agent = Agent::connect(&daemon.socket()).await;
    let mut messages = recorded::messages(include_str!("../../../../../proto/recorded/agent-1-agent.hex"));
    let mut says = async |agent: &mut Agent| agent.frame(messages.next().unwrap()).await.unwrap();
    says(&mut agent).await;
    for phase in [
        AgentPhase::Fresh,
        AgentPhase::Running,
        AgentPhase::Exited(Exit { code: 1, signal: 0 }),
    ] {
        says(&mut agent).await;
        let report = daemon.reports().await.pop().unwrap();
        assert_eq!(report.phase, Phase::Agent(phase));
        // It knows of no standbys.
        assert_eq!((report.starts, report.standbys), (None, None));
    }
    daemon.desire(1).await;
    let frame = agent.0.next().await.unwrap().unwrap();
    let target = OldTarget::decode(frame).unwrap();
    assert_eq!((target.epoch, target.generation, target.release), (1, 1, true));
    for phase in [AgentPhase::Stopping, AgentPhase::Parked, AgentPhase::Running] {
        says(&mut agent).await;
        let report = daemon.reports().await.pop().unwrap();
        assert_eq!((report.phase, report.generation.0), (Phase::Agent(phase), 1));
    }
}
