//! The control plane: its Deployment, its leader, its CA and its platform API.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use x509_parser::pem::Pem;

use super::{Observed, Report};
use crate::view::{pods, time};

/// Name of the Deployment, of the Lease, and in the certificates.
pub(super) const NAME: &str = "lockstep-control-plane";
/// The ConfigMap with the CA of the hub and of the platform API, and the key of the CA.
const HUB_CA: (&str, &str) = ("lockstep-hub-ca", "ca.crt");

/// Days before expiry from which on a warning is given. The control plane renews certificates long
/// before.
const WARN_DAYS: i64 = 30;

pub(super) fn check(seen: &Observed, report: &mut Report) {
    report.section("control plane");
    deployment(seen, report);
    lease(seen, report);
    if let Some(map) = report.fetched("ConfigMap lockstep-hub-ca", &seen.hub_ca) {
        let pem = map.as_ref().and_then(|map| map.data.as_ref()?.get(HUB_CA.1));
        match pem {
            None => report.error(
                format!(
                    "ConfigMap {}/{} with {} does not exist",
                    seen.namespace, HUB_CA.0, HUB_CA.1
                ),
                format!(
                    "the control plane writes it: kubectl -n {} logs deployment/{NAME} says why it does not",
                    seen.namespace
                ),
            ),
            Some(pem) => certificate(
                report,
                "the CA of the hub and of the platform API",
                pem.as_bytes(),
                seen.now,
                "the control plane replaces it every year: see its log; without it node daemons cannot connect",
            ),
        }
    }
    match &seen.platform {
        None => {}
        Some(Ok(how)) => report.ok(format!("the platform API answers ({how})")),
        Some(Err(why)) => report.warning(
            format!("the platform API was not reached: {why}"),
            "commands use only the API server meanwhile, and worker states come from pods",
        ),
    }
}

fn deployment(seen: &Observed, report: &mut Report) {
    let Some(deployments) = report.fetched("the Deployment of the control plane", &seen.deployments) else {
        return;
    };
    let namespace = &seen.namespace;
    let ours = deployments
        .iter()
        .find(|it| it.name_any() == NAME && it.namespace().as_ref() == Some(namespace));
    let Some(ours) = ours else {
        let elsewhere = deployments.iter().find(|it| it.name_any() == NAME);
        let hint = match elsewhere.and_then(|it| it.namespace()) {
            Some(other) => format!("there is one in {other}: give --system-namespace {other}"),
            None => "install Lockstep: helm install lockstep charts/lockstep --namespace lockstep-system; \
                or name its namespace with --system-namespace"
                .to_owned(),
        };
        return report.error(format!("Deployment {namespace}/{NAME} does not exist"), hint);
    };
    let wanted = ours.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = ours.status.as_ref();
    let ready = status.and_then(|status| status.ready_replicas).unwrap_or(0);
    let text = format!("Deployment {namespace}/{NAME}: {ready} of {wanted} replicas ready");
    match ready {
        _ if wanted == 0 => report.error(
            text,
            format!("kubectl -n {namespace} scale deployment {NAME} --replicas 1"),
        ),
        0 => report.error(text, trouble(seen)),
        ready if ready < wanted => report.warning(text, trouble(seen)),
        _ => report.ok(text),
    }
}

/// The pods that are not ready, or how to look at the Deployment.
fn trouble(seen: &Observed) -> String {
    let namespace = &seen.namespace;
    let pods = seen.control_plane_pods.as_deref().unwrap_or_default();
    let unwell: Vec<String> = pods
        .iter()
        .filter(|pod| !pods::is_ready(pod))
        .map(|pod| format!("{} is {}", pod.name_any(), pods::state(pod)))
        .collect();
    match unwell.as_slice() {
        [] => format!("kubectl -n {namespace} describe deployment {NAME}"),
        unwell => format!(
            "{}: kubectl -n {namespace} describe pods, and logs",
            unwell.join(", ")
        ),
    }
}

fn lease(seen: &Observed, report: &mut Report) {
    let Some(lease) = report.fetched("the Lease of the leader", &seen.lease) else {
        return;
    };
    let log = format!("kubectl -n {} logs deployment/{NAME}", seen.namespace);
    let Some(lease) = lease else {
        return report.error(
            format!(
                "Lease {}/{NAME} does not exist: no replica has ever led",
                seen.namespace
            ),
            log,
        );
    };
    let Some(holder) = holder(lease) else {
        return report.error("no replica leads: the Lease was released", log);
    };
    let spec = lease.spec.as_ref();
    let lasts = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or(15);
    let Some(renewed) = spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0) else {
        return report.error(format!("{holder} has never renewed its Lease"), log);
    };
    let age = seen.now.duration_since(renewed);
    if age > SignedDuration::from_secs(i64::from(lasts)) {
        return report.error(
            format!(
                "{holder} led, but has not renewed its Lease for {} (it lasts {lasts}s)",
                time::span(age)
            ),
            format!(
                "no worker is restarted until a replica leads, unless the clocks of this machine and of {holder} differ: {log}"
            ),
        );
    }
    let pods = seen.control_plane_pods.as_deref().unwrap_or_default();
    let leader = pods.iter().find(|pod| pods::holds(pod, holder));
    let name = leader.map_or_else(|| holder.to_owned(), ResourceExt::name_any);
    report.ok(format!(
        "{name} leads; it renewed its Lease {} ago",
        time::span(age)
    ));
    if !pods.is_empty() && leader.is_none() {
        report.warning(
            format!("the leader {holder} is not a pod of the Deployment"),
            "another control plane runs outside the cluster, or the leader has just left",
        );
    }
}

/// Checks a bundle of certificates in PEM. One valid certificate is enough: others are being
/// replaced.
pub(super) fn certificate(report: &mut Report, what: &str, pem: &[u8], now: Timestamp, hint: &str) {
    let ends: Option<Vec<(Timestamp, Timestamp)>> = Pem::iter_from_buffer(pem)
        .map(|pem| validity(&pem.ok()?))
        .collect();
    let ends = match ends {
        Some(ends) if !ends.is_empty() => ends,
        _ => return report.error(format!("{what}: no certificate in PEM"), hint),
    };
    let begun = ends.iter().filter(|(from, _)| *from <= now);
    let Some(until) = begun.map(|(_, until)| *until).max() else {
        return report.error(
            format!("{what}: not valid yet"),
            "correct the clocks of these machines",
        );
    };
    let left = until.duration_since(now);
    if until <= now {
        report.error(format!("{what}: expired {} ago", time::ago(until, now)), hint);
    } else if left.as_hours() < WARN_DAYS * 24 {
        report.warning(format!("{what}: expires in {}", time::span(left)), hint);
    } else {
        report.ok(format!("{what}: valid for {}", time::span(left)));
    }
}

fn validity(pem: &Pem) -> Option<(Timestamp, Timestamp)> {
    let validity = pem.parse_x509().ok()?.validity().clone();
    let at = |seconds| Timestamp::from_second(seconds).ok();
    let from = at(validity.not_before.timestamp())?;
    // A certificate without an expiry date says 31 December 9999, the last day that jiff knows.
    let until = at(validity.not_after.timestamp()).unwrap_or(Timestamp::MAX);
    Some((from, until))
}

/// The holder of a Lease.
pub(crate) fn holder(lease: &Lease) -> Option<&str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref()?;
    (!holder.is_empty()).then_some(holder)
}
