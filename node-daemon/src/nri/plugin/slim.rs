//! Pods and containers without what is not read. All of a node are gathered before they are taken
//! in, and a tenant's pod may have megabytes of environment, or thousands of annotations.

use std::collections::HashMap;

use lockstep_proto::nri::v1alpha1 as wire;
use lockstep_protocol::pods::{AGENT, BIN_DIR, READ_OF_PODS, RUN_DIR, meets_agent};

use crate::nri::convert::TERMINATION_GRACE;

/// The most mounts of a container that are kept: more than those of one with an agent.
const MOST_MOUNTS: usize = 16;

/// The entries with these keys.
fn only(mut map: HashMap<String, String>, keys: &[&str]) -> HashMap<String, String> {
    keys.iter().filter_map(|key| map.remove_entry(*key)).collect()
}

/// The pod with only the labels and annotations that are read.
pub(super) fn pod(pod: wire::PodSandbox) -> wire::PodSandbox {
    wire::PodSandbox {
        labels: only(pod.labels, &READ_OF_PODS),
        annotations: only(pod.annotations, &READ_OF_PODS),
        ..pod
    }
}

/// What is read of a container that was created before. Its args tell no more than whether it has
/// any, whether the first one is the agent, and whether one names it.
pub(super) fn container(container: wire::Container) -> wire::Container {
    wire::Container {
        args: args(&container.args),
        mounts: mounts(container.mounts),
        annotations: only(container.annotations, &[TERMINATION_GRACE]),
        linux: container.linux.map(|linux| wire::LinuxContainer {
            namespaces: linux.namespaces,
            ..wire::LinuxContainer::default()
        }),
        id: container.id,
        pod_sandbox_id: container.pod_sandbox_id,
        name: container.name,
        ..wire::Container::default()
    }
}

fn args(all: &[String]) -> Vec<String> {
    let first = all.first();
    let first = first.map(|first| if first == AGENT { AGENT } else { "" });
    let agent = all.iter().any(|arg| arg.contains(AGENT)).then_some(AGENT);
    first.into_iter().chain(agent).map(str::to_owned).collect()
}

/// The mounts at, above and below the agent's places, without options. Those exactly at its places
/// come first: with many others, the agent is there all the same.
fn mounts(all: Vec<wire::Mount>) -> Vec<wire::Mount> {
    let near = all.into_iter().filter(|mount| meets_agent(&mount.destination));
    let (own, others): (Vec<_>, Vec<_>) =
        near.partition(|mount| [BIN_DIR, RUN_DIR].contains(&mount.destination.as_str()));
    let kept = own.into_iter().chain(others).take(MOST_MOUNTS);
    kept.map(|mount| wire::Mount {
        destination: mount.destination,
        source: mount.source,
        ..wire::Mount::default()
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use lockstep_protocol::pods::IN_PLACE;

    use super::*;

    fn many(read: &str) -> HashMap<String, String> {
        let others = (0..1000).map(|number| number.to_string());
        let keys = others.chain([read.to_owned()]);
        keys.map(|key| (key, "30".to_owned())).collect()
    }

    #[test]
    fn what_nobody_reads_is_dropped() {
        let slim = pod(wire::PodSandbox {
            uid: "u".to_owned(),
            labels: many(IN_PLACE),
            annotations: many(IN_PLACE),
            ..wire::PodSandbox::default()
        });
        let kept = HashMap::from([(IN_PLACE.to_owned(), "30".to_owned())]);
        assert_eq!(
            (slim.uid.as_str(), &slim.labels, &slim.annotations),
            ("u", &kept, &kept)
        );

        let mount = |destination: &str| wire::Mount {
            destination: destination.to_owned(),
            options: vec!["ro".to_owned()],
            ..wire::Mount::default()
        };
        let mut slim = container(wire::Container {
            id: "c".to_owned(),
            env: vec!["A=B".to_owned(); 1000],
            labels: many("label"),
            annotations: many(TERMINATION_GRACE),
            args: ["wrapper", "-v", AGENT, "--", "python3"]
                .map(str::to_owned)
                .into(),
            mounts: (0..1000)
                .map(|number| mount(&format!("/data/{number}")))
                .chain((0..1000).map(|number| mount(&format!("/.lockstep/{number}"))))
                .chain([mount(BIN_DIR)])
                .collect(),
            status_message: "x".repeat(1000),
            linux: Some(wire::LinuxContainer {
                sysctl: many("kernel"),
                ..wire::LinuxContainer::default()
            }),
            ..wire::Container::default()
        });
        let mounts = std::mem::take(&mut slim.mounts);
        assert_eq!(mounts.len(), MOST_MOUNTS);
        assert_eq!(mounts[0].destination, BIN_DIR);
        let near = |mount: &wire::Mount| mount.options.is_empty() && meets_agent(&mount.destination);
        assert!(mounts.iter().all(near));
        let kept = wire::Container {
            id: "c".to_owned(),
            annotations: HashMap::from([(TERMINATION_GRACE.to_owned(), "30".to_owned())]),
            args: ["", AGENT].map(str::to_owned).into(),
            linux: Some(wire::LinuxContainer::default()),
            ..wire::Container::default()
        };
        assert_eq!(slim, kept);
    }

    #[test]
    fn it_stays_known_whether_a_container_has_args_and_the_agent() {
        let of = |args: &[&str]| {
            let all: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
            super::args(&all)
        };
        assert_eq!(of(&[]), [""; 0]);
        assert_eq!(of(&["python3", "train.py"]), [""]);
        assert_eq!(of(&[AGENT, "--", "python3"])[0], AGENT);
    }
}
