use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResource, APIResourceList};
use kube::core::Status;

use super::{Answer, read};

fn serving(kinds: &[&str]) -> Result<APIResourceList, kube::Error> {
    let resource = |name: &&str| APIResource {
        name: (*name).to_owned(),
        ..APIResource::default()
    };
    Ok(APIResourceList {
        resources: kinds.iter().map(resource).collect(),
        ..APIResourceList::default()
    })
}

fn refused(code: u16) -> Result<APIResourceList, kube::Error> {
    let status = Status::failure("refused", "Reason").with_code(code);
    Err(kube::Error::Api(status.boxed()))
}

#[test]
fn both_kinds_must_be_served() {
    assert_eq!(
        read(serving(&["workloads", "podgroups"])).unwrap(),
        Answer::Served
    );
    assert_eq!(read(serving(&["workloads"])).unwrap(), Answer::NotServed);
    assert_eq!(read(refused(404)).unwrap(), Answer::NotServed);
}

#[test]
fn who_may_not_ask_does_not_ask_for_ever() {
    assert_eq!(read(refused(403)).unwrap(), Answer::Forbidden);
    assert!(read(refused(500)).is_err(), "asked again");
}
