//! Any text in place of an amount is read as one or left out.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proptest::prelude::*;

use crate::common::quantity::billionths;
use crate::common::quantity::quantity;
use crate::gang::{Footprint, Node, Resources};

/// Texts close to a quantity, and far from one.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ +-]?[0-9.]{0,26}(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]{0,12})?",
        "\\PC{0,40}",
        ".{0,20}",
    ]
}

proptest! {
    #[test]
    fn any_text_is_an_amount_or_none(one in text(), other in text(), times in any::<i128>()) {
        let amount = quantity(&one);
        // A billionth is finer than a thousandth: a text that fits as billionths fits as
        // thousandths.
        prop_assert!(amount.is_some() || billionths(&one).is_none(), "{}", one);
        let of = |text: &str| {
            Resources::of(&BTreeMap::from([("cpu".to_owned(), Quantity(text.to_owned()))]))
        };
        // Arithmetic with them does not overflow.
        let (mut sum, asked) = (of(&one), of(&other));
        prop_assert_eq!(sum.get("cpu"), amount.unwrap_or(0));
        let _ = (sum.holds(&asked), sum.displaces(&asked));
        sum.add(&asked);
        sum.take(&asked, times);
        sum.raise(&asked);
    }

    #[test]
    fn an_amount_is_what_it_was_written_as(whole in any::<u32>(), thousandths in 0..1000_u32) {
        let amount = i128::from(whole) * 1000 + i128::from(thousandths);
        for (written, scale) in [
            (format!("{whole}.{thousandths:03}"), 1),
            (format!("+{whole}.{thousandths:03}0"), 1),
            (format!("{amount}m"), 1),
            (format!("{whole}.{thousandths:03}k"), 1000),
            (format!("{whole}.{thousandths:03}e3"), 1000),
            (format!("{whole}.{thousandths:03}Ki"), 1024),
            (format!("{whole}.{thousandths:03}Gi"), 1 << 30),
        ] {
            prop_assert_eq!(quantity(&written), Some(amount * scale), "{}", written);
            prop_assert_eq!(billionths(&written), Some(amount * scale * 1_000_000), "{}", written);
        }
        prop_assert_eq!(quantity(&format!("-{whole}")), Some(i128::from(whole) * -1000));
    }
}

/// What a bound pod with these requests takes.
fn footprint_of(requests: BTreeMap<String, Quantity>) -> Resources {
    let pod: k8s_openapi::api::core::v1::Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": {"requests": requests}}]},
    }))
    .unwrap();
    Footprint::of(&pod).unwrap().requests
}

#[test]
fn of_a_bound_pod_with_many_long_names_of_resources_only_the_usual_ones_count() {
    let footprint = |names: usize| {
        let mut requests: BTreeMap<String, Quantity> = (0..names)
            .map(|index| {
                (
                    format!("{}.example/{index:03}", "d".repeat(200)),
                    Quantity("1".to_owned()),
                )
            })
            .collect();
        requests.insert("cpu".to_owned(), Quantity("2".to_owned()));
        footprint_of(requests)
    };
    let few = footprint(4);
    assert_eq!(
        (few.iter().count(), few.get("cpu"), few.get(Resources::PODS)),
        (6, 2_000, 1_000)
    );
    let many = footprint(500);
    assert_eq!((many.get("cpu"), many.get(Resources::PODS)), (2_000, 1_000));
    let names: usize = many.iter().map(|(name, _)| name.len()).sum();
    assert!(names < 100, "{many:?}");
    let short = |names: usize| {
        let short = (0..names).map(|index| (format!("e/{index}"), Quantity("1".to_owned())));
        footprint_of(short.collect()).iter().count()
    };
    assert_eq!((short(30), short(100)), (31, 4));
}

#[test]
fn a_node_counts_only_resources_that_it_has() {
    let amount = |text: &str| Quantity(text.to_owned());
    let mut node = Node {
        allocatable: Resources::of(&[("cpu".to_owned(), amount("8"))].into()),
        ..Node::default()
    };
    let requests = [
        ("cpu".to_owned(), amount("2")),
        ("of.a/tenant".to_owned(), amount("1")),
    ];
    node.take(&Footprint {
        requests: footprint_of(requests.into()),
        ..Footprint::default()
    });
    for counted in [&node.requested, &node.lasting] {
        assert_eq!(counted.iter().collect::<Vec<_>>(), [("cpu", 2_000)]);
    }
}
