//! The control plane against a real API server and a real Job controller, without nodes: the tests
//! write the status of pods.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod agents;
mod alpha;
mod bounds;
mod cli;
mod clients;
mod conditions;
mod control_plane;
mod epochs;
mod examples;
mod execution_policy;
mod failover;
mod faults;
mod fields;
mod finished;
mod fixture;
mod gangs;
mod identity;
mod in_place;
mod invalid;
mod lifecycle;
mod neighbours;
mod operations;
mod order;
mod patterns;
mod placement;
mod platform;
mod pods;
mod policies;
mod proxy;
mod restarts;
mod restored;
mod scene;
mod takeover;
mod told;
mod upgrade;
mod valkey;
mod webhooks;

use lockstep_integration::cluster::Spec;
use lockstep_integration::tools::catalog;

fn main() -> std::process::ExitCode {
    let cases = [
        agents::cases(),
        alpha::cases(),
        bounds::cases(),
        cli::cases(),
        clients::cases(),
        conditions::cases(),
        examples::cases(),
        execution_policy::cases(),
        failover::cases(),
        faults::cases(),
        fields::cases(),
        finished::cases(),
        gangs::cases(),
        identity::cases(),
        lifecycle::cases(),
        neighbours::cases(),
        operations::cases(),
        order::cases(),
        patterns::cases(),
        placement::cases(),
        epochs::cases(),
        pods::cases(),
        platform::cases(),
        policies::cases(),
        restarts::cases(),
        restored::cases(),
        invalid::cases(),
        in_place::cases(),
        takeover::cases(),
        told::cases(),
        upgrade::cases(),
        valkey::cases(),
        webhooks::cases(),
    ];
    let spec = Spec::api_server().with_controllers().brisk();
    // Kubernetes changes resources of suspended Jobs from 1.36 on.
    let can_run = |case: &fixture::Case| {
        catalog::is_at_least(36) || !case.name.contains("resources_change_while_suspended")
    };
    let cases = cases.into_iter().flatten().filter(can_run);
    fixture::run(cases.collect(), spec, &[], &[])
}
