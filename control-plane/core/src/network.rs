//! The headless Service that gives the pods of a JobSet their host names.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Service, ServiceSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use lockstep_api::labels;

use crate::{jobset::owner_reference, observed::Observed};

#[cfg(test)]
mod tests;

/// The Service to create, if the JobSet wants one and none of its name is seen.
///
/// Upstream's Service has no labels. Ours carries the JobSet's name, so that it can be watched with the rest. A Service of that name
/// without the label cannot be seen here; creating it fails with AlreadyExists, and that is well: Services are never adopted.
pub(crate) fn missing_service(observed: &Observed) -> Option<Service> {
    let jobset = &*observed.jobset;
    if !jobset.dns_hostnames() {
        return None;
    }
    let name = jobset.subdomain();
    if observed
        .services
        .iter()
        .any(|service| service.metadata.name.as_deref() == Some(name))
    {
        return None;
    }
    let of_jobset = BTreeMap::from([(labels::JOBSET_NAME.to_owned(), jobset.name().to_owned())]);
    Some(Service {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: jobset.metadata.namespace.clone(),
            labels: Some(of_jobset.clone()),
            owner_references: Some(vec![owner_reference(jobset)]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            selector: Some(of_jobset),
            publish_not_ready_addresses: Some(jobset.publish_not_ready_addresses()),
            ..ServiceSpec::default()
        }),
        status: None,
    })
}
