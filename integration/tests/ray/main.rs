//! Ray's resources with a real API server and Job controller, without nodes: the tests write the
//! status of pods.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admission;
mod cluster;
mod complaints;
#[expect(dead_code, reason = "shared with other tests")]
#[path = "../jobset_api/control_plane.rs"]
mod control_plane;
mod cron;
mod dashboard;
mod definitions;
mod faults;
#[path = "../jobset_api/fixture.rs"]
mod fixture;
mod job;
mod kueue;
mod permissions;
mod ray;
mod samples;
#[expect(dead_code, reason = "shared with other tests")]
#[path = "../jobset_api/scene.rs"]
mod scene;
mod submitters;
mod transitions;
mod unsupported;
mod webhooks;

use lockstep_integration::cluster::Spec;

fn main() -> std::process::ExitCode {
    let spec = Spec::api_server().with_controllers().brisk();
    let dashboard = dashboard::start().expect("a stub of Ray's dashboard").to_string();
    let cases = [
        cluster::cases(),
        job::cases(),
        transitions::cases(),
        submitters::cases(),
        unsupported::cases(),
        complaints::cases(),
        faults::cases(),
        samples::cases(),
        kueue::cases(),
        definitions::cases(),
        cron::cases(),
        admission::cases(),
        permissions::cases(),
    ];
    let flags = ["--ray", "--ray-dashboard-proxy", &dashboard];
    fixture::run(cases.into_iter().flatten().collect(), spec, &flags, &[])
}
