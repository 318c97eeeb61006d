//! Checks of requests. Each error names the field, in its message and in its details.

use lockstep_api::Target;
use lockstep_proto::platform::v1 as pb;
use tonic::Status;
use uuid::Uuid;

use super::error_details::CallError;
use crate::controllers::restart::board::{Filter, Key};

#[cfg(test)]
mod tests;

/// Groups of a page, by default and at most.
const PAGE: (usize, usize) = (100, 500);
const MAX_TOKEN: usize = 128;
/// Longest names of a namespace and of a JobSet.
const MAX_NAMES: (usize, usize) = (63, 253);

fn invalid(field: &str, message: &str) -> Status {
    CallError::field(field, message).into()
}

/// True for an RFC 1123 label, as names of namespaces are.
fn is_label(text: &str) -> bool {
    text.len() <= MAX_NAMES.0 && is_name(text, b"-")
}

/// True for an RFC 1123 subdomain, as names of most objects are.
fn is_subdomain(text: &str) -> bool {
    text.len() <= MAX_NAMES.1 && is_name(text, b"-.")
}

/// True if the text begins and ends with a letter or digit, and has only these and `others`
/// between.
fn is_name(text: &str, others: &[u8]) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.iter().all(|byte| inner(*byte) || others.contains(byte))
        && bytes.first().is_some_and(|first| inner(*first))
        && bytes.last().is_some_and(|last| inner(*last))
}

fn namespace(text: &str) -> Result<(), Status> {
    if is_label(text) {
        Ok(())
    } else {
        Err(invalid("namespace", "must be the name of a namespace"))
    }
}

fn name(text: &str) -> Result<(), Status> {
    if is_subdomain(text) {
        Ok(())
    } else {
        Err(invalid("name", "must be the name of a JobSet"))
    }
}

/// The groups that a request asks for.
pub(super) fn filter(of_namespace: String, of_name: String) -> Result<Filter, Status> {
    if !of_namespace.is_empty() {
        namespace(&of_namespace)?;
    }
    if !of_name.is_empty() {
        if of_namespace.is_empty() {
            return Err(invalid("namespace", "is required together with name"));
        }
        name(&of_name)?;
    }
    Ok(Filter {
        namespace: of_namespace,
        name: of_name,
    })
}

/// The group that a request names.
pub(super) fn key(of_namespace: String, of_name: String) -> Result<Key, Status> {
    if of_namespace.is_empty() {
        return Err(invalid("namespace", "is required"));
    }
    if of_name.is_empty() {
        return Err(invalid("name", "is required"));
    }
    namespace(&of_namespace)?;
    name(&of_name)?;
    Ok(Key {
        namespace: of_namespace,
        name: of_name,
    })
}

/// How many groups a page holds.
pub(super) fn page_size(wish: u32) -> usize {
    match usize::try_from(wish).unwrap_or(PAGE.1) {
        0 => PAGE.0,
        wish => wish.min(PAGE.1),
    }
}

/// The group after which the page begins.
pub(super) fn after(page_token: &str, filter: &Filter) -> Result<Option<Key>, Status> {
    if page_token.is_empty() {
        return Ok(None);
    }
    let refused = || invalid("page_token", "was not returned by this call");
    let (of_namespace, of_name) = page_token.split_once('/').ok_or_else(refused)?;
    let after = key(of_namespace.to_owned(), of_name.to_owned()).map_err(|_| refused())?;
    if filter.namespace.is_empty() || filter.namespace == after.namespace {
        Ok(Some(after))
    } else {
        Err(refused())
    }
}

/// The node after which the page begins; empty for the first page.
pub(super) fn after_node(page_token: String) -> Result<String, Status> {
    if page_token.is_empty() || is_subdomain(&page_token) {
        return Ok(page_token);
    }
    Err(invalid("page_token", "was not returned by this call"))
}

/// The token that [`after`] reads.
pub(super) fn page_token(last: &Key) -> String {
    format!("{}/{}", last.namespace, last.name)
}

/// The workers that a request names.
pub(super) fn target(given: Option<pb::Target>) -> Result<Target, Status> {
    let named = |field: &str, text: String| {
        if is_subdomain(&text) {
            Ok(text)
        } else {
            Err(invalid(field, "must be a name"))
        }
    };
    match given.and_then(|given| given.workers) {
        None => Err(invalid("only", "is required: a replicatedJob, a Job or a worker")),
        Some(pb::target::Workers::ReplicatedJob(name)) => {
            Ok(Target::ReplicatedJob(named("only.replicated_job", name)?))
        }
        Some(pb::target::Workers::Job(name)) => Ok(Target::Job(named("only.job", name)?)),
        Some(pb::target::Workers::Worker(worker)) => {
            let container = (!worker.container.is_empty())
                .then(|| named("only.worker.container", worker.container))
                .transpose()?;
            Ok(Target::Worker {
                job: named("only.worker.job", worker.job)?,
                index: worker.completion_index,
                container,
            })
        }
    }
}

/// The token of a request for a restart; a random one if none is given.
pub(super) fn token(given: String) -> Result<String, Status> {
    if given.is_empty() {
        return Ok(Uuid::new_v4().to_string());
    }
    if given.len() > MAX_TOKEN || !given.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
        return Err(invalid(
            "token",
            &format!("must be 1 to {MAX_TOKEN} printable ASCII characters"),
        ));
    }
    Ok(given)
}
