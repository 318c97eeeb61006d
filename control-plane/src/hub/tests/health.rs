//! Reports of daemons on the container runtimes of their nodes.

use lockstep_core::restart::UnixNanos;

use super::*;
use crate::hub::{Access, Daemon, Health};

fn access(state: pb::access::State, since: i64, detail: &str) -> Option<pb::Access> {
    Some(pb::Access {
        state: state.into(),
        since_unix_nanos: since,
        detail: detail.into(),
    })
}

/// Waits until exactly these daemons are known with this health.
async fn wait_for_daemons(hub: &Hub, wanted: &[(&str, Health)]) -> Vec<Daemon> {
    let all = async {
        loop {
            let (daemons, next) = hub.registry.daemons("", 10);
            let known: Vec<_> = daemons
                .iter()
                .map(|daemon| (daemon.node.as_str(), daemon.health.clone()))
                .collect();
            if known == wanted && next.is_none() {
                return daemons;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), all).await.unwrap()
}

#[tokio::test]
async fn it_is_the_last_report_on_the_present_stream() {
    use pb::access::State;
    let hub = Hub::start().await;
    let mut said = hello(Vec::new());
    said.daemon_version = "v".repeat(5000);
    said.health = Some(pb::Health {
        cri: access(State::Well, 5, ""),
        nri: access(State::Away, 6, &"n".repeat(5000)),
    });
    let node = hub.connect("n1", said).await.unwrap();
    let away = Health {
        cri: Access::Well(UnixNanos(5)),
        nri: Access::Away(UnixNanos(6), "n".repeat(256)),
    };
    let daemons = wait_for_daemons(&hub, &[("n1", away.clone())]).await;
    assert_eq!((daemons[0].version.len(), daemons[0].protocol), (256, 1));

    // A report without health leaves it unchanged.
    let report = |health| pb::NodeMessage {
        kind: Some(node_message::Kind::Report(pb::Report {
            health,
            ..pb::Report::default()
        })),
    };
    node.tx.send(report(None)).await.unwrap();
    let well = pb::Health {
        cri: access(State::Well, 5, ""),
        nri: access(State::Well, 7, ""),
    };
    // An older daemon beside it.
    let older = hub.connect("n0", hello(Vec::new())).await.unwrap();
    wait_for_daemons(&hub, &[("n0", Health::default()), ("n1", away)]).await;
    node.tx.send(report(Some(well))).await.unwrap();
    let well = Health {
        cri: Access::Well(UnixNanos(5)),
        nri: Access::Well(UnixNanos(7)),
    };
    wait_for_daemons(&hub, &[("n0", Health::default()), ("n1", well)]).await;
    let (first, next) = hub.registry.daemons("", 1);
    assert!(first.len() == 1 && first[0].node == "n0" && next.as_deref() == Some("n0"));
    let (second, next) = hub.registry.daemons("n0", 1);
    assert!(second.len() == 1 && second[0].node == "n1" && next.is_none());

    // A daemon that reconnects without health has unknown health; a daemon that has gone is not
    // listed.
    let _again = hub.connect("n1", hello(Vec::new())).await.unwrap();
    drop(older);
    wait_for_daemons(&hub, &[("n1", Health::default())]).await;
    // A message on the replaced stream comes too late.
    let session = 1;
    hub.registry.set_health(
        "n1",
        session,
        Health {
            cri: Access::Well(UnixNanos(9)),
            nri: Access::default(),
        },
    );
    wait_for_daemons(&hub, &[("n1", Health::default())]).await;
}

#[tokio::test]
async fn refused_agents_are_counted_once_on_any_stream() {
    let hub = Hub::start().await;
    let counted = async |wanted: u64| {
        let all = async {
            while hub.refusals.agents_refused() != wanted {
                tokio::task::yield_now().await;
            }
        };
        let all = tokio::time::timeout(Duration::from_secs(10), all).await;
        all.unwrap_or_else(|_| panic!("{} are counted, not {wanted}", hub.refusals.agents_refused()));
    };
    let pong = |refused_agents| pb::NodeMessage {
        kind: Some(node_message::Kind::Pong(pb::Pong {
            nonce: 1,
            refused_agents,
        })),
    };
    let node = hub.connect("n1", hello(Vec::new())).await.unwrap();
    let other = hub.connect("n2", hello(Vec::new())).await.unwrap();
    node.tx.send(pong(3)).await.unwrap();
    counted(3).await;
    node.tx.send(pong(3)).await.unwrap();
    node.tx.send(pong(5)).await.unwrap();
    counted(5).await;
    other.tx.send(pong(1)).await.unwrap();
    counted(6).await;

    // The same daemon connects again; then it restarts, and counts from 0.
    let node = hub.connect("n1", hello(Vec::new())).await.unwrap();
    node.tx.send(pong(6)).await.unwrap();
    counted(7).await;
    node.tx.send(pong(0)).await.unwrap();
    node.tx.send(pong(2)).await.unwrap();
    counted(9).await;
    // A replaced stream is ignored.
    hub.registry.count_refused_agents("n1", 1, 100);
    assert_eq!(hub.refusals.agents_refused(), 9);
}
