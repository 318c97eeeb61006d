//! Dry runs of restarts. The test plays the group's task.

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use lockstep_core::restart::{Effect, Fate, Preview, RestartLevel, Unmoved};

use super::*;
use crate::controllers::restart::board::question::RequestedRestart;

impl Api {
    async fn dry_run(&self, caller: &str, name: &str, token: &str) -> Result<pb::DryRun, Status> {
        let request = pb::DryRunRestartRequest {
            namespace: "ours".into(),
            name: name.into(),
            token: token.into(),
        };
        let answer = self.client().dry_run_restart(with(caller, request)).await?;
        let answer = answer.into_inner();
        assert_eq!(answer.uid, running("ours", "js", 4).jobset.uid_str());
        Ok(answer.dry_run.unwrap())
    }
}

/// Answers one question, while the test runs.
fn answering(mut post: Post, preview: Preview) -> JoinHandle<(Post, String)> {
    tokio::spawn(async move {
        let question = post.next_question().await;
        let token = match question.wish() {
            RequestedRestart::All(token) => token.clone(),
            RequestedRestart::Workers(request) => request.to_string(),
        };
        question.answer(preview, running("ours", "js", 4).observed);
        (post, token)
    })
}

#[tokio::test]
async fn it_says_which_workers_would_stop_and_writes_nothing() {
    let api = Api::leading().await;
    let post = api.board.open_post("ours", "js", UnixNanos(1));
    post.replace_state(running("ours", "js", 4));
    let task = answering(
        post,
        Preview {
            effect: Effect::InPlace {
                generation: Generation(5),
                level: RestartLevel::Process,
            },
            workers: [(identity(0), Fate::Stopped), (identity(1), Fate::NotStarted)].into(),
        },
    );
    let said = api.dry_run("patch:ours", "js", "t-1").await.unwrap();
    let (post, token) = task.await.unwrap();
    assert_eq!(token, "t-1");
    assert_eq!(
        (said.effect(), said.generation, said.level.as_str()),
        (pb::RestartEffect::InPlace, 5, "Process")
    );
    assert_eq!(
        (said.stopped[0].pod.as_str(), said.stopped[0].phase()),
        ("pod-0", pb::WorkerPhase::Running)
    );
    assert_eq!((said.stopped.len(), said.left_alone.len()), (1, 1));
    assert_eq!(said.left_alone[0].reason(), pb::LeftAloneReason::NotStarted);
    let left = said.left_alone[0].worker.as_ref().unwrap().identity.as_ref();
    assert_eq!(left.unwrap().completion_index, 1);

    let task = answering(
        post,
        Preview {
            effect: Effect::Nothing(Unmoved::UnderWay),
            workers: [].into(),
        },
    );
    let said = api.dry_run("patch:ours", "js", "t-2").await.unwrap();
    assert_eq!(
        (said.effect(), said.reason.as_str(), said.generation),
        (pb::RestartEffect::Nothing, "UnderWay", 0)
    );
    task.await.unwrap();
    assert!(api.patches.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_user_who_may_not_restart_may_not_try_it_either() {
    let api = Api::leading().await;
    let post = api.board.open_post("ours", "js", UnixNanos(1));
    post.replace_state(running("ours", "js", 4));
    for name in ["js", "other"] {
        let status = api.dry_run("list:*", name, "t").await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    }
    let status = api.dry_run("*:*", "other", "t").await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status}");
}

#[tokio::test]
async fn a_few_wait_for_the_groups_task_and_no_more() {
    let api = Api::leading().await;
    let post = api.board.open_post("ours", "js", UnixNanos(1));
    post.replace_state(running("ours", "js", 4));
    let mut calls: FuturesUnordered<_> = (0..9).map(|_| api.dry_run("patch:ours", "js", "t")).collect();
    let status = calls.next().await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    // The group is given up.
    drop(post);
    while let Some(answer) = calls.next().await {
        let status = answer.unwrap_err();
        assert_eq!(status.code(), Code::Aborted, "{status}");
    }
}
