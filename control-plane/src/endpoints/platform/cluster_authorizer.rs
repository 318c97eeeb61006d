//! Checks callers of the platform API with the API server.

use async_trait::async_trait;

use super::audit::RefusalLog;
use super::authorize::{Authorizer, Caller, Refusal, location};
use crate::net::serve::{AccessChecker, Action, Verdict};
use crate::telemetry::metrics::Metrics;

/// Asks the API server for the user of a token, and for what RBAC allows that user.
pub struct ClusterAuthorizer {
    access: AccessChecker,
    refusal_log: RefusalLog,
}

impl ClusterAuthorizer {
    /// An authorizer that uses this client and counts refusals.
    #[must_use]
    pub fn new(client: kube::Client, metrics: &Metrics) -> Self {
        Self {
            access: AccessChecker::new(client),
            refusal_log: RefusalLog::register(metrics),
        }
    }
}

#[async_trait]
impl Authorizer for ClusterAuthorizer {
    async fn authorize(
        &self,
        caller: &Caller,
        verb: &'static str,
        namespace: &str,
        name: &str,
    ) -> Result<(), Refusal> {
        let token = caller
            .metadata
            .get("authorization")
            .and_then(|value| value.to_str().ok())
            .and_then(bearer)
            .ok_or(Refusal::Missing)?;
        let action = Action::JobSets {
            verb,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        match self.access.check(&caller.address, token, &action).await {
            Ok(Verdict::Allowed) => Ok(()),
            Ok(Verdict::Unknown) => Err(Refusal::Unknown),
            Ok(Verdict::TooMany) => Err(Refusal::TooMany),
            Ok(Verdict::Denied(user)) => Err(Refusal::Denied {
                user,
                verb,
                location: location(namespace, name),
            }),
            Err(error) => Err(Refusal::Unavailable(Box::new(error))),
        }
    }

    fn refused(&self, caller: &Caller, refusal: &Refusal) {
        self.refusal_log.note(&caller.address, refusal);
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}
