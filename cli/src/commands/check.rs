//! `check`.

use anyhow::Result;
use jiff::Timestamp;

use super::{DONE, FAILED, WARNED};
use crate::args::Check;
use crate::fetch::Cluster;
use crate::print::{self, Printer};
use crate::view::check::{Level, verdicts, worst};

pub(super) async fn run(cluster: &Cluster, args: &Check) -> Result<u8> {
    let seen = Box::pin(cluster.installation(Timestamp::now())).await;
    if let Err(why) = &seen.version {
        // Nothing else can be said.
        anyhow::bail!("{why}");
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
