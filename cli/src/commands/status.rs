//! `status`.

use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;

use super::DONE;
use crate::args::Status;
use crate::fetch::{Changes, Cluster, Platform, Scope};
use crate::print::{self, Printer, Screen};
use crate::view::api_error;
use crate::view::status::{Observed, View, view};

/// How often ages are redrawn on a screen.
const AGE_INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn run(cluster: &Cluster, args: &Status) -> Result<u8> {
    let scope = match &args.jobset {
        Some(name) => Scope::One(name.clone()),
        None if args.all_namespaces => Scope::Everywhere,
        None => Scope::Namespace,
    };
    let printer = Printer::new(&args.output);
    let mut observer = Observer {
        cluster,
        scope: &scope,
        platform: super::platform(cluster, "worker states come from pods").await,
        last_note: String::new(),
    };
    let mut views = observer.observe().await?;
    if views.is_empty() && !printer.is_for_programs() && !args.watch {
        let place = match scope {
            Scope::Everywhere => "in any namespace".to_owned(),
            _ => format!(
                "in namespace {} (-A shows those of all namespaces)",
                cluster.namespace
            ),
        };
        print::note(&format!("no JobSets {place}"));
        return Ok(DONE);
    }
    if !args.watch {
        print::out(&text(&views, &scope, printer)?)?;
        return Ok(DONE);
    }
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let is_screen = std::io::stdout().is_terminal() && !printer.is_for_programs() && !dumb;
    let mut sink = if is_screen {
        Sink::Screen(Screen::default())
    } else {
        Sink::Lines { first: true }
    };
    sink.show(&views, &scope, printer)?;
    let mut changes = Changes::of(cluster, &scope, observer.platform.as_ref()).await;
    loop {
        tokio::select! {
            () = changes.next() => {}
            () = tokio::time::sleep(AGE_INTERVAL), if is_screen => {
                sink.show(&views, &scope, printer)?;
                continue;
            }
        }
        if changes.are_stale() {
            changes = Changes::of(cluster, &scope, observer.platform.as_ref()).await;
        }
        match observer.observe().await {
            // Without a screen, a change of ages only is not shown.
            Ok(now) if now == views && !is_screen => {}
            Ok(now) => {
                views = now;
                sink.show(&views, &scope, printer)?;
            }
            Err(error) => observer.note(format!("{error:#}")),
        }
    }
}

/// Observes JobSets repeatedly.
struct Observer<'c> {
    cluster: &'c Cluster,
    scope: &'c Scope,
    platform: Option<Platform>,
    /// The last note, so that none is repeated.
    last_note: String,
}

impl Observer<'_> {
    async fn observe(&mut self) -> Result<Vec<View>> {
        let mut seen = self.cluster.observe(self.scope).await?;
        if let Some(platform) = &self.platform
            && let Err(status) = add_groups(&mut seen, self.scope, self.cluster, platform).await
        {
            self.note(format!(
                "worker states come from pods: {}",
                api_error::words(&status)
            ));
            // Another replica may lead by now.
            if let Ok(platform) = self.cluster.platform().await {
                self.platform = Some(platform);
            }
        }
        Ok(seen.iter().map(view).collect())
    }

    fn note(&mut self, text: String) {
        if text != self.last_note {
            print::note(&text);
            self.last_note = text;
        }
    }
}

async fn add_groups(
    seen: &mut [Observed],
    scope: &Scope,
    cluster: &Cluster,
    platform: &Platform,
) -> Result<(), tonic::Status> {
    let groups = match scope {
        Scope::One(name) => platform
            .group(&cluster.namespace, name)
            .await?
            .into_iter()
            .collect(),
        Scope::Namespace => platform.groups(&cluster.namespace).await?,
        Scope::Everywhere => platform.groups("").await?,
    };
    for group in groups {
        let of_it = |it: &&mut Observed| it.jobset.uid_str() == group.uid;
        if let Some(observed) = seen.iter_mut().find(of_it) {
            observed.group = Some(group);
        }
    }
    Ok(())
}

fn text(views: &[View], scope: &Scope, printer: Printer) -> Result<String> {
    let detail = print::Detail {
        every_worker: matches!(scope, Scope::One(_)) || printer.is_wide(),
        wide: printer.is_wide(),
    };
    let people = |paint| match views {
        [] => "no JobSets\n".to_owned(),
        views => print::status(views, detail, Timestamp::now(), paint),
    };
    match (scope, views) {
        // One JobSet was named, so the answer is one object.
        (Scope::One(_), [view]) => printer.render(view, people),
        _ => printer.render(&views, people),
    }
}

/// Where states are shown.
enum Sink {
    /// Each state replaces the one before.
    Screen(Screen),
    /// Each state follows the one before.
    Lines { first: bool },
}

impl Sink {
    fn show(&mut self, views: &[View], scope: &Scope, printer: Printer) -> Result<()> {
        let text = text(views, scope, printer)?;
        match self {
            Self::Screen(screen) => screen.show(&text, printer.paint()),
            Self::Lines { first } => {
                let separator = match (std::mem::replace(first, false), printer.is_for_programs()) {
                    (true, _) => String::new(),
                    (false, false) => format!("\n--- {:.0}\n", Timestamp::now()),
                    (false, true) => "---\n".to_owned(),
                };
                print::out(&format!("{separator}{text}"))
            }
        }
    }
}
