//! How a plain queue would run gangs: a gang starts when all earlier gangs have started and its
//! pods have room.

use std::time::Duration;

/// Identical pods that start together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gang {
    /// When it arrives.
    pub(crate) arrives: Duration,
    /// How many pods it has.
    pub(crate) pods: u32,
    /// CPUs of each pod.
    pub(crate) cpus: u32,
    /// How long the pods run.
    pub(crate) runs: Duration,
}

/// When the last of the gangs ends, on `nodes` nodes with `cpus` CPUs each. The gangs are in order
/// of arrival. Each holds its nodes for `starting` before it runs.
pub(crate) fn makespan(gangs: &[Gang], nodes: usize, cpus: u32, starting: Duration) -> Duration {
    let mut free = vec![cpus; nodes];
    let mut running: Vec<(Duration, Vec<usize>, u32)> = Vec::new();
    let (mut now, mut end) = (Duration::ZERO, Duration::ZERO);
    for gang in gangs {
        now = now.max(gang.arrives);
        let placed = loop {
            running.retain(|(ends, on, cpus)| {
                let goes_on = *ends > now;
                if !goes_on {
                    on.iter().for_each(|node| free[*node] += cpus);
                }
                goes_on
            });
            if let Some(placed) = place(&mut free, gang) {
                break placed;
            }
            let next = running.iter().map(|(ends, ..)| *ends).min();
            now = next.expect("a gang that the nodes can take when they are empty");
        };
        let ends = now + starting + gang.runs;
        running.push((ends, placed, gang.cpus));
        end = end.max(ends);
    }
    end
}

/// Takes the emptiest node for each pod, as kube-scheduler does. `None` if there is no room for all
/// pods; then it takes no node.
fn place(free: &mut [u32], gang: &Gang) -> Option<Vec<usize>> {
    let before = free.to_vec();
    let mut placed = Vec::new();
    for _ in 0..gang.pods {
        let open = (0..free.len()).filter(|node| free[*node] >= gang.cpus);
        let Some(node) = open.max_by_key(|node| free[*node]) else {
            free.copy_from_slice(&before);
            return None;
        };
        free[node] -= gang.cpus;
        placed.push(node);
    }
    Some(placed)
}
