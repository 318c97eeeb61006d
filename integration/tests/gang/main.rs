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
    fixture::run(cases.into_iter().flatten().collect(), spec, &["--ray"])
}
