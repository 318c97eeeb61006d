//! `suspend` and `resume`.

use anyhow::{Result, bail};
use serde::Serialize;

use super::DONE;
use crate::args::Suspend;
use crate::fetch::Cluster;
use crate::print::{self, Printer};

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Suspend,
    Resume,
}

/// The answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    namespace: String,
    name: String,
    suspended: bool,
    /// True if the JobSet was in the other state before.
    changed: bool,
}

/// Writes `spec.suspend` with the caller's own rights. It needs only the API server, so it works
/// for every JobSet.
pub(super) async fn run(cluster: &Cluster, args: &Suspend, wish: Wish) -> Result<u8> {
    let suspended = wish == Wish::Suspend;
    let jobset = cluster.jobset(&args.jobset).await?;
    if jobset.is_finished() {
        bail!("JobSet {}/{} has ended", jobset.ns(), jobset.name());
    }
    let changed = jobset.is_suspended() != suspended;
    if changed {
        cluster.set_suspended(&jobset, suspended).await?;
    }
    let answer = Answer {
        namespace: jobset.ns().to_owned(),
        name: jobset.name().to_owned(),
        suspended,
        changed,
    };
    let text = Printer::new(&args.output).render(&answer, |_| words(&answer))?;
    print::out(&text)?;
    Ok(DONE)
}

fn words(answer: &Answer) -> String {
    let done = match (answer.suspended, answer.changed) {
        (true, true) => "suspended; its pods are deleted",
        (true, false) => "is already suspended",
        (false, true) => "resumed",
        (false, false) => "is not suspended",
    };
    format!("{}/{}: {done}\n", answer.namespace, answer.name)
}
