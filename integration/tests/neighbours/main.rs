//! Real Kueue, Kubeflow Trainer with its Python SDK, and Prometheus beside the control plane, on
//! hollow nodes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[expect(dead_code, reason = "shared with other tests")]
#[path = "../jobset_api/control_plane.rs"]
mod control_plane;
#[path = "../ray/dashboard.rs"]
mod dashboard;
#[path = "../jobset_api/fixture.rs"]
mod fixture;
mod kueue;
mod prometheus;
mod queue;
#[expect(dead_code, reason = "shared with other tests")]
#[path = "../ray/ray.rs"]
mod ray;
mod ray_jobs;
#[expect(dead_code, reason = "shared with other tests")]
#[path = "../jobset_api/scene.rs"]
mod scene;
mod topology;
mod trainer;

use lockstep_integration::cluster::{Neighbour, Spec};

fn main() -> std::process::ExitCode {
    let cases = [
        kueue::cases(),
        topology::cases(),
        ray_jobs::cases(),
        trainer::cases(),
        prometheus::cases(),
    ];
    let dashboard = dashboard::start().expect("a stub of Ray's dashboard").to_string();
    let spec = Spec::api_server().with_controllers().with_scheduler();
    fixture::run(
        cases.into_iter().flatten().collect(),
        spec,
        &["--ray", "--ray-dashboard-proxy", &dashboard],
        &[Neighbour::Kueue, Neighbour::Trainer],
    )
}
