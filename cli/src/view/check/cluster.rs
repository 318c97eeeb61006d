//! Kubernetes, the CRD of JobSets, and other controllers of the same resources.

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt as _;

use super::{Observed, Report};

/// The first version of Kubernetes whose ServiceAccount tokens name the node of their pod.
const MIN_VERSION: (u32, u32) = (1, 32);
/// The first version that tests run on.
const TESTED_VERSION: (u32, u32) = (1, 34);
/// Age from which on a Lease counts as abandoned. A leader renews it every few seconds.
const STALE_AFTER: jiff::SignedDuration = jiff::SignedDuration::from_secs(60);

/// The parts of the JobSet CRD that are checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Crd {
    /// `lockstep.dev/crd-version`, if Lockstep has written it.
    pub(crate) version: Option<String>,
    pub(crate) established: bool,
    /// True if its schema keeps `status.inPlaceRestart`.
    pub(crate) keeps_in_place: bool,
}

pub(super) fn check(seen: &Observed, report: &mut Report) {
    report.section("kubernetes");
    if let Some((major, minor, name)) = report.fetched("the version of Kubernetes", &seen.version) {
        let version = (*major, *minor);
        if version >= TESTED_VERSION {
            report.ok(format!("Kubernetes {name} is 1.34 or later"));
        } else if version >= MIN_VERSION {
            report.warning(
                format!("Kubernetes {name} is older than 1.34"),
                "Lockstep is not tested there: upgrade Kubernetes",
            );
        } else {
            report.error(
                format!("Kubernetes {name} is older than 1.32"),
                "upgrade Kubernetes: node daemons authenticate by ServiceAccount tokens that name their node",
            );
        }
    }
    let Some(crd) = report.fetched("CRD jobsets.jobset.x-k8s.io", &seen.jobset_crd) else {
        return;
    };
    match crd {
        None => report.error(
            "CRD jobsets.jobset.x-k8s.io does not exist",
            "install Lockstep: helm install lockstep charts/lockstep (its control plane installs it)",
        ),
        Some(crd) if !crd.established => report.error(
            "CRD jobsets.jobset.x-k8s.io is not established",
            "see its conditions: kubectl get crd jobsets.jobset.x-k8s.io -o yaml",
        ),
        Some(crd) if !crd.keeps_in_place => report.error(
            "CRD jobsets.jobset.x-k8s.io drops status.inPlaceRestart: it is not Lockstep's",
            "let the control plane update it (--manage-crds), or kubectl apply --server-side -f charts/lockstep/crds",
        ),
        Some(crd) => {
            let version = crd.version.as_deref().unwrap_or("not written by a control plane");
            report.ok(format!("CRD jobsets.jobset.x-k8s.io is Lockstep's ({version})"));
        }
    }
}

/// Checks for the controllers of upstream JobSet and of KubeRay.
pub(super) fn conflicts(seen: &Observed, report: &mut Report) {
    report.section("conflicts");
    if let Some(deployments) = report.fetched("Deployments of all namespaces", &seen.deployments) {
        let upstream: Vec<&Deployment> = deployments.iter().filter(|it| is_upstream(it)).collect();
        if upstream.is_empty() {
            report.ok("no other JobSet controller runs");
        }
        for other in upstream {
            let (namespace, name) = (other.namespace().unwrap_or_default(), other.name_any());
            report.error(
                format!("another JobSet controller runs: Deployment {namespace}/{name}"),
                format!(
                    "stop it: kubectl -n {namespace} scale deployment {name} --replicas 0 (its CRD must stay)"
                ),
            );
        }
    }
    if let Some(leases) = report.fetched("Leases of KubeRay", &seen.kuberay) {
        let renewed = |lease: &&k8s_openapi::api::coordination::v1::Lease| {
            let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref());
            renewed.is_some_and(|renewed| seen.now.duration_since(renewed.0) < STALE_AFTER)
        };
        match leases.iter().find(renewed) {
            None => report.ok("KubeRay's controller does not run"),
            Some(lease) if manages_ray(seen) => report.warning(
                format!(
                    "KubeRay's controller runs too (Lease {}/{})",
                    lease.namespace().unwrap_or_default(),
                    lease.name_any()
                ),
                "see docs/ray.md, Beside KubeRay: spec.managedBy of each RayCluster and RayJob must name its controller",
            ),
            Some(_) => report.ok("KubeRay's controller runs; Lockstep leaves Ray's resources to it"),
        }
    }
}

/// True if the control plane was started with `--ray`.
fn manages_ray(seen: &Observed) -> bool {
    let deployments = seen.deployments.as_deref().unwrap_or_default();
    let control_plane = deployments.iter().find(|it| {
        it.name_any() == super::control_plane::NAME && it.namespace().as_ref() == Some(&seen.namespace)
    });
    let spec = control_plane.and_then(|it| it.spec.as_ref()?.template.spec.as_ref());
    let args = spec
        .into_iter()
        .flat_map(|spec| &spec.containers)
        .flat_map(|container| container.args.iter().flatten());
    args.into_iter().any(|arg| arg == "--ray" || arg == "--ray=true")
}

/// True if this is upstream's controller, by its name or image, and is not scaled to zero.
fn is_upstream(deployment: &Deployment) -> bool {
    let Some(spec) = &deployment.spec else {
        return false;
    };
    if spec.replicas == Some(0) {
        return false;
    }
    let containers = spec.template.spec.as_ref().map(|pod| pod.containers.as_slice());
    let image = containers.unwrap_or_default().iter().any(|container| {
        let image = container.image.as_deref().unwrap_or_default();
        let path = image.split('@').next().unwrap_or_default();
        let path = path
            .rsplit_once(':')
            .map_or(path, |(path, tag)| if tag.contains('/') { image } else { path });
        path.ends_with("/jobset/jobset") || path.ends_with("/jobset-controller")
    });
    // Lockstep's own image may have any name.
    let is_lockstep = deployment
        .labels()
        .get("app.kubernetes.io/part-of")
        .is_some_and(|it| it == "lockstep");
    !is_lockstep
        && (image
            || deployment.name_any() == "jobset-controller-manager"
            || deployment.name_any() == "jobset-controller")
}
