//! `history` and `timeline`: the restarts of a JobSet, and one of them in detail.

use std::path::Path;

use anyhow::{Context as _, Result};
use jiff::Timestamp;

use super::DONE;
use crate::args::{History, Timeline};
use crate::fetch::Cluster;
use crate::print::{self, Printer};
use crate::view::history::{EVENT, history};
use crate::view::timeline::timeline;

/// Runs `history`.
pub(super) async fn run(cluster: &Cluster, args: &History) -> Result<u8> {
    let jobset = cluster.jobset(&args.jobset).await?;
    let events = match cluster.events(&args.jobset).await {
        Ok(events) => events,
        Err(error) => {
            print::note(&format!("the last restart alone is known: {error:#}"));
            Vec::new()
        }
    };
    let printer = Printer::new(&args.output);
    let told = history(&jobset, &events);
    let by_events = told.entries.iter().any(|entry| entry.source == EVENT);
    if by_events && !printer.is_for_programs() {
        print::note(&super::by_events(cluster));
    }
    let wide = printer.is_wide();
    let text = printer.render(&told, |paint| {
        print::history(&told, wide, Timestamp::now(), paint)
    })?;
    print::out(&text)?;
    Ok(DONE)
}

/// Runs `timeline`.
pub(super) async fn run_timeline(cluster: &Cluster, args: &Timeline) -> Result<u8> {
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
