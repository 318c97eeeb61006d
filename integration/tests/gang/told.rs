//! What events, conditions and metrics say of gangs.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use lockstep_api::{GangPhase, conditions};
use lockstep_integration::harness::eventually;

use crate::fixture::{Case, case};
use crate::pool::{Pool, Set, part};
use crate::scene::{PATIENCE, Scene};

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(who_waits_says_what_is_short_and_how_long_it_took)]
}

/// Waits for an event of a set, and returns its note.
pub(crate) async fn note(pool: &Pool, set: &str, reason: &str) -> Result<String> {
    eventually(&format!("an event {reason} of {set}"), PATIENCE, async || {
        let events = pool.scene.api::<Event>().list(&ListParams::default()).await?;
        let about = |event: &Event| {
            let name = event.regarding.as_ref().and_then(|object| object.name.as_deref());
            name == Some(set) && event.reason.as_deref() == Some(reason)
        };
        let event = events.into_iter().find(about).context("none yet")?;
        Ok(event.note.unwrap_or_default())
    })
    .await
}

/// The value of a metric without labels.
async fn metric(pool: &Pool, name: &str) -> Result<f64> {
    let metrics = pool.scene.control_plane().metrics().await?;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    let value = line.with_context(|| format!("no metric {name}"))?;
    Ok(value.trim().parse()?)
}

async fn who_waits_says_what_is_short_and_how_long_it_took(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 5, 4).await?;
    for backend in ["Gates", "PodGroup"] {
        let [first, second] = ["first", "second"].map(|name| format!("{name}-{}", backend.to_lowercase()));
        pool.create(&Set::new(&first, backend, [part("w", 2, 2, 4)]))
            .await?;
        pool.until_phase(&first, GangPhase::Scheduled).await?;
        let said = note(&pool, &first, "GangScheduled").await?;
        ensure!(
            said.starts_with("all 2 pods are bound, ") && said.ends_with(" s after their Jobs were started"),
            "{said}"
        );
        let count = metric(&pool, "lockstep_gang_seconds_count").await?;
        ensure!(
            count >= 1.0 && metric(&pool, "lockstep_gang_seconds_sum").await? > 0.0,
            "{count} gangs were bound"
        );
        pool.create(&Set::new(&second, backend, [part("w", 5, 5, 4)]))
            .await?;
        let short = "needs 5 pods x 4 cpu, 3 fit: 2 short of cpu";
        let said = note(&pool, &second, "GangWaiting").await?;
        ensure!(said == short, "{backend}: {said}");
        let status = pool
            .until_status(&second, "what is short", |status| {
                let gang = status.gangs.first();
                gang.is_some_and(|gang| gang.message.as_deref() == Some(short))
            })
            .await?;
        let gang = &status.gangs[0];
        ensure!(
            (gang.phase.clone(), gang.min_available, gang.attempt) == (GangPhase::Waiting, 5, 0),
            "{gang:?}"
        );
        let condition = status
            .condition(conditions::MIN_AVAILABLE)
            .context("no condition")?;
        ensure!(
            (condition.status.as_str(), condition.reason.as_str()) == ("False", "Waiting"),
            "{condition:?}"
        );
        // The metric counts the gangs of other cases too.
        let waiting = metric(&pool, "lockstep_gangs_waiting").await?;
        ensure!(waiting >= 1.0, "{waiting} gangs wait");
        pool.delete(&first).await?;
        pool.until_phase(&second, GangPhase::Scheduled).await?;
        let said = note(&pool, &second, "GangScheduled").await?;
        ensure!(said.starts_with("all 5 pods are bound, "), "{said}");
        pool.delete(&second).await?;
        // The next message about missing room depends on it.
        for set in [&first, &second] {
            pool.until_gone(set).await?;
        }
    }
    Ok(())
}
