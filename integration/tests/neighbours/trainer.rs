//! Kubeflow Trainer creates JobSets from TrainJobs, alone and with Kueue.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use lockstep_api::{JobSet, RestartStrategy, labels};
use lockstep_integration::command::run;
use lockstep_integration::harness::eventually;
use lockstep_integration::harness::hollow::{self, POOL};
use lockstep_integration::host::target_dir;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::fixture::{Case, case};
use crate::queue::{QUEUE, QUEUE_NAME, Queue, end, play_kubelets, pods, until_running};
use crate::scene::{PATIENCE, Scene};

const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/neighbours");

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_trainjob_runs_to_its_end),
        case!(a_suspended_trainjob_runs_when_it_is_resumed),
        case!(a_failed_trainjob_says_so),
        case!(initializers_run_before_the_trainer),
        case!(a_runtime_asks_for_restarts_in_place_by_strategy_and_annotations),
        case!(kueue_admits_a_trainjob),
        case!(kubeflows_python_sdk_trains),
    ]
}

/// A TrainingRuntime and TrainJobs of it.
struct Training {
    scene: Scene,
}

/// A replicatedJob of a runtime, whose only container has this name.
fn step(name: &str, container: &str, ancestor: &str, pool: &str) -> Value {
    json!({
        "name": name,
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": ancestor}},
            "spec": {"backoffLimit": 0, "template": {"spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "nodeSelector": {POOL: pool},
                "containers": [{"name": container, "image": "none", "resources": {"requests": {"cpu": "1"}}}],
            }}},
        },
    })
}

impl Training {
    /// A runtime of two nodes, with nodes for it. `template` has more fields of the JobSet's
    /// template.
    async fn new(scene: Scene, template: Value) -> Result<Self> {
        let name = scene.namespace.name.clone();
        play_kubelets(&scene);
        hollow::create_nodes(&scene.client(), &name, 1, 4).await?;
        Self::on(scene, template).await
    }

    /// The same on the nodes that there are.
    async fn on(scene: Scene, more: Value) -> Result<Self> {
        let name = scene.namespace.name.clone();
        let trainer = step("node", "node", "trainer", &name);
        let mut template = json!({"spec": {"replicatedJobs": [trainer]}});
        for part in ["metadata", "spec"] {
            for (key, value) in more[part].as_object().into_iter().flatten() {
                template[part][key] = value.clone();
            }
        }
        let spec = json!({"mlPolicy": {"numNodes": 2, "torch": {}}, "template": template});
        let training = Self { scene };
        let labels = json!({"trainer.kubeflow.org/framework": "torch"});
        training.create("TrainingRuntime", "torch", labels, spec).await?;
        Ok(training)
    }

    /// Objects of Trainer in the namespace.
    fn api(&self, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.scene.client(), &self.scene.namespace.name, &resource(kind))
    }

    /// Creates an object of Trainer.
    async fn create(&self, kind: &str, name: &str, labels: Value, spec: Value) -> Result<()> {
        let mut object = DynamicObject::new(name, &resource(kind));
        object.metadata.labels = serde_json::from_value(labels)?;
        object.data = json!({"spec": spec});
        // Trainer's webhook may not have seen the runtime yet.
        eventually(&format!("{kind} {name} is created"), PATIENCE, async || {
            Ok(self.api(kind).create(&PostParams::default(), &object).await?)
        })
        .await
        .map(drop)
    }

    /// Creates the TrainJob `js`, whose JobSet has the same name.
    async fn train(&self, labels: Value, more: Value) -> Result<()> {
        let mut spec = json!({"runtimeRef": {"kind": "TrainingRuntime", "name": "torch"}});
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        self.create("TrainJob", "js", labels, spec).await
    }

    /// Waits until Trainer's webhook has seen the runtime.
    async fn until_known(&self) -> Result<()> {
        let mut job = DynamicObject::new("probe", &resource("TrainJob"));
        job.data = json!({"spec": {"runtimeRef": {"kind": "TrainingRuntime", "name": "torch"}}});
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        eventually("the runtime is known", PATIENCE, async || {
            Ok(self.api("TrainJob").create(&dry_run, &job).await?)
        })
        .await
        .map(drop)
    }

    /// Waits until this many pods of a replicatedJob run.
    async fn until_running(&self, step: &str, count: usize) -> Result<()> {
        until_running(&self.scene, &of_step(step), count).await.map(drop)
    }

    /// The pods of a replicatedJob that have not ended.
    async fn pods(&self, step: &str) -> Result<Vec<Pod>> {
        pods(&self.scene, &of_step(step)).await
    }

    /// Plays the kubelet: the pods of a replicatedJob end with this phase.
    async fn end(&self, step: &str, phase: &str) -> Result<()> {
        for pod in self.pods(step).await? {
            end(&self.scene, &pod, phase).await?;
        }
        Ok(())
    }

    /// Waits until the TrainJob has this condition.
    async fn until_condition(&self, type_: &str, status: &str) -> Result<Value> {
        eventually(&format!("the TrainJob: {type_} {status}"), PATIENCE, async || {
            let job = self.api("TrainJob").get("js").await?;
            let conditions = job.data.pointer("/status/conditions").and_then(Value::as_array);
            let found = conditions
                .into_iter()
                .flatten()
                .find(|condition| condition["type"] == *type_);
            let found = found.with_context(|| format!("no such condition: {:?}", job.data["status"]))?;
            ensure!(found["status"] == *status, "{found}");
            Ok(found.clone())
        })
        .await
    }
}

/// Selects the pods of a replicatedJob.
fn of_step(name: &str) -> String {
    format!("{}={name}", labels::REPLICATED_JOB_NAME)
}

fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("trainer.kubeflow.org", "v1alpha1", kind))
}

async fn a_trainjob_runs_to_its_end(scene: Scene) -> Result<()> {
    let training = Training::new(scene, json!({})).await?;
    training.train(json!({}), json!({})).await?;
    training.until_running("node", 2).await?;
    training.end("node", "Succeeded").await?;
    training.until_condition("Complete", "True").await.map(drop)
}

async fn a_suspended_trainjob_runs_when_it_is_resumed(scene: Scene) -> Result<()> {
    let training = Training::new(scene, json!({})).await?;
    training.train(json!({}), json!({"suspend": true})).await?;
    training.until_condition("Suspended", "True").await?;
    training
        .scene
        .until_condition("Suspended", "True", "SuspendedJobs")
        .await?;
    ensure!(training.pods("node").await?.is_empty());
    let suspend = async |suspend: bool| -> Result<()> {
        let patch = Patch::Merge(json!({"spec": {"suspend": suspend}}));
        training
            .api("TrainJob")
            .patch("js", &PatchParams::default(), &patch)
            .await?;
        Ok(())
    };
    suspend(false).await?;
    training.until_running("node", 2).await?;
    suspend(true).await?;
    training
        .scene
        .until_condition("Suspended", "True", "SuspendedJobs")
        .await?;
    training.scene.until_no_pods().await?;
    suspend(false).await?;
    training.until_running("node", 2).await?;
    training.end("node", "Succeeded").await?;
    training.until_condition("Complete", "True").await.map(drop)
}

async fn a_failed_trainjob_says_so(scene: Scene) -> Result<()> {
    let training = Training::new(scene, json!({})).await?;
    training.train(json!({}), json!({})).await?;
    training.until_running("node", 2).await?;
    training.end("node", "Failed").await?;
    training.until_condition("Failed", "True").await.map(drop)
}

/// Gives a step the volume that initializers fill, as Trainer requires.
fn with_volume(mut step: Value) -> Value {
    let pod = &mut step["template"]["spec"]["template"]["spec"];
    pod["volumes"] = json!([{"name": "initializer", "emptyDir": {}}]);
    pod["containers"][0]["volumeMounts"] = json!([{"name": "initializer", "mountPath": "/workspace"}]);
    step
}

async fn initializers_run_before_the_trainer(scene: Scene) -> Result<()> {
    let name = scene.namespace.name.clone();
    let dataset = step(
        "dataset-initializer",
        "dataset-initializer",
        "dataset-initializer",
        &name,
    );
    let mut trainer = step("node", "node", "trainer", &name);
    trainer["dependsOn"] = json!([{"name": "dataset-initializer", "status": "Complete"}]);
    let training = Training::new(
        scene,
        json!({"spec": {"replicatedJobs": [with_volume(dataset), with_volume(trainer)]}}),
    )
    .await?;
    training
        .train(
            json!({}),
            json!({"initializer": {"dataset": {"storageUri": "hf://some/data"}}}),
        )
        .await?;
    training.until_running("dataset-initializer", 1).await?;
    ensure!(training.pods("node").await?.is_empty());
    training.end("dataset-initializer", "Succeeded").await?;
    training.until_running("node", 2).await?;
    training.end("node", "Succeeded").await?;
    training.until_condition("Complete", "True").await.map(drop)
}

async fn a_runtime_asks_for_restarts_in_place_by_strategy_and_annotations(scene: Scene) -> Result<()> {
    let grace = "lockstep.dev/restart-grace";
    let mut trainer = step("node", "node", "trainer", &scene.namespace.name.clone());
    trainer["template"]["spec"]["template"]["spec"]["restartPolicy"] = json!("OnFailure");
    if let Some(spec) = trainer["template"]["spec"].as_object_mut() {
        spec.remove("backoffLimit");
    }
    let template = json!({
        "metadata": {"annotations": {grace: "7s"}},
        "spec": {
            "replicatedJobs": [trainer],
            "failurePolicy": {"maxRestarts": 3, "restartStrategy": "InPlaceRestart"},
        },
    });
    let training = Training::new(scene, template).await?;
    training.train(json!({}), json!({})).await?;
    training.until_running("node", 2).await?;
    let made = training.scene.api::<JobSet>().get("js").await?;
    ensure!(
        made.annotation(grace) == Some("7s"),
        "{:?}",
        made.metadata.annotations
    );
    let policy = made.spec.failure_policy.context("no failure policy")?;
    ensure!(
        policy.restart_strategy == Some(RestartStrategy::InPlaceRestart),
        "{policy:?}"
    );
    training.end("node", "Succeeded").await?;
    training.until_condition("Complete", "True").await.map(drop)
}

/// The Python of an environment with Kubeflow's SDK.
async fn python() -> Result<PathBuf> {
    let folder = target_dir().join("kubeflow");
    run(Path::new(HERE).join("install"), [&folder]).await?;
    Ok(folder.join("bin/python"))
}

async fn kubeflows_python_sdk_trains(scene: Scene) -> Result<()> {
    let python = python().await?;
    let training = Training::new(scene, json!({})).await?;
    training.until_known().await?;
    let namespace = &training.scene.namespace;
    let mut sdk = Command::new(python)
        .arg(Path::new(HERE).join("train.py"))
        .arg(&namespace.name)
        .env("KUBECONFIG", &namespace.access.kubeconfig)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let output = sdk.stdout.take().context("no output")?;
    let mut lines = BufReader::new(output).lines();
    training.until_running("node", 2).await?;
    let seen = lines.next_line().await?;
    ensure!(seen.as_deref() == Some("Running 2 2"), "{seen:?}");
    training.end("node", "Succeeded").await?;
    let seen = lines.next_line().await?;
    ensure!(seen.as_deref() == Some("Complete 2 2"), "{seen:?}");
    ensure!(sdk.wait().await?.success(), "the SDK failed");
    Ok(())
}

async fn kueue_admits_a_trainjob(scene: Scene) -> Result<()> {
    let queue = Queue::new(scene, 1, 2, json!({})).await?;
    queue.create("first", 1, None, json!({})).await?;
    queue.until_running("first", 1).await?;
    let training = Training::on(same(&queue.scene), json!({})).await?;
    training.train(json!({QUEUE_NAME: QUEUE}), json!({})).await?;
    queue.until_workload("js", "QuotaReserved", "False").await?;
    training.until_condition("Suspended", "True").await?;
    queue.end("first", "Succeeded").await?;
    training.until_running("node", 2).await?;
    training.end("node", "Succeeded").await?;
    training.until_condition("Complete", "True").await?;
    queue.until_workload("js", "Finished", "True").await.map(drop)
}

/// The same namespace.
fn same(scene: &Scene) -> Scene {
    Scene::new(scene.namespace.clone(), scene.control_plane().clone())
}
