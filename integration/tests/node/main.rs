//! What must hold on a real node: JobSets under a real kubelet and containerd, with the product installed by its chart.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod chaos;
mod completion;
mod containers;
mod crashes;
mod deadlines;
mod flood;
mod heartbeat;
mod input;
mod memory;
mod orders;
mod pods;
mod restart;
#[path = "../support/mod.rs"]
mod support;
mod templates;
mod trees;
mod without_nri;

fn main() -> std::process::ExitCode {
    let cases = [
        restart::cases(),
        trees::cases(),
        completion::cases(),
        pods::cases(),
        templates::cases(),
        deadlines::cases(),
        heartbeat::cases(),
        input::cases(),
        orders::cases(),
        crashes::cases(),
        containers::cases(),
        memory::cases(),
        flood::cases(),
        chaos::cases(),
        without_nri::cases(),
    ];
    support::run(cases.into_iter().flatten().collect())
}
