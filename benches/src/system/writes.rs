//! What is written to the API server, as it counts that itself.

use anyhow::Result;
use kube::Client;

const REQUESTS: &str = "apiserver_request_total{";
/// Verbs that change nothing.
const READS: [&str; 4] = ["GET", "LIST", "WATCH", "CONNECT"];
/// What is written whether anything is restarted or not: by leaders, by those who look who asks, and by kubelets.
const OF_OTHERS: [&str; 5] = ["leases", "tokenreviews", "subjectaccessreviews", "pods", "nodes"];

/// Writes since it was started.
pub(super) async fn so_far(client: &Client) -> Result<f64> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    let text = client.request_text(request).await?;
    let writes = text.lines().filter_map(|line| {
        let (labels, count) = line.strip_prefix(REQUESTS)?.rsplit_once("} ")?;
        let label = |name: &str| {
            let (_, rest) = labels.split_once(&format!("{name}=\""))?;
            rest.split('"').next()
        };
        let is_ours = !READS.contains(&label("verb")?) && !OF_OTHERS.contains(&label("resource")?);
        is_ours.then(|| count.parse::<f64>().ok())?
    });
    Ok(writes.sum())
}
