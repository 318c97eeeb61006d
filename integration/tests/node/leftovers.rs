//! What an attempt leaves behind apart from processes: the next one starts as in a fresh container,
//! as far as the agent has the rights.

use anyhow::{Result, ensure};
use lockstep_integration::harness::{Manifest, Worker};
use lockstep_integration::image;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{Case, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(mounts_of_an_attempt_do_not_pile_up),
        case!(a_port_is_free_for_the_next_attempt),
    ]
}

/// If these were kept, they would exceed the memory of the container.
const RESTARTS: u64 = 8;

async fn mounts_of_an_attempt_do_not_pile_up(scene: Scene) -> Result<()> {
    let script = r#"
        mkdir -p /scratch; mount -t tmpfs none /scratch && dd if=/dev/zero of=/scratch/x bs=1M count=20 2>/dev/null
        echo "attempt $LOCKSTEP_RESTART_ATTEMPT mounts: $(grep -c ' /scratch ' /proc/mounts)"
        exec sleep 1000000"#;
    let manifest = Manifest::new(2, script)
        .annotated("lockstep.dev/max-backoff", "0s")
        .container(json!({
            "securityContext": {"privileged": true},
            "resources": {"limits": {"memory": "120Mi"}},
        }));
    let group = scene.apply(&manifest).await?;
    let mut workers: Vec<Worker> = group.running(2).await?;
    for generation in 0..=RESTARTS {
        let pod = workers[1].place.pod.clone();
        let log = group
            .logged(&pod, &format!("attempt {generation} mounts: "))
            .await?;
        ensure!(
            log.contains(&format!("attempt {generation} mounts: 1\n")),
            "other mounts than its own: {log}"
        );
        if generation < RESTARTS {
            workers[1].signal(Signal::SIGKILL)?;
            workers = group.restarted_in_place(&workers, generation + 1).await?;
        }
    }
    group.status_has("/inPlaceRestart/level", "Process").await
}

/// Rank 0 listens without `SO_REUSEADDR`, as many simple servers do; the others stay connected to
/// it. No rank handles SIGTERM.
const SERVER: &str = r#"
import os, socket, time
attempt = os.environ["LOCKSTEP_RESTART_ATTEMPT"]
if os.environ["JOB_COMPLETION_INDEX"] == "0":
    server = socket.socket()
    server.bind(("", 29500))
    server.listen(8)
    held = [server.accept()[0] for _ in range(2)]
    print("attempt", attempt, "has its peers", flush=True)
else:
    while True:
        try:
            held = socket.create_connection(("group-w-0-0.group", 29500), timeout=5)
            break
        except OSError:
            time.sleep(0.1)
time.sleep(1000000)
"#;

async fn a_port_is_free_for_the_next_attempt(scene: Scene) -> Result<()> {
    scene.product.load(&image::python().await?).await?;
    let manifest = Manifest::new(3, "").max_restarts(2).container(json!({
        "image": "localhost/python:3",
        "command": ["python3", "-c", SERVER],
    }));
    let group = scene.apply(&manifest).await?;
    let mut workers = group.running(3).await?;
    let server = workers[0].place.pod.clone();
    // A client dies, then the server itself: each death costs one restart.
    for (generation, victim) in [(1, 1), (2, 0)] {
        let connected = format!("attempt {} has its peers", generation - 1);
        group.logged(&server, &connected).await?;
        workers[victim].signal(Signal::SIGKILL)?;
        workers = group.restarted_in_place(&workers, generation).await?;
    }
    group.logged(&server, "attempt 2 has its peers").await?;
    group.status_has("/inPlaceRestart/restarts", 2).await?;
    group.status_has("/inPlaceRestart/level", "Process").await
}
