//! A real Prometheus scrapes the control plane, and evaluates the chart's rules.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use lockstep_integration::command::run;
use lockstep_integration::harness::eventually;
use lockstep_integration::host::free_addresses;
use lockstep_integration::progress::Progress;
use lockstep_integration::tools::Tools;
use serde_json::json;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(it_scrapes_and_evaluates_the_rules_of_the_chart)]
}

const RULES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../charts/lockstep/files/alerts.yaml"
);

/// A Prometheus that ends when it is dropped.
struct Prometheus {
    _process: Child,
    _dir: TempDir,
    promtool: PathBuf,
    address: SocketAddr,
}

impl Prometheus {
    /// Starts one that scrapes `target` and itself.
    async fn start(target: SocketAddr) -> Result<Self> {
        let tools = Tools::locate(["prometheus", "promtool"], &Progress::quiet()).await?;
        let dir = tempfile::tempdir()?;
        let [address] = free_addresses()?;
        let job = |name: &str, target: SocketAddr| json!({"job_name": name, "static_configs": [{"targets": [target.to_string()]}]});
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [RULES],
            "scrape_configs": [job("lockstep", target), job("prometheus", address)],
        });
        let path = dir.path().join("config.json");
        std::fs::write(&path, config.to_string())?;
        let process = Command::new(tools.path("prometheus")?)
            .arg("--config.file")
            .arg(&path)
            .arg("--storage.tsdb.path")
            .arg(dir.path().join("data"))
            .args(["--web.listen-address", &address.to_string(), "--log.level=error"])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self {
            _process: process,
            _dir: dir,
            promtool: tools.path("promtool")?.to_owned(),
            address,
        })
    }

    /// The value of an expression that has one.
    async fn value(&self, expression: &str) -> Result<f64> {
        let server = format!("http://{}", self.address);
        let printed = run(&self.promtool, ["query", "instant", &server, expression]).await?;
        let (_, value) = printed
            .split_once("=> ")
            .with_context(|| format!("no value: {printed:?}"))?;
        let value = value.split_whitespace().next().context("no value")?;
        Ok(value.parse()?)
    }

    /// Waits until an expression has a value of at least `least`.
    async fn until(&self, expression: &str, least: f64) -> Result<()> {
        eventually(expression, PATIENCE, async || {
            let value = self.value(expression).await?;
            ensure!(value >= least, "{value}");
            Ok(())
        })
        .await
    }
}

async fn it_scrapes_and_evaluates_the_rules_of_the_chart(scene: Scene) -> Result<()> {
    let prometheus = Prometheus::start(scene.control_plane().metrics_address()).await?;
    prometheus.until("up{job=\"lockstep\"}", 1.0).await?;
    prometheus.until("count(lockstep_gangs_waiting)", 1.0).await?;

    let namespace = scene.namespace.name.clone();
    scene
        .create(jobset(json!({"replicatedJobs": [replicated_job("a", 1)]})))
        .await?;
    scene.pods_become("js-a-0", "Succeeded").await?;
    let completed = format!("jobset_completed_total{{namespace=\"{namespace}\"}}");
    prometheus.until(&completed, 1.0).await?;

    prometheus
        .until("sum(prometheus_rule_evaluations_total)", 20.0)
        .await?;
    let failures = prometheus
        .value("sum(prometheus_rule_evaluation_failures_total)")
        .await?;
    ensure!(failures == 0.0, "{failures} evaluations failed");
    Ok(())
}
