//! What an operator sees of the product's programs: their memory, their restarts, and how much they
//! log.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use lockstep_integration::cluster::node_name;
use lockstep_integration::harness::Process;
use lockstep_integration::harness::group::container_status;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::ledger::{Ledger, Sample};
use crate::support::{Part, Product, Scene};

/// The time between two looks.
const PACE: Duration = Duration::from_secs(5);
/// How long a look at the API server may take. The next one tries again.
const SOON: Duration = Duration::from_secs(5);

/// Looks at all programs of the product.
pub(super) struct Monitor {
    product: Arc<Product>,
    ledger: Arc<Ledger>,
    watched: Mutex<Vec<Watched>>,
}

/// A program of the product.
#[derive(Clone)]
struct Watched {
    part: Part,
    process: Process,
    /// The UID of its pod, and the restartCount of its container.
    pod: (String, i32),
    log: Log,
}

/// The files of a container's log.
#[derive(Clone)]
struct Log {
    folder: PathBuf,
    /// The last known size of each file, by its inode: it keeps that when it is rotated.
    sizes: HashMap<u64, u64>,
    /// What was written since the first look.
    written: u64,
}

impl Log {
    fn new(folder: PathBuf) -> Self {
        let mut log = Self {
            folder,
            sizes: HashMap::new(),
            written: 0,
        };
        log.look();
        log.written = 0;
        log
    }

    fn look(&mut self) {
        for file in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let packed = Path::new(&file.file_name())
                .extension()
                .is_some_and(|end| end == "gz" || end == "tmp");
            if let Ok(found) = file.metadata()
                && !packed
            {
                let before = self.sizes.insert(found.ino(), found.len()).unwrap_or(0);
                self.written += found.len().saturating_sub(before);
            }
        }
    }
}

impl Monitor {
    /// Finds the programs.
    pub(super) async fn over(scene: &Scene, ledger: Arc<Ledger>) -> Result<Self> {
        let product = scene.product.clone();
        let daemons = (1..=product.nodes()).map(Part::NodeDaemon);
        let mut watched = Vec::new();
        for part in [Part::ControlPlane].into_iter().chain(daemons) {
            watched.push(find(&product, part).await?);
        }
        let name = |watched: &Watched| match watched.part {
            Part::ControlPlane => "control plane".to_owned(),
            Part::NodeDaemon(node) => format!("daemon {node}"),
        };
        ledger.parts(watched.iter().map(name).collect());
        Ok(Self {
            product,
            ledger,
            watched: Mutex::new(watched),
        })
    }

    /// Has the kernel count the peaks of memory from now on (proc_pid_clear_refs(5)).
    pub(super) fn forget_peaks(&self) {
        for watched in &*self.watched.lock().unwrap_or_else(PoisonError::into_inner) {
            // A program that has ended is noticed elsewhere.
            let _ = fs::write(format!("/proc/{}/clear_refs", watched.process.pid), "5");
        }
    }

    /// Looks until the case ends.
    pub(super) async fn look_on(&self) -> Result<()> {
        let mut pace = interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.ledger.goes_on() {
            pace.tick().await;
            let parts = self.sample();
            for (number, part) in parts {
                // A busy API server answers at another look.
                if let Ok(Ok(found)) = timeout(SOON, find(&self.product, part)).await {
                    self.compare(number, found);
                }
            }
        }
        Ok(())
    }

    /// Notes what each program takes.
    fn sample(&self) -> Vec<(usize, Part)> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        for (part, watched) in watched.iter_mut().enumerate() {
            watched.log.look();
            let read = |key: &str| watched.process.status(key).first()?.parse().ok();
            let sample = Sample {
                at: self.ledger.elapsed(),
                part,
                resident: read("VmRSS").unwrap_or(0),
                peak: read("VmHWM").unwrap_or(0),
                logged: watched.log.written,
            };
            self.ledger.sample(sample);
        }
        let parts = watched.iter().map(|watched| watched.part);
        parts.enumerate().collect()
    }

    /// Complains if a program is another one than before.
    fn compare(&self, number: usize, found: Watched) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(before) = watched.get_mut(number) else {
            return;
        };
        if before.process == found.process && before.pod == found.pod {
            return;
        }
        self.ledger.complain(format!(
            "{:?} restarted: {:?} of pod {:?} became {:?} of {:?}",
            before.part, before.process, before.pod, found.process, found.pod
        ));
        let written = before.log.written;
        *before = found;
        before.log.written = written;
    }
}

/// A part's process, pod and log.
async fn find(product: &Product, part: Part) -> Result<Watched> {
    let (pod, process) = product.part(part).await?;
    let restarts = container_status(&pod, part.container()).map_or(0, |status| status.restart_count);
    let uid = pod.metadata.uid.clone().context("no UID")?;
    let log = Log::new(folder(product, part, &pod).await?);
    Ok(Watched {
        part,
        process,
        pod: (uid, restarts),
        log,
    })
}

/// The folder of a part's log, as the kubelet names it.
async fn folder(product: &Product, part: Part, pod: &Pod) -> Result<PathBuf> {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let node = node.context("no node")?;
    let number = (1..=product.nodes()).find(|number| node_name(*number) == node);
    let [namespace, name, uid] = [&pod.metadata.namespace, &pod.metadata.name, &pod.metadata.uid]
        .map(|text| text.clone().unwrap_or_default());
    let folder = format!("/var/log/pods/{namespace}_{name}_{uid}/{}", part.container());
    product
        .node_path(number.context("an unknown node")?, &folder)
        .await
}
