//! Who asks: the plugin as somebody else, with their rights and no more.

use anyhow::{Result, ensure};
use lockstep_integration::harness::eventually;
use serde_json::json;

use super::lockstep;
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

/// By `--as` and `--as-group`, as kubectl does it.
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
    // Nobody's rights grow by it: the account of the kubeconfig may do this, they may not.
    let suspended = ["suspend", "js", "--as", "jane", "--as-group", "shift"];
    lockstep(&scene, &suspended)
        .await?
        .says(1, &["User \"jane\" cannot patch"])?;
    // The platform API knows callers by their own token, and is left aside without a word where it
    // is not needed.
    let seen = lockstep(&scene, &["status", "js", "--as", "jane", "--as-group", "shift"]).await?;
    seen.says(0, &["js-a-0  "])?;
    ensure!(seen.err.is_empty(), "{seen:#?}");

    let nobody = lockstep(&scene, &["status", "--as-group", "shift"]).await?;
    nobody.says(1, &["error: --as-group: needs a user, by --as"])?;
    for contradiction in [["--token", "t"], ["--server", "localhost:1"]] {
        let refused = lockstep(&scene, &[&jane[..4], &["jane"], &contradiction[..]].concat()).await?;
        refused.says(64, &["cannot be used with"])?;
    }
    Ok(())
}
