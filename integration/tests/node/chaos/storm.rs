//! Restarts one after the other, while the product changes under them: each succeeds, and no other
//! worker is touched.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use lockstep_integration::harness::{Group, Manifest, Worker};
use nix::sys::signal::Signal;

use super::authority;
use super::long_suffering;
use super::state::{Rest, SCRIPT};
use crate::support::{Product, Scene};

/// Workers of each group.
const WORKERS: usize = 4;
/// More restarts than any storm has.
const MANY: u32 = 1_000_000;

/// A group whose workers die again and again, and one beside it.
pub(crate) struct Storm {
    group: Group,
    rest: Rest,
    calm: (Group, Rest),
}

impl Storm {
    /// Both groups, at rest.
    pub(crate) async fn gather(scene: &Scene) -> Result<Self> {
        let manifest = |name| long_suffering(Manifest::new(4, SCRIPT), MANY).named(name);
        let group = scene.apply(&manifest("storm")).await?;
        let calm = scene.apply(&manifest("calm")).await?;
        Ok(Self {
            rest: Rest::wait(&group, WORKERS, 0..=0, MANY.into()).await?,
            group,
            calm: (
                calm.clone(),
                Rest::wait(&calm, WORKERS, 0..=0, MANY.into()).await?,
            ),
        })
    }

    /// How often the group was restarted.
    pub(crate) fn restarts(&self) -> u64 {
        self.rest.generation
    }

    /// The workers of the group that restarts, as they run now.
    pub(crate) fn workers(&self) -> &[Worker] {
        &self.rest.workers
    }

    /// Kills a worker, and waits until all have restarted in their places.
    pub(crate) async fn blow(&mut self) -> Result<()> {
        let before = &self.rest;
        let victim = usize::try_from(before.generation)? % WORKERS;
        before.workers[victim].signal(Signal::SIGKILL)?;
        let next = before.generation + 1;
        let rest = Rest::wait(&self.group, WORKERS, next..=next, MANY.into()).await?;
        rest.ensure_places(before, &[])?;
        self.rest = rest;
        Ok(())
    }

    /// Continues while `act` runs, and for one restart after it. The other group must not notice.
    pub(crate) async fn during(&mut self, act: impl Future<Output = Result<()>>) -> Result<()> {
        let over = AtomicBool::new(false);
        let acted = async {
            let done = act.await;
            over.store(true, Ordering::Relaxed);
            done
        };
        let raged = async {
            while !over.load(Ordering::Relaxed) {
                self.blow().await?;
            }
            self.blow().await
        };
        let (acted, raged) = tokio::join!(acted, raged);
        acted.and(raged)?;
        let (group, rest) = &self.calm;
        rest.ensure_unchanged(group).await
    }
}

/// Replaces the pods of both parts, as an upgrade does.
pub(super) async fn roll_out(product: &Product, number: usize) -> Result<()> {
    let values =
        ["controller", "nodeDaemon"].map(|part| format!("{part}.podAnnotations.rollout=number-{number}"));
    product.reinstall(&values.each_ref().map(String::as_str)).await
}

/// Rollouts of both parts during a storm.
pub(super) async fn both_parts_are_rolled_out_in_a_storm_of_restarts(scene: Scene) -> Result<()> {
    let mut storm = Storm::gather(&scene).await?;
    for number in 1..=2 {
        storm.during(Box::pin(roll_out(&scene.product, number))).await?;
    }
    println!("     {} restarts during 2 rollouts", storm.restarts());
    Ok(())
}

/// A rotation of the hub's CA during a storm.
pub(super) async fn the_authority_is_replaced_in_a_storm_of_restarts(scene: Scene) -> Result<()> {
    let mut storm = Storm::gather(&scene).await?;
    storm.during(Box::pin(authority::replace(&scene.product))).await?;
    println!(
        "     {} restarts during a change of the authority",
        storm.restarts()
    );
    Ok(())
}
