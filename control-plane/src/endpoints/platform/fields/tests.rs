//! Any request is accepted, or refused with the name of a field.

use proptest::prelude::*;
use prost::Message as _;
use tonic::Code;
use tonic_types::StatusExt as _;

use super::*;

/// Names, and texts close to one or far from one.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9.-]{0,8}",
        "[a-z0-9]{0,300}",
        "\\PC{0,12}",
        ".{0,12}",
        Just("x".repeat(100_000))
    ]
}

fn workers() -> impl Strategy<Value = Option<pb::Target>> {
    let workers = prop_oneof![
        text().prop_map(pb::target::Workers::ReplicatedJob),
        text().prop_map(pb::target::Workers::Job),
        (text(), any::<u32>(), text()).prop_map(|(job, completion_index, container)| {
            pb::target::Workers::Worker(pb::WorkerIdentity {
                job,
                completion_index,
                container,
            })
        }),
    ];
    prop::option::of(prop::option::of(workers).prop_map(|workers| pb::Target { workers }))
}

/// A refusal names its field, and is short for any value.
fn names_a_field<T>(answer: &Result<T, Status>) -> Result<(), TestCaseError> {
    let Err(status) = answer else { return Ok(()) };
    prop_assert_eq!(status.code(), Code::InvalidArgument);
    prop_assert!(status.message().len() < 200, "{}", status.message());
    let violations = status.get_details_bad_request().map(|bad| bad.field_violations);
    let violations = violations.unwrap_or_default();
    prop_assert_eq!(violations.len(), 1);
    prop_assert!(
        status.message().starts_with(&violations[0].field),
        "{}",
        status.message()
    );
    prop_assert!(violations[0].field.len() < 40);
    Ok(())
}

proptest! {
    #[test]
    fn a_request_is_taken_as_it_is_or_refused(namespace in text(), name in text(), given in text(), page in any::<u32>()) {
        let found = filter(namespace.clone(), name.clone());
        names_a_field(&found)?;
        if let Ok(filter) = &found {
            prop_assert_eq!((&filter.namespace, &filter.name), (&namespace, &name));
            names_a_field(&after(&given, filter))?;
        }
        let found = key(namespace.clone(), name.clone());
        names_a_field(&found)?;
        if let Ok(key) = found {
            // The next page begins where this one ends.
            let all = Filter { namespace: String::new(), name: String::new() };
            prop_assert_eq!(after(&page_token(&key), &all).unwrap(), Some(key));
        }
        let found = after_node(given.clone());
        names_a_field(&found)?;
        prop_assert!(found.is_ok_and(|node| node == given) || !given.is_empty());
        let found = token(given.clone());
        names_a_field(&found)?;
        prop_assert!(found.is_err() || given.is_empty() || given.len() <= MAX_TOKEN);
        prop_assert!((1..=PAGE.1).contains(&page_size(page)));
    }

    #[test]
    fn workers_are_named_or_refused(sent in workers()) {
        let found = target(sent.clone());
        names_a_field(&found)?;
        if let Ok(found) = found {
            // A request is written as an annotation, and read again.
            prop_assert_eq!(found.to_string().parse(), Ok(found));
        }
        // The form on the wire.
        if let Some(sent) = sent {
            prop_assert_eq!(pb::Target::decode(sent.encode_to_vec().as_slice()), Ok(sent));
        }
    }

    #[test]
    fn any_bytes_are_no_request_or_one(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(sent) = pb::RestartWorkersRequest::decode(bytes.as_slice()) {
            names_a_field(&key(sent.namespace, sent.name))?;
            names_a_field(&target(sent.only))?;
            names_a_field(&token(sent.token))?;
        }
        if let Ok(sent) = pb::ListGroupsRequest::decode(bytes.as_slice()) {
            names_a_field(&filter(sent.namespace, String::new()))?;
        }
    }
}
