//! Small texts that become large objects.

use lockstep_core::common::extent::Extent;

use super::*;

fn with_volumes(volumes: usize) -> Value {
    let mut worker = worker();
    worker["template"]["spec"]["template"]["spec"]["volumes"] = vec![json!({}); volumes].into();
    jobset(json!({"replicatedJobs": [worker]}))
}

fn message(answer: &Value) -> &str {
    answer["status"]["message"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn one_of_more_objects_than_are_read_is_refused_with_the_field() {
    for path in [MUTATE, VALIDATE] {
        let review = review("CREATE", &with_volumes(Extent::ADMITTED.objects), &Value::Null);
        let answer = ask_with(api_server(Ok(BTreeMap::new())), path, &review).await;
        assert_eq!(answer["allowed"], false);
        let sentence = message(&answer);
        assert!(sentence.starts_with("JobSet: spec: has 4"), "{sentence}");
        assert!(
            sentence.ends_with("list items and fields, but may have at most 4096 and 32768"),
            "{sentence}"
        );
    }
}

#[tokio::test]
async fn an_object_that_was_too_large_before_is_exempt_until_it_is_no_longer() {
    let (small, large) = (with_volumes(0), with_volumes(Extent::ADMITTED.objects));
    let none = || api_server(Ok(BTreeMap::new()));
    for path in [MUTATE, VALIDATE] {
        let answer = ask_with(none(), path, &review("UPDATE", &large, &large)).await;
        assert_eq!(
            (&answer["allowed"], &answer["patch"]),
            (&json!(true), &Value::Null)
        );
        let shrunk = ask_with(none(), path, &review("UPDATE", &small, &large)).await;
        assert_eq!(shrunk["allowed"], true, "{shrunk}");
        let grown = ask_with(none(), path, &review("UPDATE", &large, &small)).await;
        assert_eq!(grown["allowed"], false, "{grown}");
        let deleted = ask_with(none(), path, &review("DELETE", &Value::Null, &large)).await;
        assert_eq!(deleted["allowed"], true, "{deleted}");
    }
    let invalid = jobset(json!({"replicatedJobs": [worker(), worker()]}));
    let answer = ask_with(none(), VALIDATE, &review("UPDATE", &invalid, &large)).await;
    assert_eq!(
        answer["allowed"], false,
        "it is judged as if it were new: {answer}"
    );
}

#[tokio::test]
async fn what_would_take_gigabytes_is_not_read_at_all() {
    let text = review("CREATE", &with_volumes(1), &Value::Null).to_string();
    let body = text.replacen(
        "\"volumes\":[{}]",
        &format!("\"volumes\":[{}{{}}]", "{},".repeat(1 << 20)),
        1,
    );
    assert!(body.len() > 3 << 20);
    let router = router_with(api_server(Ok(BTreeMap::new())));
    let (code, said) = post(router, MUTATE, body).await;
    assert_eq!(code, StatusCode::BAD_REQUEST);
    let said = String::from_utf8(said).unwrap();
    assert!(
        said.contains("request.object") && said.contains("the object has more than 16384 objects"),
        "{said}"
    );
}

#[tokio::test]
async fn a_pod_of_a_jobset_that_was_admitted_is_admitted_with_its_defaults() {
    let pod = |volumes: usize| {
        let volume = json!({"name": "v", "emptyDir": {}});
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"generateName": "js-w-0-0-"},
            "spec": {"containers": [{"name": "c", "image": "i"}], "volumes": vec![volume; volumes]},
        })
    };
    let most = Extent::ADMITTED.objects - 8;
    for path in ["/mutate--v1-pod", "/validate--v1-pod"] {
        for (volumes, allowed) in [(most, true), (Extent::ADMITTED.objects, false)] {
            let review = review("CREATE", &pod(volumes), &Value::Null);
            let answer = ask_with(api_server(Ok(BTreeMap::new())), path, &review).await;
            assert_eq!(
                answer["allowed"],
                allowed,
                "{path} {volumes}: {}",
                message(&answer)
            );
        }
    }
}
