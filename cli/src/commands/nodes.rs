//! `nodes`.

use anyhow::Result;
use futures::future::try_join;
use jiff::Timestamp;

use super::DONE;
use crate::args::Nodes;
use crate::fetch::Cluster;
use crate::print::{self, Printer};
use crate::view::nodes::rows;
use crate::view::refused;

pub(super) async fn run(cluster: &Cluster, args: &Nodes) -> Result<u8> {
    let (nodes, daemons) = try_join(cluster.nodes(), cluster.daemon_pods()).await?;
    let mut groups = None;
    if let Some(platform) = super::platform(cluster, "which agents are heard of is not known").await {
        // Workers of all namespaces run on a node.
        match platform.groups("").await {
            Ok(all) => groups = Some(all),
            Err(status) => print::note(&format!(
                "which agents are heard of is not known: {}",
                refused::words(&status)
            )),
        }
    }
    let printer = Printer::new(&args.output);
    let rows = rows(&nodes, &daemons, groups.as_deref());
    let wide = printer.is_wide();
    let text = printer.render(&rows, |paint| print::nodes(&rows, wide, Timestamp::now(), paint))?;
    print::out(&text)?;
    Ok(DONE)
}
