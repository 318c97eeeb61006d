//! Which streams the hub serves, and for how long.

use jsonwebtoken::get_current_timestamp;
use serde_json::json;

use super::*;

pub(super) async fn welcomed(hub: &Hub, node: &str, protocol: u32) -> Node {
    let hello = pb::Hello {
        protocol_max: protocol,
        ..hello(vec![])
    };
    let mut node = hub.connect(node, hello).await.unwrap();
    assert!(matches!(node.next().await, hub_message::Kind::Welcome(welcome) if welcome.protocol == protocol));
    node
}

async fn send_token(node: &Node, token: String) {
    send_numbered(node, token, 0).await;
}

async fn send_numbered(node: &Node, token: String, serial: u64) {
    let kind = node_message::Kind::Credentials(pb::Credentials { token, serial });
    node.tx.send(pb::NodeMessage { kind: Some(kind) }).await.unwrap();
}

impl Node {
    /// Why the stream ends.
    pub(super) async fn ends(&mut self) -> Status {
        let end = async {
            loop {
                match self.rx.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("it has ended without a reason"),
                    Err(status) => return status,
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), end).await.unwrap()
    }

    /// The stream still works: the hub sees its reports.
    pub(super) async fn is_served(&self, link: &crate::hub::GroupLink, revision: u64) {
        let report = pb::Report {
            workers: vec![worker(pb::Phase::Running, revision, revision)],
            ..pb::Report::default()
        };
        let kind = node_message::Kind::Report(report);
        self.tx.send(pb::NodeMessage { kind: Some(kind) }).await.unwrap();
        tokio::time::timeout(Duration::from_secs(10), async {
            while link.all_reports().first().map(|(_, report)| report.generation.0) != Some(revision) {
                link.changed().await;
            }
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn unauthenticated_clients_are_refused_and_counted_and_disturb_no_other() {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    let good = welcomed(&hub, "n1", 3).await;
    good.is_served(&link, 1).await;

    let says = |claim: &str, value: serde_json::Value| {
        let mut claims = hub.cluster.claims("n1");
        claims[claim] = value;
        format!("Bearer {}", hub.cluster.sign(&claims))
    };
    let of_another = says("sub", json!("system:serviceaccount:default:default"));
    let expired = says("exp", json!(get_current_timestamp() - 60));
    let for_another = says("aud", json!(["https://kubernetes.default.svc"]));
    // The claims of one token with the signature of another.
    let (said, signed) = (hub.cluster.token("n2"), hub.cluster.token("n1"));
    let (said, _) = said.rsplit_once('.').unwrap();
    let (_, signature) = signed.rsplit_once('.').unwrap();
    let forged = format!("Bearer {said}.{signature}");
    let long = format!("Bearer {}", "x".repeat(9000));
    type Headers<'a> = &'a [(&'static str, &'a str)];
    let strangers: [(Headers<'_>, &'static str, &str); 8] = [
        (&[], "no_token", "no bearer token"),
        (&[("lockstep-node", "n1")], "no_token", "no bearer token"),
        (
            &[("authorization", "Bearer secret"), ("lockstep-node", "n1")],
            "malformed_token",
            "not a ServiceAccount token",
        ),
        (&[("authorization", &of_another)], "subject", "default:default"),
        (&[("authorization", &expired)], "expired", "expired"),
        (&[("authorization", &for_another)], "audience", "lockstep-hub"),
        (&[("authorization", &forged)], "signature", "signature"),
        (&[("authorization", &long)], "token_too_long", "too long"),
    ];
    for (headers, reason, text) in strangers {
        for _ in 0..2 {
            let before = hub.refusals.count(reason);
            let refused = hub.connect_as(headers, hello(vec![])).await.err().unwrap();
            assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
            assert!(refused.message().contains(text), "{refused}");
            assert_eq!(hub.refusals.count(reason), before + 1, "{reason}");
            assert_eq!(hub.refusals.logged(reason), 1, "{reason}");
        }
    }
    assert_eq!(hub.registry.connected(), 1);
    good.is_served(&link, 2).await;
}

#[tokio::test]
async fn the_node_is_that_of_the_token_whatever_the_headers_say() {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    let authorization = format!("Bearer {}", hub.cluster.token("n1"));
    let headers = [("authorization", authorization.as_str()), ("lockstep-node", "n2")];
    let _node = hub
        .connect_as(&headers, hello(vec![worker(pb::Phase::Running, 0, 1)]))
        .await
        .unwrap();
    wait_for_phase(&link, Phase::Running).await;
    assert!(has_reported(&link, "n1") && !has_reported(&link, "n2"));
}

#[tokio::test]
async fn a_stream_without_a_fresh_token_ends_and_one_with_it_goes_on() {
    // Tokens are valid for some seconds after they expire, since clocks differ: those of this test
    // have expired already.
    let hub = Hub::with_grace(Duration::from_millis(500)).await;
    let link = hub.registry.claim(UID);
    let mut claims = hub.cluster.claims("n1");
    claims["exp"] = json!(get_current_timestamp() - 1);
    let expired = format!("Bearer {}", hub.cluster.sign(&claims));
    let newest = pb::Hello {
        protocol_max: 3,
        ..hello(vec![])
    };
    let headers = [("authorization", expired.as_str())];
    let mut late = hub.connect_as(&headers, newest.clone()).await.unwrap();
    let end = late.ends().await;
    assert_eq!(end.code(), Code::Unauthenticated);
    assert!(end.message().contains("no new one has come"), "{end}");
    assert_eq!(hub.refusals.count("overdue"), 1);
    assert_eq!(hub.registry.connected(), 0);

    let in_time = hub.connect_as(&headers, newest).await.unwrap();
    send_token(&in_time, hub.cluster.token("n1")).await;
    in_time.is_served(&link, 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    in_time.is_served(&link, 2).await;
    assert_eq!(hub.refusals.count("overdue"), 1);
}

#[tokio::test]
async fn a_daemon_learns_which_of_its_tokens_is_in_use() {
    let hub = Hub::start().await;
    let mut node = welcomed(&hub, "n1", 3).await;
    send_numbered(&node, hub.cluster.token("n1"), 1).await;
    assert!(matches!(node.next().await, hub_message::Kind::Accepted(accepted) if accepted.serial == 1));
    // A token that could not be checked is not in use: the daemon must send it again.
    send_numbered(&node, "nonsense".into(), 2).await;
    send_numbered(&node, hub.cluster.token("n1"), 3).await;
    assert!(matches!(node.next().await, hub_message::Kind::Accepted(accepted) if accepted.serial == 3));
    assert_eq!(hub.refusals.count("malformed_token"), 1);
}

#[tokio::test]
async fn a_fresh_token_that_is_not_accepted_changes_nothing_but_that_of_another_node_ends_the_stream() {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    let mut node = welcomed(&hub, "n1", 3).await;
    send_token(&node, "nonsense".into()).await;
    node.is_served(&link, 1).await;
    assert_eq!(hub.refusals.count("malformed_token"), 1);
    send_token(&node, hub.cluster.token("n2")).await;
    let end = node.ends().await;
    assert_eq!(end.code(), Code::Unauthenticated);
    assert!(end.message().contains("n2"), "{end}");
    assert_eq!(hub.refusals.count("other_node"), 1);
}

#[tokio::test]
async fn a_revoked_token_ends_the_stream_and_is_refused_from_then_on() {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    let other = welcomed(&hub, "n1", 3).await;
    let token = hub.cluster.token("n2");
    hub.cluster.revoke(&token);
    let authorization = format!("Bearer {token}");
    let headers = [("authorization", authorization.as_str())];
    let mut node = hub.connect_as(&headers, hello(vec![])).await.unwrap();
    assert!(node.ends().await.message().contains("revoked"));
    let refused = hub.connect_as(&headers, hello(vec![])).await.err().unwrap();
    assert!(refused.message().contains("revoked"), "{refused}");
    assert_eq!(hub.refusals.count("revoked"), 2);
    other.is_served(&link, 1).await;
}

#[tokio::test]
async fn a_daemon_that_sends_no_tokens_is_asked_to_connect_again_before_its_token_expires() {
    let hub = Hub::start().await;
    let mut claims = hub.cluster.claims("n1");
    claims["exp"] = json!(get_current_timestamp() + 4);
    let authorization = format!("Bearer {}", hub.cluster.sign(&claims));
    let older = pb::Hello {
        protocol_max: 2,
        ..hello(vec![])
    };
    let mut node = hub
        .connect_as(&[("authorization", &authorization)], older)
        .await
        .unwrap();
    assert!(matches!(node.next().await, hub_message::Kind::Welcome(_)));
    let drained = tokio::time::timeout(Duration::from_secs(4), node.next()).await;
    assert!(matches!(drained.unwrap(), hub_message::Kind::Drain(_)));
    assert!(
        node.rx.message().await.unwrap().is_none(),
        "it ends in good order"
    );
}
