//! `AdmissionReview` of `admission.k8s.io/v1`: requests of the API server, and their responses.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use json_patch::Patch;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use lockstep_core::common::extent::Extent;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use super::object::bounded;
use super::refusal::Refusal;

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";
/// Longest name of a namespace.
const LONGEST_NAMESPACE: usize = 63;

/// Why a body is not a readable request.
#[derive(Debug, Error)]
pub(super) enum ReviewError {
    #[error("not an AdmissionReview: {0}")]
    Syntax(#[from] serde_path_to_error::Error<serde_json::Error>),
    #[error("not an AdmissionReview: {api_version} {kind}; {API_VERSION} {KIND} is supported")]
    Kind { api_version: String, kind: String },
    #[error("the AdmissionReview has no request")]
    Empty,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionReview {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<Request>,
}

/// The request: an operation on an object.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request {
    pub(super) uid: String,
    pub(super) operation: Operation,
    #[serde(default)]
    pub(super) namespace: String,
    /// The object as it would be stored; null for a deletion.
    #[serde(default, deserialize_with = "bounded")]
    pub(super) object: Value,
    /// The object as it is stored; null for a creation.
    #[serde(default, deserialize_with = "bounded")]
    pub(super) old_object: Value,
}

/// The operation.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Request {
    /// True if the object was already too large: then it passes without a review. An object that is
    /// no longer too large is reviewed as if it were new, since its old state is not read.
    ///
    /// # Errors
    /// If the request makes an object too large.
    pub(super) fn is_exempt(&mut self) -> Result<bool, Refusal> {
        let of_spec = |object: &Value| object.get("spec").map(Extent::of).unwrap_or_default();
        let extent = of_spec(&self.object);
        let most = self.most();
        let was_large = of_spec(&self.old_object).exceeds(most);
        let is_large = extent.exceeds(most);
        if was_large && self.operation == Operation::Update && !is_large {
            self.operation = Operation::Create;
            self.old_object = Value::Null;
            return Ok(false);
        }
        if was_large {
            return Ok(true);
        }
        if is_large {
            let kind = self
                .object
                .get("kind")
                .and_then(Value::as_str)
                .unwrap_or("object");
            let sentence = extent.sentence(most);
            return Err(Refusal::Unreadable(format!("{kind:.32}: spec: {sentence}")));
        }
        Ok(false)
    }

    /// The limit of its object. A pod is reviewed only at its creation, and defaults give each of
    /// its volumes one more object than its JobSet has.
    fn most(&self) -> Extent {
        match self.object.get("kind").and_then(Value::as_str) {
            Some("Pod") if self.operation == Operation::Create => Extent::MOST,
            _ => Extent::ADMITTED,
        }
    }

    /// Reads the body of a request.
    pub(super) fn read(body: &[u8]) -> Result<Self, ReviewError> {
        let review: AdmissionReview =
            serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_slice(body))?;
        if review.api_version != API_VERSION || review.kind != KIND {
            return Err(ReviewError::Kind {
                api_version: review.api_version,
                kind: review.kind,
            });
        }
        review.request.ok_or(ReviewError::Empty)
    }
}

/// Namespace of the object in a request; empty if it has none, or cannot be read.
pub(super) fn namespace(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct ReviewHead {
        request: RequestHead,
    }
    #[derive(Deserialize)]
    struct RequestHead {
        #[serde(default)]
        namespace: String,
    }
    let head = serde_json::from_slice::<ReviewHead>(body).ok();
    let namespace = head.map(|head| head.request.namespace);
    namespace
        .filter(|namespace| namespace.len() <= LONGEST_NAMESPACE)
        .unwrap_or_default()
}

/// An answer, ready to send.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer {
    api_version: &'static str,
    kind: &'static str,
    response: Response,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    uid: String,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    /// RFC 6902, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    /// Warnings that the API server passes on to the client.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// The result for an object that may pass.
#[derive(Debug, Default)]
pub(super) struct Allowed {
    /// The changes to the object.
    pub(super) patch: Patch,
    /// Warnings for its user.
    pub(super) warnings: Vec<String>,
}

impl From<Patch> for Allowed {
    fn from(patch: Patch) -> Self {
        Self {
            patch,
            warnings: Vec::new(),
        }
    }
}

impl Answer {
    /// The object may pass.
    pub(super) fn allow(uid: String, allowed: Allowed) -> Self {
        let Allowed { patch, warnings } = allowed;
        let patch = (!patch.is_empty()).then(|| BASE64_STANDARD.encode(patch.to_string()));
        Self::new(Response {
            uid,
            allowed: true,
            status: None,
            patch_type: patch.as_ref().map(|_| "JSONPatch"),
            patch,
            warnings,
        })
    }

    /// The object may not pass.
    pub(super) fn refuse(uid: String, refusal: &Refusal) -> Self {
        Self::new(Response {
            uid,
            allowed: false,
            status: Some(refusal.status()),
            patch_type: None,
            patch: None,
            warnings: Vec::new(),
        })
    }

    fn new(response: Response) -> Self {
        Self {
            api_version: API_VERSION,
            kind: KIND,
            response,
        }
    }
}
