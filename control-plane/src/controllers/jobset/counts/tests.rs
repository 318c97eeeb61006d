use lockstep_api::TerminalState;
use lockstep_core::jobset::plan::{Event, Severity};

use super::*;

fn counted(active: i32) -> JobSetStatus {
    JobSetStatus {
        replicated_jobs_status: vec![ReplicatedJobStatus {
            name: "workers".to_owned(),
            active,
            ..ReplicatedJobStatus::default()
        }],
        ..JobSetStatus::default()
    }
}

fn plan(status: JobSetStatus) -> Plan {
    Plan {
        status: Some(Box::new(status)),
        ..Plan::default()
    }
}

fn jobset(status: Option<JobSetStatus>) -> JobSet {
    JobSet {
        status,
        ..JobSet::default()
    }
}

fn key() -> ObjectRef<JobSet> {
    ObjectRef::new("js").within("ns")
}

#[tokio::test(start_paused = true)]
async fn counts_wait_for_more_of_them_but_not_for_long() {
    let (counts, jobset) = (Counts::default(), jobset(None));
    let mut first = plan(counted(1));
    assert_eq!(counts.hold_back(&key(), &jobset, &mut first), Some(HELD));
    assert!(first.is_empty());

    tokio::time::advance(HELD / 2).await;
    let mut second = plan(counted(2));
    assert_eq!(counts.hold_back(&key(), &jobset, &mut second), Some(HELD / 2));

    tokio::time::advance(HELD / 2).await;
    let mut third = plan(counted(4));
    assert_eq!(counts.hold_back(&key(), &jobset, &mut third), None);
    assert_eq!(third, plan(counted(4)));

    // A later change starts a new wait.
    let mut later = plan(counted(3));
    assert_eq!(counts.hold_back(&key(), &jobset, &mut later), Some(HELD));
}

#[tokio::test(start_paused = true)]
async fn what_is_more_than_counts_is_written_at_once_and_takes_them_along() {
    let before = counted(1);
    let restarted = JobSetStatus {
        restarts: 1,
        ..counted(0)
    };
    let mut job_restarted = counted(0);
    job_restarted.replicated_jobs_status[0].job_restarts = vec![1];
    let event = Event {
        severity: Severity::Normal,
        reason: "News".to_owned(),
        message: String::new(),
    };
    let with_event = Plan {
        events: vec![event],
        ..plan(counted(0))
    };
    let finished = Plan {
        finished: Some(TerminalState::Failed),
        ..plan(counted(0))
    };
    for whole in [plan(restarted), plan(job_restarted), with_event, finished] {
        let (counts, jobset) = (Counts::default(), jobset(Some(before.clone())));
        counts.hold_back(&key(), &jobset, &mut plan(counted(0)));
        let mut kept = whole.clone();
        assert_eq!(counts.hold_back(&key(), &jobset, &mut kept), None, "{whole:?}");
        assert_eq!(kept, whole);
        // Nothing is left of the wait.
        let again = counts.hold_back(&key(), &jobset, &mut plan(counted(0)));
        assert_eq!(again, Some(HELD));
    }
}
