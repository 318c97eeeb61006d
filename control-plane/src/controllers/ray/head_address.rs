//! Finds the head of a cluster by the address of its pod.
//!
//! A tenant can write the Service of the head, and the RayCluster's status. A Service may name any
//! host or address, so following it would send requests on a tenant's behalf. The pod is found by
//! UIDs from the RayJob down to the Job instead, and its address comes from the kubelet. A tenant
//! can create a pod that claims to be that Job's, but the address is the pod's own, and it can
//! answer only what the tenant's head could answer as well.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client};
use lockstep_api::JobSet;
use lockstep_api::naming::job_name;
use lockstep_api::ray::{RayCluster, RayJob};
use lockstep_core::jobset::owner::{controller_of, is_controlled_by};
use lockstep_core::ray::names;

use super::apply::RayError;
use crate::k8s::watch::Stores;
use crate::k8s::watch::lean::fetch::{self, PodSeen};

/// The addresses of heads, by RayJob, with the UID of the pod. A pod keeps its address while its
/// sandbox exists.
pub(super) struct Heads {
    client: Client,
    /// The API server's address, if its host is one.
    api_server: Option<IpAddr>,
    known: Mutex<HashMap<ObjectRef<RayJob>, (String, IpAddr)>>,
}

impl Heads {
    /// Finds heads, but never one at the address of `api_server`, which is a host name or an
    /// address.
    pub(super) fn new(client: Client, api_server: Option<&str>) -> Self {
        let host = api_server.map(|host| host.trim_start_matches('[').trim_end_matches(']'));
        Self {
            client,
            api_server: host.and_then(|host| host.parse().ok()),
            known: Mutex::default(),
        }
    }

    /// The address of the head of a job's cluster. Returns `None` if its pod has no address, or one
    /// that requests may not go to.
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

    /// Forgets the address of a head that did not answer. A pod with a new sandbox has another
    /// address.
    pub(super) fn forget(&self, job: &ObjectRef<RayJob>) {
        self.lock().remove(job);
    }

    /// True if a pod may have this address, and if it is not this process, its node or the API
    /// server.
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

/// Name and UID of the head's pod in a JobSet, and the UID of the Job that controls it.
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
    // A new pod may exist beside one that is being deleted.
    let pod = own.max_by_key(|pod| (pod.running, !pod.deleting, pod.restart_attempt))?;
    Some((pod.name.clone(), pod.uid.clone(), owner))
}

/// The address of a pod, from the kubelet.
fn address(pod: &Pod) -> Option<IpAddr> {
    pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(api_server: Option<&str>) -> Heads {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("no request is expected"))
        });
        Heads::new(Client::new(service, "ns"), api_server)
    }

    #[tokio::test]
    async fn no_request_goes_to_an_address_that_no_pod_can_have() {
        for (server, ip) in [
            (None, "127.0.0.1"),
            (None, "127.8.0.1"),
            (None, "0.0.0.0"),
            (None, "169.254.169.254"),
            (None, "224.0.0.1"),
            (None, "255.255.255.255"),
            (None, "::1"),
            (None, "::"),
            (None, "fe80::1"),
            (None, "ff02::1"),
            (None, "::ffff:127.0.0.1"),
            (None, "::ffff:169.254.169.254"),
            (Some("10.96.0.1"), "10.96.0.1"),
            (Some("10.96.0.1"), "::ffff:10.96.0.1"),
            (Some("[fd00::1]"), "fd00::1"),
        ] {
            assert!(!heads(server).may_ask(ip.parse().unwrap()), "{server:?} {ip}");
        }
        for (server, ip) in [
            (None, "10.244.1.7"),
            (Some("10.96.0.1"), "10.96.0.2"),
            (Some("kubernetes.default.svc"), "10.96.0.1"),
            (Some("[fd00::1]"), "fd00::2"),
            // Pods of some clusters have public addresses.
            (None, "100.64.3.1"),
            (None, "8.8.4.4"),
        ] {
            assert!(heads(server).may_ask(ip.parse().unwrap()), "{server:?} {ip}");
        }
    }

    #[test]
    fn an_address_is_one_or_none() {
        let pod = |ip: &str| -> Pod {
            serde_json::from_value(serde_json::json!({"status": {"podIP": ip}})).unwrap()
        };
        assert_eq!(address(&pod("fd00::7")), "fd00::7".parse().ok());
        assert_eq!(address(&pod("metadata.internal")), None);
        assert_eq!(address(&pod("10.0.0.1:80")), None);
        assert_eq!(address(&Pod::default()), None);
    }
}
