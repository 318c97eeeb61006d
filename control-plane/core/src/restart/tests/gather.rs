//! What is made of Jobs.

use std::sync::Arc;

use lockstep_api::{RestartStrategy, annotations};

use crate::features::Features;
use crate::in_place::Agents;
use crate::jobset::Jobs;
use crate::restart::{Rung, gather};
use crate::testing::{JobSetBuild, jobset, replicated_job};

#[test]
fn workers_restart_as_their_pods_were_made_whatever_the_jobset_says_now() {
    let supervised = jobset([replicated_job("a", 2)]).restarting(RestartStrategy::InPlaceRestart, 3);
    let plain = supervised.clone().annotated(annotations::SUPERVISE, "none");
    for (made_as, now, rung) in [
        (&supervised, &plain, Rung::Process),
        (&plain, &supervised, Rung::Container),
    ] {
        let jobs = Jobs::new(made_as, Features::default(), &Agents::ByNode);
        // The second Job is still to be made.
        let job = Arc::new(jobs.make(&made_as.spec.replicated_jobs[0], 0));
        let workers = gather(now, &[job], [], 0).workers;
        let rungs: Vec<Rung> = workers.values().map(|worker| worker.rung).collect();
        assert_eq!(rungs, [rung; 2]);
    }
}
