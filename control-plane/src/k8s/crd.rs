//! Installs the CustomResourceDefinition of JobSets, and brings an older one up to date: Helm does
//! the first and never the second.
//!
//! Promises: an upstream definition is replaced only where ours has all of its fields, so that
//! nothing stored is lost; a definition that a newer control plane has installed is left alone;
//! where the API server forbids it or refuses it, that is said once and what is there is used.
//! JobSets are not looked at before it is decided (see [`Crd::settled`]), and before the API server
//! has had the time to serve by it: one that serves by an old definition drops fields that are
//! written, and leaves them out of what it shows.

use std::collections::BTreeMap;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Client, ResourceExt};
use semver::Version;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use thiserror::Error;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

#[cfg(test)]
mod tests;

/// A definition that this program brings along.
#[derive(Clone, Copy)]
pub(crate) struct Definition {
    name: &'static str,
    text: &'static str,
}

/// What `lockstep-crdgen` makes, and the Helm chart ships.
pub(crate) const JOBSET_DEFINITION: Definition = Definition {
    name: "jobsets.jobset.x-k8s.io",
    text: include_str!("../../../charts/lockstep/crds/jobset.x-k8s.io_jobsets.yaml"),
};
/// Those of Ray's resources, which only this program installs: KubeRay has its own.
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
/// Version of the control plane that has installed the definition, with a hash of the definition as
/// build metadata.
const VERSION: &str = "lockstep.dev/crd-version";
const FIELD_MANAGER: &str = "lockstep-control-plane";
/// The first and the longest wait after a failure that may pass.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// How long after a change a watch may still be served by the definition of before: an object that
/// is made meanwhile is shown without the fields that this one does not know, and never shown
/// again. The API server goes on for a second with what it has begun; replicas of it learn of a
/// change within five.
const TAKES_HOLD: Duration = Duration::from_secs(5);
/// How often it is asked whether a new definition is served, and for how long.
const SERVED: (Duration, u32) = (Duration::from_millis(100), 100);

/// Why the definition is not as it should be.
#[derive(Debug, Error)]
enum CrdError {
    /// Our own definition is damaged: a defect of the build.
    #[error("the definition in this program: {0}")]
    Own(#[from] serde_yaml_ng::Error),
    /// Our own version is none: a defect of the build.
    #[error("the version of this program: {0}")]
    Version(#[from] semver::Error),
    /// The API server.
    #[error(transparent)]
    Api(#[from] kube::Error),
}

impl CrdError {
    /// True if another attempt may succeed.
    fn may_pass(&self) -> bool {
        match self {
            Self::Api(kube::Error::Api(status)) => status.code >= 500 || [409, 429].contains(&status.code),
            Self::Api(_) => true,
            Self::Own(_) | Self::Version(_) => false,
        }
    }
}

/// Takes care of the definition.
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

    /// True once the definition is as it should be, or will not get so.
    pub(crate) fn settled(&self) -> watch::Receiver<bool> {
        self.settled.subscribe()
    }

    /// Leaves the definition to others.
    pub(crate) fn leave_alone(&self) {
        self.settled.send_replace(true);
    }

    /// Sees to it that the definition is there and new enough, for as long as it takes, until
    /// `shutdown`.
    pub(crate) async fn ensure(self, shutdown: CancellationToken) {
        let mut waits = ExponentialBuilder::default()
            .with_min_delay(RETRY.0)
            .with_max_delay(RETRY.1)
            .with_jitter()
            .without_max_times()
            .build();
        let taking_hold = loop {
            let Some(result) = shutdown.run_until_cancelled(self.attempt()).await else {
                return;
            };
            match result {
                Ok(taking_hold) => break taking_hold,
                Err(error) if error.may_pass() => {
                    tracing::warn!(crd = self.definition.name, %error, "cannot be brought up to date, will retry");
                    let wait = tokio::time::sleep(waits.next().unwrap_or(RETRY.1));
                    if shutdown.run_until_cancelled(wait).await.is_none() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(crd = self.definition.name, %error, "cannot be brought up to date, what is there is used");
                    // Somebody may have changed it just now.
                    break TAKES_HOLD;
                }
            }
        };
        let wait = tokio::time::sleep(taking_hold);
        if shutdown.run_until_cancelled(wait).await.is_some() {
            self.settled.send_replace(true);
        }
    }

    /// Returns how long to wait until nothing is served by a definition of before.
    async fn attempt(&self) -> Result<Duration, CrdError> {
        let ours = self.definition.version()?;
        let installed = self.api.get_metadata_opt(self.definition.name).await?;
        let mut taking_hold = installed.as_ref().map_or(Duration::ZERO, |installed| {
            taking_hold(&installed.metadata, Timestamp::now())
        });
        let by = installed
            .as_ref()
            .and_then(|installed| Version::parse(installed.annotations().get(VERSION)?).ok());
        if let Some(by) = by.as_ref().filter(|by| by.cmp_precedence(&ours).is_gt()) {
            tracing::warn!(crd = self.definition.name, %by, %ours, "was installed by a newer control plane, and is left alone");
            return Ok(taking_hold);
        }
        if installed.is_some() && by.is_none() {
            let theirs = json!({"spec": self.whole().await?.data["spec"]});
            if let Some(field) = only_in(&theirs, &self.definition.at(&ours)?) {
                tracing::warn!(
                    crd = self.definition.name,
                    field,
                    "the installed definition knows more than ours, and is left alone"
                );
                return Ok(taking_hold);
            }
        }
        if by.as_ref() == Some(&ours) {
            // Most likely nothing is to be done, and nobody need wait for that to be sure.
            tokio::time::sleep(std::mem::take(&mut taking_hold)).await;
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
                tracing::info!(crd = self.definition.name, version = %ours, "installed");
                self.wait_until_served().await?;
                return Ok(Duration::ZERO);
            }
            Some(installed) if version(&installed) != version(&applied) => {
                tracing::info!(crd = self.definition.name, version = %ours, "brought up to date");
                if installed.metadata.generation != applied.metadata.generation {
                    return Ok(TAKES_HOLD);
                }
            }
            Some(_) => tracing::debug!(crd = self.definition.name, version = %ours, "is up to date"),
        }
        Ok(taking_hold)
    }

    /// The installed definition. As a typed object a schema of this size takes many times the
    /// memory.
    async fn whole(&self) -> Result<DynamicObject, CrdError> {
        let resource = ApiResource::erase::<CustomResourceDefinition>(&());
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        Ok(api.get(self.definition.name).await?)
    }

    /// A watch on what is not served yet fails, and waits before it tries again.
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

/// For how long what is served may still go by a definition of before, whoever has changed it. The
/// first one has none before it.
fn taking_hold(definition: &ObjectMeta, now: Timestamp) -> Duration {
    if definition.generation.is_none_or(|generation| generation <= 1) {
        return Duration::ZERO;
    }
    let written = definition.managed_fields.iter().flatten();
    let written = written.filter(|entry| entry.subresource.as_deref().is_none_or(str::is_empty));
    let changed = written.filter_map(|entry| Some(entry.time.as_ref()?.0)).max();
    let age = changed.map(|changed| now.duration_since(changed));
    // The clocks of two machines may differ.
    let age = age.map(|age| Duration::try_from(age).unwrap_or_default());
    age.map_or(Duration::ZERO, |age| TAKES_HOLD.saturating_sub(age))
}

/// A field that one definition's schema has and the other's has not: putting the other in its place
/// would lose what is stored there.
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
    /// The version of this program, and of the definition in it.
    fn version(self) -> Result<Version, CrdError> {
        let hash = Sha256::digest(self.text.as_bytes());
        let hash: String = hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        Ok(Version::parse(&format!("{}+{hash}", env!("CARGO_PKG_VERSION")))?)
    }

    /// The definition, marked with this version.
    fn at(self, version: &Version) -> Result<Value, CrdError> {
        let mut definition: Value = serde_yaml_ng::from_str(self.text)?;
        definition["metadata"]["annotations"][VERSION] = json!(version.to_string());
        Ok(definition)
    }
}
