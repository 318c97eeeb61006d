//! Gang start with a real API server, Job controller and kube-scheduler, on hollow nodes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[expect(dead_code, reason = "shared with other tests")]
#[path = "../jobset_api/control_plane.rs"]
mod control_plane;
mod cordon;
mod crowd;
mod ended;
mod exclusive;
#[path = "../jobset_api/fixture.rs"]
mod fixture;
mod in_order;
mod job_groups;
mod one_by_one;
mod optional;
mod pool;
mod promise;
mod ray;
#[expect(dead_code, reason = "shared with other tests")]
#[path = "../jobset_api/scene.rs"]
mod scene;
mod stages;
mod start;
mod told;
mod watcher;
mod webhooks;

use lockstep_integration::cluster::Spec;
use lockstep_integration::tools::catalog;

/// Parts of the names of cases that need PodGroups.
const WITH_POD_GROUPS: [&str; 4] = [
    "pod_group",
    "one_by_one::",
    "exclusive::",
    "a_resumed_gang_names_the_pod",
];

/// True if the cluster's Kubernetes has what a case needs. PodGroups came with 1.36. The Job
/// controller makes groups for Jobs of a JobSet in 1.36 only.
fn can_run(case: &fixture::Case) -> bool {
    let needs_groups = WITH_POD_GROUPS.iter().any(|part| case.name.contains(part));
    let of_job_controller = case.name.contains("job_groups::");
    if of_job_controller {
        catalog::is_at_least(36) && !catalog::is_at_least(37)
    } else {
        !needs_groups || catalog::is_at_least(36)
    }
}

fn main() -> std::process::ExitCode {
    let cases = [
        start::cases(),
        optional::cases(),
        stages::cases(),
        promise::cases(),
        ended::cases(),
        exclusive::cases(),
        told::cases(),
        job_groups::cases(),
        crowd::cases(),
        one_by_one::cases(),
        ray::cases(),
    ];
    let spec = Spec::api_server().with_controllers().with_scheduler();
    let cases = cases.into_iter().flatten().filter(can_run);
    fixture::run(cases.collect(), spec, &["--ray"], &[])
}
