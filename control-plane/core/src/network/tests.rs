use std::sync::Arc;

use lockstep_api::Network;

use super::*;
use crate::testing::{JobSetBuild, at, jobset, replicated_job};

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
fn no_service_where_one_exists_or_none_is_wanted() {
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
