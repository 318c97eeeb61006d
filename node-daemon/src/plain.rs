//! Workers without an agent: the kubelet starts their containers, and this daemon kills those that
//! a restart makes obsolete.
//!
//! ```text
//!  CRI, events ─> containers ─┐                   ┌─> records  (on disk, before anything is stopped)
//!  hub ─────────> Desired ────┼─> Table::apply ───┼─> stops    (CRI StopContainer, SIGKILL at once)
//!                             └───────────────────┴─> reports  (to the control plane; only what changed)
//! ```
//!
//! [`state`] decides (pure but for its records) from [`facts`], [`record`] holds what must outlive
//! this process, [`stop`] carries stops out.

pub mod facts;
pub mod record;
pub mod state;
pub mod stop;
