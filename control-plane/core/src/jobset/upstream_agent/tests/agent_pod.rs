use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

use super::super::*;

fn pod(attempt: &str) -> Pod {
    let restarted = |restart_count| {
        Some(vec![ContainerStatus {
            restart_count,
            ..ContainerStatus::default()
        }])
    };
    Pod {
        metadata: ObjectMeta {
            annotations: Some(
                [(
                    annotations::IN_PLACE_RESTART_ATTEMPT.to_owned(),
                    attempt.to_owned(),
                )]
                .into(),
            ),
            ..ObjectMeta::default()
        },
        spec: None,
        status: Some(PodStatus {
            phase: Some("Running".to_owned()),
            init_container_statuses: restarted(4),
            container_statuses: restarted(2),
            ..PodStatus::default()
        }),
    }
}

#[test]
fn a_pod_shows_its_agents_attempt_and_its_most_restarted_container() {
    let expected = AgentPod {
        failed: false,
        succeeded: false,
        attempt: Some(3),
        container_restarts: 4,
    };
    assert_eq!(AgentPod::of(&pod("3")), expected);
    for nonsense in ["", "-1", "three"] {
        assert_eq!(AgentPod::of(&pod(nonsense)).attempt, None);
    }
    assert_eq!(AgentPod::of(&Pod::default()), AgentPod::default());
}
