//! Requests to restart single workers (`lockstep.dev/restart-workers`): which workers, and the name
//! of the request.

use std::fmt;
use std::str::FromStr;

/// The longest request, in bytes: it is copied to the status.
pub const LONGEST_RESTART_REQUEST: usize = 1024;

/// Some workers of one replicatedJob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// All workers of this replicatedJob.
    ReplicatedJob(String),
    /// All workers of this child Job.
    Job(String),
    /// The workers of one pod, or one of them.
    Worker {
        /// The child Job.
        job: String,
        /// The completion index within it.
        index: u32,
        /// The container; `None`: every worker of the pod.
        container: Option<String>,
    },
}

impl Target {
    /// True if the target includes this worker.
    #[must_use]
    pub fn takes(&self, replicated_job: &str, of_job: &str, of_index: u32, of_container: &str) -> bool {
        match self {
            Self::ReplicatedJob(name) => name == replicated_job,
            Self::Job(name) => name == of_job,
            Self::Worker {
                job,
                index,
                container,
            } => {
                job == of_job
                    && *index == of_index
                    && container
                        .as_ref()
                        .is_none_or(|container| container == of_container)
            }
        }
    }
}

/// The form in the annotation: `replicatedJob/NAME`, `job/NAME` or `worker/JOB/INDEX[/CONTAINER]`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReplicatedJob(name) => write!(f, "replicatedJob/{name}"),
            Self::Job(name) => write!(f, "job/{name}"),
            Self::Worker {
                job,
                index,
                container: None,
            } => write!(f, "worker/{job}/{index}"),
            Self::Worker {
                job,
                index,
                container: Some(container),
            } => write!(f, "worker/{job}/{index}/{container}"),
        }
    }
}

/// A target that has none of the valid forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be replicatedJob/NAME, job/NAME or worker/JOB/INDEX[/CONTAINER]")]
pub struct NoTarget;

impl FromStr for Target {
    type Err = NoTarget;

    fn from_str(text: &str) -> Result<Self, NoTarget> {
        let parts: Vec<&str> = text.split('/').collect();
        if parts.iter().any(|part| part.is_empty()) {
            return Err(NoTarget);
        }
        let index = |text: &str| text.parse().map_err(|_| NoTarget);
        Ok(match parts.as_slice() {
            ["replicatedJob", name] => Self::ReplicatedJob((*name).to_owned()),
            ["job", name] => Self::Job((*name).to_owned()),
            ["worker", job, at] => Self::Worker {
                job: (*job).to_owned(),
                index: index(at)?,
                container: None,
            },
            ["worker", job, at, container] => Self::Worker {
                job: (*job).to_owned(),
                index: index(at)?,
                container: Some((*container).to_owned()),
            },
            _ => return Err(NoTarget),
        })
    }
}

/// A request to restart single workers. Its text is the value of the annotation: the target, a
/// space and the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerRestartRequest {
    /// Which workers.
    pub target: Target,
    /// Distinguishes it from other requests.
    pub token: String,
}

impl fmt::Display for WorkerRestartRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.target, self.token)
    }
}

impl FromStr for WorkerRestartRequest {
    type Err = NoTarget;

    fn from_str(text: &str) -> Result<Self, NoTarget> {
        let (target, token) = text.split_once(' ').ok_or(NoTarget)?;
        if token.is_empty() || text.len() > LONGEST_RESTART_REQUEST {
            return Err(NoTarget);
        }
        Ok(Self {
            target: target.parse()?,
            token: token.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::JobSet;
    use crate::annotations::RESTART_WORKERS;

    #[test]
    fn a_written_request_parses_to_the_same_text() {
        for text in [
            "replicatedJob/ps now",
            "job/js-ps-0 night shift",
            "worker/js-ps-0/1 t",
            "worker/js-ps-0/1/main t",
        ] {
            let request: WorkerRestartRequest = text.parse().unwrap();
            assert_eq!(request.to_string(), text);
        }
    }

    #[test]
    fn a_request_without_target_or_token_is_refused() {
        let long = format!("job/js-ps-0 {}", "t".repeat(LONGEST_RESTART_REQUEST));
        for text in [
            "",
            "now",
            "replicatedJob/ps",
            "replicatedJob/ps ",
            "replicatedjob/ps t",
            "job/ t",
            "job/a/b t",
            "worker/js-ps-0 t",
            "worker/js-ps-0/x t",
            "worker/js-ps-0/-1 t",
            "worker/js-ps-0/1/ t",
            "worker/js-ps-0/1/c/d t",
            &long,
        ] {
            assert_eq!(text.parse::<WorkerRestartRequest>(), Err(NoTarget), "{text}");
        }
        let jobset: JobSet = serde_json::from_value(serde_json::json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
            "metadata": {"annotations": {RESTART_WORKERS: "everybody"}},
            "spec": {"replicatedJobs": []},
        }))
        .unwrap();
        assert_eq!(
            jobset.worker_restart_request().unwrap_err().to_string(),
            "annotation lockstep.dev/restart-workers: \"everybody\" must be replicatedJob/NAME, job/NAME or worker/JOB/INDEX[/CONTAINER], a space, and a name for the request"
        );
    }

    #[test]
    fn a_target_takes_those_it_names() {
        let takes = |target: &str, index, container| {
            let target: Target = target.parse().unwrap();
            target.takes("ps", "js-ps-0", index, container)
        };
        assert!(takes("replicatedJob/ps", 3, "main") && takes("job/js-ps-0", 3, "main"));
        assert!(takes("worker/js-ps-0/3", 3, "main") && takes("worker/js-ps-0/3/main", 3, "main"));
        for other in [
            "replicatedJob/p",
            "job/js-ps-1",
            "worker/js-ps-0/1",
            "worker/js-ps-0/3/side",
        ] {
            assert!(!takes(other, 3, "main"), "{other}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_means_the_same_when_it_is_written_again(
            text in r"(replicatedJob|job|worker)?(/[a-z0-9+-]{0,5}){0,4} ?[ -~]{0,8}|\PC{0,300}|.{0,40}",
        ) {
            if let Ok(request) = text.parse::<WorkerRestartRequest>() {
                prop_assert!(text.len() <= LONGEST_RESTART_REQUEST && !request.token.is_empty());
                let again = request.to_string();
                prop_assert!(again.len() <= text.len());
                prop_assert_eq!(again.parse(), Ok(request));
            }
            // The error is short however long the value is.
            let long = text.repeat(100);
            let jobset: JobSet = serde_json::from_value(serde_json::json!({
                "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
                "metadata": {"annotations": {RESTART_WORKERS: long}}, "spec": {"replicatedJobs": []},
            }))
            .unwrap();
            if let Err(error) = jobset.worker_restart_request() {
                prop_assert!(error.to_string().len() < 2000, "{}", error);
            }
        }

        #[test]
        fn any_target_is_read_as_it_was_written(
            (job, container) in ("[a-z][a-z0-9-]{0,62}", "[a-z][a-z0-9-]{0,62}"),
            index in any::<u32>(),
            form in 0..4,
        ) {
            let worker = |container| Target::Worker { job: job.clone(), index, container };
            let target = match form {
                0 => Target::ReplicatedJob(job.clone()),
                1 => Target::Job(job.clone()),
                2 => worker(None),
                _ => worker(Some(container)),
            };
            prop_assert_eq!(target.to_string().parse(), Ok(target));
        }
    }
}
