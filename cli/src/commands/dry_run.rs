//! `restart --dry-run`: what a restart of all workers, or of some, would do.

use anyhow::{Result, bail};
use lockstep_api::{JobSet, WorkerRestartRequest};
use tonic::Code;

use super::DONE;
use crate::args::Output;
use crate::fetch::{Cluster, Platform};
use crate::print::{self, Printer};
use crate::view::api_error;
use crate::view::dry_run::dry_run;

/// Prints what a restart of all workers would do. Only the group's coordinator knows that, so this
/// needs the platform API.
pub(super) async fn run(cluster: &Cluster, jobset: &JobSet, request: &str, output: &Output) -> Result<u8> {
    if !cluster.may_ask_platform() {
        bail!(
            "--dry-run: only the platform API knows what a restart would do, and --no-platform and --as turn it off"
        );
    }
    let (namespace, name) = (jobset.ns(), jobset.name());
    let platform = cluster.platform().await?;
    let answer = match platform.dry_run(namespace, name, request).await {
        Ok(answer) => answer,
        Err(status) => bail!(
            "dry run for JobSet {namespace}/{name}: {}",
            api_error::words(&status)
        ),
    };
    let view = dry_run(namespace, name, &answer);
    let text = Printer::new(output).render(&view, |paint| print::dry_run(&view, paint))?;
    print::out(&text)?;
    Ok(DONE)
}

/// Prints what a restart of some workers would do.
pub(super) async fn run_workers(
    platform: &Platform,
    jobset: &JobSet,
    request: &WorkerRestartRequest,
    output: &Output,
) -> Result<u8> {
    let (namespace, name) = (jobset.ns(), jobset.name());
    let answer = match platform.dry_run_workers(namespace, name, request).await {
        Ok(answer) => answer,
        Err(status) => bail!(
            "dry run for {} of JobSet {namespace}/{name}: {}",
            request.target,
            worker_restart_error(&status)
        ),
    };
    let view = dry_run(namespace, name, &answer);
    print::out(&Printer::new(output).render(&view, |paint| print::dry_run(&view, paint))?)?;
    Ok(DONE)
}

/// Why the platform API refused to restart some workers.
pub(super) fn worker_restart_error(status: &tonic::Status) -> String {
    match status.code() {
        Code::Unimplemented => "this version of the control plane cannot restart single workers".to_owned(),
        _ => api_error::words(status),
    }
}
