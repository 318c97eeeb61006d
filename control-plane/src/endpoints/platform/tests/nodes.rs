//! Nodes with connected daemons.

use lockstep_core::restart::Epoch;
use lockstep_proto::node::v1 as node_pb;

use super::*;
use crate::hub::{Access, Health, Outbox, Registry};

async fn nodes(api: &Api, token: &str, list: pb::ListNodesRequest) -> Result<pb::ListNodesResponse, Status> {
    let answer = api.client().list_nodes(with(token, list)).await?;
    Ok(answer.into_inner())
}

#[tokio::test]
async fn nodes_are_listed_with_the_level_that_is_left_there() {
    let api = Api::leading().await;
    // The replica learns that it leads before daemons can connect.
    let early = nodes(&api, "list:*", pb::ListNodesRequest::default()).await;
    assert_eq!(early.unwrap_err().code(), Code::Unavailable);

    let registry = Registry::new(Epoch(1));
    let (role, end) = (Arc::clone(&api.role), api.shutdown.clone());
    let term = Arc::clone(&registry);
    tokio::spawn(async move { role.lead(term, end).await });
    while api.role.daemons("", 1).is_none() {
        tokio::task::yield_now().await;
    }
    let away = || Access::Away(UnixNanos(7), "no socket".to_owned());
    let well = || Access::Well(UnixNanos(5));
    for (node, cri, nri) in [
        ("c", Access::Unknown, Access::Unknown),
        ("b", well(), away()),
        ("a", well(), well()),
        ("d", away(), away()),
    ] {
        let outbox = Outbox::new(node_pb::Welcome::default());
        let session = registry.connect(node, &outbox, 3, Vec::new());
        registry.set_daemon(node, session, "1.2.3".to_owned(), Health { cri, nri });
    }
    let list = pb::ListNodesRequest {
        page_size: 3,
        ..pb::ListNodesRequest::default()
    };
    let page = nodes(&api, "list:*", list).await.unwrap();
    let levels: Vec<_> = page
        .nodes
        .iter()
        .map(|node| (node.name.as_str(), node.level.as_str()))
        .collect();
    assert_eq!(levels, [("a", "Process"), ("b", "Container"), ("c", "")]);
    let of_b = &page.nodes[1];
    assert_eq!((of_b.daemon_version.as_str(), of_b.protocol), ("1.2.3", 3));
    let nri = of_b.nri.as_ref().unwrap();
    assert_eq!(nri.state(), pb::RuntimeAccessState::Away);
    assert_eq!((nri.since_unix_nanos, nri.detail.as_str()), (7, "no socket"));
    let list = pb::ListNodesRequest {
        page_size: 3,
        page_token: page.next_page_token,
    };
    let rest = nodes(&api, "list:*", list).await.unwrap();
    assert_eq!(rest.nodes.len(), 1);
    assert_eq!(
        (rest.nodes[0].name.as_str(), rest.nodes[0].level.as_str()),
        ("d", "Pod")
    );
    assert_eq!(rest.next_page_token, "");
}

#[tokio::test]
async fn nodes_are_for_those_who_may_list_jobsets_everywhere() {
    let api = Api::leading().await;
    let refused = async |token: &str, list| nodes(&api, token, list).await.unwrap_err();
    let of_one = refused("list:ours", pb::ListNodesRequest::default()).await;
    assert_eq!(of_one.code(), Code::PermissionDenied);
    assert!(of_one.message().contains("in all namespaces"), "{of_one}");
    let list = pb::ListNodesRequest {
        page_token: "No node".to_owned(),
        ..pb::ListNodesRequest::default()
    };
    let nonsense = refused("list:*", list).await;
    assert_eq!(nonsense.code(), Code::InvalidArgument);
    assert!(nonsense.message().starts_with("page_token: "), "{nonsense}");
    let follower = Api::start().await;
    let list = pb::ListNodesRequest::default();
    let elsewhere = nodes(&follower, "list:*", list).await.unwrap_err();
    assert_eq!(elsewhere.code(), Code::Unavailable);
}
