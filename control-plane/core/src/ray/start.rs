//! The command that starts a node of Ray.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container;

use crate::common::quantity::quantity;

/// Port of the head's control store (GCS).
pub(crate) const GCS_PORT: &str = "6379";
/// Port of the dashboard.
pub(crate) const DASHBOARD_PORT: &str = "8265";
/// Port of the agent of each node.
const AGENT_PORT: &str = "52365";
/// Port of metrics.
pub(crate) const METRICS_PORT: &str = "8080";
/// Open files that Ray asks for, unless the container states another number.
const ULIMIT: &str = "ulimit -n ${RAY_START_ULIMIT_OPEN_FILES:-65536}";

/// The part that a node plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Head,
    Worker,
}

/// What a group states of its nodes.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    pub(crate) role: Role,
    pub(crate) params: Option<&'a BTreeMap<String, String>>,
    pub(crate) resources: &'a BTreeMap<String, String>,
    pub(crate) labels: &'a BTreeMap<String, String>,
}

impl Node<'_> {
    /// A flag of `ray start` that is stated.
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
        // Without it the container would end at once.
        flags.insert("block".to_owned(), "true".to_owned());
        let mut command = "ray start".to_owned();
        if self.role == Role::Head {
            command.push_str(" --head");
        }
        for (name, value) in flags.iter().filter(|(name, _)| *name != "head") {
            match (is_switch(name), value.to_lowercase().as_str()) {
                (true, "true") => command.push_str(&format!(" --{name}")),
                (true, "false") => {}
                // Users quote for the shell themselves, as KubeRay has them do.
                _ => command.push_str(&format!(" --{name}={value}")),
            }
        }
        command
    }

    /// What the node tells Ray that it has: what the group states, and what it does not, by the
    /// limits of its container, else its requests.
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

    /// What the group states, whose names are Ray's in any case. Ray has whole CPUs, GPUs and
    /// bytes.
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

/// An amount as JSON has it.
fn exactly(text: &str) -> String {
    let amount = quantity(text).unwrap_or(0);
    match amount % 1000 {
        0 => (amount / 1000).to_string(),
        _ => format!("{}.{:03}", amount / 1000, amount % 1000),
    }
}

/// The container's arguments: what the user has run before Ray, then Ray in the place of the shell,
/// so that it is told to end. A worker waits for the head's port, as `ray start` would give up.
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

/// One word of a shell's command line.
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
