use std::convert::Infallible;
use std::future::ready;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::runtime::watcher::{self, Event, watcher};
use serde_json::json;

use super::*;

/// A request to a server: the limit of objects, and the first one.
type Asked = Arc<Mutex<Vec<(usize, usize)>>>;

/// A server with one object of each of these sizes, and the requests to it. Its watches do not end.
fn server(sizes: &[usize]) -> (Client, Asked) {
    let sizes = sizes.to_vec();
    let asked = Asked::default();
    let noted = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default();
        let value = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name));
        let number = |name: &str| value(name).and_then(|value| value.parse().ok());
        let limit = number("limit=").unwrap_or(usize::MAX);
        let from: usize = number("continue=").unwrap_or(0);
        noted.lock().unwrap().push((limit, from));
        let to = from.saturating_add(limit).min(sizes.len());
        let items: Vec<_> = (from..to)
            .map(|at| {
                let text = "x".repeat(sizes[at]);
                json!({"metadata": {"name": at.to_string()}, "data": {"text": text}})
            })
            .collect();
        let mut metadata = json!({"resourceVersion": "1"});
        if to < sizes.len() {
            metadata["continue"] = json!(to.to_string());
        }
        let list = json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": metadata, "items": items});
        ready(Ok::<_, Infallible>(Response::new(Body::from(
            list.to_string().into_bytes(),
        ))))
    });
    (fitting(Client::new(service, "default")), asked)
}

/// The names in the initial list of a watch, with pages of 100.
async fn listed(client: Client) -> Vec<String> {
    let config = watcher::Config::default().page_size(100);
    let events = watcher(Api::<ConfigMap>::all(client), config);
    let until_done = events.try_take_while(|event| ready(Ok(!matches!(event, Event::InitDone))));
    let names = until_done.try_filter_map(|event| {
        ready(Ok(match event {
            Event::InitApply(object) => object.metadata.name,
            _ => None,
        }))
    });
    names.map(|name| name.expect("no failure")).collect().await
}

fn all(count: usize) -> Vec<String> {
    (0..count).map(|at| at.to_string()).collect()
}

#[tokio::test]
async fn small_objects_come_in_full_pages() {
    let (client, asked) = server(&[1_000; 250]);
    assert_eq!(listed(client).await, all(250));
    assert_eq!(*asked.lock().unwrap(), [(100, 0), (100, 100), (100, 200)]);
}

#[tokio::test]
async fn large_objects_come_in_pages_that_fit() {
    let (client, asked) = server(&[1_400_000; 40]);
    assert_eq!(listed(client).await, all(40));
    let asked = asked.lock().unwrap();
    let too_large = asked.iter().filter(|(limit, _)| *limit > 2).count();
    assert!(
        too_large <= 20,
        "{too_large} of {} pages were too large: {asked:?}",
        asked.len()
    );
    assert!(asked[3..].iter().all(|(limit, _)| *limit <= 4), "{asked:?}");
}

#[tokio::test]
async fn pages_grow_again_behind_large_objects() {
    let mut sizes = vec![1_400_000; 20];
    sizes.extend([1_000; 1_000]);
    let (client, asked) = server(&sizes);
    assert_eq!(listed(client).await, all(1_020));
    let last = *asked.lock().unwrap().last().unwrap();
    assert_eq!(last.0, 100, "{asked:?}");
}

#[tokio::test]
async fn an_object_larger_than_a_page_comes_in_a_page_of_its_own() {
    let (client, asked) = server(&[10, 5 << 20, 10]);
    assert_eq!(listed(client).await, all(3));
    assert!(asked.lock().unwrap().contains(&(1, 1)) || asked.lock().unwrap().contains(&(1, 0)));
}

#[tokio::test]
async fn other_requests_pass_unchanged() {
    let (client, asked) = server(&[5 << 20, 5 << 20]);
    let found = Api::<ConfigMap>::all(client).list(&ListParams::default()).await;
    assert_eq!(found.expect("both").items.len(), 2);
    assert_eq!(*asked.lock().unwrap(), [(usize::MAX, 0)]);
}
