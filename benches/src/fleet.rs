//! The simulated nodes, all in this process. Each has the daemon's own link
//! ([`lockstep_node_daemon::hub_link`]) with its own connection and token, the daemon's own table
//! of workers, and simulated workers. Only containerd and the agents' sockets are left out.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use lockstep_node_daemon::hub_link::{self, Hub};
use lockstep_node_daemon::worker::driver::{Driver, Handle, Host};
use lockstep_node_daemon::worker::facts::{HostKill, Input};
use lockstep_node_daemon::worker::state::Table;
use lockstep_node_daemon::worker::types::{ContainerId, Pod, PodUid, Standby};
use tokio::sync::{Notify, watch};

use crate::message::{BenchEvent, Order, orders, say};
use crate::tally::Tally;
use crate::worker::{Orders, Worker, WorkerContainer};
use crate::{names, token};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder with the CA and the tokens
    #[arg(long)]
    dir: PathBuf,
    /// Port of the hub on the loopback interface
    #[arg(long)]
    port: u16,
    #[arg(long)]
    nodes: usize,
    /// Workers of each node
    #[arg(long)]
    each: usize,
    #[arg(long, default_value_t = 1)]
    groups: usize,
    /// Workers of each group [default: all workers]
    #[arg(long)]
    group_size: Option<usize>,
}

/// A host without processes to kill and without sockets of agents.
pub(crate) struct NoHost;

impl Host for NoHost {
    fn kill(&self, _: HostKill) {}

    fn spare(&self, _: &ContainerId) {}
    fn pod_known(&self, _: &PodUid) {}
    fn pod_gone(&self, _: &PodUid) {}
}

pub(crate) async fn run(args: Args) -> Result<()> {
    let size = args.group_size.unwrap_or(args.nodes * args.each);
    let tallies: Vec<_> = (0..args.groups)
        .map(|group| Arc::new(Tally::new(group, size, say)))
        .collect();
    let mut failures = Vec::new();
    let steps = watch::Sender::new(false);
    for node in 0..args.nodes {
        let (driver, handle) = Driver::new(Table::new(1));
        tokio::spawn(driver.run(NoHost));
        for worker in node * args.each..(node + 1) * args.each {
            // Workers that do not fill a group are left out.
            if let Some(tally) = tallies.get(worker / size) {
                let steps = steps.subscribe();
                failures.push(start(&handle, worker, worker % size, tally, steps).await?);
            }
        }
        let hub = hub(&args.dir, args.port, node);
        tokio::spawn(async move { Box::pin(hub_link::serve(&hub, &handle)).await });
    }
    say(BenchEvent::Ready);
    let mut orders = orders();
    while let Some(order) = orders.recv().await {
        match order {
            Order::Fail { worker } => {
                if let Some(failure) = failures.get(worker) {
                    failure.notify_one();
                }
            }
            Order::Steps => drop(steps.send_replace(true)),
            Order::Count => tallies.iter().for_each(|tally| tally.report_messages()),
            _ => {}
        }
    }
    Ok(())
}

fn hub(dir: &Path, port: u16, node: usize) -> Hub {
    Hub {
        address: format!("https://127.0.0.1:{port}"),
        ca_file: dir.join("ca.crt"),
        server_name: lockstep_control_plane::net::tls::SERVER_NAME.to_owned(),
        token_file: token::file(dir, node),
        boot_id: names::pod_uid(node),
    }
}

/// Starts a worker on the node. Returns a handle that makes it fail.
async fn start(
    handle: &Handle,
    worker: usize,
    index: usize,
    tally: &Arc<Tally>,
    steps: watch::Receiver<bool>,
) -> Result<Arc<Notify>> {
    let pod = Pod {
        uid: names::pod_uid(worker).into(),
        namespace: names::NAMESPACE.to_owned(),
        name: names::pod(tally.group(), index),
        group: names::group(tally.group()).into(),
        job: names::job(tally.group()),
        index: u32::try_from(index)?,
        supervised: [names::CONTAINER.to_owned()].into(),
        started_again: true,
        standby: Standby::Nothing,
    };
    let sandbox = names::container_id(worker).into();
    handle.tell(Input::PodStarted(sandbox, pod)).await?;
    let failure = Arc::new(Notify::new());
    let container = WorkerContainer {
        pod: names::pod_uid(worker).into(),
        id: names::container_id(worker).into(),
        name: names::CONTAINER.to_owned(),
    };
    let orders = Orders {
        failure: Arc::clone(&failure),
        steps,
        says_at: Duration::from_millis(u64::try_from(worker * 7919 % 1000)?),
    };
    let worker = Worker::register(handle.clone(), container, Arc::clone(tally), orders).await?;
    tokio::spawn(worker.run());
    Ok(failure)
}
