//! Messages about gangs, for status, conditions and events.

use jiff::SignedDuration;

use super::fit::{Demand, Shortfall};
use super::{Needs, Resources};
use crate::jobset::pod::Leaving;

/// A number of pods, in words.
pub(super) fn pods(count: impl TryInto<i64>) -> String {
    match count.try_into() {
        Ok(1) => "1 pod".to_owned(),
        Ok(count) => format!("{count} pods"),
        Err(_) => "pods".to_owned(),
    }
}

pub(super) fn uncreated(uncreated: usize, of: usize) -> String {
    let have = if uncreated == 1 { "has" } else { "have" };
    format!("{uncreated} of {} {have} not been created", pods(of))
}

/// About pods that still hold their nodes; `None`: there are none.
pub(super) fn leaving(mut pods: Vec<Leaving>) -> Option<String> {
    pods.sort();
    let Leaving { pod, node, is_lost } = pods.first()?;
    let lost = if *is_lost { ", which does not report" } else { "" };
    // A number would change the message with each pod that goes.
    let more = if pods.len() > 1 { "; others do too" } else { "" };
    Some(format!("earlier pod {pod} still holds node {node}{lost}{more}"))
}

pub(super) fn behind() -> String {
    "waits for a gang of higher priority or of an older JobSet that could use the same nodes".to_owned()
}

pub(super) fn ungrouped() -> String {
    "pods below the minimum have a gate and no PodGroup, because the pod webhook was not called when they were created: delete them once it is"
        .to_owned()
}

pub(super) fn fits() -> String {
    "the pods fit as far as the fit check can tell: waits for kube-scheduler to bind them".to_owned()
}

pub(super) fn group_lost() -> String {
    "PodGroups are no longer served: the Jobs are recreated, and gates start them".to_owned()
}

pub(super) fn settling() -> String {
    "waits until the pods of other gangs are bound".to_owned()
}

pub(super) fn scheduling(minimum: i32, timeout: SignedDuration) -> String {
    format!("{} must be bound within {} s", pods(minimum), timeout.as_secs())
}

/// About a gang of `all` pods.
pub(super) fn scheduled(minimum: usize, all: usize, took: SignedDuration) -> String {
    let took = took.as_secs();
    if all == 1 {
        return format!("the pod is bound, {took} s after its Job was started");
    }
    if minimum < all {
        let minimum = pods(minimum);
        return format!("the minimum of {minimum} is bound, {took} s after the Jobs were started");
    }
    format!("all {all} pods are bound, {took} s after their Jobs were started")
}

pub(super) fn timed_out(bound: usize, minimum: usize, timeout: SignedDuration) -> String {
    let were = if bound == 1 || minimum == 1 { "was" } else { "were" };
    format!(
        "{bound} of {} {were} bound within {} s",
        pods(minimum),
        timeout.as_secs()
    )
}

/// About a gang of `all` pods. Those above the minimum are released too.
pub(super) fn backing_off(timed_out: &str, minimum: usize, all: usize, wait: SignedDuration) -> String {
    let given_back = match all {
        1 => "it is released, and the gang waits again".to_owned(),
        all if minimum < all => format!("all {all} pods are released, and the gang waits again"),
        _ => "they are released, and the gang waits again".to_owned(),
    };
    // The end of the wait is rounded up too.
    format!("{timed_out}: {given_back} in {} s", wait.as_secs() + 1)
}

/// What is missing, as in "needs 5 pods x 4 cpu, 3 fit: 2 short of cpu".
pub(super) fn short(demands: &[Demand<'_>], shortfall: &Shortfall) -> String {
    let needs = demands.iter().map(|demand| {
        let what = requests(demand.needs);
        let pods = pods(demand.count);
        if what.is_empty() {
            pods
        } else {
            format!("{pods} x {what}")
        }
    });
    let needs = needs.collect::<Vec<_>>().join(" and ");
    let of = demands.get(shortfall.demand).map_or(0, |demand| demand.count);
    let short = of.saturating_sub(shortfall.fit);
    let lacks = shortfall.lacks.as_deref().unwrap_or("nodes that match");
    let which = match demands.get(shortfall.demand) {
        Some(demand) if demands.len() > 1 => format!(" of the {}", demand.count),
        _ => String::new(),
    };
    format!(
        "needs {needs}, {}{which} fit: {short} short of {lacks}",
        shortfall.fit
    )
}

/// About a gang that would not fit even if no JobSet ran.
pub(super) fn never(demands: &[Demand<'_>], shortfall: &Shortfall) -> String {
    format!("{}, even if no JobSet ran", short(demands, shortfall))
}

/// Why the fit check is not reliable; `None`: it is.
pub(super) fn not_understood(demands: &[Demand<'_>]) -> Option<String> {
    let mut unknown: Vec<&str> = demands
        .iter()
        .flat_map(|demand| demand.needs.unknown.clone())
        .collect();
    unknown.sort_unstable();
    unknown.dedup();
    (!unknown.is_empty()).then(|| {
        format!(
            "cannot tell if the pods fit, since they use {}: kube-scheduler gets them when it is their turn",
            unknown.join(", ")
        )
    })
}

fn requests(needs: &Needs) -> String {
    let asked = needs.requests.iter();
    let asked = asked.filter(|(name, amount)| *name != Resources::PODS && *amount > 0);
    let asked: Vec<String> = asked
        .map(|(name, amount)| format!("{} {name}", shown(amount)))
        .collect();
    asked.join(", ")
}

/// An amount in thousandths, in Kubernetes' notation.
fn shown(amount: i128) -> String {
    const UNITS: [(&str, u32); 3] = [("Ti", 4), ("Gi", 3), ("Mi", 2)];
    if amount % 1000 != 0 {
        return format!("{amount}m");
    }
    let whole = amount / 1000;
    for (unit, power) in UNITS {
        let factor = 1024_i128.pow(power);
        if whole % factor == 0 && whole > 0 {
            return format!("{}{unit}", whole / factor);
        }
    }
    whole.to_string()
}
