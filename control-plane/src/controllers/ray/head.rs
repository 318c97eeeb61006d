//! Where the control plane finds a head: at the address of its pod.
//!
//! The Service of the head, and the RayCluster's status, are a tenant's to write. A Service may stand for any name and any address, so that who follows it asks on
//! somebody else's behalf. The pod is found by UIDs from the RayJob down to the Job instead, and its address is kubelet's word. Who may create pods can make one that
//! claims to be that Job's: its address is its own, and it gains what its head could say as well.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client};
use lockstep_api::JobSet;
use lockstep_api::naming::job_name;
use lockstep_api::ray::{RayCluster, RayJob};
use lockstep_core::jobset::observed::{controller_of, is_controlled_by};
use lockstep_core::ray::names;

use super::apply::RayError;
use crate::k8s::watch::Stores;
use crate::k8s::watch::lean::fetch::{self, PodSeen};

#[cfg(test)]
mod tests;

/// Addresses of heads, by RayJob: with the UID of the pod, which keeps its address for as long as its sandbox is there.
pub(super) struct Heads {
    client: Client,
    /// The API server's own address, where it has one.
    api_server: Option<IpAddr>,
    known: Mutex<HashMap<ObjectRef<RayJob>, (String, IpAddr)>>,
}

impl Heads {
    /// Nobody is asked at the address of `api_server`, a host name or an address.
    pub(super) fn new(client: Client, api_server: Option<&str>) -> Self {
        let host = api_server.map(|host| host.trim_start_matches('[').trim_end_matches(']'));
        Self {
            client,
            api_server: host.and_then(|host| host.parse().ok()),
            known: Mutex::default(),
        }
    }

    /// The address of the head of a job's cluster. `None`: it has no pod with an address, or one at which nobody is asked.
    pub(super) async fn find(
        &self,
        stores: &Stores,
        job: &RayJob,
        cluster: &RayCluster,
        jobset: &JobSet,
    ) -> Result<Option<IpAddr>, RayError> {
        let is_own = is_controlled_by(&cluster.metadata, job.uid_str())
            && is_controlled_by(&jobset.metadata, cluster.uid_str());
        let Some((pod, uid, owner)) = is_own.then(|| pod_of_head(stores, jobset)).flatten() else {
            return Ok(None);
        };
        let key = ObjectRef::from_obj(job);
        let known = self
            .lock()
            .get(&key)
            .filter(|(of, _)| *of == uid)
            .map(|(_, ip)| *ip);
        let ip = match known {
            Some(ip) => ip,
            None => {
                let api: Api<Pod> = Api::namespaced(self.client.clone(), job.ns());
                let found = fetch::get::<PodSeen, _>(&api, &pod).await;
                let found = found.map_err(RayError::of("the head's pod"))?;
                let found = found.filter(|pod| {
                    pod.metadata.uid.as_ref() == Some(&uid)
                        && controller_of(&pod.metadata).is_some_and(|found| found.uid == owner)
                });
                let Some(ip) = found.as_ref().and_then(address) else {
                    return Ok(None);
                };
                self.lock().insert(key, (uid, ip));
                ip
            }
        };
        Ok(self.may_ask(ip).then_some(ip))
    }

    /// Nobody answers there: a pod whose sandbox was made anew has another address.
    pub(super) fn forget(&self, job: &ObjectRef<RayJob>) {
        self.lock().remove(job);
    }

    /// Whether a pod can be there, and not this process, its node or the API server.
    fn may_ask(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        let is_nobodys = match ip {
            IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        let is_a_pods = !is_nobodys && !ip.is_loopback() && !ip.is_unspecified() && !ip.is_multicast();
        is_a_pods && self.api_server.map(|server| server.to_canonical()) != Some(ip)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectRef<RayJob>, (String, IpAddr)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Name and UID of the pod of the head of a JobSet, and the UID of the Job that controls it.
fn pod_of_head(stores: &Stores, jobset: &JobSet) -> Option<(String, String, String)> {
    let key = ObjectRef::from_obj(jobset);
    let name = job_name(jobset.name(), names::HEAD, 0);
    let jobs = stores.jobs_of(&key);
    let job = jobs.iter().find(|job| {
        job.metadata.name.as_ref() == Some(&name) && is_controlled_by(&job.metadata, jobset.uid_str())
    })?;
    let owner = job.metadata.uid.clone()?;
    let pods = stores.pods_of(&key);
    let own = pods.iter().map(|pod| &pod.summary);
    let own = own.filter(|pod| pod.job_uid.as_ref() == Some(&owner) && !pod.is_terminal());
    // One that goes may be there beside one that comes.
    let pod = own.max_by_key(|pod| (pod.running, !pod.deleting, pod.recreation))?;
    Some((pod.name.clone(), pod.uid.clone(), owner))
}

/// The address of a pod, as kubelet has stated it.
fn address(pod: &Pod) -> Option<IpAddr> {
    pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()
}
