//! The admission webhooks of the chart, called by a real API server.

mod annotations;
mod certificates;
mod followers;
mod permissions;
pub(crate) mod setup;
mod typed;
mod updates;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Binding, Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt};
use lockstep_api::annotations::EXCLUSIVE_TOPOLOGY;
use lockstep_api::{JobSet, labels};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, REFUSED, Scene, jobset, replicated_job};
use annotations::{
    an_annotation_that_cannot_be_is_refused, an_annotation_that_does_nothing_is_named_and_the_jobset_taken,
};
use certificates::{
    files_that_somebody_else_keeps_are_served_by_a_replica_that_does_not_lead,
    what_the_api_server_must_trust_is_put_back_and_a_lost_secret_made_anew,
};
use followers::a_follower_is_told_what_it_waits_for;
use permissions::the_chart_allows_what_a_replica_does_and_it_can_do_without_the_configurations;
use setup::DENIED;
use typed::a_client_that_writes_zero_values_out_resumes_a_jobset;
use updates::{
    a_claim_that_is_there_must_be_the_same_and_stay,
    a_jobset_that_is_elastic_changes_its_size_and_nothing_else,
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_jobset_is_stored_with_its_defaults_and_runs),
        case!(what_cannot_be_is_refused_with_its_reason),
        case!(an_update_may_change_what_a_suspended_jobset_lets_it),
        case!(a_client_that_writes_zero_values_out_resumes_a_jobset),
        case!(a_jobset_that_is_elastic_changes_its_size_and_nothing_else),
        case!(a_claim_that_is_there_must_be_the_same_and_stay),
        case!(kubectl_applies_through_the_webhooks),
        case!(an_annotation_that_does_nothing_is_named_and_the_jobset_taken),
        case!(an_annotation_that_cannot_be_is_refused),
        case!(exclusive_placement_brings_followers_to_their_leader),
        case!(a_follower_is_told_what_it_waits_for),
        case!(files_that_somebody_else_keeps_are_served_by_a_replica_that_does_not_lead),
        case!(the_chart_allows_what_a_replica_does_and_it_can_do_without_the_configurations),
        case!(what_the_api_server_must_trust_is_put_back_and_a_lost_secret_made_anew alone),
    ]
}

/// The message with which the API server refuses an object.
fn refusal<T>(result: Result<T>) -> Result<Box<kube::core::Status>> {
    let error = result.err().context("it was taken")?;
    match error.downcast::<kube::Error>()? {
        kube::Error::Api(status) => Ok(status),
        error => Err(error.into()),
    }
}

/// Checks that the webhook for JobSets refused it as invalid, with a message that contains this.
pub(crate) fn ensure_invalid<T>(result: Result<T>, expected: &str) -> Result<()> {
    let status = refusal(result)?;
    let message = &status.message;
    ensure!(
        (status.code, status.reason.as_str()) == (422, "Invalid"),
        "{status:?}"
    );
    ensure!(
        message.starts_with(&format!("{DENIED}JobSet.jobset.x-k8s.io \""))
            && message.contains(" is invalid: "),
        "{message}"
    );
    ensure!(message.contains(expected), "{message} does not say {expected}");
    let causes = status.details.map(|details| details.causes).unwrap_or_default();
    ensure!(
        causes.iter().all(
            |cause| ["FieldValueInvalid", "InternalError"].contains(&cause.reason.as_str())
                && !cause.field.is_empty()
        ) && !causes.is_empty(),
        "{causes:?}"
    );
    Ok(())
}

async fn a_jobset_is_stored_with_its_defaults_and_runs(scene: Scene) -> Result<()> {
    setup::enable(&scene).await?;
    let mut job = replicated_job("a", 1);
    let pod = job["template"]["spec"]["template"]["spec"]
        .as_object_mut()
        .context("no pod")?;
    pod.remove("restartPolicy");
    let rules = json!([{"action": "FailJobSet"}, {"name": "mine", "action": "RestartJobSet"}]);
    scene
        .create(jobset(
            json!({"replicatedJobs": [job], "failurePolicy": {"maxRestarts": 1, "rules": rules}}),
        ))
        .await?;
    let stored = serde_json::to_value(scene.api::<JobSet>().get("js").await?)?;
    let spec = &stored["spec"];
    ensure!(spec["successPolicy"] == json!({"operator": "All"}), "{spec}");
    ensure!(
        spec["startupPolicy"] == json!({"startupPolicyOrder": "AnyOrder"}),
        "{spec}"
    );
    ensure!(
        spec["network"] == json!({"enableDNSHostnames": true, "publishNotReadyAddresses": true}),
        "{spec}"
    );
    let job = &spec["replicatedJobs"][0]["template"]["spec"];
    ensure!(job["completionMode"] == "Indexed", "{spec}");
    ensure!(job["template"]["spec"]["restartPolicy"] == "OnFailure", "{spec}");
    let names = spec["failurePolicy"]["rules"].as_array().context("no rules")?;
    let names: Vec<_> = names.iter().map(|rule| rule["name"].as_str()).collect();
    ensure!(names == [Some("failurePolicyRule0"), Some("mine")], "{names:?}");

    scene.until_jobs(&["js-a-0"], 0).await?;
    scene.pods_become("js-a-0", "Succeeded").await?;
    scene
        .until_condition("Completed", "True", "AllJobsCompleted")
        .await?;
    Ok(())
}

/// Invalid JobSets, and the messages about them.
fn mistakes() -> Vec<(Value, &'static str)> {
    let with = |field: &str, value: Value| {
        let mut spec = json!({"replicatedJobs": [replicated_job("a", 1), replicated_job("b", 1)]});
        *spec.pointer_mut(field).unwrap_or(&mut Value::Null) = Value::Null;
        let (parent, key) = field.rsplit_once('/').unwrap();
        spec.pointer_mut(parent).unwrap()[key] = value;
        jobset(spec)
    };
    let rules = |rules: Value| with("/failurePolicy", json!({"rules": rules}));
    let mut long = with("/suspend", json!(true));
    long["metadata"]["name"] = json!("x".repeat(60));
    let mut generated = with("/suspend", json!(true));
    generated["metadata"] = json!({"generateName": "x".repeat(58)});
    let depends = |on: &str| json!([{"name": on, "status": "Ready"}]);
    vec![
        (
            with("/replicatedJobs/0/dependsOn", depends("b")),
            "DependsOn can't be set for the first ReplicatedJob",
        ),
        (
            with("/replicatedJobs/1/dependsOn", depends("b")),
            "replicatedJob: b cannot depend on replicatedJob: b",
        ),
        (
            with("/replicatedJobs/1/dependsOn", depends("c")),
            "replicatedJob: b cannot depend on replicatedJob: c",
        ),
        (
            with(
                "/successPolicy",
                json!({"operator": "All", "targetReplicatedJobs": ["x"]}),
            ),
            "invalid replicatedJob name 'x' does not appear in .spec.ReplicatedJobs",
        ),
        (
            rules(json!([{"action": "FailJobSet", "targetReplicatedJobs": ["x"]}])),
            "invalid replicatedJob name 'x' in failure policy does not appear in .spec.ReplicatedJobs",
        ),
        (
            rules(json!([{"name": "r", "action": "FailJobSet"}, {"name": "r", "action": "FailJobSet"}])),
            "rule names are not unique, rules with indices",
        ),
        (
            rules(json!([{"name": "1", "action": "FailJobSet"}])),
            "invalid failure policy rule name '1', a failure policy rule name must start with an alphabetic character",
        ),
        (
            with("/coordinator", json!({"replicatedJob": "x"})),
            "coordinator replicatedJob x does not exist",
        ),
        (
            with("/coordinator", json!({"replicatedJob": "a", "jobIndex": 7})),
            "coordinator job index 7 is invalid for replicatedJob a",
        ),
        (
            with("/managedBy", json!("me")),
            "spec.managedBy: Invalid value: \"me\": must be a domain-prefixed path",
        ),
        (
            with("/managedBy", json!("acme.io/")),
            "spec.managedBy: Invalid value: \"acme.io/\": must be a domain-prefixed path (such as \"acme.io/foo\")",
        ),
        (
            with("/network", json!({"subdomain": "Not A Name"})),
            "spec.network.subdomain: Invalid value: \"Not A Name\": a lowercase RFC 1123 subdomain must consist of",
        ),
        (
            long,
            "JobSet name is too long, job names generated for this JobSet will exceed 63 characters",
        ),
        (
            generated,
            "JobSet name is too long, job names generated for this JobSet will exceed 63 characters",
        ),
        (
            with("/replicatedJobs/0/groupName", json!("Not-A-Name")),
            "spec.replicatedJobs[0].groupName: Invalid value: \"Not-A-Name\"",
        ),
        (
            with("/replicatedJobs/0/groupName", json!("")),
            "spec.replicatedJobs[0].groupName: Invalid value: \"\": a DNS-1035 label must consist of",
        ),
        (
            with("/failurePolicy", json!({"restartStrategy": "InPlaceRestart"})),
            "must be set to 2147483647 (MaxInt32) when in-place restart is enabled",
        ),
        (
            with(
                "/volumeClaimPolicies",
                json!([{"templates": [{
                    "metadata": {"name": "data"},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
                }]}]),
            ),
            "replicatedJob containers don't have a matching volumeMount: data from VolumeClaimPolicies",
        ),
    ]
}

async fn what_cannot_be_is_refused_with_its_reason(scene: Scene) -> Result<()> {
    setup::enable(&scene).await?;
    for (manifest, expected) in mistakes() {
        let created = scene.create(manifest).await;
        ensure_invalid(created, expected).with_context(|| expected.to_owned())?;
    }
    let left = scene.api::<JobSet>().list(&ListParams::default()).await?;
    ensure!(left.items.is_empty());
    Ok(())
}

async fn an_update_may_change_what_a_suspended_jobset_lets_it(scene: Scene) -> Result<()> {
    setup::enable(&scene).await?;
    scene
        .create(jobset(json!({"suspend": true, "managedBy": "acme.io/other", "replicatedJobs": [replicated_job("a", 1)]})))
        .await?;
    let change = async |pointer: &str, value: Value| -> Result<JobSet> {
        let mut jobset = serde_json::to_value(scene.api::<JobSet>().get("js").await?)?;
        let (parent, key) = pointer.rsplit_once('/').context("no pointer")?;
        jobset.pointer_mut(parent).context("no such field")?[key] = value;
        let jobset = serde_json::from_value(jobset)?;
        Ok(scene.api().replace("js", &PostParams::default(), &jobset).await?)
    };
    const POD: &str = "/spec/replicatedJobs/0/template/spec/template";
    change(&format!("{POD}/spec/nodeSelector"), json!({"zone": "a"})).await?;
    change(
        &format!("{POD}/spec/tolerations"),
        json!([{"key": "k", "operator": "Exists"}]),
    )
    .await?;
    change(
        &format!("{POD}/spec/schedulingGates"),
        json!([{"name": "example.com/g"}]),
    )
    .await?;
    change(
        &format!("{POD}/metadata"),
        json!({"labels": {"a": "b"}, "annotations": {"c": "d"}}),
    )
    .await?;
    let immutable = "field is immutable";
    ensure_invalid(
        change(&format!("{POD}/spec/hostNetwork"), json!(true)).await,
        immutable,
    )?;
    ensure_invalid(
        change("/spec/replicatedJobs/0/replicas", json!(2)).await,
        immutable,
    )?;
    ensure_invalid(change("/spec/managedBy", json!("acme.io/third")).await, immutable)?;
    ensure_invalid(
        change("/spec/managedBy", Value::Null).await,
        "spec.managedBy: Invalid value: null: field is immutable",
    )?;

    change("/spec/suspend", json!(false)).await?;
    ensure_invalid(
        change(&format!("{POD}/spec/nodeSelector"), json!({"zone": "b"})).await,
        immutable,
    )?;
    change("/metadata/labels", json!({"free": "yes"})).await?;
    Ok(())
}

async fn kubectl_applies_through_the_webhooks(scene: Scene) -> Result<()> {
    setup::enable(&scene).await?;
    let mut manifest = jobset(json!({"suspend": true, "replicatedJobs": [replicated_job("a", 1)]}));
    let apply = async |manifest: &Value, more: &[&str]| {
        let mut args = vec!["apply", "--filename", "-"];
        args.extend(more);
        scene.namespace.kubectl_with(&args, &manifest.to_string()).await
    };
    for (name, more) in [("client", &[][..]), ("server", &["--server-side"])] {
        manifest["metadata"]["name"] = json!(name);
        for _ in 0..2 {
            apply(&manifest, more).await?;
        }
        let stored = scene.api::<JobSet>().get(name).await?;
        ensure!(stored.spec.success_policy.is_some());
        ensure!(stored.metadata.generation == Some(1), "{:?}", stored.metadata);
    }
    manifest["spec"]["replicatedJobs"][0]["replicas"] = json!(3);
    let said = apply(&manifest, &["--server-side"])
        .await
        .err()
        .context("it was taken")?;
    ensure!(said.to_string().contains("field is immutable"), "{said:#}");
    let said = apply(
        &jobset(json!({"replicatedJobs": [{"name": "a", "replicas": "two"}]})),
        &["--validate=false"],
    )
    .await;
    ensure!(said.is_err(), "a number that is text was taken");
    Ok(())
}

async fn exclusive_placement_brings_followers_to_their_leader(scene: Scene) -> Result<()> {
    const RACK: &str = "example.com/rack";
    setup::enable(&scene).await?;
    let client = scene.namespace.access.client.clone();
    let node = format!("{}-node", scene.namespace.name);
    let object = json!({"metadata": {"name": node, "labels": {RACK: "r1"}}, "spec": {"unschedulable": true}});
    Api::<Node>::all(client)
        .create(&PostParams::default(), &serde_json::from_value(object)?)
        .await?;
    let mut exclusive = replicated_job("a", 1);
    exclusive["template"]["metadata"] = json!({"annotations": {EXCLUSIVE_TOPOLOGY: RACK}});
    exclusive["template"]["spec"]["parallelism"] = json!(2);
    exclusive["template"]["spec"]["completions"] = json!(2);
    scene
        .create(jobset(
            json!({"replicatedJobs": [exclusive, replicated_job("plain", 1)]}),
        ))
        .await?;
    let pods_of = async |job: &str| {
        let of_job = ListParams::default().labels(&format!("{}={job}", labels::BATCH_JOB_NAME));
        anyhow::Ok(scene.api::<Pod>().list(&of_job).await?.items)
    };
    let (leader, plain) = eventually(
        "the leader and the pod that does not care",
        PATIENCE,
        async || {
            let leader = pods_of("js-a-0").await?.into_iter().next().context("no leader")?;
            let plain = pods_of("js-plain-0")
                .await?
                .into_iter()
                .next()
                .context("no plain pod")?;
            Ok((leader, plain))
        },
    )
    .await?;
    ensure!(leader.annotations()[labels::BATCH_JOB_COMPLETION_INDEX] == "0");
    let affinity = serde_json::to_value(leader.spec.as_ref().and_then(|spec| spec.affinity.clone()))?;
    let term = &affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0];
    ensure!(
        term["topologyKey"] == RACK
            && term["labelSelector"]["matchExpressions"][0]["values"][0] == leader.labels()[labels::JOB_KEY],
        "{affinity}"
    );
    ensure!(plain.spec.as_ref().is_some_and(|spec| spec.affinity.is_none()));
    for pod in [&leader, &plain] {
        ensure!(pod.labels()[labels::PRIORITY] == "0", "{:?}", pod.labels());
    }
    ensure!(
        pods_of("js-a-0").await?.len() == 1,
        "a follower before its leader is placed"
    );

    let binding = json!({"metadata": {"name": leader.name_any()}, "target": {"kind": "Node", "name": node}});
    let binding: Binding = serde_json::from_value(binding)?;
    scene
        .api::<Pod>()
        .create_subresource::<_, Value>("binding", &leader.name_any(), &PostParams::default(), &binding)
        .await?;
    let follower = eventually("the follower", REFUSED, async || {
        let pods = pods_of("js-a-0").await?;
        let follower = pods.into_iter().find(|pod| pod.meta().uid != leader.metadata.uid);
        follower.context("no follower")
    })
    .await?;
    ensure!(
        follower
            .spec
            .as_ref()
            .and_then(|spec| spec.node_selector.as_ref()?.get(RACK))
            .is_some_and(|rack| rack == "r1"),
        "{:?}",
        follower.spec
    );
    let patch = Patch::Merge(json!({"metadata": {"labels": {"any": "label"}}}));
    scene
        .api::<Pod>()
        .patch(&follower.name_any(), &PatchParams::default(), &patch)
        .await?;
    Ok(())
}
