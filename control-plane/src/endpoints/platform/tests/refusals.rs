//! Refusals and their reasons.

use tonic_types::StatusExt as _;

use super::*;

/// The machine-readable reason of a status, and one of its metadata.
fn reason_of(status: &Status, key: &str) -> (String, String) {
    let info = status.get_details_error_info().unwrap();
    assert_eq!(info.domain, "lockstep.dev");
    (info.reason, info.metadata.get(key).cloned().unwrap_or_default())
}

fn is(reason: &str, value: &str) -> (String, String) {
    (reason.to_owned(), value.to_owned())
}

#[tokio::test]
async fn a_jobset_that_is_not_a_group_is_not_restarted_and_the_error_says_why() {
    let mut api = Api::leading().await;
    let mut ended = jobset("ours", "ended");
    let status = json!({
        "conditions": [{
            "type": "Completed", "status": "True", "reason": "r", "message": "m",
            "lastTransitionTime": "2020-01-01T00:00:00Z",
        }],
    });
    ended.status = Some(serde_json::from_value(status).unwrap());
    for object in [ended, jobset("ours", "plain")] {
        api.jobsets
            .apply_watcher_event(&watcher::Event::Apply(PackedJobSet::of(&object).unwrap()));
    }
    for (name, code, text, reason) in [
        (
            "missing",
            Code::NotFound,
            "name: there is no JobSet missing in namespace ours",
            "JOBSET_NOT_FOUND",
        ),
        ("ended", Code::FailedPrecondition, "has ended", "JOBSET_ENDED"),
        (
            "plain",
            Code::FailedPrecondition,
            "is not restarted in place",
            "NOT_IN_PLACE",
        ),
    ] {
        let status = api.restart("*:*", restart(name, "t")).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(text), "{status}");
        assert_eq!(reason_of(&status, "jobset"), is(reason, name));
        let against = status.get_details_precondition_failure();
        assert_eq!(against.is_some(), code == Code::FailedPrecondition);
    }
    assert!(api.patches.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_user_without_permission_learns_nothing() {
    let api = Api::leading().await;
    let post = api.board.open_post("ours", "js", UnixNanos(1));
    post.replace_state(running("ours", "js", 0));
    for (token, code) in [
        ("nobody", Code::Unauthenticated),
        ("watch:*", Code::PermissionDenied),
        ("list:ours", Code::PermissionDenied),
    ] {
        let status = api.list(token, all()).await.unwrap_err();
        assert_eq!(status.code(), code, "{token}: {status}");
    }
    let status = api.client().list_groups(all()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    assert_eq!(reason_of(&status, ""), is("TOKEN_MISSING", ""));
    let Err(status) = api.watch("list:*", Default::default()).await else {
        panic!("it may watch")
    };
    assert_eq!(status.code(), Code::PermissionDenied);
    let status = api.restart("list:*", restart("js", "t")).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert_eq!(
        status.message(),
        "user list may not patch jobsets.jobset.x-k8s.io in namespace ours"
    );
    assert_eq!(reason_of(&status, "verb"), is("ACCESS_DENIED", "patch"));
    assert_eq!(reason_of(&status, "user"), is("ACCESS_DENIED", "list"));
    // The refusal does not even show that the JobSet does not exist.
    let status = api.restart("list:*", restart("other", "t")).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(api.patches.lock().unwrap().is_empty());
}

#[tokio::test]
async fn bad_input_is_named_by_its_field() {
    let api = Api::leading().await;
    let list = |namespace: &str, page_token: &str| pb::ListGroupsRequest {
        namespace: namespace.into(),
        page_token: page_token.into(),
        ..all()
    };
    for (request, field) in [
        (list("No", ""), "namespace: "),
        (list("", "what"), "page_token: "),
        (list("a", "b/c"), "page_token: "),
    ] {
        let status = api.list("*:*", request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with(field), "{status}");
    }
    let watch = pb::WatchGroupsRequest {
        name: "js".into(),
        ..Default::default()
    };
    let Err(status) = api.watch("*:*", watch).await else {
        panic!("a name without a namespace")
    };
    assert!(status.message().starts_with("namespace: "), "{status}");
    let long = "x".repeat(129);
    for (namespace, name, token, field) in [
        ("", "js", "t", "namespace: "),
        ("ours", "", "t", "name: "),
        ("ours", "-js", "t", "name: "),
        ("ours", "js", "a\nb", "token: "),
        ("ours", "js", long.as_str(), "token: "),
    ] {
        let request = pb::RestartGroupRequest {
            namespace: namespace.into(),
            name: name.into(),
            token: token.into(),
        };
        let status = api.restart("*:*", request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().starts_with(field), "{status}");
        let path = field.trim_end_matches(": ");
        assert_eq!(reason_of(&status, "field"), is("INVALID_FIELD", path));
        let bad = status.get_details_bad_request().unwrap().field_violations;
        assert_eq!(
            (bad.len(), bad[0].field.as_str()),
            (1, path),
            "{}",
            bad[0].description
        );
    }
}

#[tokio::test]
async fn a_replica_that_does_not_lead_says_so() {
    let api = Api::start().await;
    let status = api.list("*:*", all()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("does not lead"), "{status}");
    assert_eq!(reason_of(&status, ""), is("NOT_LEADING", ""));
    let again = status.get_details_retry_info().and_then(|info| info.retry_delay);
    assert!(again.is_some_and(|delay| delay < Duration::from_secs(1)));
    let status = api.restart("*:*", restart("js", "t")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
}

/// The limits in platform.proto.
#[tokio::test]
async fn a_watch_without_a_slot_is_refused_with_the_limit() {
    let api = Api::leading().await;
    let mut watches = Vec::new();
    let fill = async |watches: &mut Vec<Watch>, namespace: &str, count: usize| {
        let channel = api.endpoint.connect().await.unwrap();
        for index in 0..count {
            let watch = watch_of(namespace, &format!("js-{index}"));
            let request = with("watch:*", watch);
            let answer = PlatformClient::new(channel.clone()).watch_groups(request).await;
            watches.push(Watch(answer.unwrap().into_inner()));
        }
    };
    let refused = async |watch: pb::WatchGroupsRequest, limit: &str, message: &str| {
        let Err(status) = api.watch("watch:*", watch.clone()).await else {
            panic!("{watch:?} is served")
        };
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert_eq!(status.message(), message);
        assert_eq!(reason_of(&status, "limit"), is("TOO_MANY_WATCHES", limit));
        assert_eq!(reason_of(&status, "namespace").1, watch.namespace);
        assert_eq!(reason_of(&status, "jobset").1, watch.name);
        assert!(status.get_details_retry_info().is_some());
    };
    for _ in 0..2 {
        fill(&mut watches, "ours", 64).await;
    }
    let of_one = "more than 128 watches of one namespace at once";
    refused(watch_of("ours", "js-128"), "128", of_one).await;
    refused(watch_of("ours", ""), "128", of_one).await;
    fill(&mut watches, "theirs", 64).await;
    let of_single = "more than 192 watches of single namespaces at once";
    refused(watch_of("others", "js"), "192", of_single).await;
    fill(&mut watches, "", 64).await;
    refused(watch_of("", ""), "256", "more than 256 watches at once").await;
}

/// A watch of one group, of those of a namespace, or of all.
fn watch_of(namespace: &str, name: &str) -> pb::WatchGroupsRequest {
    pb::WatchGroupsRequest {
        namespace: namespace.to_owned(),
        name: if namespace.is_empty() { "" } else { name }.to_owned(),
        ..Default::default()
    }
}
