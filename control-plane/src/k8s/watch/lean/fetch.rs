//! Fetches single objects by name and parses only what the caller compares.
//!
//! A tenant who may create such an object controls everything else in it: 45,000 labels, which
//! nothing reads, take 40 MB.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStatus, PersistentVolumeClaim, PersistentVolumeClaimSpec, Pod, PodCondition,
    PodSpec, PodStatus, Service, ServiceSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::GetParams;
use kube::core::Request;
use kube::{Api, Resource};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::Wanted;
use super::owners::owners;

/// The limit of a volume claim's spec that is compared, in bytes. A usual one has a few hundred.
const LONGEST_CLAIM: usize = 8 << 10;
/// How many labels of a Service's selector are parsed.
const LABELS: usize = 1_024;

/// Fetches an object and parses it as `Seen`; `None` if it does not exist.
///
/// # Errors
/// The API server refused, or the object cannot be decoded.
pub(crate) async fn get<Seen, K>(api: &Api<K>, name: &str) -> kube::Result<Option<K>>
where
    Seen: DeserializeOwned + Into<K>,
    K: Resource + Clone,
{
    let request = Request::new(api.resource_url()).get(name, &GetParams::default());
    let request = request.map_err(kube::Error::BuildRequest)?;
    match api.clone().into_client().request::<Seen>(request).await {
        Ok(seen) => Ok(Some(seen.into())),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The object's identity and its owners.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct OwnedMeta {
    uid: Option<String>,
    #[serde(deserialize_with = "owners")]
    owner_references: Option<Vec<OwnerReference>>,
}

impl From<OwnedMeta> for ObjectMeta {
    fn from(seen: OwnedMeta) -> Self {
        Self {
            uid: seen.uid,
            owner_references: seen.owner_references,
            ..Self::default()
        }
    }
}

/// A Service's owners and which pods it selects: the first [`LABELS`] entries of its selector.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SelectorSeen {
    metadata: OwnedMeta,
    spec: Option<SelectorSpec>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SelectorSpec {
    r#type: Option<String>,
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<String>,
    #[serde(deserialize_with = "first_labels")]
    selector: Option<BTreeMap<String, String>>,
}

impl From<SelectorSeen> for Service {
    fn from(seen: SelectorSeen) -> Self {
        Self {
            metadata: seen.metadata.into(),
            spec: seen.spec.map(|spec| ServiceSpec {
                type_: spec.r#type,
                cluster_ip: spec.cluster_ip,
                selector: spec.selector,
                ..ServiceSpec::default()
            }),
            status: None,
        }
    }
}

/// A volume claim's spec. One of more than [`LONGEST_CLAIM`] bytes is an error.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimSeen {
    #[serde(deserialize_with = "claim")]
    spec: Option<PersistentVolumeClaimSpec>,
}

impl From<ClaimSeen> for PersistentVolumeClaim {
    fn from(seen: ClaimSeen) -> Self {
        Self {
            spec: seen.spec,
            ..Self::default()
        }
    }
}

fn claim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PersistentVolumeClaimSpec>, D::Error> {
    let Some(text) = Option::<Box<RawValue>>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let bytes = text.get().len();
    if bytes > LONGEST_CLAIM {
        return Err(D::Error::custom(format!(
            "spec: has {bytes} bytes, and may have no more than {LONGEST_CLAIM} to be compared"
        )));
    }
    serde_json::from_str(text.get()).map_err(D::Error::custom)
}

fn first_labels<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    deserializer.deserialize_option(Wanted::first(LABELS))
}

/// A pod's owners, ServiceAccount, address and readiness, with the reason if it is not ready.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodSeen {
    metadata: OwnedMeta,
    spec: Option<AccountSpec>,
    status: Option<ReadyStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AccountSpec {
    service_account_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReadyStatus {
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    conditions: Option<Vec<PodCondition>>,
    container_statuses: Option<Vec<StateSeen>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StateSeen {
    name: String,
    state: Option<ContainerState>,
}

impl From<StateSeen> for ContainerStatus {
    fn from(seen: StateSeen) -> Self {
        Self {
            name: seen.name,
            state: seen.state,
            ..Self::default()
        }
    }
}

impl From<PodSeen> for Pod {
    fn from(seen: PodSeen) -> Self {
        let states = |seen: Vec<StateSeen>| seen.into_iter().map(ContainerStatus::from).collect();
        Self {
            metadata: seen.metadata.into(),
            spec: seen.spec.map(|spec| PodSpec {
                service_account_name: spec.service_account_name,
                ..PodSpec::default()
            }),
            status: seen.status.map(|status| PodStatus {
                pod_ip: status.pod_ip,
                conditions: status.conditions,
                container_statuses: status.container_statuses.map(states),
                ..PodStatus::default()
            }),
        }
    }
}
