//! Reads objects. A user who may write an object also writes when its field managers did so, and
//! one who may create an event writes its times. A time such as `9999-12-31T23:59:59Z` cannot be
//! parsed, and must hide no other object. So field managers are not read, and events that cannot
//! be read are left out.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::Resource;
use kube::api::{Api, GetParams, ListParams, Patch, PatchParams};
use kube::core::Request;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::answer;

/// Objects per page of a list.
const PAGE_SIZE: u32 = 500;

/// A page of a list.
#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: ListMeta,
    items: Vec<Value>,
}

fn parsed<K: DeserializeOwned>(mut object: Value) -> kube::Result<K> {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    serde_json::from_value(object).map_err(kube::Error::SerdeError)
}

/// An object, or `None` if it does not exist.
pub(super) async fn get<K: Resource + DeserializeOwned + Clone>(
    api: &Api<K>,
    name: &str,
) -> kube::Result<Option<K>> {
    let request = Request::new(api.resource_url()).get(name, &GetParams::default());
    let request = request.map_err(kube::Error::BuildRequest)?;
    match api.clone().into_client().request(request).await {
        Ok(object) => parsed(object).map(Some),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Changes an object, and returns it as it is then.
pub(super) async fn patch<K: Resource + DeserializeOwned + Clone>(
    api: &Api<K>,
    name: &str,
    patch: Value,
) -> kube::Result<K> {
    let patch = Patch::Merge(patch);
    let request = Request::new(api.resource_url()).patch(name, &PatchParams::default(), &patch);
    let request = request.map_err(kube::Error::BuildRequest)?;
    parsed(api.clone().into_client().request(request).await?)
}

/// Lists all objects, page by page.
pub(super) async fn list<K>(what: &str, api: &Api<K>, params: &ListParams) -> anyhow::Result<Vec<K>>
where
    K: Resource + DeserializeOwned + Clone,
{
    let all = read_all(what, api, params).await?.into_iter();
    answer(what, async { all.collect() }).await
}

/// Lists all objects that can be read.
pub(super) async fn list_readable<K>(what: &str, api: &Api<K>, params: &ListParams) -> anyhow::Result<Vec<K>>
where
    K: Resource + DeserializeOwned + Clone,
{
    let all = read_all(what, api, params).await?;
    Ok(all.into_iter().flatten().collect())
}

async fn read_all<K>(what: &str, api: &Api<K>, params: &ListParams) -> anyhow::Result<Vec<kube::Result<K>>>
where
    K: Resource + DeserializeOwned + Clone,
{
    let mut params = params.clone().limit(PAGE_SIZE);
    let mut all = Vec::new();
    loop {
        let request = Request::new(api.resource_url()).list(&params);
        let page = async {
            let request = request.map_err(kube::Error::BuildRequest)?;
            api.clone().into_client().request::<Page>(request).await
        };
        let page = answer(what, page).await?;
        all.extend(page.items.into_iter().map(parsed));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use k8s_openapi::api::core::v1::Pod;
    use k8s_openapi::api::events::v1::Event;
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::fetch::{Cluster, Scope};

    /// A time that cannot be parsed here, but that the API server stores.
    const LATE: &str = "9999-12-31T23:59:59Z";

    fn cluster(object: Value) -> Cluster {
        Cluster::with_fake_api("ns", move |request: &Request<Body>| {
            let is_list = !request.uri().path().ends_with("/one");
            let good = json!({"metadata": {"name": "good"}});
            let list = json!({"metadata": {}, "items": [object.clone(), good]});
            let answer = if is_list { list } else { object.clone() };
            Response::new(Body::from(answer.to_string().into_bytes()))
        })
    }

    #[tokio::test]
    async fn what_field_managers_have_written_hides_no_object() {
        let managed = json!([{"manager": "evil", "operation": "Update", "time": LATE}]);
        let cluster = cluster(json!({"metadata": {"name": "one", "managedFields": managed}}));
        let api: Api<Pod> = cluster.api(&Scope::Namespace);
        assert_eq!(list("pods", &api, &ListParams::default()).await.unwrap().len(), 2);
        let one = get(&api, "one").await.unwrap().unwrap();
        assert_eq!(one.metadata.name.as_deref(), Some("one"));
        let one = patch(&api, "one", json!({})).await.unwrap();
        assert_eq!(one.metadata.name.as_deref(), Some("one"));
    }

    #[tokio::test]
    async fn an_event_that_cannot_be_read_hides_no_other() {
        let cluster = cluster(json!({"metadata": {"name": "evil"}, "deprecatedLastTimestamp": LATE}));
        let events = cluster.events("js").await.unwrap();
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].metadata.name.as_deref(), Some("good"));
        let api: Api<Event> = cluster.api(&Scope::Namespace);
        let error = list("events", &api, &ListParams::default()).await.unwrap_err();
        assert!(error.to_string().starts_with("events: "), "{error}");
    }
}
