//! Recognises pods of JobSets that restart in place, by their labels and annotations. NRI and CRI
//! show the same maps.

use std::collections::{BTreeSet, HashMap};

use lockstep_protocol::pods::{
    BATCH_JOB_COMPLETION_INDEX, BATCH_JOB_NAME, IN_PLACE, IN_PLACE_PLAIN, IN_PLACE_SUPERVISED, JOBSET_UID,
    STANDBY, STOP_WITHOUT_AGENT, SUPERVISE, Standby,
};

use crate::worker::types::{Pod, PodUid};

/// Longest valid value of a label, in bytes. An annotation may be a thousand times as long.
const MAX_LABEL: usize = 63;
/// Longest valid list of containers, in bytes.
const MAX_LIST: usize = 16 << 10;

/// How a pod restarts in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InPlacePod {
    /// With an agent in its workers.
    Supervised(Pod),
    /// By its containers.
    Plain(Pod),
}

/// Why a pod that asks for supervision does not get it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAWorker {
    /// A label is missing.
    #[error("it has no label or annotation {0}")]
    Missing(&'static str),
    /// The control plane would not have written this value.
    #[error("its {0} is longer than allowed")]
    TooLong(&'static str),
    /// The completion index is not a number.
    #[error("its {BATCH_JOB_COMPLETION_INDEX} is not a number")]
    BadIndex,
}

/// Metadata of a pod sandbox.
pub struct Metadata<'a> {
    /// UID of the pod.
    pub uid: &'a str,
    /// Namespace.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
    /// Labels.
    pub labels: &'a HashMap<String, String>,
    /// Annotations.
    pub annotations: &'a HashMap<String, String>,
}

/// The pod, if it belongs to a JobSet that restarts in place. `Ok(None)` if it does not ask for
/// that.
///
/// # Errors
/// When it asks for that but lacks an identity: its agent could never be released.
pub fn recognise(metadata: &Metadata<'_>) -> Result<Option<InPlacePod>, NotAWorker> {
    let marked = match metadata.annotations.get(IN_PLACE).map(String::as_str) {
        Some(IN_PLACE_SUPERVISED) => InPlacePod::Supervised,
        Some(IN_PLACE_PLAIN) => InPlacePod::Plain,
        _ => return Ok(None),
    };
    let find = |key: &'static str| {
        metadata
            .labels
            .get(key)
            .or_else(|| metadata.annotations.get(key))
            .filter(|value| !value.is_empty())
            .ok_or(NotAWorker::Missing(key))
    };
    let find = |key: &'static str| {
        let max = if key == SUPERVISE { MAX_LIST } else { MAX_LABEL };
        let value = find(key)?;
        (value.len() <= max)
            .then_some(value)
            .ok_or(NotAWorker::TooLong(key))
    };
    // An unknown value asks for nothing.
    let standby = metadata.annotations.get(STANDBY);
    let standby = standby.and_then(|value| Standby::from_value(value));
    let stoppable = metadata.annotations.get(STOP_WITHOUT_AGENT);
    let index = find(BATCH_JOB_COMPLETION_INDEX)?;
    let supervised: BTreeSet<String> = find(SUPERVISE)?
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    Ok(Some(marked(Pod {
        uid: PodUid::from(metadata.uid),
        namespace: metadata.namespace.to_owned(),
        name: metadata.name.to_owned(),
        group: find(JOBSET_UID)?.as_str().into(),
        job: find(BATCH_JOB_NAME)?.clone(),
        index: index.parse().map_err(|_| NotAWorker::BadIndex)?,
        supervised,
        started_again: stoppable.is_some_and(|value| value == "true"),
        standby: standby.unwrap_or_default(),
    })))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn recognised(
        labels: &[(&str, &str)],
        annotations: &[(&str, &str)],
    ) -> Result<Option<InPlacePod>, NotAWorker> {
        recognise(&Metadata {
            uid: "u",
            namespace: "default",
            name: "pod",
            labels: &map(labels),
            annotations: &map(annotations),
        })
    }

    const ASKS: [(&str, &str); 2] = [(IN_PLACE, IN_PLACE_SUPERVISED), (SUPERVISE, "worker, other")];

    #[test]
    fn a_worker_pod_is_recognised_by_labels_or_annotations() {
        let identity = [
            (JOBSET_UID, "g"),
            (BATCH_JOB_NAME, "job"),
            (BATCH_JOB_COMPLETION_INDEX, "3"),
        ];
        let Some(InPlacePod::Supervised(pod)) = recognised(&identity, &ASKS).unwrap() else {
            panic!("not supervised")
        };
        assert_eq!((pod.group.as_str(), pod.job.as_str(), pod.index), ("g", "job", 3));
        assert_eq!(
            pod.supervised,
            BTreeSet::from(["worker".to_owned(), "other".to_owned()])
        );
        assert!(!pod.started_again);
        let again = [ASKS[0], ASKS[1], (STOP_WITHOUT_AGENT, "true")];
        let Some(InPlacePod::Supervised(again)) = recognised(&identity, &again).unwrap() else {
            panic!("not supervised")
        };
        assert!(again.started_again);
        let annotations: Vec<_> = identity.into_iter().chain(ASKS).collect();
        assert_eq!(
            recognised(&[], &annotations),
            Ok(Some(InPlacePod::Supervised(pod.clone())))
        );
        let plain = [(IN_PLACE, IN_PLACE_PLAIN), ASKS[1]];
        assert_eq!(recognised(&identity, &plain), Ok(Some(InPlacePod::Plain(pod))));
    }

    #[test]
    fn standbys_are_for_pods_that_ask_for_what_is_known() {
        let long = "python,".repeat(1 << 16);
        for (value, expected) in [
            (Some("python"), Standby::Python),
            (Some("program"), Standby::Program),
            (None, Standby::Nothing),
            (Some("none"), Standby::Nothing),
            (Some(""), Standby::Nothing),
            (Some("Python"), Standby::Nothing),
            (Some("python,program"), Standby::Nothing),
            (Some(long.as_str()), Standby::Nothing),
        ] {
            let mut annotations = ASKS.to_vec();
            annotations.extend([
                (JOBSET_UID, "g"),
                (BATCH_JOB_NAME, "job"),
                (BATCH_JOB_COMPLETION_INDEX, "3"),
            ]);
            annotations.extend(value.map(|value| (STANDBY, value)));
            let Some(InPlacePod::Supervised(pod)) = recognised(&[], &annotations).unwrap() else {
                panic!("not supervised")
            };
            assert_eq!(pod.standby, expected, "{value:.20?}");
        }
        // A label is not what the control plane writes.
        let labels = [
            (JOBSET_UID, "g"),
            (BATCH_JOB_NAME, "job"),
            (BATCH_JOB_COMPLETION_INDEX, "3"),
            (STANDBY, Standby::Python.as_str()),
        ];
        let Some(InPlacePod::Supervised(pod)) = recognised(&labels, &ASKS).unwrap() else {
            panic!("not supervised")
        };
        assert_eq!(pod.standby, Standby::Nothing);
    }

    #[test]
    fn other_pods_are_ignored() {
        assert_eq!(recognised(&[], &[]), Ok(None));
        assert_eq!(recognised(&[], &[(IN_PLACE, "otherwise")]), Ok(None));
    }

    #[test]
    fn values_over_the_limit_are_refused() {
        let long = "x".repeat(MAX_LABEL + 1);
        for key in [JOBSET_UID, BATCH_JOB_NAME, BATCH_JOB_COMPLETION_INDEX] {
            let mut annotations = ASKS.to_vec();
            annotations.extend([
                (JOBSET_UID, "g"),
                (BATCH_JOB_NAME, "job"),
                (BATCH_JOB_COMPLETION_INDEX, "3"),
            ]);
            annotations.retain(|(other, _)| *other != key);
            annotations.push((key, &long));
            assert_eq!(recognised(&[], &annotations), Err(NotAWorker::TooLong(key)));
        }
        let many = "worker,".repeat(MAX_LIST);
        let identity = [
            (JOBSET_UID, "g"),
            (BATCH_JOB_NAME, "job"),
            (BATCH_JOB_COMPLETION_INDEX, "3"),
        ];
        let annotations = [(IN_PLACE, IN_PLACE_SUPERVISED), (SUPERVISE, many.as_str())];
        assert_eq!(
            recognised(&identity, &annotations),
            Err(NotAWorker::TooLong(SUPERVISE))
        );
    }

    #[test]
    fn a_pod_without_identity_is_refused() {
        assert_eq!(
            recognised(&[], &ASKS),
            Err(NotAWorker::Missing(BATCH_JOB_COMPLETION_INDEX))
        );
        let labels = [
            (JOBSET_UID, "g"),
            (BATCH_JOB_NAME, "job"),
            (BATCH_JOB_COMPLETION_INDEX, "x"),
        ];
        assert_eq!(recognised(&labels, &ASKS), Err(NotAWorker::BadIndex));
        let labels = [(BATCH_JOB_NAME, "job"), (BATCH_JOB_COMPLETION_INDEX, "1")];
        assert_eq!(recognised(&labels, &ASKS), Err(NotAWorker::Missing(JOBSET_UID)));
    }

    proptest! {
        /// Any creator of pods may write any label and annotation.
        #[test]
        fn any_label_is_taken_as_it_is_or_refused(
            values in prop::array::uniform4(prop_oneof!["[a-z0-9-]{0,70}", "[0-9+-]{0,12}", ".{0,70}", Just("x,".repeat(20_000))]),
            kind in prop::sample::select(vec![IN_PLACE_SUPERVISED, IN_PLACE_PLAIN, "", "other"]),
            left_out in 0..6_usize,
        ) {
            let keys = [JOBSET_UID, BATCH_JOB_NAME, BATCH_JOB_COMPLETION_INDEX, SUPERVISE];
            let mut annotations: Vec<(&str, &str)> = keys.into_iter().zip(values.iter().map(String::as_str)).collect();
            if left_out < annotations.len() {
                annotations.remove(left_out);
            }
            annotations.push((IN_PLACE, kind));
            match recognised(&[], &annotations) {
                Ok(Some(InPlacePod::Supervised(pod) | InPlacePod::Plain(pod))) => {
                    prop_assert!(pod.group.as_str() == values[0] && pod.job == values[1]);
                    prop_assert_eq!(Ok(pod.index), values[2].parse());
                    prop_assert!(pod.supervised.iter().map(String::len).sum::<usize>() <= MAX_LIST);
                }
                Ok(None) => prop_assert!(![IN_PLACE_SUPERVISED, IN_PLACE_PLAIN].contains(&kind)),
                Err(error) => prop_assert!(error.to_string().len() < 1000, "{}", error),
            }
        }
    }
}
