use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use lockstep_api::Network;

use super::*;
use crate::common::testing::{JobSetBuild, ReplicatedJobBuild, at, jobset, replicated_job};

fn missing(network: Option<Network>, existing: &[&str]) -> Option<Service> {
    let js = jobset([replicated_job("a", 1)]).with(|js| js.spec.network = network);
    let services = existing.iter().map(|name| {
        let metadata = ObjectMeta {
            name: Some((*name).to_owned()),
            ..ObjectMeta::default()
        };
        Arc::new(Service {
            metadata,
            ..Service::default()
        })
    });
    missing_service(&Observed::new(
        Arc::new(js),
        Vec::new(),
        services.collect(),
        at(0),
    ))
}

#[test]
fn a_headless_service_named_after_the_subdomain_selects_the_jobsets_pods() {
    let service = missing(None, &[]).unwrap();
    assert_eq!(service.metadata.name.as_deref(), Some("js"));
    assert_eq!(service.metadata.owner_references.unwrap()[0].uid, "uid-js");
    let spec = service.spec.unwrap();
    assert_eq!(spec.cluster_ip.as_deref(), Some("None"));
    assert_eq!(spec.publish_not_ready_addresses, Some(true));
    assert_eq!(spec.selector.unwrap()[labels::JOBSET_NAME], "js");

    let network = Network {
        subdomain: Some("net".to_owned()),
        publish_not_ready_addresses: Some(false),
        ..Network::default()
    };
    let service = missing(Some(network), &["js"]).unwrap();
    assert_eq!(service.metadata.name.as_deref(), Some("net"));
    assert_eq!(service.spec.unwrap().publish_not_ready_addresses, Some(false));
}

#[test]
fn no_service_if_one_exists_or_none_is_wanted() {
    assert_eq!(missing(None, &["js"]), None);
    assert_eq!(
        missing(
            Some(Network {
                enable_dns_hostnames: Some(false),
                ..Network::default()
            }),
            &[]
        ),
        None
    );
}

fn service(owner: Option<(&str, &str, &str)>, selector: &[(&str, &str)], cluster_ip: &str) -> Service {
    let owner = owner.map(|(kind, name, uid)| OwnerReference {
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    });
    let selector = selector
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Service {
        metadata: ObjectMeta {
            name: Some("js".to_owned()),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some(cluster_ip.to_owned()),
            selector: Some(selector.collect()),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

#[test]
fn a_service_that_is_not_for_its_pods_is_reported_with_its_owner() {
    let js = jobset([replicated_job("a", 1).job_spec(|spec| {
        let meta = spec.template.metadata.get_or_insert_default();
        meta.labels = Some(BTreeMap::from([("app".to_owned(), "train".to_owned())]));
    })]);
    let told = |service: &Service| in_the_way(&js, service);
    let of_js = [(labels::JOBSET_NAME, "js")];
    let another = Some(("JobSet", "first", "uid-first"));
    for fine in [
        service(Some(("JobSet", "js", "uid-js")), &of_js, "None"),
        service(Some(("JobSet", "js", "uid-of-before")), &of_js, "None"),
        service(None, &of_js, "None"),
        service(None, &[("app", "train")], "None"),
        service(
            None,
            &[(labels::JOBSET_NAME, "js"), (labels::REPLICATED_JOB_NAME, "a")],
            "None",
        ),
        service(another, &of_js, "None"),
        service(None, &[], "None"),
        Service::default(),
    ] {
        assert_eq!(told(&fine), None);
    }
    let mut alias = service(None, &[], "None");
    let of_alias = alias.spec.as_mut().unwrap();
    (of_alias.type_, of_alias.cluster_ip) = (Some("ExternalName".to_owned()), None);
    let rest = "so the pods' host names cannot be resolved; set another spec.network.subdomain";
    for (wrong, what) in [
        (
            service(another, &[(labels::JOBSET_NAME, "first")], "None"),
            "belongs to JobSet \"first\" and does not select this JobSet's pods",
        ),
        (
            service(None, &[("app", "other")], "10.0.0.1"),
            "is not this JobSet's and does not select this JobSet's pods",
        ),
        (
            service(None, &of_js, "10.0.0.1"),
            "is not this JobSet's and is not headless",
        ),
        (
            service(None, &[], "10.0.0.1"),
            "is not this JobSet's and is not headless",
        ),
        (alias, "is not this JobSet's and is not headless"),
    ] {
        let message = format!("services \"js\" already exists: it {what}, {rest}");
        assert_eq!(told(&wrong), Some(message));
    }
}
