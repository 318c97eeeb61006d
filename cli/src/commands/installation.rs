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
const UNKNOWN: &str = "what restarts in place on these nodes, and which agents are heard of, is not known";

/// Runs `check`.
pub(super) async fn check(cluster: &Cluster, args: &Check) -> Result<u8> {
    let seen = Box::pin(cluster.installation(Timestamp::now())).await;
    if let Err(why) = &seen.version {
        // Nothing else can be said.
        bail!("{why}");
    }
    let verdicts = verdicts(&seen);
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
    let mut said = PlatformNodes::default();
    if let Some(platform) = super::platform(cluster, UNKNOWN).await {
        // Workers of all namespaces run on a node.
        let asked = try_join(platform.groups(""), connected(&platform)).await;
        match asked {
            Ok((groups, nodes)) => said = PlatformNodes::by(&groups, nodes),
            Err(status) => print::note(&format!("{UNKNOWN}: {}", api_error::words(&status))),
        }
    }
    let printer = Printer::new(&args.output);
    let rows = rows(&nodes, &daemons, said);
    let wide = printer.is_wide();
    let text = printer.render(&rows, |paint| print::nodes(&rows, wide, Timestamp::now(), paint))?;
    print::out(&text)?;
    Ok(DONE)
}

/// The nodes whose daemon is connected; a control plane of before does not tell.
async fn connected(platform: &Platform) -> Result<Option<Vec<pb::Node>>, Status> {
    match platform.nodes().await {
        Err(status) if status.code() == Code::Unimplemented => Ok(None),
        nodes => nodes.map(Some),
    }
}
