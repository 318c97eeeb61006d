//! The paths, which are those of upstream and KubeRay, and how a request becomes an answer.
//!
//! Promises: every request gets an answer within the API server's own time-out. An unreadable
//! request gets a 400. Each of the three kinds of log lines that callers cause ([`LogLimits`]) has
//! 20 lines at once and then one per second, with at most 2 KiB of the request.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequest, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use kube::{Client, Resource};
use lockstep_api::ray::{RayCluster, RayCronJob, RayJob};
use lockstep_core::common::features::Features;
use lockstep_core::ray::admission::RayResource;
use serde::de::DeserializeOwned;

use super::api_servers::ApiServers;
use super::refusal::Refusal;
use super::review::{Allowed, Answer, Request};
use super::review_body::{BodyLimits, ReviewBody};
use super::{jobsets, pods, ray};
use crate::controllers::placement::Placement;
use crate::controllers::ray::kuberay::KubeRay;
use crate::telemetry::log_limit::{LineLimit, beginning};
use crate::telemetry::metrics::Webhooks;

/// Paths of the webhooks of JobSets and pods.
const JOBSET_PATHS: [&str; 4] = [
    "/mutate-jobset-x-k8s-io-v1alpha2-jobset",
    "/validate-jobset-x-k8s-io-v1alpha2-jobset",
    "/mutate--v1-pod",
    "/validate--v1-pod",
];
/// Paths of the webhooks of Ray's resources.
const RAY_PATHS: [&str; 3] = [
    "/validate-ray-io-v1-raycluster",
    "/validate-ray-io-v1-rayjob",
    "/validate-ray-io-v1-raycronjob",
];

/// Less than the 10 s after which the API server gives up, so that the user learns what was slow.
const TIME_OUT: Duration = Duration::from_secs(8);

/// The state of the handlers. Cheap to clone.
#[derive(Clone)]
pub(super) struct Admission {
    pub(super) features: Features,
    pub(super) client: Client,
    pub(super) placement: Placement,
    /// Set if Lockstep manages Ray's resources.
    pub(super) kuberay: Option<Arc<KubeRay>>,
    /// Limits of the log lines that callers cause.
    pub(super) log_limits: Arc<LogLimits>,
    /// The addresses whose bodies have priority.
    pub(super) api_servers: Arc<ApiServers>,
    /// True while memory is short.
    pub(super) is_short: fn() -> bool,
    /// Limits of bodies.
    pub(super) body_limits: Arc<BodyLimits>,
}

/// Limits of the log lines that callers cause, since anyone who reaches the port can call. Each
/// kind has its own limit, so that a flood of unreadable requests hides no refusal.
#[derive(Default)]
pub(super) struct LogLimits {
    /// Unreadable requests.
    pub(super) unreadable: LineLimit,
    /// Refused reviews.
    pub(super) refused: LineLimit,
    /// Requests without an answer in time, for example because the body arrives slowly.
    pub(super) late: LineLimit,
}

impl FromRequest<Admission> for ReviewBody {
    type Rejection = Response;

    async fn from_request(request: axum::extract::Request, admission: &Admission) -> Result<Self, Response> {
        let Admission {
            body_limits,
            api_servers,
            is_short,
            ..
        } = admission;
        Self::read(request, body_limits, api_servers, *is_short).await
    }
}

/// The router of all paths. It counts the calls of each.
pub(super) fn router(admission: Admission, calls: &Webhooks) -> Router {
    let paths = JOBSET_PATHS.iter();
    let ray_paths = RAY_PATHS.iter().filter(|_| admission.kuberay.is_some());
    paths.chain(ray_paths).for_each(|path| calls.served(path));
    let ray = match &admission.kuberay {
        Some(kuberay) => ray_router(kuberay),
        None => Router::new(),
    };
    Router::new()
        .route(JOBSET_PATHS[0], post(mutate_jobset))
        .route(JOBSET_PATHS[1], post(validate_jobset))
        .route(JOBSET_PATHS[2], post(mutate_pod))
        .route(JOBSET_PATHS[3], post(validate_pod))
        .merge(ray)
        .layer(middleware::from_fn_with_state(
            Arc::clone(&admission.log_limits),
            in_time,
        ))
        .route_layer(middleware::from_fn_with_state(calls.clone(), counted))
        .with_state(admission)
}

/// The paths of Ray's resources.
fn ray_router(kuberay: &Arc<KubeRay>) -> Router<Admission> {
    Router::new()
        .route(RAY_PATHS[0], post(validate_ray::<RayCluster>))
        .route(RAY_PATHS[1], post(validate_ray::<RayJob>))
        .route(RAY_PATHS[2], post(validate_ray::<RayCronJob>))
        .layer(Extension(Arc::clone(kuberay)))
}

async fn mutate_jobset(State(admission): State<Admission>, body: ReviewBody) -> Response {
    answer(&admission.log_limits, &body, async |request| {
        jobsets::mutate(request)
    })
    .await
}

async fn validate_jobset(State(admission): State<Admission>, body: ReviewBody) -> Response {
    answer(&admission.log_limits, &body, async |request| {
        let warnings = jobsets::validate(request, admission.features, &admission.client).await?;
        Ok(Allowed {
            warnings,
            ..Allowed::default()
        })
    })
    .await
}

async fn mutate_pod(State(admission): State<Admission>, body: ReviewBody) -> Response {
    answer(&admission.log_limits, &body, async |request| {
        Ok(pods::mutate(request, &admission.placement).await?.into())
    })
    .await
}

async fn validate_pod(State(admission): State<Admission>, body: ReviewBody) -> Response {
    answer(&admission.log_limits, &body, async |request| {
        pods::validate(request, &admission.placement).await?;
        Ok(Allowed::default())
    })
    .await
}

async fn validate_ray<R>(
    State(admission): State<Admission>,
    Extension(kuberay): Extension<Arc<KubeRay>>,
    body: ReviewBody,
) -> Response
where
    R: RayResource + Resource<DynamicType = ()> + DeserializeOwned,
{
    answer(&admission.log_limits, &body, async |request| {
        let warnings = ray::validate::<R>(request, &kuberay).await?;
        Ok(Allowed {
            warnings,
            ..Allowed::default()
        })
    })
    .await
}

async fn answer(
    log_limits: &LogLimits,
    body: &ReviewBody,
    review: impl AsyncFnOnce(&Request) -> Result<Allowed, Refusal>,
) -> Response {
    let mut request = match Request::read(&body.body) {
        Ok(request) => request,
        Err(error) => {
            let error = error.to_string();
            let error = beginning(&error);
            if let Some(left_out) = log_limits.unreadable.next() {
                tracing::warn!(error, left_out, "a webhook was called with an unreadable request");
            }
            return (StatusCode::BAD_REQUEST, error.to_owned()).into_response();
        }
    };
    let reviewed = match request.is_exempt() {
        Ok(true) => Ok(Allowed::default()),
        Ok(false) => review(&request).await,
        Err(refusal) => Err(refusal),
    };
    let answer = match reviewed {
        Ok(allowed) => Answer::allow(request.uid, allowed),
        Err(refusal) => {
            if let Some(left_out) = log_limits.refused.next() {
                let (namespace, why) = (beginning(&request.namespace), refusal.to_string());
                tracing::info!(
                    namespace,
                    refusal = beginning(&why),
                    left_out,
                    "refused an object"
                );
            }
            Answer::refuse(request.uid, &refusal)
        }
    };
    match serde_json::to_vec(&answer) {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn counted(State(calls): State<Webhooks>, request: axum::extract::Request, next: Next) -> Response {
    let call = calls.called(request.uri().path());
    let response = next.run(request).await;
    call.answered(response.status().as_u16());
    response
}

async fn in_time(
    State(log_limits): State<Arc<LogLimits>>,
    request: axum::extract::Request,
    next: Next,
) -> Response {
    match tokio::time::timeout(TIME_OUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            if let Some(left_out) = log_limits.late.next() {
                tracing::warn!(left_out, "a webhook was not answered in time");
            }
            (
                StatusCode::GATEWAY_TIMEOUT,
                "the webhook could not decide in time",
            )
                .into_response()
        }
    }
}
