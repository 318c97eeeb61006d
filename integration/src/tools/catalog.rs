//! The programs of the testbed, and the Go modules that they are built from.

/// The version of Kubernetes that `testbed/tools/kubernetes` pins.
pub const KUBERNETES_VERSION: &str = "v1.36.3";

/// A Go module under `testbed/tools`: its programs are built by one `go build`.
#[derive(Debug, PartialEq, Eq)]
pub struct Module {
    /// The folder under `testbed/tools`.
    pub name: &'static str,
    /// Its programs.
    pub tools: &'static [Tool],
    /// True if the programs need a C compiler.
    pub cgo: bool,
    /// Build tags, comma-separated.
    pub tags: &'static str,
    /// Flags for the linker.
    pub ldflags: &'static str,
    /// Build time on 2 cores without a cache.
    pub cold_seconds: u32,
}

/// A program.
#[derive(Debug, PartialEq, Eq)]
pub struct Tool {
    /// The file name.
    pub name: &'static str,
    /// The Go package.
    pub package: &'static str,
    /// Which installed copies may be used instead of ours.
    pub accept: Accept,
}

/// Which installed copies of a program may be used.
#[derive(Debug, PartialEq, Eq)]
pub enum Accept {
    /// A copy whose output for these arguments has a version (major, minor) within these bounds,
    /// inclusive.
    Version(&'static [&'static str], [u32; 2], [u32; 2]),
    /// None, since its version is not cheap to find out.
    Own,
}

const KUBE: Accept = Accept::Version(&["--version"], [1, 36], [1, 36]);

const fn tool(name: &'static str, package: &'static str, accept: Accept) -> Tool {
    Tool {
        name,
        package,
        accept,
    }
}

/// All modules, the slowest first.
pub const MODULES: &[Module] = &[
    Module {
        name: "kubernetes",
        tools: &[
            tool("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", KUBE),
            tool(
                "kube-controller-manager",
                "k8s.io/kubernetes/cmd/kube-controller-manager",
                KUBE,
            ),
            tool("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler", KUBE),
            tool("kubelet", "k8s.io/kubernetes/cmd/kubelet", KUBE),
            tool("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy", KUBE),
            tool(
                "kubectl",
                "k8s.io/kubernetes/cmd/kubectl",
                Accept::Version(&["version", "--client"], [1, 35], [1, 37]),
            ),
        ],
        cgo: true,
        tags: "",
        ldflags: "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 \
                  -X k8s.io/component-base/version.gitMajor=1 \
                  -X k8s.io/component-base/version.gitMinor=36 \
                  -X k8s.io/component-base/version.gitTreeState=clean",
        cold_seconds: 300,
    },
    Module {
        name: "promtool",
        tools: &[tool(
            "promtool",
            "github.com/prometheus/prometheus/cmd/promtool",
            Accept::Version(&["--version"], [3, 0], [3, 99]),
        )],
        cgo: false,
        // Without service discovery, which brings the clients of all clouds.
        tags: "remove_all_sd",
        ldflags: "-s -w",
        cold_seconds: 220,
    },
    Module {
        name: "coredns-helm",
        tools: &[
            tool(
                "coredns",
                "github.com/coredns/coredns",
                Accept::Version(&["-version"], [1, 11], [1, 99]),
            ),
            tool(
                "helm",
                "helm.sh/helm/v3/cmd/helm",
                Accept::Version(&["version", "--short"], [3, 14], [3, 99]),
            ),
        ],
        cgo: false,
        tags: "",
        ldflags: "-s -w",
        cold_seconds: 130,
    },
    Module {
        name: "containerd",
        tools: &[
            tool(
                "containerd",
                "github.com/containerd/containerd/v2/cmd/containerd",
                Accept::Version(&["--version"], [2, 1], [2, 99]),
            ),
            tool(
                "containerd-shim-runc-v2",
                "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
                Accept::Version(&["-v"], [2, 1], [2, 99]),
            ),
            tool(
                "ctr",
                "github.com/containerd/containerd/v2/cmd/ctr",
                Accept::Version(&["--version"], [2, 1], [2, 99]),
            ),
            tool(
                "loopback",
                "github.com/containernetworking/plugins/plugins/main/loopback",
                Accept::Own,
            ),
            tool(
                "ptp",
                "github.com/containernetworking/plugins/plugins/main/ptp",
                Accept::Own,
            ),
            tool(
                "host-local",
                "github.com/containernetworking/plugins/plugins/ipam/host-local",
                Accept::Own,
            ),
        ],
        cgo: false,
        tags: "",
        ldflags: "-s -w",
        cold_seconds: 70,
    },
    Module {
        name: "grpcurl",
        tools: &[tool(
            "grpcurl",
            "github.com/fullstorydev/grpcurl/cmd/grpcurl",
            // A copy from `go install` does not know its version.
            Accept::Own,
        )],
        cgo: false,
        tags: "",
        ldflags: "-s -w",
        cold_seconds: 45,
    },
    Module {
        name: "etcd",
        tools: &[tool(
            "etcd",
            "go.etcd.io/etcd/server/v3",
            Accept::Version(&["--version"], [3, 5], [3, 99]),
        )],
        cgo: false,
        tags: "",
        ldflags: "-s -w",
        cold_seconds: 25,
    },
    Module {
        name: "runc",
        tools: &[tool(
            "runc",
            "github.com/opencontainers/runc",
            Accept::Version(&["--version"], [1, 1], [1, 99]),
        )],
        cgo: true,
        tags: "seccomp",
        ldflags: "-s -w",
        cold_seconds: 10,
    },
];

/// Programs for a cluster that has only an API server.
pub const API_SERVER_TOOLS: &[&str] = &[
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
];

/// Programs that check our artefacts, which clusters do not need.
pub const CHECKERS: &[&str] = &["promtool", "grpcurl"];

/// The module and the catalogue entry of a program.
pub fn find(name: &str) -> Option<(&'static Module, &'static Tool)> {
    MODULES
        .iter()
        .flat_map(|module| module.tools.iter().map(move |tool| (module, tool)))
        .find(|(_, tool)| tool.name == name)
}

/// The names of all programs.
pub fn names() -> impl Iterator<Item = &'static str> {
    MODULES
        .iter()
        .flat_map(|module| module.tools)
        .map(|tool| tool.name)
}

/// The names of all programs that clusters run.
pub fn of_clusters() -> impl Iterator<Item = &'static str> {
    names().filter(|name| !CHECKERS.contains(name))
}
