//! `history`.

use anyhow::Result;
use jiff::Timestamp;

use super::DONE;
use crate::args::History;
use crate::fetch::Cluster;
use crate::print::{self, Printer};
use crate::view::history::{EVENT, history};

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
