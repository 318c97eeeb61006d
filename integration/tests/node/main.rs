//! What must hold on a real node: JobSets under a real kubelet and containerd, with the product
//! installed by its chart.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod changed;
mod chaos;
mod climb;
mod completion;
mod containers;
#[expect(dead_code, reason = "shared with other tests")]
#[path = "../jobset_api/control_plane.rs"]
mod control_plane;
mod crashes;
mod deadlines;
mod debug;
mod demo;
mod flood;
mod flow_schemas;
mod gang;
mod heartbeat;
mod identity;
mod input;
mod intruder;
mod kueue;
mod large_environments;
mod leftovers;
mod lost;
mod machine;
mod memory;
mod nodes;
mod orders;
mod pods;
mod ray;
mod replicas;
mod restart;
mod scope;
mod standby;
#[path = "../support/mod.rs"]
mod support;
mod templates;
mod tenant;
mod trees;
mod uninstall;
mod upgrade;
mod upstream;
mod without_nri;

use support::Suite;

fn main() -> std::process::ExitCode {
    let one_node = [
        restart::cases(),
        scope::cases(),
        trees::cases(),
        debug::cases(),
        leftovers::cases(),
        completion::cases(),
        pods::cases(),
        templates::cases(),
        climb::cases(),
        deadlines::cases(),
        demo::cases(),
        heartbeat::cases(),
        standby::cases(),
        identity::cases(),
        input::cases(),
        intruder::cases(),
        orders::cases(),
        crashes::cases(),
        containers::cases(),
        changed::cases(),
        memory::cases(),
        flood::cases(),
        flow_schemas::cases(),
        chaos::cases(),
        gang::cases(),
        ray::cases(),
        uninstall::cases(),
        upgrade::cases(),
        upstream::cases(),
        without_nri::cases(),
        large_environments::cases(),
        kueue::cases(),
        machine::cases(),
    ];
    let three_nodes = [
        nodes::cases(),
        lost::cases(),
        chaos::cases_of_three_nodes(),
        replicas::cases(),
    ];
    let mut suites = vec![
        Suite {
            nodes: 1,
            soon_lost: false,
            cases: one_node.into_iter().flatten().collect(),
        },
        Suite {
            nodes: 3,
            soon_lost: true,
            cases: three_nodes.into_iter().flatten().collect(),
        },
    ];
    let two_nodes = tenant::cases();
    if !two_nodes.is_empty() {
        suites.push(Suite {
            nodes: 2,
            // A busy API server is late to hear of nodes.
            soon_lost: false,
            cases: two_nodes,
        });
    }
    support::run(suites)
}
