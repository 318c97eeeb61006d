//! The versions of the API of Workloads and PodGroups (Kubernetes KEP-4671).

use kube::api::ApiResource;

/// The API group.
const GROUP: &str = "scheduling.k8s.io";

/// A version that the control plane can write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// From Kubernetes 1.37 on.
    V1Beta1,
    /// Of Kubernetes 1.37.
    V1Alpha3,
    /// Of Kubernetes 1.36.
    V1Alpha2,
}

impl Version {
    /// All versions, the best first.
    pub(super) const ALL: [Self; 3] = [Self::V1Beta1, Self::V1Alpha3, Self::V1Alpha2];

    fn name(self) -> &'static str {
        match self {
            Self::V1Beta1 => "v1beta1",
            Self::V1Alpha3 => "v1alpha3",
            Self::V1Alpha2 => "v1alpha2",
        }
    }

    /// The `apiVersion` of objects.
    pub(super) fn api_version(self) -> String {
        format!("{GROUP}/{}", self.name())
    }

    /// Workloads in this version.
    pub(super) fn workloads(self) -> ApiResource {
        self.resource("Workload", "workloads")
    }

    /// PodGroups in this version.
    pub(super) fn pod_groups(self) -> ApiResource {
        self.resource("PodGroup", "podgroups")
    }

    fn resource(self, kind: &str, plural: &str) -> ApiResource {
        ApiResource {
            group: GROUP.to_owned(),
            version: self.name().to_owned(),
            api_version: self.api_version(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        }
    }
}
