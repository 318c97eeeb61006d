//! Ray's resources with a real API server and Job controller, without nodes: pods are what a test says they are.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cluster;
#[expect(dead_code, reason = "shared with other tests")]
#[path = "../jobset_api/control_plane.rs"]
mod control_plane;
#[path = "../jobset_api/fixture.rs"]
mod fixture;
mod ray;
#[expect(dead_code, reason = "shared with other tests")]
#[path = "../jobset_api/scene.rs"]
mod scene;

use lockstep_integration::cluster::Spec;

fn main() -> std::process::ExitCode {
    let spec = Spec::api_server().with_controllers();
    fixture::run(cluster::cases(), spec, &["--ray"])
}
