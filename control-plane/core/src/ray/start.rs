//! The command that starts a Ray node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container;

use crate::common::quantity::quantity;

/// Port of the head's control store (GCS).
pub(crate) const GCS_PORT: &str = "6379";
/// Port of the dashboard.
pub(crate) const DASHBOARD_PORT: &str = "8265";
/// Port of the agent of each node.
const AGENT_PORT: &str = "52365";
/// Port of the metrics.
pub(crate) const METRICS_PORT: &str = "8080";
/// Raises the limit of open files for Ray, unless the container sets another number.
const ULIMIT: &str = "ulimit -n ${RAY_START_ULIMIT_OPEN_FILES:-65536}";

/// The role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Head,
    Worker,
}

/// What a group says about its nodes.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    pub(crate) role: Role,
    pub(crate) params: Option<&'a BTreeMap<String, String>>,
    pub(crate) resources: &'a BTreeMap<String, String>,
    pub(crate) labels: &'a BTreeMap<String, String>,
}

impl Node<'_> {
    /// The value of a `ray start` flag, if the group sets it.
    pub(crate) fn param(&self, name: &str) -> Option<&str> {
        self.params?.get(name).map(String::as_str)
    }

    /// Port of the agent that answers for the node's health.
    pub(crate) fn agent_port(&self) -> &str {
        self.param("dashboard-agent-listen-port").unwrap_or(AGENT_PORT)
    }

    /// The whole command, for a shell. `address` is where workers find the head.
    pub(crate) fn command(&self, container: &Container, address: &str) -> String {
        let mut flags = self.params.cloned().unwrap_or_default();
        let mut default = |name: &str, value: &str| {
            flags.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        };
        match self.role {
            Role::Head => default("dashboard-host", "0.0.0.0"),
            Role::Worker => default("address", address),
        }
        default("metrics-export-port", METRICS_PORT);
        default("dashboard-agent-listen-port", AGENT_PORT);
        for (name, value) in self.capacity(container) {
            default(name, &value);
        }
        if !self.labels.is_empty() {
            let labels: Vec<String> = self
                .labels
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            default("labels", &quoted(&labels.join(",")));
        }
        // Without this flag the container would end at once.
        flags.insert("block".to_owned(), "true".to_owned());
        let mut command = "ray start".to_owned();
        if self.role == Role::Head {
            command.push_str(" --head");
        }
        for (name, value) in flags.iter().filter(|(name, _)| *name != "head") {
            match (is_switch(name), value.to_lowercase().as_str()) {
                (true, "true") => command.push_str(&format!(" --{name}")),
                (true, "false") => {}
                // Users quote values for the shell themselves, as with KubeRay.
                _ => command.push_str(&format!(" --{name}={value}")),
            }
        }
        command
    }

    /// The resources that the node reports to Ray: what the group sets, else the limits of the
    /// container, else its requests.
    fn capacity(&self, container: &Container) -> Vec<(&'static str, String)> {
        let resources = container.resources.as_ref();
        let limits = resources.and_then(|resources| resources.limits.as_ref());
        let requests = resources.and_then(|resources| resources.requests.as_ref());
        let of = |name: &str| {
            let found = limits
                .and_then(|list| list.get(name))
                .or_else(|| requests?.get(name));
            whole(&found?.0)
        };
        let memory = limits
            .and_then(|list| list.get("memory"))
            .and_then(|amount| whole(&amount.0));
        let gpus = limits
            .into_iter()
            .flatten()
            .filter(|(name, _)| name.ends_with("gpu"));
        let gpus = gpus
            .filter_map(|(_, amount)| whole(&amount.0))
            .find(|gpus| *gpus > 0);
        let mut capacity = self.stated();
        for (flag, amount) in [("num-cpus", of("cpu")), ("memory", memory), ("num-gpus", gpus)] {
            if let Some(amount) = amount.filter(|amount| *amount > 0)
                && capacity.iter().all(|(stated, _)| *stated != flag)
            {
                capacity.push((flag, amount.to_string()));
            }
        }
        capacity
    }

    /// The resources that the group sets, with Ray's names. Ray counts whole CPUs, GPUs and bytes.
    fn stated(&self) -> Vec<(&'static str, String)> {
        let mut own = Vec::new();
        let mut capacity = Vec::new();
        for (name, value) in self.resources {
            let whole = whole(value).unwrap_or(0).to_string();
            match name.to_lowercase().as_str() {
                "cpu" => capacity.push(("num-cpus", whole)),
                "memory" => capacity.push(("memory", whole)),
                gpu if gpu.ends_with("gpu") => capacity.push(("num-gpus", whole)),
                _ => own.push(format!("\"{name}\": {}", exactly(value))),
            }
        }
        if !own.is_empty() {
            capacity.push(("resources", quoted(&format!("{{{}}}", own.join(", ")))));
        }
        capacity
    }
}

/// An amount, rounded up.
fn whole(text: &str) -> Option<i128> {
    quantity(text).map(|amount| (amount + 999) / 1000)
}

/// An exact amount, as JSON.
fn exactly(text: &str) -> String {
    let amount = quantity(text).unwrap_or(0);
    match amount % 1000 {
        0 => (amount / 1000).to_string(),
        _ => format!("{}.{:03}", amount / 1000, amount % 1000),
    }
}

/// The container's arguments: the user's own command first, then Ray. Ray replaces the shell, so
/// that it gets the signals. A worker waits for the head's port, because `ray start` would give up.
pub(crate) fn arguments(role: Role, before: &str, command: &str) -> String {
    let wait = match role {
        Role::Head => "",
        Role::Worker => "until (exec 3<>\"/dev/tcp/$FQ_RAY_IP/$RAY_PORT\") 2>/dev/null; do sleep 0.5; done; ",
    };
    let before = match before {
        "" => String::new(),
        before => format!("{before} && "),
    };
    format!("{before}{ULIMIT}; {wait}exec {command}")
}

/// True if a container's own command starts Ray.
pub(crate) fn starts_ray(command: &str) -> bool {
    command.contains("ray start")
}

/// Quotes a text as one word of a shell command.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Flags that take no value.
fn is_switch(name: &str) -> bool {
    const SWITCHES: [&str; 7] = [
        "block",
        "disable-usage-stats",
        "enable-resource-isolation",
        "no-monitor",
        "no-redirect-output",
        "ray-debugger-external",
        "verbose",
    ];
    SWITCHES.contains(&name)
}
