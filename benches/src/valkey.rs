//! The design that Lockstep is compared with: KEP-876's short-term solution, where agents and an orchestrator meet in Valkey.
//!
//! ```text
//!  agent ──HSET count, PUBLISH changes──> Valkey ──changes──> orchestrator
//!  agent <──desired── Valkey <──PUBLISH desired── orchestrator
//! ```
//!
//! What was chosen where its document leaves it open, each time the faster way: an agent writes its count and announces it in one write to the
//! socket; the orchestrator listens and reads nothing but at its start; nobody polls; one connection (RESP3) for each agent; nothing is written to
//! disk; plain text. Redis 7.0 of Debian stands for Valkey, its fork.
//!
//! As the document configures them, agents learn of their worker's container from the container runtime alone, which they ask once a second
//! (`--cri-polling-interval=1s`), each at a time of its own. That is a design beside it, of which only restarts are measured.

pub(crate) mod agents;
pub(crate) mod orchestrator;
pub(crate) mod resp;
pub(crate) mod server;

/// Hash of all counts, by worker.
const COUNTS: &str = "trc:5f0c0f5e-8d3a-4d6b-9c55-3f6f0c1d2e4a";
/// Channel on which agents announce `<worker> <count>`.
const CHANGES: &str = "changes:5f0c0f5e-8d3a-4d6b-9c55-3f6f0c1d2e4a";
/// Channel on which the orchestrator tells `<desired count> <value>`. The value asks for nothing; it is for the measurement of pushes.
const DESIRED: &str = "desired:5f0c0f5e-8d3a-4d6b-9c55-3f6f0c1d2e4a";

/// Two numbers, or a word and one, in one message.
fn pair(text: &str) -> Option<(&str, u64)> {
    let (first, second) = text.split_once(' ')?;
    Some((first, second.parse().ok()?))
}
