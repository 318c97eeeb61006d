//! Prometheus' older text format, for readers that do not ask for OpenMetrics, made from that.

use std::fmt::Write as _;

/// Content type of [`of`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The same metrics. There a counter is called by the name of its samples, and there are no units
/// and no end.
pub(super) fn of(open: &str) -> String {
    let mut plain = String::with_capacity(open.len() + 1024);
    let mut counters = std::collections::HashSet::new();
    for line in open.lines() {
        if let Some((name, "counter")) = line.strip_prefix("# TYPE ").and_then(|said| said.split_once(' ')) {
            counters.insert(name);
        }
    }
    for line in open.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(what @ ("HELP" | "TYPE")), Some(name), Some(text)) => {
                let suffix = if counters.contains(name) { "_total" } else { "" };
                let text = match (what, text) {
                    ("TYPE", "unknown") => "untyped",
                    ("TYPE", "info" | "stateset") => "gauge",
                    (_, text) => text,
                };
                // To a String: it cannot fail.
                let _ = writeln!(plain, "# {what} {name}{suffix} {text}");
            }
            (Some("#"), ..) => {}
            _ => {
                plain.push_str(line);
                plain.push('\n');
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    #[test]
    fn counters_are_called_by_the_name_of_their_samples() {
        let open = "# HELP jobset_failed The number of failed JobSets.\n# TYPE jobset_failed counter\n\
                    jobset_failed_total{jobset_name=\"a\",namespace=\"b\"} 1\n\
                    # HELP seconds How long.\n# TYPE seconds histogram\n# UNIT seconds seconds\n\
                    seconds_bucket{le=\"+Inf\"} 2\n# TYPE what unknown\nwhat 3\n# EOF\n";
        let plain = "# HELP jobset_failed_total The number of failed JobSets.\n# TYPE jobset_failed_total counter\n\
                     jobset_failed_total{jobset_name=\"a\",namespace=\"b\"} 1\n\
                     # HELP seconds How long.\n# TYPE seconds histogram\n\
                     seconds_bucket{le=\"+Inf\"} 2\n# TYPE what untyped\nwhat 3\n";
        assert_eq!(super::of(open), plain);
    }
}
