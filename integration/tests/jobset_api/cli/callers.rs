//! Impersonation: the plugin acts as another user, with only the rights of that user.

use anyhow::{Result, ensure};
use lockstep_integration::harness::eventually;
use serde_json::json;

use super::lockstep;
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

/// With `--as` and `--as-group`, as in kubectl.
pub(super) async fn somebody_else_sees_what_they_may(scene: Scene) -> Result<()> {
    let namespace = scene.namespace.name.clone();
    scene
        .create(jobset(json!({"replicatedJobs": [replicated_job("a", 1)]})))
        .await?;
    let jane = ["status", "js", "--no-platform", "--as", "jane"];
    let refused = lockstep(&scene, &jane).await?;
    refused.says(
        1,
        &[&format!(
            "error: JobSet {namespace}/js: jobsets.jobset.x-k8s.io \"js\" is forbidden: User \"jane\" cannot get"
        )],
    )?;
    ensure!(refused.out.is_empty(), "{refused:#?}");

    for make in [
        &[
            "create",
            "role",
            "shift",
            "--verb=get,list",
            "--resource=jobsets.jobset.x-k8s.io,jobs.batch,pods",
        ][..],
        &["create", "rolebinding", "shift", "--role=shift", "--group=shift"],
    ] {
        scene.namespace.kubectl(make).await?;
    }
    // The API server learns of roles by a watch.
    eventually("the group may look", PATIENCE, async || {
        let seen = lockstep(&scene, &[&jane[..], &["--as-group", "shift"]].concat()).await?;
        seen.says(0, &[&format!("{namespace}/js  "), "js-a-0  "])
    })
    .await?;
    // Impersonation adds no rights: the account of the kubeconfig may do this, the user may not.
    let suspended = ["suspend", "js", "--as", "jane", "--as-group", "shift"];
    lockstep(&scene, &suspended)
        .await?
        .says(1, &["User \"jane\" cannot patch"])?;
    // The platform API knows callers by their own token. If it is not needed, the plugin silently
    // does without it.
    let seen = lockstep(&scene, &["status", "js", "--as", "jane", "--as-group", "shift"]).await?;
    seen.says(0, &["js-a-0  "])?;
    ensure!(seen.err.is_empty(), "{seen:#?}");

    let nobody = lockstep(&scene, &["status", "--as-group", "shift"]).await?;
    nobody.says(1, &["error: --as-group: needs a user (--as)"])?;
    for contradiction in [["--token", "t"], ["--server", "localhost:1"]] {
        let refused = lockstep(&scene, &[&jane[..4], &["jane"], &contradiction[..]].concat()).await?;
        refused.says(64, &["cannot be used with"])?;
    }
    Ok(())
}
