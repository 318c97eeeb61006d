//! `restart --dry-run`.

use anyhow::{Result, bail};
use lockstep_api::{JobSet, WorkerRestartRequest};
use tonic::Code;

use super::DONE;
use crate::args::Output;
use crate::fetch::{Cluster, Platform};
use crate::print::{self, Printer};
use crate::view::api_error;
use crate::view::dry_run::dry_run;

/// Only the group's coordinator knows, so the platform API has to be reached.
pub(super) async fn run(cluster: &Cluster, jobset: &JobSet, request: &str, output: &Output) -> Result<u8> {
    if !cluster.may_ask_platform() {
        bail!(
            "--dry-run: the platform API alone knows what a restart would do, and it is not asked with --no-platform, nor with --as"
        );
    }
    let (namespace, name) = (jobset.ns(), jobset.name());
    let platform = cluster.platform().await?;
    let said = match platform.dry_run(namespace, name, request).await {
        Ok(said) => said,
        Err(status) => bail!(
            "try a restart of JobSet {namespace}/{name}: {}",
            api_error::words(&status)
        ),
    };
    let view = dry_run(namespace, name, &said);
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
    let said = match platform.dry_run_workers(namespace, name, request).await {
        Ok(said) => said,
        Err(status) => bail!(
            "try a restart of {} of JobSet {namespace}/{name}: {}",
            request.target,
            worker_restart_error(&status)
        ),
    };
    let view = dry_run(namespace, name, &said);
    print::out(&Printer::new(output).render(&view, |paint| print::dry_run(&view, paint))?)?;
    Ok(DONE)
}

/// Why the platform API refused to restart some workers.
pub(super) fn worker_restart_error(status: &tonic::Status) -> String {
    match status.code() {
        Code::Unimplemented => {
            "the control plane is of a version that cannot restart some workers alone".to_owned()
        }
        _ => api_error::words(status),
    }
}
