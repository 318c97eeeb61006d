//! On a real terminal: colours, a live view, and the progress of what the command waits for. None
//! of that in a pipe.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lockstep_integration::harness::eventually;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStdout, Command};

use super::{command, lockstep, with_a_hub};
use crate::platform::daemon::Daemon;
use crate::platform::played;
use crate::scene::{PATIENCE, Scene};

const HARNESS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/jobset_api/cli/terminal.py");
/// How each picture of the live view begins.
const HOME: &str = "\x1b[?7l\x1b[H";
/// How it ends.
const END: &str = "\x1b[J\x1b[?7h";

pub(super) async fn a_terminal_shows_it_live_and_in_colours(scene: Scene) -> Result<()> {
    with_a_hub(&scene, async |hub, _| {
        let ca = scene.hub_ca().await?;
        let (_, daemon) = played(&scene, hub, &ca).await?;
        eventually("the JobSet runs", PATIENCE, async || {
            let shown = lockstep(&scene, &["status", "js", "--no-platform"]).await?;
            shown.says(0, &["InSync  generation 0", "1 of 1 workers up"])
        })
        .await?;
        colours_are_for_terminals(&scene).await?;
        it_is_shown_live(&scene, &daemon).await?;
        what_does_not_fit_is_said(&scene).await?;
        Box::pin(waits_show_how_far_it_has_come(&scene, daemon)).await
    })
    .await
}

/// The program on a terminal.
struct Terminal {
    /// The harness, which ends with the program.
    child: Child,
    out: ChildStdout,
    said: String,
}

impl Terminal {
    async fn open(scene: &Scene, rows: u16, env: &[(&str, &str)], args: &[&str]) -> Result<Self> {
        let of_program = command(scene).await?;
        let of_program = of_program.as_std();
        let mut command = Command::new("python3");
        command
            .args([HARNESS, &rows.to_string(), "120"])
            .arg(of_program.get_program())
            .args(of_program.get_args())
            .args(["--namespace", &scene.namespace.name])
            .args(args)
            .env_remove("LOCKSTEP_NAMESPACE")
            .env_remove("LOCKSTEP_TOKEN")
            .env_remove("NO_COLOR")
            .env("TERM", "xterm")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().context("python3")?;
        let out = child.stdout.take().context("no output")?;
        Ok(Self {
            child,
            out,
            said: String::new(),
        })
    }

    /// Reads on until the output meets the condition.
    async fn until(&mut self, what: &str, is: impl Fn(&str) -> bool) -> Result<()> {
        let read = async {
            let mut bytes = vec![0; 65_536];
            while !is(&self.said) {
                let size = self.out.read(&mut bytes).await?;
                if size == 0 {
                    bail!("it has ended");
                }
                self.said.push_str(&String::from_utf8_lossy(&bytes[..size]));
            }
            Ok(())
        };
        let read = tokio::time::timeout(PATIENCE, read).await;
        read.unwrap_or_else(|_| bail!("it never came"))
            .with_context(|| format!("{what}: {:?}", self.said))
    }

    /// The output up to its end, and its exit code.
    async fn ended(mut self) -> Result<(Option<i32>, String)> {
        let end = async {
            let mut rest = Vec::new();
            self.out.read_to_end(&mut rest).await?;
            self.said.push_str(&String::from_utf8_lossy(&rest));
            Ok::<_, anyhow::Error>(self.child.wait().await?.code())
        };
        let code = tokio::time::timeout(PATIENCE, end).await??;
        Ok((code, self.said))
    }

    /// The last complete picture, line by line, as it stands on the terminal.
    fn picture(said: &str) -> Option<Vec<&str>> {
        let (before, _) = said.rsplit_once(END)?;
        let (_, picture) = before.rsplit_once(HOME)?;
        Some(
            picture
                .split("\x1b[K\r\n")
                .filter(|line| !line.is_empty())
                .collect(),
        )
    }
}

async fn colours_are_for_terminals(scene: &Scene) -> Result<()> {
    let status = ["status", "js", "--no-platform"];
    let good = "\x1b[32mInSync\x1b[0m";
    let on_terminal = async |env: &[(&str, &str)], more: &[&str]| {
        let terminal = Terminal::open(scene, 24, env, &[&status[..], more].concat()).await?;
        let (code, said) = terminal.ended().await?;
        ensure!(code == Some(0) && said.contains("InSync"), "{said:?}");
        Ok(said)
    };
    let said = on_terminal(&[], &[]).await?;
    ensure!(said.contains(good), "{said:?}");
    for (env, more) in [
        (&[("NO_COLOR", "1")][..], &[][..]),
        (&[("TERM", "dumb")], &[]),
        (&[], &["--color", "never"]),
        (&[], &["-o", "json"]),
    ] {
        let said = on_terminal(env, more).await?;
        ensure!(!said.contains('\x1b'), "{env:?} {more:?}: {said:?}");
    }
    let piped = lockstep(scene, &status).await?;
    ensure!(
        !piped.out.contains('\x1b') && !piped.err.contains('\x1b'),
        "{piped:?}"
    );
    let forced = lockstep(scene, &[&status[..], &["--color", "always"]].concat()).await?;
    forced.says(0, &[good])
}

async fn it_is_shown_live(scene: &Scene, daemon: &Daemon) -> Result<()> {
    let mut terminal = Terminal::open(scene, 24, &[], &["status", "js", "--no-platform", "-w"]).await?;
    let shows = |said: &str, text: &str| {
        let picture = Terminal::picture(said);
        picture.is_some_and(|lines| lines.iter().any(|line| line.contains(text)))
    };
    terminal
        .until("it is shown", |said| shows(said, "generation 0"))
        .await?;
    daemon.exit(1, 3).await?;
    terminal
        .until("the restart is shown", |said| {
            shows(said, "generation 1") && shows(said, "exited with code 3")
        })
        .await?;
    let said = &terminal.said;
    ensure!(said.starts_with("\x1b[2J"), "{said:?}");
    ensure!(said.matches("\x1b[2J").count() == 1, "it flickers: {said:?}");
    ensure!(
        !said.contains("\x1b[3J"),
        "earlier output of the terminal is lost: {said:?}"
    );
    let lines = Terminal::picture(said).context("no picture")?;
    let heads = lines.iter().filter(|line| line.contains("restarts 1 of 5"));
    ensure!(heads.count() == 1, "not one picture: {lines:?}");
    // Ages advance without a change of the JobSet.
    let pictures = said.matches(END).count();
    terminal
        .until("it lives", |said| said.matches(END).count() > pictures + 1)
        .await?;

    // In a pipe one state follows the other, without colours.
    let mut piped = command(scene).await?;
    piped
        .args([
            "--namespace",
            &scene.namespace.name,
            "status",
            "js",
            "--no-platform",
            "-w",
        ])
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut child = piped.spawn()?;
    let out = child.stdout.take().context("no output")?;
    let mut piped = Terminal {
        child,
        out,
        said: String::new(),
    };
    piped
        .until("it is shown", |said| said.contains("generation 1"))
        .await?;
    daemon.exit(0, 4).await?;
    piped
        .until("the next restart is shown", |said| {
            said.contains("\n--- ") && said.contains("generation 2")
        })
        .await?;
    ensure!(!piped.said.contains('\x1b'), "{:?}", piped.said);
    piped.child.kill().await?;
    Ok(())
}

async fn what_does_not_fit_is_said(scene: &Scene) -> Result<()> {
    let watch = ["status", "js", "--no-platform", "-w"];
    let mut terminal = Terminal::open(scene, 4, &[("NO_COLOR", "1")], &watch).await?;
    terminal
        .until("it is shown", |said| Terminal::picture(said).is_some())
        .await?;
    let lines = Terminal::picture(&terminal.said).context("no picture")?;
    ensure!(
        lines.len() == 3 && lines[2].starts_with("... and ") && lines[2].contains(" more lines"),
        "{lines:?}"
    );
    // Cursor movement is not a colour.
    ensure!(!terminal.said.contains("\x1b[32m"), "{:?}", terminal.said);
    Ok(())
}

/// This restart cannot end: its daemon is gone.
async fn waits_show_how_far_it_has_come(scene: &Scene, daemon: Daemon) -> Result<()> {
    drop(daemon);
    let restart = ["restart", "js", "--no-platform", "--wait", "--timeout", "5s"];
    let begun = std::time::Instant::now();
    let terminal = Terminal::open(scene, 24, &[], &restart).await?;
    let (code, said) = terminal.ended().await?;
    ensure!(code == Some(3), "{code:?}: {said:?}");
    ensure!(begun.elapsed() >= Duration::from_secs(5), "{:?}", begun.elapsed());
    let turns = "◐◓◑◒".chars().filter(|turn| said.contains(*turn)).count();
    ensure!(turns > 1, "nothing moves: {said:?}");
    let (_, after) = said.rsplit_once("\r\x1b[K").context("it is not removed")?;
    ensure!(after.contains("not all workers of"), "{said:?}");
    let piped = lockstep(scene, &restart).await?;
    piped.says(3, &["not all workers of"])?;
    ensure!(
        !piped.err.contains('\x1b') && !piped.err.contains('◐'),
        "{piped:?}"
    );
    Ok(())
}
