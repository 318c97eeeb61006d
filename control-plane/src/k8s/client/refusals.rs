//! Refusals of bounded length. A tenant chooses the values that a refusal quotes: an object of 1 MB
//! can be refused with 20 MB, for each of its Jobs.

use http::{Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::client::Body;
use serde_json::json;
use tower::BoxError;

/// Longest refusal that is read, in bytes. Events and log lines show a kilobyte of it.
const LARGEST: usize = 256 << 10;

/// The answer. A refusal that is too long is replaced by a short one of the same kind.
pub(super) async fn shortened(answer: Response<Body>) -> Result<Response<Body>, BoxError> {
    let status = answer.status();
    if !status.is_client_error() && !status.is_server_error() {
        return Ok(answer);
    }
    let (mut head, body) = answer.into_parts();
    if let Some(body) = read(body, LARGEST).await? {
        return Ok(Response::from_parts(head, body));
    }
    head.headers.remove(http::header::CONTENT_LENGTH);
    let short = serde_json::to_vec(&short(status))?;
    Ok(Response::from_parts(head, Body::from(short)))
}

/// Reads a body; `None` if it has more bytes than `most`.
pub(super) async fn read(body: Body, most: usize) -> Result<Option<Body>, BoxError> {
    match Limited::new(body, most).collect().await {
        Ok(read) => Ok(Some(Body::from(read.to_bytes()))),
        Err(error) if error.is::<LengthLimitError>() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The refusal of a request that is not sent, since the API server was [too
/// slow](super::create_pace) for the last one of its namespace.
pub(super) fn too_slow() -> Result<Response<Body>, BoxError> {
    let status = StatusCode::TOO_MANY_REQUESTS;
    let why =
        "the API server took long to refuse another new object of this namespace, so this one is tried later";
    let body = serde_json::to_vec(&refusal(status, why))?;
    Ok(Response::builder().status(status).body(Body::from(body))?)
}

/// The refusal in short.
fn short(status: StatusCode) -> serde_json::Value {
    let why = format!("the API server refused the request ({status}), and says why in more than 256 KiB");
    refusal(status, &why)
}

/// As the API server writes a refusal (`metav1.Status`).
fn refusal(status: StatusCode, why: &str) -> serde_json::Value {
    let reason = match status {
        StatusCode::BAD_REQUEST => "BadRequest",
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::CONFLICT => "Conflict",
        StatusCode::UNPROCESSABLE_ENTITY => "Invalid",
        StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
        StatusCode::INTERNAL_SERVER_ERROR => "InternalError",
        _ => "",
    };
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": why,
        "reason": reason,
        "code": status.as_u16(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn passed(status: StatusCode, body: String) -> (StatusCode, String) {
        let mut answer = Response::new(Body::from(body.into_bytes()));
        *answer.status_mut() = status;
        let answer = shortened(answer).await.unwrap();
        let status = answer.status();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn only_refusals_that_are_too_long_are_replaced() {
        let invalid = StatusCode::UNPROCESSABLE_ENTITY;
        let usual = "x".repeat(LARGEST);
        assert_eq!(passed(invalid, usual.clone()).await, (invalid, usual));
        let long = "x".repeat(LARGEST + 1);
        assert_eq!(
            passed(StatusCode::OK, long.clone()).await,
            (StatusCode::OK, long.clone())
        );

        let (status, body) = passed(invalid, long).await;
        assert_eq!(status, invalid);
        let read: kube::core::Status = serde_json::from_str(&body).unwrap();
        assert_eq!((read.code, read.reason.as_str()), (422, "Invalid"));
        assert!(read.message.contains("more than 256 KiB"), "{}", read.message);
    }
}
