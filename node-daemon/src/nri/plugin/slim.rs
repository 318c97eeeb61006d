//! Pods and containers without what is not read. All of a node are gathered before they are taken
//! in, and a tenant's pod may have megabytes of environment, or thousands of annotations.

use std::collections::HashMap;

use lockstep_proto::nri::v1alpha1 as wire;
use lockstep_protocol::pods::{AGENT, READ_OF_PODS};

use crate::nri::convert::TERMINATION_GRACE;

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

/// The container, which was created before, without environment, labels and hooks, and with only
/// the annotation that is read. Of its args it keeps the first one, and one that names the agent.
pub(super) fn container(container: wire::Container) -> wire::Container {
    let mut args = container.args.into_iter();
    let first = args.next();
    let agent = args.find(|arg| arg.contains(AGENT));
    wire::Container {
        args: first.into_iter().chain(agent).collect(),
        env: Vec::new(),
        labels: HashMap::new(),
        annotations: only(container.annotations, &[TERMINATION_GRACE]),
        hooks: None,
        ..container
    }
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

        let slim = container(wire::Container {
            id: "c".to_owned(),
            env: vec!["A=B".to_owned(); 1000],
            labels: many("label"),
            annotations: many(TERMINATION_GRACE),
            args: ["wrapper", "-v", AGENT, "--", "python3"]
                .map(str::to_owned)
                .into(),
            ..wire::Container::default()
        });
        let kept = wire::Container {
            id: "c".to_owned(),
            annotations: HashMap::from([(TERMINATION_GRACE.to_owned(), "30".to_owned())]),
            args: ["wrapper", AGENT].map(str::to_owned).into(),
            ..wire::Container::default()
        };
        assert_eq!(slim, kept);
    }
}
