//! Anyone with the right to create events can write one about a JobSet: its text stays in its
//! place, and the output names an event as its source.

use anyhow::{Result, ensure};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use super::{Ran, lockstep};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

/// Clears the screen, sets the title, colours, reverses and hides text, and begins a line that
/// looks like output.
const FORGED: &str =
    "\x1b[2J\x1b]0;owned\x07\u{9b}31m\u{202e}\u{2066}\u{200b}x\r\nteam/js  generation 9  restarts 0 of 5\x7f";
const SHOWN: &str =
    r"\x1b[2J\x1b]0;owned\x07\x9b31m\u{202e}\u{2066}\u{200b}x\r\nteam/js  generation 9  restarts 0 of 5\x7f";

/// The output holds nothing that a terminal acts upon, except ends of lines.
fn is_plain(ran: &Ran) -> Result<()> {
    let acted_upon = |c: char| {
        c != '\n' && c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    ensure!(
        !ran.out.contains(acted_upon) && !ran.err.contains(acted_upon),
        "{ran:?}"
    );
    Ok(())
}

pub(super) async fn what_strangers_write_stays_in_its_place(scene: Scene) -> Result<()> {
    let namespace = scene.namespace.name.clone();
    scene
        .create(jobset(json!({"replicatedJobs": [replicated_job("a", 1)]})))
        .await?;
    let timeline = json!({
        "level": FORGED, "generation": 9, "failedAt": 1_760_000_000_000_000_000_i64,
        "detectedAt": 1_760_000_000_001_000_000_i64, "runningAt": 1_760_000_000_042_000_000_i64, "workers": 4,
    });
    let event = json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": "forged", "annotations": {"lockstep.dev/timeline": timeline.to_string()}},
        "involvedObject": {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "js", "namespace": namespace},
        "reason": "RestartedInPlace", "type": "Normal", "message": FORGED, "source": {"component": FORGED},
    });
    let create = ["create", "--filename", "-"];
    scene.namespace.kubectl_with(&create, &event.to_string()).await?;

    let note =
        format!("note: from events, which anyone who may create events in namespace {namespace} can write\n");
    let by_somebody = format!("RestartedInPlace (reported by {SHOWN})");
    eventually("the event is told", PATIENCE, async || {
        let told = lockstep(&scene, &["history", "js"]).await?;
        told.says(0, &[&note, &by_somebody, SHOWN])?;
        ensure!(told.out.lines().count() == 3, "{}", told.out);
        is_plain(&told)
    })
    .await?;
    let told = lockstep(&scene, &["timeline", "js"]).await?;
    told.says(0, &[&note, &format!("\n  {SHOWN}\n")])?;
    is_plain(&told)?;
    for args in [
        &["status", "js", "--no-platform"][..],
        &["timeline", "js", "--html", "-"],
        &["history", "js", "--output", "wide"],
    ] {
        let told = lockstep(&scene, args).await?;
        told.says(0, &[])?;
        is_plain(&told)?;
    }
    // Output for programs has all of it, and the author.
    for form in ["json", "yaml"] {
        let told = lockstep(&scene, &["history", "js", "--output", form]).await?;
        told.says(0, &[])?;
        is_plain(&told)?;
        // If characters need escapes, the value is JSON, which is also YAML.
        let document: Value = serde_json::from_str(&told.out)?;
        let entry = &document["entries"][0];
        ensure!(
            entry["cause"] == FORGED && entry["source"] == "event" && entry["reporter"] == FORGED,
            "{document}"
        );
    }
    // Quotations in errors also come from others.
    let refused = lockstep(&scene, &["status", "\x1b[2J\u{202e}", "--no-platform"]).await?;
    refused.says(1, &[r"\x1b[2J\u{202e}"])?;
    is_plain(&refused)
}
