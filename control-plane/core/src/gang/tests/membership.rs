//! The minimums of a gang, as a user meets them at admission.

use lockstep_api::{
    ExecutionPolicy, ExecutionPolicyOrder, Gang, GangBackend, GangReplicatedJob, JobSet,
    ReplicatedJobsStatus, annotations,
};
use proptest::prelude::*;

use super::model::part;
use crate::admission;
use crate::common::features::Features;
use crate::common::testing::{JobSetBuild, ReplicatedJobBuild, jobset};

/// A JobSet of `m` with 5 pods and, if named, `w` with 3.
fn set(names: &[&str], minimum: Option<i32>, listed: &[(&str, i32)]) -> JobSet {
    let parts = names.iter().map(|name| match *name {
        "m" => part("m", 1, 5, 1),
        other => part(other, 3, 1, 1),
    });
    let parts: Vec<_> = parts.collect();
    jobset(parts).with(|js| {
        js.spec.gang = Some(Gang {
            min_available: minimum,
            replicated_jobs: listed
                .iter()
                .map(|(name, minimum)| GangReplicatedJob {
                    name: (*name).to_owned(),
                    min_available: *minimum,
                })
                .collect(),
            ..Gang::default()
        });
    })
}

/// The stored minimums, or the refusal.
fn admitted(js: &JobSet) -> Result<(i32, Vec<(String, i32)>), String> {
    let mut js = js.clone();
    let stated = admission::validate_create(&js, &Features::default());
    admission::default(&mut js);
    let violations = admission::validate_create(&js, &Features::default());
    // Without webhooks the reconciler validates the user's spec: the verdict must be the same.
    assert_eq!(
        stated.is_empty(),
        violations.is_empty(),
        "{stated:?} {violations:?}"
    );
    match violations.first() {
        Some(violation) => Err(violation.to_string()),
        None => {
            let gang = js.spec.gang.unwrap();
            let listed = gang.replicated_jobs.into_iter();
            Ok((
                gang.min_available.unwrap(),
                listed.map(|entry| (entry.name, entry.min_available)).collect(),
            ))
        }
    }
}

fn listed(entries: &[(&str, i32)]) -> Vec<(String, i32)> {
    entries
        .iter()
        .map(|(name, minimum)| ((*name).to_owned(), *minimum))
        .collect()
}

#[test]
fn nothing_stated_means_a_minute_and_what_the_cluster_has() {
    let gang = set(&["m", "w"], None, &[]).spec.gang.unwrap();
    assert_eq!(gang.schedule_timeout_seconds(), 60);
    assert_eq!(gang.backend(), GangBackend::Auto);
}

#[test]
fn nothing_stated_means_all_pods() {
    assert_eq!(
        admitted(&set(&["m", "w"], None, &[])),
        Ok((8, listed(&[("m", 5), ("w", 3)])))
    );
}

#[test]
fn minimums_of_replicated_jobs_add_up() {
    let entries = [("m", 3), ("w", 2)];
    assert_eq!(
        admitted(&set(&["m", "w"], None, &entries)),
        Ok((5, listed(&entries)))
    );
    // A replicatedJob that is not listed starts with all its pods.
    assert_eq!(
        admitted(&set(&["m", "w"], None, &[("m", 3)])),
        Ok((6, listed(&[("m", 3), ("w", 3)])))
    );
}

#[test]
fn a_single_replicated_job_takes_the_minimum_of_the_jobset() {
    assert_eq!(admitted(&set(&["m"], Some(3), &[])), Ok((3, listed(&[("m", 3)]))));
}

#[test]
fn several_replicated_jobs_without_minimums_need_all_their_pods() {
    assert_eq!(admitted(&set(&["m", "w"], Some(8), &[])), Ok((8, Vec::new())));
    assert_eq!(
        admitted(&set(&["m", "w"], Some(5), &[])),
        Err(
            "spec.gang.minAvailable: Invalid value: 5: must be 8, the pods of all 2 replicatedJobs, unless \
             spec.gang.replicatedJobs states their minAvailable"
                .to_owned()
        )
    );
}

#[test]
fn the_minimum_of_the_jobset_is_the_sum_of_those_of_its_replicated_jobs() {
    let entries = [("m", 3), ("w", 2)];
    assert_eq!(
        admitted(&set(&["m", "w"], Some(5), &entries)),
        Ok((5, listed(&entries)))
    );
    assert_eq!(
        admitted(&set(&["m", "w"], Some(6), &entries)),
        Err("spec.gang.minAvailable: Invalid value: 6: must be 5, the sum of spec.gang.replicatedJobs[].minAvailable (a \
             replicatedJob that is not listed counts with all its pods)"
            .to_owned())
    );
}

#[test]
fn a_minimum_is_between_1_and_the_pods() {
    let refused = |js: JobSet| admitted(&js).unwrap_err();
    assert_eq!(
        refused(set(&["m", "w"], None, &[("m", 6)])),
        "spec.gang.replicatedJobs[0].minAvailable: Invalid value: 6: must be greater than 0 and not more than 5, the pods \
         (replicas x parallelism) of replicatedJob m"
    );
    assert!(refused(set(&["m"], None, &[("m", 0)])).contains("greater than 0"));
    assert!(refused(set(&["m"], Some(0), &[])).contains("spec.gang.minAvailable: Invalid value: 0"));
    assert!(refused(set(&["m"], Some(6), &[])).contains("not more than 5"));
    assert!(refused(set(&["m"], None, &[("x", 1)])).contains("must be the name of a replicatedJob"));
    assert!(refused(set(&["m"], None, &[("m", 1), ("m", 1)])).contains("unique"));
}

#[test]
fn jobsets_whose_replicated_jobs_wait_are_marked() {
    let marked = |mut js: JobSet| {
        admission::default(&mut js);
        js.metadata
            .annotations
            .unwrap_or_default()
            .get(annotations::DEPENDENT_JOB)
            .cloned()
    };
    let waits = set(&["m", "w"], None, &[]).with(|js| {
        js.spec.replicated_jobs[1] = js.spec.replicated_jobs[1].clone().depends_on("m", "Ready");
    });
    assert_eq!(marked(waits.clone()).as_deref(), Some("true"));
    let in_order = set(&["m", "w"], None, &[]).with(|js| {
        js.spec.execution_policy = Some(ExecutionPolicy {
            execution_policy_order: Some(ExecutionPolicyOrder::InOrder),
            replicated_jobs_status: Some(ReplicatedJobsStatus::Ready),
        });
    });
    assert_eq!(marked(in_order).as_deref(), Some("true"));
    assert_eq!(marked(set(&["m", "w"], None, &[])), None);
    assert_eq!(marked(waits.with(|js| js.spec.gang = None)), None);
}

#[test]
fn a_gang_changes_while_the_jobset_is_suspended_only() {
    let (old, new) = (set(&["m"], Some(3), &[]), set(&["m"], Some(2), &[]));
    let refused = |old: &JobSet, new: &JobSet| {
        let violations = admission::validate_update(old, new, &Features::default());
        violations.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let message = refused(&old, &new).concat();
    assert!(
        message.starts_with("spec.gang: Invalid value: {") && message.contains("\"minAvailable\":2"),
        "{message}"
    );
    assert!(
        message.ends_with("}: field is immutable unless the JobSet is suspended"),
        "{message}"
    );
    let suspended = (old.suspended(true), new.suspended(true));
    assert!(refused(&suspended.0, &suspended.1).is_empty());
    let wrong = set(&["m"], Some(9), &[]).suspended(true);
    assert_eq!(refused(&suspended.0, &wrong).len(), 1);
}

#[test]
fn the_order_in_which_a_gang_lists_its_replicated_jobs_means_nothing() {
    let update = |old: &JobSet, new: &JobSet| {
        let mut new = new.clone();
        admission::restate(old, &mut new);
        let violations = admission::validate_update(old, &new, &Features::default());
        let said: Vec<String> = violations.iter().map(ToString::to_string).collect();
        (said, new.spec.gang.unwrap().min_available)
    };
    let one = set(&["m", "w"], Some(5), &[("m", 3), ("w", 2)]);
    let other = set(&["m", "w"], Some(5), &[("w", 2), ("m", 3)]);
    assert_eq!(update(&one, &other), (Vec::new(), Some(5)));
    let swapped = set(&["m", "w"], Some(5), &[("w", 3), ("m", 2)]);
    assert_eq!(update(&one, &swapped).0.len(), 1);
}

/// As with `kubectl apply` of a manifest that sets one of the two: the other has a default.
#[test]
fn the_minimum_that_is_not_stated_follows_the_one_that_is_changed() {
    let changed = |old: JobSet, change: fn(&mut Gang)| {
        let mut old = old.suspended(true);
        admission::default(&mut old);
        let mut new = old.clone();
        change(new.spec.gang.as_mut().unwrap());
        admission::restate(&old, &mut new);
        admitted(&new)
    };
    let entry = |name: &str, min_available| GangReplicatedJob {
        name: name.to_owned(),
        min_available,
    };
    let of_m = |minimum| vec![("m".to_owned(), minimum)];
    let listed = changed(set(&["m"], None, &[("m", 4)]), |gang| {
        gang.replicated_jobs[0].min_available = 2;
    });
    assert_eq!(listed, Ok((2, of_m(2))));
    let whole = changed(set(&["m"], Some(4), &[]), |gang| gang.min_available = Some(2));
    assert_eq!(whole, Ok((2, of_m(2))));
    let no_more = changed(set(&["m"], None, &[("m", 4)]), |gang| {
        gang.min_available = None;
    });
    assert_eq!(no_more, Ok((4, of_m(4))));
    // The list is replaced as a whole. `w` was filled in before.
    let mut old = set(&["m", "w"], None, &[("m", 4)]).suspended(true);
    admission::default(&mut old);
    let mut new = old.clone();
    new.spec.gang.as_mut().unwrap().replicated_jobs = vec![entry("m", 2)];
    admission::restate(&old, &mut new);
    assert_eq!(
        admitted(&new),
        Ok((5, vec![("m".to_owned(), 2), ("w".to_owned(), 3)]))
    );
    // With several replicatedJobs the whole does not determine the parts.
    let whole = changed(set(&["m", "w"], None, &[("m", 4)]), |gang| {
        gang.min_available = Some(6);
    });
    assert!(whole.unwrap_err().contains("must be 7, the sum"));
    // A default may be removed, and the whole stays as set.
    let list_goes = changed(set(&["m"], Some(2), &[]), |gang| gang.replicated_jobs.clear());
    assert_eq!(list_goes, Ok((2, of_m(2))));
    let list_goes = changed(set(&["m", "w"], None, &[("m", 2)]), |gang| {
        gang.replicated_jobs.clear()
    });
    assert!(list_goes.unwrap_err().contains("must be"));
    // If both are set, both must agree.
    let both = changed(set(&["m"], None, &[("m", 4)]), |gang| {
        gang.min_available = Some(3);
        gang.replicated_jobs[0].min_available = 2;
    });
    assert!(both.unwrap_err().contains("must be 2, the sum"));
}

#[test]
fn a_replaced_minimum_is_a_warning() {
    let mut old = set(&["m"], Some(4), &[]).suspended(true);
    admission::default(&mut old);
    let mut stated = old.clone();
    stated.spec.gang.as_mut().unwrap().replicated_jobs[0].min_available = 2;
    let mut stored = stated.clone();
    admission::restate(&old, &mut stored);
    admission::default(&mut stored);
    assert_eq!(
        admission::restated(&stated, &stored),
        ["spec.gang.minAvailable: set to 2 instead of 4: the sum of the changed spec.gang.replicatedJobs"]
    );
    let mut again = stored.clone();
    again.spec.gang.as_mut().unwrap().min_available = Some(4);
    let mut after = again.clone();
    admission::restate(&stored, &mut after);
    admission::default(&mut after);
    assert_eq!(
        admission::restated(&again, &after),
        [
            "spec.gang.replicatedJobs[0].minAvailable: set to 4 instead of 2: spec.gang.minAvailable was changed"
        ]
    );
    assert!(admission::restated(&after, &after).is_empty());
}

proptest! {
    /// An admitted gang has one meaning: the parts add up to the whole, and none exceeds its pods.
    #[test]
    fn what_is_admitted_adds_up(
        minimum in prop::option::of(-1_i32..10),
        m in prop::option::of(-1_i32..7),
        w in prop::option::of(-1_i32..5),
        both in any::<bool>(),
    ) {
        let names: &[&str] = if both { &["m", "w"] } else { &["m"] };
        let mut entries = Vec::new();
        entries.extend(m.map(|m| ("m", m)));
        entries.extend(w.filter(|_| both).map(|w| ("w", w)));
        let js = set(names, minimum, &entries);
        if let Ok((total, _)) = admitted(&js) {
            let gang = js.spec.gang.as_ref().unwrap();
            let minimums = gang.minimums(&js.spec.replicated_jobs);
            prop_assert_eq!(minimums.values().sum::<i32>(), total);
            for job in &js.spec.replicated_jobs {
                let minimum = minimums[job.name.as_str()];
                prop_assert!(0 < minimum && minimum <= job.pods());
            }
        }
    }
}
