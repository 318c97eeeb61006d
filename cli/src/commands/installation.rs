//! `check` and `nodes`: the installation, and its node daemons.

use anyhow::{Result, bail};
use futures::future::try_join;
use jiff::Timestamp;
use lockstep_proto::platform::v1 as pb;
use tonic::{Code, Status};

use super::{DONE, FAILED, WARNED};
use crate::args::{Check, Nodes};
use crate::fetch::{Cluster, Platform};
use crate::print::{self, Printer};
use crate::view::api_error;
use crate::view::check::{Level, verdicts, worst};
use crate::view::nodes::{PlatformNodes, rows};

/// What `nodes` lacks without the platform API.
const UNKNOWN: &str = "restart levels and reporting agents of these nodes are unknown";

/// Runs `check`.
pub(super) async fn check(cluster: &Cluster, args: &Check) -> Result<u8> {
    let observed = Box::pin(cluster.installation(Timestamp::now())).await;
    if let Err(why) = &observed.version {
        // The API server does not answer, so nothing else is known.
        bail!("{why}");
    }
    let verdicts = verdicts(&observed);
    let text = Printer::new(&args.output).render(&verdicts, |paint| print::check(&verdicts, paint))?;
    print::out(&text)?;
    Ok(match worst(&verdicts) {
        Level::Ok => DONE,
        Level::Warning => WARNED,
        Level::Error => FAILED,
    })
}

/// Runs `nodes`.
pub(super) async fn nodes(cluster: &Cluster, args: &Nodes) -> Result<u8> {
    let (nodes, daemons) = try_join(cluster.nodes(), cluster.daemon_pods()).await?;
    let mut by_platform = PlatformNodes::default();
    if let Some(platform) = super::platform(cluster, UNKNOWN).await {
        // A node runs workers of all namespaces.
        match try_join(platform.groups(""), connected(&platform)).await {
            Ok((groups, nodes)) => by_platform = PlatformNodes::new(&groups, nodes),
            Err(status) => print::note(&format!("{UNKNOWN}: {}", api_error::words(&status))),
        }
    }
    let printer = Printer::new(&args.output);
    let rows = rows(&nodes, &daemons, &by_platform);
    let wide = printer.is_wide();
    let text = printer.render(&rows, |paint| print::nodes(&rows, wide, Timestamp::now(), paint))?;
    print::out(&text)?;
    Ok(DONE)
}

/// The nodes whose daemon is connected; `None` if the control plane is too old to say.
async fn connected(platform: &Platform) -> Result<Option<Vec<pb::Node>>, Status> {
    match platform.nodes().await {
        Err(status) if status.code() == Code::Unimplemented => Ok(None),
        nodes => nodes.map(Some),
    }
}
