//! Watches across a change of leaders: a caller that starts over, as the error says, loses nothing
//! and sees nothing twice.

use std::net::SocketAddr;

use anyhow::{Result, bail, ensure};
use lockstep_integration::harness::eventually;
use lockstep_integration::host::free_addresses;
use lockstep_proto::platform::v1 as pb;
use lockstep_proto::platform::v1::watch_groups_response::Event;

use super::caller::{Caller, Watch};
use super::{is_up, played, with_the_node};
use crate::control_plane::ControlPlane;
use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, Scene, hub_ca_in};

/// A dead leader is replaced soon, but a live one keeps the lease if the machine stalls for
/// seconds.
const LEASE: [&str; 3] = [
    "--leader-elect-lease-duration=10s",
    "--leader-elect-renew-deadline=8s",
    "--leader-elect-retry-period=1s",
];

pub(super) fn cases() -> Vec<Case> {
    vec![case!(a_watch_goes_on_with_the_next_leader alone)]
}

async fn a_watch_goes_on_with_the_next_leader(scene: Scene) -> Result<()> {
    let [hub, platform, next_hub, next_platform] = free_addresses()?;
    let control_plane = scene.control_plane();
    let dir = control_plane.dir().join("watched");
    std::fs::create_dir_all(&dir)?;
    let dir_flag = dir.display().to_string();
    let (hub_flag, platform_flag) = (hub.to_string(), platform.to_string());
    let (next_hub_flag, next_platform_flag) = (next_hub.to_string(), next_platform.to_string());
    let here = ["--hub-advertise-address", "127.0.0.1", "--hub-tls-dir", &dir_flag];
    let flags = |hub, platform| {
        let own = ["--hub-bind-address", hub, "--platform-bind-address", platform];
        [here.as_slice(), own.as_slice(), LEASE.as_slice()].concat()
    };
    control_plane.stop().await?;
    control_plane
        .start_with(&flags(&hub_flag, &platform_flag))
        .await?;
    control_plane.until_ready().await?;
    let next = control_plane.replica("watched", &flags(&next_hub_flag, &next_platform_flag))?;
    let addresses = [(hub, platform), (next_hub, next_platform)];
    let ca = hub_ca_in(&dir).await?;
    let result = with_the_node(&scene, async || {
        over_a_takeover(&scene, &next, addresses, &ca).await
    })
    .await;
    if result.is_err() {
        println!("{}", next.log());
    }
    // Other cases expect a control plane without a hub.
    let _ = next.stop().await;
    let _ = control_plane.stop().await;
    result
}

async fn over_a_takeover(
    scene: &Scene,
    next: &ControlPlane,
    [(hub, platform), (next_hub, next_platform)]: [(SocketAddr, SocketAddr); 2],
    ca: &str,
) -> Result<()> {
    let namespace = &scene.namespace.name;
    let (_, daemon) = played(scene, hub, ca).await?;
    let caller = Caller::new(scene, platform, ca);
    let caller = caller.account("watcher", &["list", "watch", "patch"]).await?;
    let mut watch = eventually("the leader serves", PATIENCE, async || {
        Ok(caller.watch(namespace).await?)
    })
    .await?;
    next.start().await?;
    next.until_ready().await?;
    let mut seen = Seen::default();
    seen.until(&mut watch, |group| is_up(group, 0)).await?;
    caller.restart(namespace, "js", "before").await?;
    let before = seen.until(&mut watch, |group| is_up(group, 1)).await?;
    eventually("that is durable", PATIENCE, async || {
        let again = caller.restart(namespace, "js", "before").await?;
        ensure!(again.handled, "{again:?}");
        Ok(())
    })
    .await?;
    // The release of the workers is a write of its own.
    scene
        .until_status("the release is durable", |status| {
            status
                .in_place_restart
                .as_ref()
                .is_some_and(|state| state.released == 1)
        })
        .await?;

    scene.control_plane().kill().await?;
    let lost = async { while watch.next().await.is_ok() {} };
    tokio::time::timeout(PATIENCE, lost).await?;

    // The caller starts over at the next leader.
    let caller = caller.at(next_platform, ca);
    let mut watch = eventually("the next leader serves", PATIENCE, async || {
        Ok(caller.watch(namespace).await?)
    })
    .await?;
    let mut shown = Vec::new();
    loop {
        match watch.next().await? {
            Event::Changed(group) => shown.push(group),
            Event::Synced(_) => break,
            Event::Removed(key) => bail!("{key:?} is not gone"),
        }
    }
    let [group] = shown.as_slice() else {
        bail!("not one group, once: {shown:?}");
    };
    // All that was durable is there, including the request, so no worker restarts twice.
    ensure!(
        group.uid == before.uid
            && (group.generation, group.released, group.restarts) == (1, 1, 0)
            && group.handled_request == "before",
        "{group:?}"
    );
    seen.take(group.clone())?;
    let daemon = daemon.again(scene, next_hub, ca).await?;
    if !is_up(group, 1) {
        seen.until(&mut watch, |group| is_up(group, 1)).await?;
    }
    daemon.exit(0, 3).await?;
    let after = seen.until(&mut watch, |group| is_up(group, 2)).await?;
    ensure!(after.restarts == 1, "{after:?}");
    Ok(())
}

/// What a caller knows of the group.
#[derive(Default)]
struct Seen(Option<pb::Group>);

impl Seen {
    /// Checks that nothing goes back, and that one watch shows nothing twice.
    fn take(&mut self, group: pb::Group) -> Result<()> {
        if let Some(before) = &self.0 {
            let order = |group: &pb::Group| (group.generation, group.released, group.restarts);
            let (was, is) = (order(before), order(&group));
            ensure!(
                was.0 <= is.0 && was.1 <= is.1 && was.2 <= is.2,
                "{before:?} became {group:?}"
            );
        }
        self.0 = Some(group);
        Ok(())
    }

    async fn until(&mut self, watch: &mut Watch, is: impl Fn(&pb::Group) -> bool) -> Result<pb::Group> {
        loop {
            match watch.next().await? {
                Event::Changed(group) => {
                    ensure!(self.0.as_ref() != Some(&group), "twice: {group:?}");
                    self.take(group.clone())?;
                    if is(&group) {
                        return Ok(group);
                    }
                }
                Event::Synced(_) => {}
                Event::Removed(key) => bail!("{key:?} is not gone"),
            }
        }
    }
}
