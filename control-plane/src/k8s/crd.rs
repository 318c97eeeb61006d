//! Installs the CustomResourceDefinition of JobSets and upgrades an older one. Helm installs CRDs
//! but never upgrades them.
//!
//! Promises: an upstream definition is replaced only if ours has all of its fields, so no stored
//! data is lost. A definition that a newer control plane installed is left unchanged. If the API
//! server forbids or refuses the write, that is logged once and the installed definition is used.
//! JobSets are not reconciled before this is decided (see [`Crd::settled`]) and the API server has
//! had time to serve the new definition: one that still serves an old definition drops fields that
//! are written, and hides them from readers.

use std::collections::BTreeMap;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Client, ResourceExt};
use lockstep_api::annotations::CRD_VERSION;
use semver::Version;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use thiserror::Error;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

#[cfg(test)]
mod tests;

/// A definition that is compiled into this program.
#[derive(Clone, Copy)]
pub(crate) struct Definition {
    name: &'static str,
    text: &'static str,
}

/// The definition of JobSets, which `lockstep-crdgen` generates and the Helm chart ships.
pub(crate) const JOBSET_DEFINITION: Definition = Definition {
    name: "jobsets.jobset.x-k8s.io",
    text: include_str!("../../../charts/lockstep/crds/jobset.x-k8s.io_jobsets.yaml"),
};
/// The definitions of Ray's resources, which only this program installs: KubeRay has its own.
pub(crate) const RAY_DEFINITIONS: [Definition; 3] = [
    Definition {
        name: "rayclusters.ray.io",
        text: include_str!("../../api/crds/ray.io_rayclusters.yaml"),
    },
    Definition {
        name: "rayjobs.ray.io",
        text: include_str!("../../api/crds/ray.io_rayjobs.yaml"),
    },
    Definition {
        name: "raycronjobs.ray.io",
        text: include_str!("../../api/crds/ray.io_raycronjobs.yaml"),
    },
];
const FIELD_MANAGER: &str = "lockstep-control-plane";
/// The first and the longest wait after a transient failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// How long after a change a watch may still serve the old definition. An object that is created in
/// that time is shown without the new fields, and is not sent again. The API server finishes
/// started work within a second; its replicas learn of a change within five.
const PROPAGATION: Duration = Duration::from_secs(5);
/// How often to poll until a new definition is served, and at most how many times.
const SERVED: (Duration, u32) = (Duration::from_millis(100), 100);

/// Why the definition could not be installed or upgraded.
#[derive(Debug, Error)]
enum CrdError {
    /// The embedded definition is invalid: a build defect.
    #[error("the definition in this program: {0}")]
    Own(#[from] serde_yaml_ng::Error),
    /// The program's own version is invalid: a build defect.
    #[error("the version of this program: {0}")]
    Version(#[from] semver::Error),
    /// The API server failed or refused.
    #[error(transparent)]
    Api(#[from] kube::Error),
}

impl CrdError {
    /// True if a retry may succeed.
    fn is_transient(&self) -> bool {
        match self {
            Self::Api(kube::Error::Api(status)) => status.code >= 500 || [409, 429].contains(&status.code),
            Self::Api(_) => true,
            Self::Own(_) | Self::Version(_) => false,
        }
    }
}

/// Installs and upgrades one definition.
pub(crate) struct Crd {
    client: Client,
    definition: Definition,
    api: Api<CustomResourceDefinition>,
    settled: watch::Sender<bool>,
}

impl Crd {
    pub(crate) fn new(client: Client, definition: Definition) -> Self {
        Self {
            definition,
            api: Api::all(client.clone()),
            client,
            settled: watch::Sender::new(false),
        }
    }

    /// Turns true once the definition is current, or cannot be upgraded.
    pub(crate) fn settled(&self) -> watch::Receiver<bool> {
        self.settled.subscribe()
    }

    /// Settles at once, for a definition that is managed elsewhere.
    pub(crate) fn leave_alone(&self) {
        self.settled.send_replace(true);
    }

    /// Installs or upgrades the definition, retrying until it succeeds or `shutdown`.
    pub(crate) async fn ensure(self, shutdown: CancellationToken) {
        let mut waits = ExponentialBuilder::default()
            .with_min_delay(RETRY.0)
            .with_max_delay(RETRY.1)
            .with_jitter()
            .without_max_times()
            .build();
        let propagation = loop {
            let Some(result) = shutdown.run_until_cancelled(self.attempt()).await else {
                return;
            };
            match result {
                Ok(propagation) => break propagation,
                Err(error) if error.is_transient() => {
                    tracing::warn!(crd = self.definition.name, %error, "cannot upgrade the definition, will retry");
                    let wait = tokio::time::sleep(waits.next().unwrap_or(RETRY.1));
                    if shutdown.run_until_cancelled(wait).await.is_none() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(crd = self.definition.name, %error, "cannot upgrade the definition, using the installed one");
                    // Another client may have changed it just now.
                    break PROPAGATION;
                }
            }
        };
        let wait = tokio::time::sleep(propagation);
        if shutdown.run_until_cancelled(wait).await.is_some() {
            self.settled.send_replace(true);
        }
    }

    /// Returns how long to wait until the old definition is no longer served.
    async fn attempt(&self) -> Result<Duration, CrdError> {
        let ours = self.definition.version()?;
        let installed = self.api.get_metadata_opt(self.definition.name).await?;
        let mut propagation = installed.as_ref().map_or(Duration::ZERO, |installed| {
            propagation(&installed.metadata, Timestamp::now())
        });
        let by = installed
            .as_ref()
            .and_then(|installed| Version::parse(installed.annotations().get(CRD_VERSION)?).ok());
        if let Some(by) = by.as_ref().filter(|by| by.cmp_precedence(&ours).is_gt()) {
            tracing::warn!(crd = self.definition.name, %by, %ours, "the definition was installed by a newer control plane and is left unchanged");
            return Ok(propagation);
        }
        if installed.is_some() && by.is_none() {
            let theirs = json!({"spec": self.whole().await?.data["spec"]});
            if let Some(field) = only_in(&theirs, &self.definition.at(&ours)?) {
                tracing::warn!(
                    crd = self.definition.name,
                    field,
                    "the installed definition has a field that ours lacks and is left unchanged"
                );
                return Ok(propagation);
            }
        }
        if by.as_ref() == Some(&ours) {
            // Most likely nothing has to change, so nothing needs to wait for the patch below.
            tokio::time::sleep(std::mem::take(&mut propagation)).await;
            self.settled.send_replace(true);
        }
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(self.definition.at(&ours)?);
        let applied = self
            .api
            .patch_metadata(self.definition.name, &params, &patch)
            .await?;
        let version = |meta: &kube::core::PartialObjectMeta<_>| meta.resource_version();
        match installed {
            None => {
                tracing::info!(crd = self.definition.name, version = %ours, "definition installed");
                self.wait_until_served().await?;
                return Ok(Duration::ZERO);
            }
            Some(installed) if version(&installed) != version(&applied) => {
                tracing::info!(crd = self.definition.name, version = %ours, "definition upgraded");
                if installed.metadata.generation != applied.metadata.generation {
                    return Ok(PROPAGATION);
                }
            }
            Some(_) => {
                tracing::debug!(crd = self.definition.name, version = %ours, "definition is up to date")
            }
        }
        Ok(propagation)
    }

    /// The installed definition. A schema of this size takes many times the memory as a typed
    /// object.
    async fn whole(&self) -> Result<DynamicObject, CrdError> {
        let resource = ApiResource::erase::<CustomResourceDefinition>(&());
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        Ok(api.get(self.definition.name).await?)
    }

    /// A watch on a resource that is not served yet fails and backs off, so this waits until it is
    /// served.
    async fn wait_until_served(&self) -> Result<(), CrdError> {
        for _ in 0..SERVED.1 {
            let conditions = self.whole().await?.data["status"]["conditions"].take();
            let established =
                |condition: &Value| condition["type"] == "Established" && condition["status"] == "True";
            if conditions
                .as_array()
                .is_some_and(|all| all.iter().any(established))
            {
                break;
            }
            tokio::time::sleep(SERVED.0).await;
        }
        Ok(())
    }
}

/// How long the old definition may still be served, no matter which client changed it. The first
/// definition has none before it.
fn propagation(definition: &ObjectMeta, now: Timestamp) -> Duration {
    if definition.generation.is_none_or(|generation| generation <= 1) {
        return Duration::ZERO;
    }
    let written = definition.managed_fields.iter().flatten();
    let written = written.filter(|entry| entry.subresource.as_deref().is_none_or(str::is_empty));
    let changed = written.filter_map(|entry| Some(entry.time.as_ref()?.0)).max();
    let age = changed.map(|changed| now.duration_since(changed));
    // Clocks may differ between machines.
    let age = age.map(|age| Duration::try_from(age).unwrap_or_default());
    age.map_or(Duration::ZERO, |age| PROPAGATION.saturating_sub(age))
}

/// A field that `theirs` has and `ours` lacks. Replacing `theirs` would lose what is stored there.
fn only_in(theirs: &Value, ours: &Value) -> Option<String> {
    let versions = |definition: &Value| {
        let versions = definition["spec"]["versions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let schema = |version: &Value| {
            let name = version["name"].as_str().unwrap_or_default().to_owned();
            (name, version["schema"]["openAPIV3Schema"].clone())
        };
        versions.iter().map(schema).collect::<BTreeMap<_, _>>()
    };
    let ours = versions(ours);
    versions(theirs)
        .iter()
        .find_map(|(name, schema)| match ours.get(name) {
            Some(ours) => field_only_in(name.clone(), schema, ours),
            None => Some(name.clone()),
        })
}

fn field_only_in(path: String, theirs: &Value, ours: &Value) -> Option<String> {
    for nested in ["items", "additionalProperties"] {
        if theirs[nested].is_object()
            && let Some(field) = field_only_in(path.clone(), &theirs[nested], &ours[nested])
        {
            return Some(field);
        }
    }
    theirs["properties"]
        .as_object()?
        .iter()
        .find_map(|(name, schema)| {
            let path = format!("{path}.{name}");
            match ours["properties"].get(name) {
                Some(ours) => field_only_in(path, schema, ours),
                None => Some(path),
            }
        })
}

impl Definition {
    /// The version of this program and of its embedded definition.
    fn version(self) -> Result<Version, CrdError> {
        let hash = Sha256::digest(self.text.as_bytes());
        let hash: String = hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        Ok(Version::parse(&format!("{}+{hash}", env!("CARGO_PKG_VERSION")))?)
    }

    /// The definition, marked with this version.
    fn at(self, version: &Version) -> Result<Value, CrdError> {
        let mut definition: Value = serde_yaml_ng::from_str(self.text)?;
        definition["metadata"]["annotations"][CRD_VERSION] = json!(version.to_string());
        Ok(definition)
    }
}
