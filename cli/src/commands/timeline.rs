//! `timeline`.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::DONE;
use crate::args::Timeline;
use crate::fetch::Cluster;
use crate::print::{self, Printer};
use crate::view::history::history;
use crate::view::timeline::timeline;

pub(super) async fn run(cluster: &Cluster, args: &Timeline) -> Result<u8> {
    let jobset = cluster.jobset(&args.jobset).await?;
    let events = cluster.events(&args.jobset).await?;
    let told = timeline(&history(&jobset, &events), args.generation)?;
    let printer = Printer::new(&args.output);
    if !printer.is_for_programs() {
        print::note(&super::by_events(cluster));
    }
    match &args.html {
        Some(path) if path == Path::new("-") => print::out(&print::page(&told))?,
        Some(path) => {
            std::fs::write(path, print::page(&told)).with_context(|| format!("--html {}", path.display()))?;
            print::note(&format!("written to {}", path.display()));
        }
        None => {
            let text = printer.render(&told, |paint| print::timeline(&told, paint))?;
            print::out(&text)?;
        }
    }
    Ok(DONE)
}
