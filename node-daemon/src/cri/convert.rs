//! Border of CRI's messages.

use std::collections::BTreeMap;

use lockstep_proto::cri::v1 as wire;

use crate::plain::facts::PlainContainer;
use crate::pods::{self, InPlacePod, Metadata, NotAWorker};
use crate::worker::facts::ListedContainer;
use crate::worker::types::{Ended, Exit, Pod, SandboxId, UnixNanos};

/// The pod of a sandbox, if it has workers.
///
/// # Errors
/// See [`pods::recognise`].
pub fn pod(sandbox: &wire::PodSandbox) -> Result<Option<InPlacePod>, NotAWorker> {
    let Some(metadata) = &sandbox.metadata else {
        return Ok(None);
    };
    pods::recognise(&Metadata {
        uid: &metadata.uid,
        namespace: &metadata.namespace,
        name: &metadata.name,
        labels: &sandbox.labels,
        annotations: &sandbox.annotations,
    })
}

/// True if the containers of a sandbox see each other's processes, or the host's, by its status.
/// The kubelet states the mode of every pod.
#[must_use]
pub fn shares_processes(status: Option<wire::PodSandboxStatus>) -> bool {
    let namespaces = status.and_then(|status| status.linux?.namespaces);
    let options = namespaces.and_then(|namespaces| namespaces.options);
    options.is_some_and(|options| {
        matches!(
            options.pid(),
            wire::NamespaceMode::Pod | wire::NamespaceMode::Node
        )
    })
}

/// A container, if it should be a worker of one of `pods`. Its end is not known yet.
#[must_use]
pub fn worker(container: &wire::Container, pods: &[(SandboxId, Pod)]) -> Option<ListedContainer> {
    let (_, pod) = pods
        .iter()
        .find(|(sandbox, _)| sandbox.as_str() == container.pod_sandbox_id)?;
    let name = &container.metadata.as_ref()?.name;
    pod.supervised.contains(name).then(|| ListedContainer {
        pod: pod.uid.clone(),
        id: container.id.as_str().into(),
        name: name.clone(),
        ended: None,
    })
}

/// A container, if it is a worker without an agent of one of `pods`. Its end is not known yet.
#[must_use]
pub fn plain(container: &wire::Container, pods: &BTreeMap<SandboxId, Pod>) -> Option<PlainContainer> {
    let pod = pods.get(&SandboxId::from(container.pod_sandbox_id.as_str()))?;
    let metadata = container.metadata.as_ref()?;
    pod.supervised.contains(&metadata.name).then(|| PlainContainer {
        pod: pod.uid.clone(),
        name: metadata.name.clone(),
        id: container.id.as_str().into(),
        attempt: metadata.attempt,
        created: UnixNanos(container.created_at),
        ended: None,
    })
}

/// How and when a container ended, if its status says that it has.
#[must_use]
pub fn ended(status: Option<wire::ContainerStatus>) -> Option<Ended> {
    let status = status?;
    (status.state() == wire::ContainerState::ContainerExited).then(|| Ended {
        exit: exit(status.exit_code),
        at: UnixNanos(status.finished_at),
    })
}

/// The end of a container that has a successor in its pod: one of the same name with a higher
/// attempt. Its exit is not known. `created` says when each attempt was created.
///
/// The kubelet creates no container while the one before it runs. After a power failure containerd
/// may show the one before as it was before it started, and never correct that. One that started
/// after all, since its start took longer than the kubelet waits, counts as ended too.
#[must_use]
pub fn end_by_successor(container: &wire::Container, created: &BTreeMap<u32, UnixNanos>) -> Option<Ended> {
    let never_started = matches!(
        container.state(),
        wire::ContainerState::ContainerCreated | wire::ContainerState::ContainerUnknown
    );
    let attempt = container.metadata.as_ref()?.attempt;
    let (_, at) = created.range(attempt.checked_add(1)?..).next()?;
    never_started.then_some(Ended {
        exit: Exit::UNKNOWN,
        at: *at,
    })
}

/// The exit behind a container's exit code: containerd gives 128 + signal if a signal ended the
/// process.
#[must_use]
pub fn exit(code: i32) -> Exit {
    // Real-time signals end at 64.
    let signal = if (129..=192).contains(&code) {
        code - 128
    } else {
        0
    };
    Exit { code, signal }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;
    use crate::testing;

    #[test]
    fn signals_are_recognised_by_their_codes() {
        assert_eq!(exit(137), Exit { code: 137, signal: 9 });
        for code in [0, 1, 17, 127, 128, 255] {
            assert_eq!(exit(code), Exit { code, signal: 0 });
        }
    }

    #[test]
    fn only_the_named_containers_of_known_pods_are_workers() {
        let pods = [(SandboxId::from("s"), testing::pod("p"))];
        let container = |sandbox: &str, name: &str| wire::Container {
            id: "c".to_owned(),
            pod_sandbox_id: sandbox.to_owned(),
            metadata: Some(wire::ContainerMetadata {
                name: name.to_owned(),
                attempt: 0,
            }),
            ..wire::Container::default()
        };
        let found = worker(&container("s", "worker"), &pods).unwrap();
        assert_eq!((found.pod, found.id, found.ended), ("p".into(), "c".into(), None));
        assert_eq!(worker(&container("s", "sidecar"), &pods), None);
        assert_eq!(worker(&container("other", "worker"), &pods), None);

        let pods = pods.into_iter().collect();
        let second = wire::Container {
            metadata: Some(wire::ContainerMetadata {
                name: "worker".to_owned(),
                attempt: 1,
            }),
            created_at: 42,
            ..container("s", "worker")
        };
        let found = plain(&second, &pods).unwrap();
        assert_eq!(
            (found.pod, found.id, found.attempt, found.created),
            ("p".into(), "c".into(), 1, UnixNanos(42))
        );
        assert_eq!(plain(&container("s", "sidecar"), &pods), None);
    }

    #[test]
    fn the_status_of_a_sandbox_shows_if_its_containers_share_processes() {
        let with = |options| {
            Some(wire::PodSandboxStatus {
                linux: Some(wire::LinuxPodSandboxStatus {
                    namespaces: Some(wire::Namespace { options }),
                }),
                ..wire::PodSandboxStatus::default()
            })
        };
        for (mode, shared) in [
            (wire::NamespaceMode::Pod, true),
            (wire::NamespaceMode::Node, true),
            (wire::NamespaceMode::Container, false),
        ] {
            let options = wire::NamespaceOption {
                pid: mode.into(),
                ..wire::NamespaceOption::default()
            };
            assert_eq!(shares_processes(with(Some(options))), shared, "{mode:?}");
        }
        // Not stated.
        assert!(!shares_processes(with(None)));
        assert!(!shares_processes(None));
    }

    #[test]
    fn only_ended_containers_have_an_end() {
        let status = |state: wire::ContainerState| wire::ContainerStatus {
            state: state.into(),
            exit_code: 3,
            finished_at: 42,
            ..wire::ContainerStatus::default()
        };
        let exited = status(wire::ContainerState::ContainerExited);
        let end = Ended {
            exit: Exit { code: 3, signal: 0 },
            at: UnixNanos(42),
        };
        assert_eq!(ended(Some(exited)), Some(end));
        assert_eq!(ended(Some(status(wire::ContainerState::ContainerRunning))), None);
        assert_eq!(ended(None), None);
    }

    proptest! {
        /// Any listing, damaged or of another version, gives a worker or none.
        #[test]
        fn any_listing_is_an_error_or_a_value(
            garbage in prop::collection::vec(any::<u8>(), 0..100),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let labels = [("batch.kubernetes.io/job-name", "job"), ("batch.kubernetes.io/job-completion-index", "0")];
            let annotations = [
                ("lockstep.dev/in-place", "supervised"),
                ("lockstep.dev/supervise", "worker"),
                ("jobset.sigs.k8s.io/jobset-uid", "g"),
            ];
            let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let valid = wire::PodSandbox {
                id: "s".to_owned(),
                metadata: Some(wire::PodSandboxMetadata {
                    name: "pod".to_owned(),
                    uid: "p".to_owned(),
                    namespace: "default".to_owned(),
                    attempt: 0,
                }),
                labels: map(&labels),
                annotations: map(&annotations),
                ..wire::PodSandbox::default()
            };
            prop_assert!(matches!(pod(&valid), Ok(Some(InPlacePod::Supervised(_)))));
            let mut damaged = valid.encode_to_vec();
            for (at, byte) in damage {
                let at = at.index(damaged.len());
                damaged[at] = byte;
            }
            for bytes in [&garbage, &damaged] {
                if let Ok(sandbox) = wire::PodSandbox::decode(bytes.as_slice())
                    && let Err(error) = pod(&sandbox)
                {
                    let text = error.to_string();
                    prop_assert!(text.contains("kubernetes.io/") || text.contains("lockstep.dev/") || text.contains("jobset.sigs"), "{}", text);
                }
                if let Ok(status) = wire::ContainerStatus::decode(bytes.as_slice()) {
                    let _ = ended(Some(status));
                }
            }
        }

        #[test]
        fn no_exit_code_becomes_a_success(code in any::<i32>()) {
            let exit = exit(code);
            prop_assert_eq!(exit.code, code);
            prop_assert!((0..=64).contains(&exit.signal));
            prop_assert!(exit.signal == 0 || exit.code == 128 + exit.signal);
        }
    }
}
