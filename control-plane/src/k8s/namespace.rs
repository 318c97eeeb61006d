//! The product's own namespace.

use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};

/// Creates the namespace if it is missing.
///
/// # Errors
/// The API server refused.
pub(crate) async fn ensure(client: &Client, name: &str) -> Result<(), kube::Error> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    match namespaces.get_opt(name).await {
        Ok(Some(_)) => return Ok(()),
        // In a cluster the namespace exists, and reading it may be forbidden.
        Err(kube::Error::Api(status)) if status.code == 403 => return Ok(()),
        Ok(None) => {}
        Err(error) => return Err(error),
    }
    let object = Namespace {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    match namespaces.create(&PostParams::default(), &object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error),
    }
}
