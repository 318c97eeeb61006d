//! Large groups: thousands of workers on many nodes, with few faults. Each history takes seconds, so only some are run.

use crate::scenario::Scenario;
use crate::time::SEC;

/// Workers of one node.
const OF_NODE: usize = 100;

impl Scenario {
    /// Gives the last replicatedJob so many workers.
    pub(crate) fn enlarge(&mut self, workers: u32) {
        let Some(job) = self.jobset.spec.replicated_jobs.last_mut() else {
            return;
        };
        let width = i32::try_from(workers).unwrap_or(i32::MAX) / job.replicas.unwrap_or(1).max(1);
        if let Some(spec) = &mut job.template.spec {
            spec.parallelism = Some(width);
            spec.completions = Some(width);
        }
        self.nodes = workers as usize / OF_NODE + 1;
        // Of so many workers some would fail at each start.
        self.crash_percent = 0;
        self.faults.1 = self.faults.0 + 60 * SEC;
        self.pause = 20 * SEC;
    }
}
