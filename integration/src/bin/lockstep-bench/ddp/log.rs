//! Parses the log of `examples/pytorch-ddp/train.py`.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde::Deserialize;

/// A line of a rank's log.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Line {
    /// Seconds since the Unix epoch.
    pub(super) time: f64,
    pub(super) rank: usize,
    pub(super) event: Option<Event>,
    pub(super) step: Option<u64>,
    pub(super) loss: Option<f64>,
}

/// An event in the log other than a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Event {
    /// The program has started.
    Start,
    /// It has imported PyTorch.
    Imported,
    /// It has read the state after this many steps.
    Resumed,
    /// It has saved the state after this many steps.
    Checkpoint,
    /// All steps are done.
    Done,
}

/// The lines of a log. Lines that cannot be parsed are ignored, such as one that a kill cut off.
/// Two ranks that share a log may write into the same line.
pub(super) fn parse(text: &str) -> Vec<Line> {
    let parse = |line| serde_json::Deserializer::from_str(line).into_iter();
    text.lines()
        .flat_map(|line| parse(line).map_while(Result::ok))
        .collect()
}

/// The lines since the program's last start, if that was after `time`.
pub(super) fn started_after(lines: &[Line], time: f64) -> Option<&[Line]> {
    let start = lines.iter().rposition(|line| line.event == Some(Event::Start))?;
    lines
        .get(start..)
        .filter(|run| run.first().is_some_and(|line| line.time > time))
}

/// The first line about a finished step.
pub(super) fn first_step(run: &[Line]) -> Option<&Line> {
    run.iter().find(|line| line.loss.is_some())
}

/// The time of the first such event.
pub(super) fn time_of(run: &[Line], event: Event) -> Option<f64> {
    run.iter()
        .find(|line| line.event == Some(event))
        .map(|line| line.time)
}

/// The last finished step.
pub(super) fn last_step(lines: &[Line]) -> Option<u64> {
    let steps = lines.iter().rev().filter(|line| line.loss.is_some());
    steps.filter_map(|line| line.step).next()
}

/// The steps of these events.
pub(super) fn steps_of(lines: &[Line], event: Event) -> impl Iterator<Item = u64> {
    lines
        .iter()
        .filter(move |line| line.event == Some(event))
        .filter_map(|line| line.step)
}

/// The number of steps that were done more than once.
///
/// # Errors
/// If the loss of one of them differs from before.
pub(super) fn done_again(lines: &[Line]) -> Result<usize> {
    let mut seen: BTreeMap<u64, f64> = BTreeMap::new();
    let mut again = 0;
    for (step, loss) in lines.iter().filter_map(|line| line.step.zip(line.loss)) {
        if let Some(before) = seen.insert(step, loss) {
            again += 1;
            ensure!(
                (before - loss).abs() < 1e-4,
                "step {step} had a loss of {before}, and of {loss} when it was done again"
            );
        }
    }
    Ok(again)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = r#"
{"time": 1.0, "rank": 0, "attempt": 0, "event": "start", "pid": 7}
{"time": 2.0, "rank": 0, "attempt": 0, "step": 0, "loss": 0.5}
{"time": 3.0, "rank": 0, "attempt": 0, "event": "checkpoint", "step": 1}
{"time": 4.0, "rank": 0, "attempt": 0, "step": 1, "loss": 0.4}
{"time": 5.0, "rank": 0, "atte
Traceback (most recent call last):
{"time": 6.0, "rank": 0, "attempt": 1, "event": "start", "pid": 9}
{"time": 7.0, "rank": 0, "attempt": 1, "event": "resumed", "step": 1}
{"time": 8.0, "rank": 0, "attempt": 1, "step": 1, "loss": 0.4}
{"time": 9.0, "rank": 0, "attempt": 1, "step": 2, "loss": 0.3}
"#;

    #[test]
    fn a_run_begins_at_its_start() {
        let lines = parse(LOG);
        assert_eq!(lines.len(), 8);
        assert_eq!(started_after(&lines, 6.5), None);
        let run = started_after(&lines, 5.5).unwrap();
        assert_eq!(run.first().map(|line| line.time), Some(6.0));
        assert_eq!(
            first_step(run).map(|line| (line.time, line.step)),
            Some((8.0, Some(1)))
        );
        assert_eq!(started_after(run.get(1..).unwrap(), 0.0), None);
    }

    #[test]
    fn ranks_share_a_line() {
        let lines = parse("{\"time\": 1.0, \"rank\": 0}{\"time\": 1.5, \"rank\": 1}\n\n{\"ti");
        assert_eq!(lines.iter().map(|line| line.rank).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn steps_and_events_are_told_apart() {
        let lines = parse(LOG);
        assert_eq!(last_step(&lines), Some(2));
        assert_eq!(last_step(lines.get(..1).unwrap()), None);
        assert_eq!(steps_of(&lines, Event::Resumed).collect::<Vec<_>>(), [1]);
        assert_eq!(steps_of(&lines, Event::Checkpoint).collect::<Vec<_>>(), [1]);
        assert_eq!(steps_of(&lines, Event::Done).next(), None);
        assert_eq!(time_of(&lines, Event::Start), Some(1.0));
        assert_eq!(time_of(&lines, Event::Imported), None);
    }

    #[test]
    fn a_step_that_is_done_again_has_the_same_loss() {
        let mut lines = parse(LOG);
        assert_eq!(done_again(&lines).unwrap(), 1);
        let again = lines.iter_mut().rfind(|line| line.step == Some(1)).unwrap();
        again.loss = Some(0.41);
        assert!(done_again(&lines).unwrap_err().to_string().contains("step 1"));
    }
}
