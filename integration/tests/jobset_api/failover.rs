//! The leader dies while many nodes restart their groups: another leader continues the restarts,
//! and touches no other worker.
//!
//! LOCKSTEP_FAILOVER_NODES sets the number of nodes, and selects the short lease that the chart
//! mentions, for measurements on an idle machine. Most of the time goes to the pods that the nodes'
//! tokens are bound to.

mod fleet;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node as ClusterNode, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use lockstep_api::JobSet;
use lockstep_integration::harness::{eventually, hollow};
use lockstep_integration::host::free_addresses;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::identity::{AUDIENCE, Account};
use crate::platform::daemon::fresh;
use crate::scene::{PATIENCE, Scene, hub_ca_in, jobset, replicated_job};
use fleet::{Fleet, Node};

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(a_leader_that_is_killed_in_the_middle_of_restarts_is_followed_by_one_that_ends_them alone)]
}

/// The prefix of the nodes' names. They have Node objects, as pods of missing nodes are collected
/// within a minute.
const POOL: &str = "fleet";
/// The number of nodes, unless the environment sets it.
const NODES: usize = 200;
/// The number of groups that restart. One more does not.
const RESTARTING: usize = 3;
const GROUPS: usize = RESTARTING + 1;
/// The number of workers of each group, each on a node of its own.
const WORKERS: usize = 4;
/// The settings of the Lease, and how soon the next leader must decide.
struct Lease {
    flags: [&'static str; 3],
    /// From the death of a leader to the first decision of the next: the lease expires, the next
    /// leader notices, and hears from the nodes.
    followed_within: Duration,
}

/// With this lease a leader still leads if it cannot renew for seconds: all nodes, both control
/// planes and the API server share this machine, and the programs are debug builds.
const LEASE: Lease = Lease {
    flags: [
        "--leader-elect-lease-duration=10s",
        "--leader-elect-renew-deadline=8s",
        "--leader-elect-retry-period=1s",
    ],
    followed_within: Duration::from_secs(10 + 1 + 4),
};
/// The settings that the chart names for a fast failover.
const SHORT: Lease = Lease {
    flags: [
        "--leader-elect-lease-duration=4s",
        "--leader-elect-renew-deadline=3s",
        "--leader-elect-retry-period=1s",
    ],
    followed_within: Duration::from_secs(5),
};
/// How long all restarts together may take.
const BOUND: Duration = Duration::from_secs(90);
/// How long a worker takes to stop, so that the leader dies in the middle of a restart.
const STOPPING: Duration = Duration::from_millis(400);

/// The number of nodes, and the lease.
fn settings() -> Result<(usize, Lease)> {
    match std::env::var("LOCKSTEP_FAILOVER_NODES") {
        Ok(text) => Ok((text.parse().context("LOCKSTEP_FAILOVER_NODES")?, SHORT)),
        Err(_) => Ok((NODES, LEASE)),
    }
}

fn group(number: usize) -> Value {
    let jobs: Vec<Value> = (0..WORKERS)
        .map(|worker| {
            let mut job = replicated_job(&format!("w{worker}"), 1);
            if let Some(spec) = job["template"]["spec"].as_object_mut() {
                spec.remove("backoffLimit");
            }
            job["template"]["spec"]["template"]["spec"]["nodeName"] = json!(node(number * WORKERS + worker));
            job
        })
        .collect();
    let mut manifest = jobset(json!({
        "failurePolicy": {"maxRestarts": 5, "restartStrategy": "InPlaceRestart"},
        "replicatedJobs": jobs,
    }));
    manifest["metadata"]["name"] = json!(format!("js{number}"));
    manifest
}

fn node(number: usize) -> String {
    format!("{POOL}-{number}")
}

/// One long scenario, since each step needs the state of the step before.
async fn a_leader_that_is_killed_in_the_middle_of_restarts_is_followed_by_one_that_ends_them(
    scene: Scene,
) -> Result<()> {
    let (count, lease) = settings()?;
    let [first, second] = free_addresses()?;
    let control_plane = scene.control_plane();
    let dir = control_plane.dir().join("failover");
    let (first_flag, second_flag, dir_flag) =
        (first.to_string(), second.to_string(), dir.display().to_string());
    let here = ["--hub-advertise-address", "127.0.0.1", "--hub-tls-dir", &dir_flag];
    let flags = |address| {
        [
            &["--hub-bind-address", address],
            here.as_slice(),
            lease.flags.as_slice(),
        ]
        .concat()
    };
    control_plane.restart_with(&flags(&first_flag)).await?;
    let next = control_plane.replica("failover", &flags(&second_flag))?;
    let result = Box::pin(async {
        let ca = hub_ca_in(&dir).await?;
        eventually("the first one leads", PATIENCE, async || {
            let metrics = control_plane.metrics().await?;
            ensure!(metrics.contains("lockstep_leader 1"), "it does not");
            Ok(())
        })
        .await?;
        next.start().await?;
        next.until_ready().await?;
        let mut fleet = Fleet::new([first, second], &ca, STOPPING);
        for node in nodes(&scene, count).await? {
            fleet.start(node);
        }
        let began = Instant::now();
        eventually("all nodes are connected", PATIENCE, async || {
            ensure!(fleet.connected() >= count, "{}", fleet.connected());
            Ok(())
        })
        .await?;
        println!(
            "     {count} nodes connected in {:.1} s",
            began.elapsed().as_secs_f64()
        );
        eventually("all groups run", PATIENCE, async || {
            fleet.all_run(0..GROUPS * WORKERS)
        })
        .await?;
        in_sync(&scene, 0).await?;
        let healthy = fleet.revisions(RESTARTING * WORKERS..GROUPS * WORKERS);

        for group in 0..RESTARTING {
            fleet.fail(group * WORKERS + group);
        }
        eventually("all three are being restarted", PATIENCE, async || {
            fleet.told(0..RESTARTING * WORKERS)
        })
        .await?;
        control_plane.kill().await?;
        let killed = Instant::now();
        fleet.ensure_not_all_run(0..RESTARTING * WORKERS)?;
        eventually("all groups run again", BOUND, async || {
            fleet.all_run(0..GROUPS * WORKERS)
        })
        .await?;
        let decided = fleet.decided().filter(|decided| *decided > killed);
        let decided = decided.context("no leader decided after the kill: the restart ended earlier, or not at all")?;
        println!(
            "     the next leader went on {:.1} s after the leader was killed, and all run again after {:.1} s",
            decided.saturating_duration_since(killed).as_secs_f64(),
            killed.elapsed().as_secs_f64()
        );
        let took = decided.saturating_duration_since(killed);
        ensure!(
            took <= lease.followed_within,
            "the next leader went on {took:?} after the leader was killed, and not within {:?}",
            lease.followed_within
        );

        in_sync(&scene, 1).await?;
        // Each worker has restarted once, and those of the other group have not restarted.
        ensure!(fleet.generations(0..RESTARTING * WORKERS) == [1; RESTARTING * WORKERS]);
        let (now, starts) = (
            fleet.revisions(RESTARTING * WORKERS..GROUPS * WORKERS),
            fleet.starts(0..GROUPS * WORKERS),
        );
        ensure!(
            now == healthy,
            "healthy workers were touched: {healthy:?} became {now:?}"
        );
        let expected = [vec![2; RESTARTING * WORKERS], vec![1; WORKERS]].concat();
        ensure!(starts == expected, "{starts:?}");
        Ok(())
    })
    .await;
    if result.is_err() {
        println!("{}", next.log());
    }
    // Other cases expect a cluster without these nodes, and a control plane without a hub.
    let nodes: Api<ClusterNode> = Api::all(scene.client());
    let pool = ListParams::default().labels(&format!("{}={POOL}", hollow::POOL));
    let _ = nodes.delete_collection(&DeleteParams::default(), &pool).await;
    let _ = next.stop().await;
    let _ = control_plane.stop().await;
    result
}

/// Waits until the API server shows this many restarts for the restarted groups, and none for the
/// other one.
async fn in_sync(scene: &Scene, restarts: i64) -> Result<()> {
    eventually("what was done is written down", PATIENCE, async || {
        for number in 0..GROUPS {
            let jobset = scene.api::<JobSet>().get(&format!("js{number}")).await?;
            let status = serde_json::to_value(jobset.status.context("no status")?)?;
            let state = &status["inPlaceRestart"];
            let expected = if number < RESTARTING { restarts } else { 0 };
            let counted = state["restarts"].as_i64().unwrap_or_default();
            ensure!(state["phase"] == "InSync" && counted == expected, "{status}");
            ensure!(
                status["restarts"].as_i64().unwrap_or_default() == 0,
                "recreated: {status}"
            );
        }
        Ok(())
    })
    .await
}

/// Creates the groups and a token for each node. The nodes of the groups' workers come first.
async fn nodes(scene: &Scene, count: usize) -> Result<Vec<Node>> {
    hollow::create_nodes(&scene.client(), POOL, count, 4).await?;
    let mut workers = Vec::new();
    for number in 0..GROUPS {
        let uid = scene.create(group(number)).await?.uid().context("no uid")?;
        workers.push(uid);
    }
    let pods = eventually("all pods", PATIENCE, async || {
        let pods = scene.api::<Pod>().list(&ListParams::default()).await?.items;
        ensure!(pods.len() == GROUPS * WORKERS, "{}", pods.len());
        Ok(pods)
    })
    .await?;
    scene.all_pods_become("Running").await?;
    let daemons = &Account::of_daemons(scene).await?;
    let tokens: Vec<String> = stream::iter(0..count)
        .map(|number| async move { daemons.token_on(&node(number), AUDIENCE).await })
        .buffered(16)
        .try_collect()
        .await?;
    let nodes = tokens.into_iter().enumerate().map(|(number, token)| {
        let name = node(number);
        let own = pods.iter().filter(|pod| {
            let spec = pod.spec.as_ref();
            spec.and_then(|spec| spec.node_name.as_deref()) == Some(&name)
        });
        let workers = own.map(|pod| fresh(&workers[number / WORKERS], pod)).collect();
        Node { token, workers }
    });
    Ok(nodes.collect())
}
