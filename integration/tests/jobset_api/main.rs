//! The control plane against a real API server and a real Job controller, without nodes: pods are what a test says they are.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod control_plane;
mod fixture;
mod in_place;
mod invalid;
mod lifecycle;
mod restarts;
mod scene;
mod takeover;

fn main() -> std::process::ExitCode {
    let cases = [
        lifecycle::cases(),
        restarts::cases(),
        invalid::cases(),
        in_place::cases(),
        takeover::cases(),
    ];
    fixture::run(cases.into_iter().flatten().collect())
}
