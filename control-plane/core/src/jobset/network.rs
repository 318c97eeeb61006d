//! The headless Service that gives the pods of a JobSet their host names.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Service, ServiceSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use lockstep_api::{JobSet, KIND, events, labels};

use crate::{
    jobset::observed::Observed,
    jobset::owner::{controller_of, owner_reference},
    jobset::plan::{Event, Severity},
};

#[cfg(test)]
mod tests;

/// The Service to create, if the JobSet wants one and none of that name is known.
///
/// Upstream's Service has no labels. Ours has the JobSet's name as a label, so that it is watched
/// with the other objects. A Service of that name without the label is not seen here. Creating ours
/// then fails with AlreadyExists, as it should: Services are never adopted.
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

/// The event of a Service that is [in the way](in_the_way).
#[must_use]
pub fn in_the_way_event(jobset: &JobSet, service: &Service) -> Option<Event> {
    in_the_way(jobset, service).map(|message| Event {
        severity: Severity::Warning,
        reason: events::HEADLESS_SERVICE_CREATION_FAILED.to_owned(),
        message,
    })
}

/// The message about a Service that has the name of the JobSet's Service but was not made for its
/// pods, so that their host names cannot be resolved. `None`: it serves them, or may. A headless
/// Service without a selector is its owner's business, as is one that may select some of the pods.
#[must_use]
pub fn in_the_way(jobset: &JobSet, service: &Service) -> Option<String> {
    let name = jobset.subdomain();
    let owner = controller_of(&service.metadata);
    // Its own, or that of an earlier JobSet of this name, which is about to be deleted.
    if owner.is_some_and(|owner| {
        owner.uid == jobset.uid_str() || owner.kind == KIND && owner.name == jobset.name()
    }) {
        return None;
    }
    let spec = service.spec.as_ref()?;
    let mut selector = spec.selector.iter().flatten();
    let selects = selector.all(|label| may_have_label(jobset, label));
    let is_alias = spec.type_.as_deref() == Some("ExternalName");
    let is_headless = !is_alias && spec.cluster_ip.as_deref().is_none_or(|ip| ip == "None");
    if selects && is_headless {
        return None;
    }
    let whose = owner.map_or_else(
        || "is not this JobSet's".to_owned(),
        |owner| format!("belongs to {} {:?}", owner.kind, owner.name),
    );
    let why = if selects {
        "is not headless"
    } else {
        "does not select this JobSet's pods"
    };
    Some(format!(
        "services {name:?} already exists: it {whose} and {why}, so the pods' host names cannot be resolved; set another spec.network.subdomain"
    ))
}

/// True if some pod of the JobSet may have this label. What controllers and platforms add to single
/// pods is not known here.
fn may_have_label(jobset: &JobSet, (key, value): (&String, &String)) -> bool {
    if key == labels::JOBSET_NAME {
        return value == jobset.name();
    }
    // The Job controller also adds these two, under their old names without a domain.
    if ["job-name", "controller-uid"].contains(&key.as_str()) {
        return true;
    }
    let is_added = |domain: &str| domain.ends_with("k8s.io") || domain.ends_with("kubernetes.io");
    if key.split_once('/').is_some_and(|(domain, _)| is_added(domain)) {
        return true;
    }
    let mut templates = jobset.spec.replicated_jobs.iter().map(|job| {
        let template = job.template.spec.as_ref().map(|spec| &spec.template);
        template.and_then(|template| template.metadata.as_ref()?.labels.as_ref())
    });
    templates.any(|labels| labels.is_some_and(|labels| labels.get(key) == Some(value)))
}
