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
            print::note(&format!("only the last restart is known: {error:#}"));
            Vec::new()
        }
    };
    let printer = Printer::new(&args.output);
    let history = history(&jobset, &events);
    let from_events = history.entries.iter().any(|entry| entry.source == EVENT);
    if from_events && !printer.is_for_programs() {
        print::note(&super::event_warning(cluster));
    }
    let wide = printer.is_wide();
    let text = printer.render(&history, |paint| {
        print::history(&history, wide, Timestamp::now(), paint)
    })?;
    print::out(&text)?;
    Ok(DONE)
}

/// Runs `timeline`.
pub(super) async fn run_timeline(cluster: &Cluster, args: &Timeline) -> Result<u8> {
    let jobset = cluster.jobset(&args.jobset).await?;
    let events = cluster.events(&args.jobset).await?;
    let restart = timeline(&history(&jobset, &events), args.generation)?;
    let printer = Printer::new(&args.output);
    if !printer.is_for_programs() {
        print::note(&super::event_warning(cluster));
    }
    match &args.html {
        Some(path) if path == Path::new("-") => print::out(&print::page(&restart))?,
        Some(path) => {
            std::fs::write(path, print::page(&restart))
                .with_context(|| format!("--html {}", path.display()))?;
            print::note(&format!("written to {}", path.display()));
        }
        None => {
            let text = printer.render(&restart, |paint| print::timeline(&restart, paint))?;
            print::out(&text)?;
        }
    }
    Ok(DONE)
}
