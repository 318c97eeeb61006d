//! One line on a terminal that shows the progress of what a command waits for.

use std::io::IsTerminal as _;
use std::time::Duration;

use tokio::time::Instant;

use crate::fetch::Changes;
use crate::print::{self, Printer};
use crate::view::restart::ProgressDetail;

/// How often the elapsed time is redrawn.
const REDRAW_INTERVAL: Duration = Duration::from_millis(200);
/// Frames of the spinner, which shows that the command still waits.
const SPINNER: [char; 4] = ['◐', '◓', '◑', '◒'];
/// Width of the bar in cells.
const BAR_CELLS: u64 = 20;

/// The line.
pub(super) struct ProgressLine {
    shown: bool,
    written: bool,
    detail: ProgressDetail,
}

impl ProgressLine {
    /// A line on standard error, if that is a terminal that can overwrite a line. It is not drawn
    /// if the answer is for programs.
    pub(super) fn new(printer: Printer) -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            shown: !printer.is_for_programs() && !dumb && std::io::stderr().is_terminal(),
            ..Self::hidden()
        }
    }

    /// A line that is never drawn.
    pub(super) fn hidden() -> Self {
        Self {
            shown: false,
            written: false,
            detail: ProgressDetail::default(),
        }
    }

    pub(super) fn show(&mut self, since: Instant, detail: ProgressDetail) {
        self.detail = detail;
        self.write(since);
    }

    fn write(&mut self, since: Instant) {
        if self.shown {
            self.written = true;
            // The terminal cuts off what is too long: a second line could not be overwritten.
            print::control(&format!(
                "\r\x1b[?7l{}\x1b[K\x1b[?7h",
                line(&self.detail, since.elapsed())
            ));
        }
    }

    /// Waits for a change or until `until`, and redraws the elapsed time meanwhile.
    pub(super) async fn wait(&mut self, since: Instant, changes: &mut Changes, until: Instant) {
        let next = changes.next();
        tokio::pin!(next);
        loop {
            tokio::select! {
                () = &mut next => return,
                () = tokio::time::sleep_until(until) => return,
                () = tokio::time::sleep(REDRAW_INTERVAL), if self.shown => self.write(since),
            }
        }
    }

    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.written) {
            print::control("\r\x1b[K");
        }
    }
}

fn line(detail: &ProgressDetail, elapsed: Duration) -> String {
    let turn = elapsed.as_millis() / REDRAW_INTERVAL.as_millis();
    let turn = usize::try_from(turn).unwrap_or_default() % SPINNER.len();
    let bar = detail
        .part
        .map(|(done, all)| format!("{} ", bar(done, all)))
        .unwrap_or_default();
    format!(
        "{} {:>5.1} s  {bar}{}",
        SPINNER[turn],
        elapsed.as_secs_f64(),
        print::line(&detail.words, print::MESSAGE)
    )
}

/// A bar that is full only when all is done.
fn bar(done: u32, all: u32) -> String {
    let full = (u64::from(done.min(all)) * BAR_CELLS)
        .checked_div(u64::from(all))
        .unwrap_or_default();
    let cells = (0..BAR_CELLS).map(|cell| if cell < full { '█' } else { '░' });
    cells.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_long_and_how_far() {
        let detail = |part| ProgressDetail {
            words: "Stopping".to_owned(),
            part,
        };
        let after = Duration::from_millis;
        assert_eq!(line(&detail(None), after(0)), "◐   0.0 s  Stopping");
        assert_eq!(
            line(&detail(Some((3, 4))), after(12_300)),
            "◓  12.3 s  ███████████████░░░░░ Stopping"
        );
        // The spinner moves at each redraw.
        assert_ne!(
            line(&detail(None), after(200)),
            line(&detail(None), after(399 + 200))
        );
    }

    #[test]
    fn text_from_a_pod_does_not_move_the_cursor() {
        let words = "0 of 4 workers run; pod p: \x1b[2Jall is well\r\n";
        let part = None;
        let words = words.to_owned();
        assert_eq!(
            line(&ProgressDetail { words, part }, Duration::ZERO),
            r"◐   0.0 s  0 of 4 workers run; pod p: \x1b[2Jall is well\r\n"
        );
    }

    #[test]
    fn a_bar_is_full_when_all_is_done() {
        let full = |done, all| bar(done, all).chars().filter(|cell| *cell == '█').count();
        assert_eq!([full(0, 8), full(1, 8), full(8, 8)], [0, 2, 20]);
        assert_eq!(full(9999, 10_000), 19);
        assert_eq!([full(0, 0), full(3, 2)], [0, 20]);
        assert_eq!(full(u32::MAX, u32::MAX), 20);
    }
}
