//! The programs of the testbed, and the Go modules that they are built from.

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

const fn tool(name: &'static str, package: &'static str, accept: Accept) -> Tool {
    Tool {
        name,
        package,
        accept,
    }
}

/// A program of Kubernetes 1.`minor` that prints its version like all but kubectl.
const fn of_kubernetes(name: &'static str, package: &'static str, minor: u32) -> Tool {
    tool(
        name,
        package,
        Accept::Version(&["--version"], [1, minor], [1, minor]),
    )
}

/// A program of containerd 2.`minor` that prints its version for the argument `version`.
macro_rules! of_containerd {
    ($name:literal, $version:literal, $minor:literal) => {
        tool(
            $name,
            concat!("github.com/containerd/containerd/v2/cmd/", $name),
            Accept::Version(&[$version], [2, $minor], [2, $minor]),
        )
    };
}

/// A network plugin, whose version does not matter.
macro_rules! network_plugin {
    ($name:literal, $path:literal) => {
        tool(
            $name,
            concat!("github.com/containernetworking/plugins/plugins/", $path),
            Accept::Own,
        )
    };
}

/// Kubernetes 1.`$minor`.`$patch`.
macro_rules! kubernetes {
    ($minor:literal, $patch:literal) => {
        Module {
            name: concat!("kubernetes-1.", $minor),
            tools: &[
                of_kubernetes("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", $minor),
                of_kubernetes(
                    "kube-controller-manager",
                    "k8s.io/kubernetes/cmd/kube-controller-manager",
                    $minor,
                ),
                of_kubernetes("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler", $minor),
                of_kubernetes("kubelet", "k8s.io/kubernetes/cmd/kubelet", $minor),
                of_kubernetes("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy", $minor),
                tool(
                    "kubectl",
                    "k8s.io/kubernetes/cmd/kubectl",
                    Accept::Version(&["version", "--client"], [1, $minor], [1, $minor]),
                ),
            ],
            cgo: true,
            tags: "",
            ldflags: concat!(
                "-s -w -X k8s.io/component-base/version.gitVersion=v1.",
                $minor,
                ".",
                $patch,
                " -X k8s.io/component-base/version.gitMajor=1",
                " -X k8s.io/component-base/version.gitMinor=",
                $minor,
                " -X k8s.io/component-base/version.gitTreeState=clean",
            ),
            cold_seconds: 300,
        }
    };
}

/// containerd 2.`$minor`, with the network plugins.
macro_rules! containerd {
    ($minor:literal) => {
        Module {
            name: concat!("containerd-2.", $minor),
            tools: &[
                of_containerd!("containerd", "--version", $minor),
                of_containerd!("containerd-shim-runc-v2", "-v", $minor),
                of_containerd!("ctr", "--version", $minor),
                network_plugin!("loopback", "main/loopback"),
                network_plugin!("ptp", "main/ptp"),
                network_plugin!("host-local", "ipam/host-local"),
            ],
            cgo: false,
            tags: "",
            ldflags: "-s -w",
            cold_seconds: 70,
        }
    };
}

/// A project whose programs clusters can have in one of several versions.
pub struct Project {
    /// The variable that names the minor version of new clusters, such as `1.37`.
    pub variable: &'static str,
    /// The version if the variable is not set.
    default: &'static str,
    /// Each version, pinned to one patch version.
    pub modules: &'static [Module],
}

/// Kubernetes.
pub const KUBERNETES: Project = Project {
    variable: "KUBERNETES",
    default: "1.37",
    modules: &[
        kubernetes!(34, 4),
        kubernetes!(35, 4),
        kubernetes!(36, 3),
        kubernetes!(37, 2),
    ],
};

/// containerd.
pub const CONTAINERD: Project = Project {
    variable: "CONTAINERD",
    default: "2.4",
    modules: &[containerd!(0), containerd!(2), containerd!(3), containerd!(4)],
};

/// All such projects.
pub const PROJECTS: [&Project; 2] = [&KUBERNETES, &CONTAINERD];

impl Project {
    /// The version of new clusters. A patch version is left out, since each minor version is pinned
    /// to one.
    pub fn version(&self) -> String {
        let asked = std::env::var(self.variable).unwrap_or_default();
        let asked = asked.trim_start_matches('v');
        let minor: Vec<&str> = asked.split('.').take(2).collect();
        if asked.is_empty() {
            self.default.to_owned()
        } else {
            minor.join(".")
        }
    }

    /// The versions that the variable may name.
    pub fn versions(&self) -> impl Iterator<Item = &'static str> {
        self.modules
            .iter()
            .filter_map(|module| Some(module.name.rsplit_once('-')?.1))
    }

    /// The module of new clusters. None if the variable names another version.
    fn module(&self) -> Option<&'static Module> {
        let version = self.version();
        let mut versions = self.versions().zip(self.modules);
        versions
            .find(|(found, _)| *found == version)
            .map(|(_, module)| module)
    }
}

/// All other modules, the slowest first.
pub const MODULES: &[Module] = &[
    Module {
        name: "kueue",
        tools: &[tool("kueue", "sigs.k8s.io/kueue/cmd/kueue", Accept::Own)],
        cgo: false,
        tags: "",
        ldflags: "-s -w",
        cold_seconds: 240,
    },
    Module {
        name: "prometheus",
        tools: &[
            tool(
                "promtool",
                "github.com/prometheus/prometheus/cmd/promtool",
                Accept::Version(&["--version"], [3, 0], [3, 99]),
            ),
            tool(
                "prometheus",
                "github.com/prometheus/prometheus/cmd/prometheus",
                Accept::Version(&["--version"], [3, 0], [3, 99]),
            ),
        ],
        cgo: false,
        // Without service discovery, which brings the clients of all clouds.
        tags: "remove_all_sd",
        ldflags: "-s -w",
        cold_seconds: 220,
    },
    Module {
        name: "trainer",
        tools: &[tool(
            "trainer-controller-manager",
            "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
            Accept::Own,
        )],
        cgo: false,
        tags: "",
        ldflags: "-s -w",
        cold_seconds: 150,
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
    Module {
        name: "gopher-lua",
        tools: &[tool("glua", "github.com/yuin/gopher-lua/cmd/glua", Accept::Own)],
        cgo: false,
        tags: "",
        ldflags: "-s -w",
        cold_seconds: 5,
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
pub const CHECKERS: &[&str] = &["promtool", "prometheus", "grpcurl", "glua"];

/// Programs of other projects, which a cluster has only if they are added.
pub const NEIGHBOURS: &[&str] = &["kueue", "trainer-controller-manager"];

/// True if new clusters have at least Kubernetes 1.`minor`.
pub fn is_at_least(minor: u32) -> bool {
    let version = KUBERNETES.version();
    let found = version.split('.').nth(1).and_then(|found| found.parse().ok());
    found.is_some_and(|found: u32| found >= minor)
}

/// The modules of new clusters.
fn modules() -> impl Iterator<Item = &'static Module> {
    let versioned = PROJECTS.into_iter().filter_map(Project::module);
    versioned.chain(MODULES)
}

/// The module and the catalogue entry of a program.
pub fn find(name: &str) -> Option<(&'static Module, &'static Tool)> {
    modules()
        .flat_map(|module| module.tools.iter().map(move |tool| (module, tool)))
        .find(|(_, tool)| tool.name == name)
}

/// The names of all programs.
pub fn names() -> impl Iterator<Item = &'static str> {
    let versioned = PROJECTS.into_iter().filter_map(|project| project.modules.first());
    versioned
        .chain(MODULES)
        .flat_map(|module| module.tools)
        .map(|tool| tool.name)
}

/// The names of all programs that every cluster runs.
pub fn of_clusters() -> impl Iterator<Item = &'static str> {
    names().filter(|name| !CHECKERS.contains(name) && !NEIGHBOURS.contains(name))
}
