//! Finds out if KubeRay's controller runs in this cluster, by the Lease of its leader.
//!
//! Any tenant can create a Lease of that name. A Lease counts only for namespaces in which its
//! holder's ServiceAccount has KubeRay's permissions.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PostParams};
use kube::{Client, ResourceExt};
use tokio::sync::Mutex;

use crate::k8s::client::pages;
use crate::k8s::watch::lean::fetch::{self, PodSeen};

#[cfg(test)]
mod tests;

/// Name of the Lease by which KubeRay's replicas elect a leader.
const LEASE: &str = "ray-operator-leader";
/// The ServiceAccount of KubeRay's chart. It is used if the holder's pod is not found: on the
/// host's network the holder has the name of its node.
const SERVICE_ACCOUNT: &str = "kuberay-operator";
/// How long an answer is valid.
const HOLDS: Duration = Duration::from_secs(15);
/// A Lease counts as held for this long after its renewal, and its clock may be ahead by as much. A
/// leader renews it every few seconds.
const SILENCE: SignedDuration = SignedDuration::from_secs(60);
/// The most Leases that are read.
const MOST: u32 = 256;
/// Status codes with which the API server, or a proxy in front of it, answers an impossible pod
/// name. 404 means that the pod is missing, which is not an error.
const NO_NAME: [u16; 3] = [400, 414, 422];
/// The most answers that are cached.
const REMEMBERED: usize = 4_096;

/// Checks if KubeRay's controller runs, and caches the answers.
pub(crate) struct KubeRay {
    client: Client,
    known: Mutex<CachedAnswers>,
}

#[derive(Default)]
struct CachedAnswers {
    holders: Option<(Instant, Vec<Holder>)>,
    /// True if the holder may act in the namespace. An empty namespace stands for all.
    rights: HashMap<(Holder, String), (Instant, bool)>,
}

/// A ServiceAccount.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Holder {
    namespace: String,
    name: String,
}

impl KubeRay {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            known: Mutex::default(),
        }
    }

    /// True if KubeRay manages this namespace. Asks again if the last answer is old.
    ///
    /// # Errors
    /// The API server does not answer.
    pub(crate) async fn runs(&self, namespace: &str) -> kube::Result<bool> {
        let mut known = self.known.lock().await;
        let holders = match &known.holders {
            Some((at, holders)) if at.elapsed() < HOLDS => holders.clone(),
            _ => {
                let holders = self.holders().await?;
                known.holders = Some((Instant::now(), holders.clone()));
                holders
            }
        };
        for holder in holders {
            for place in ["", namespace] {
                if self.may_act(&mut known, &holder, place).await? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The current holders of Leases with KubeRay's name.
    async fn holders(&self) -> kube::Result<Vec<Holder>> {
        let leases = Api::<DynamicObject>::all_with(self.client.clone(), &ApiResource::erase::<Lease>(&()));
        let mut named = ListParams::default()
            .fields(&format!("metadata.name={LEASE}"))
            .limit(MOST);
        let now = Timestamp::now();
        let mut holders = Vec::new();
        let mut left = MOST as usize;
        // The API server makes pages smaller if objects are large.
        loop {
            let page = leases.list(&named).await?;
            for lease in page.items.iter().take(left).filter(|lease| is_held(lease, now)) {
                holders.push(Holder {
                    namespace: lease.namespace().unwrap_or_default(),
                    name: self.service_account(lease).await?,
                });
            }
            left = left.saturating_sub(page.items.len());
            match pages::after(named, &page.metadata) {
                Some(next) if left > 0 => named = next,
                _ => return Ok(holders),
            }
        }
    }

    /// The ServiceAccount of the pod that holds a Lease.
    async fn service_account(&self, lease: &DynamicObject) -> kube::Result<String> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &lease.namespace().unwrap_or_default());
        let pod = match pod_of(lease) {
            Some(name) => match fetch::get::<PodSeen, _>(&pods, name).await {
                // A tenant's bad name must not affect others. No pod has it.
                Err(kube::Error::Api(status)) if NO_NAME.contains(&status.code) => None,
                found => found?,
            },
            None => None,
        };
        let named = pod.map(|pod| {
            let named = pod.spec.and_then(|spec| spec.service_account_name);
            named.unwrap_or_else(|| "default".to_owned())
        });
        Ok(named.unwrap_or_else(|| SERVICE_ACCOUNT.to_owned()))
    }

    /// True if the holder may write the status of RayClusters there, as KubeRay does.
    async fn may_act(
        &self,
        known: &mut CachedAnswers,
        holder: &Holder,
        namespace: &str,
    ) -> kube::Result<bool> {
        let key = (holder.clone(), namespace.to_owned());
        if let Some((at, may)) = known.rights.get(&key)
            && at.elapsed() < HOLDS
        {
            return Ok(*may);
        }
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let review = review(holder, namespace);
        let status = reviews.create(&PostParams::default(), &review).await?.status;
        let may = status.is_some_and(|status| status.allowed);
        if known.rights.len() >= REMEMBERED {
            known.rights.retain(|_, (at, _)| at.elapsed() < HOLDS);
        }
        if known.rights.len() < REMEMBERED {
            known.rights.insert(key, (Instant::now(), may));
        }
        Ok(may)
    }
}

fn review(holder: &Holder, namespace: &str) -> SubjectAccessReview {
    let Holder {
        namespace: home,
        name,
    } = holder;
    let groups = vec![
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{home}"),
        "system:authenticated".to_owned(),
    ];
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(format!("system:serviceaccount:{home}:{name}")),
            groups: Some(groups),
            resource_attributes: Some(ResourceAttributes {
                group: Some("ray.io".to_owned()),
                resource: Some("rayclusters".to_owned()),
                subresource: Some("status".to_owned()),
                verb: Some("update".to_owned()),
                namespace: Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

fn is_held(lease: &DynamicObject, now: Timestamp) -> bool {
    // The Lease is read leniently, because an unreadable one must not hide others.
    let renewed = lease.data["spec"]["renewTime"].as_str();
    let renewed = renewed.and_then(|renewed| renewed.parse::<Timestamp>().ok());
    let held = renewed.is_some_and(|renewed| now.duration_since(renewed).abs() < SILENCE);
    lease.name_any() == LEASE && held
}

/// Name of the pod that holds a Lease. Holders of controller-runtime are named by their host, an
/// underscore, and a UUID.
fn pod_of(lease: &DynamicObject) -> Option<&str> {
    let identity = lease.data["spec"]["holderIdentity"].as_str()?;
    let (name, _) = identity.rsplit_once('_')?;
    let inner = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'-';
    let is_label = |label: &str| {
        let ends_well = !label.is_empty() && !label.starts_with('-') && !label.ends_with('-');
        ends_well && label.bytes().all(inner)
    };
    (name.len() <= 253 && name.split('.').all(is_label)).then_some(name)
}
