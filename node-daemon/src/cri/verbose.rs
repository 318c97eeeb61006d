//! How a container was created, from containerd's verbose status, an extension of CRI: the OCI
//! specification, as NRI would show it.

use std::collections::HashMap;

use serde::Deserialize;

use crate::nri::inject::{Container, PidNamespace};
use crate::worker::types::ContainerId;

/// The entry of the verbose status that holds it.
const INFO: &str = "info";
/// Longest one that is read, in bytes: most of it is the environment.
const MAX_SPEC: usize = 4 << 20;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Info {
    runtime_spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    process: Process,
    #[serde(default)]
    mounts: Vec<Mount>,
    linux: Linux,
}

#[derive(Deserialize)]
struct Process {
    #[serde(default)]
    args: Vec<String>,
}

#[derive(Deserialize)]
struct Mount {
    destination: String,
}

#[derive(Deserialize)]
struct Linux {
    #[serde(default)]
    namespaces: Vec<Namespace>,
}

#[derive(Deserialize)]
struct Namespace {
    r#type: String,
    #[serde(default)]
    path: String,
}

/// The container, if its runtime reports how it was created.
pub(super) fn container(
    id: ContainerId,
    name: String,
    answer: &HashMap<String, String>,
) -> Option<Container> {
    let text = answer.get(INFO).filter(|text| text.len() <= MAX_SPEC)?;
    let Spec {
        process,
        mounts,
        linux,
    } = serde_json::from_str::<Info>(text).ok()?.runtime_spec;
    let mut namespaces = linux.namespaces.iter();
    let own = namespaces.any(|namespace| namespace.r#type == "pid" && namespace.path.is_empty());
    Some(Container {
        id,
        name,
        args: process.args,
        mounts: mounts.into_iter().map(|mount| mount.destination).collect(),
        pid_namespace: if own {
            PidNamespace::Own
        } else {
            PidNamespace::Shared
        },
        termination_grace: None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Option<Container> {
        let answer = HashMap::from([(INFO.to_owned(), text.to_owned())]);
        container("c".into(), "worker".to_owned(), &answer)
    }

    #[test]
    fn a_container_is_read_as_it_was_created() {
        let made = read(
            r#"{"pid": 7, "runtimeSpec": {
                "process": {"args": ["sh", "-c", "run"], "env": ["A=1"]},
                "mounts": [{"destination": "/proc", "type": "proc"}],
                "linux": {"namespaces": [{"type": "ipc", "path": "/proc/1/ns/ipc"}, {"type": "pid"}]}
            }}"#,
        );
        let made = made.unwrap();
        assert_eq!(made.args, ["sh", "-c", "run"]);
        assert_eq!(made.mounts, ["/proc"]);
        assert_eq!(made.pid_namespace, PidNamespace::Own);
        let shared = read(
            r#"{"runtimeSpec": {"process": {}, "linux": {"namespaces": [{"type": "pid", "path": "/proc/1/ns/pid"}]}}}"#,
        );
        assert_eq!(shared.unwrap().pid_namespace, PidNamespace::Shared);
    }

    #[test]
    fn missing_fields_are_unknown() {
        assert_eq!(container("c".into(), "worker".to_owned(), &HashMap::new()), None);
        assert_eq!(read("{}"), None);
        assert_eq!(read(r#"{"runtimeSpec": null}"#), None);
        let long = format!("{}{{}}", " ".repeat(MAX_SPEC));
        assert_eq!(read(&long), None);
    }

    proptest! {
        #[test]
        fn any_text_is_a_container_or_none(text in ".{0,200}") {
            let _ = read(&text);
        }
    }
}
