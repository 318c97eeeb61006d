//! Shows results: tables on the terminal, and the picture of a run with one panel for each measure
//! and bars by size and design.

use std::fmt::Write as _;

use crate::samples::Samples;

/// Width of a table's column in characters.
const CELL: usize = 18;

/// A table with one column per measurement.
pub(crate) struct Table<'a, T> {
    all: &'a [T],
    /// Width of the column with the names of rows.
    names: usize,
}

impl<'a, T> Table<'a, T> {
    /// Prints the heads of the columns.
    pub(crate) fn begin(all: &'a [T], names: usize, head: impl Fn(&T) -> String) -> Self {
        let table = Self { all, names };
        table.row("", head);
        table
    }

    /// Prints a row.
    pub(crate) fn row(&self, name: &str, cell: impl Fn(&T) -> String) {
        let cells = self.all.iter().map(|of| format!("{:>CELL$}", cell(of)));
        println!("{name:<width$}{}", cells.collect::<String>(), width = self.names);
    }
}

/// Reads one measure.
type Read = fn(&Samples) -> f64;

/// The measures that are drawn.
const PANELS: [(&str, Read); 4] = [
    ("Restart: failure until all are known to run, ms", |of| {
        of.trip.percentile(50)
    }),
    ("Push: last worker has it, ms", |of| of.push.percentile(50)),
    ("Server killed until all are back, ms", |of| {
        of.storm.percentile(50)
    }),
    ("Server memory per stream, idle, KiB", |of| of.idle.percentile(50)),
];
/// A colour for each design. They differ in greyscale, too.
const COLOURS: [&str; 6] = ["#1b6ca8", "#0b2f4f", "#d98a1f", "#f3d9b5", "#7f7f7f", "#c9c9c9"];
const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 240.0;
const MARGIN: f64 = 40.0;
/// The lower end of bars, and the height of the highest.
const FLOOR: f64 = HEIGHT - 36.0;
const HIGHEST: f64 = FLOOR - 44.0;

/// An SVG of medians. `sizes` are numbers of workers, each with the samples of all `designs`.
pub(crate) fn svg(designs: &[&str], sizes: &[(usize, Vec<Samples>)]) -> String {
    let (width, height) = (2.0 * WIDTH, 2.0 * HEIGHT + MARGIN);
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11" role="img">
<title>Lockstep beside Valkey's design, medians</title>
<rect width="100%" height="100%" fill="#fff"/>
"##
    );
    for (at, (name, colour)) in designs.iter().zip(COLOURS).enumerate() {
        let x = MARGIN + (at % 3) as f64 * 300.0;
        let y = 2.0 * HEIGHT + (at / 3) as f64 * 18.0;
        let text = x + 16.0;
        let _ = writeln!(
            svg,
            r#"<rect x="{x}" y="{y}" width="11" height="11" fill="{colour}"/><text x="{text}" y="{}">{name}</text>"#,
            y + 10.0
        );
    }
    for (at, (title, read)) in PANELS.iter().enumerate() {
        let (x, y) = ((at % 2) as f64 * WIDTH, (at / 2) as f64 * HEIGHT);
        let _ = writeln!(svg, r#"<g transform="translate({x} {y})">"#);
        panel(&mut svg, title, *read, sizes);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn panel(svg: &mut String, title: &str, read: Read, sizes: &[(usize, Vec<Samples>)]) {
    let _ = writeln!(
        svg,
        r#"<text x="{MARGIN}" y="20" font-size="13" font-weight="bold">{title}</text>"#
    );
    let all = sizes.iter().flat_map(|(_, samples)| samples.iter().map(read));
    // Measures without samples are NaN.
    let most = all
        .filter(|value| value.is_finite())
        .fold(f64::MIN_POSITIVE, f64::max);
    let of_size = (WIDTH - 2.0 * MARGIN) / sizes.len().max(1) as f64;
    for (at, (workers, samples)) in sizes.iter().enumerate() {
        let left = MARGIN + at as f64 * of_size;
        let bar = of_size * 0.8 / samples.len().max(1) as f64;
        for (design, (samples, colour)) in samples.iter().zip(COLOURS).enumerate() {
            let value = read(samples);
            if !value.is_finite() {
                continue;
            }
            let (x, height) = (left + design as f64 * bar, value / most * HIGHEST);
            let (y, middle, width) = (FLOOR - height, x + bar * 0.45, bar * 0.9);
            let _ = writeln!(
                svg,
                r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}"/><text x="{middle:.1}" y="{:.1}" text-anchor="middle">{value:.0}</text>"#,
                y - 4.0
            );
        }
        let middle = left + of_size * 0.4;
        let _ = writeln!(
            svg,
            r#"<text x="{middle:.1}" y="{:.1}" text-anchor="middle">{workers} workers</text>"#,
            FLOOR + 18.0
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measure_has_a_bar_for_each_size_and_design() {
        let sizes: Vec<(usize, Vec<Samples>)> = [1000, 5000]
            .into_iter()
            .map(|workers| {
                let samples = (1..=6).map(|design| {
                    let mut samples = Samples::default();
                    for times in [
                        &mut samples.trip,
                        &mut samples.push,
                        &mut samples.storm,
                        &mut samples.idle,
                    ] {
                        times.push(f64::from(design * 10));
                    }
                    samples
                });
                (workers, samples.collect())
            })
            .collect();
        let svg = svg(&["a", "b", "c", "d", "e", "f"], &sizes);
        assert_eq!(svg.matches("workers</text>").count(), 4 * 2);
        for (design, colour) in COLOURS.iter().enumerate() {
            // Its bars, and its legend.
            assert_eq!(svg.matches(colour).count(), 4 * 2 + 1, "{design}");
        }
        assert_eq!(svg.matches(">30</text>").count(), 4 * 2);
        assert!(!svg.contains("NaN"));
    }

    #[test]
    fn what_was_not_measured_has_no_bar() {
        let svg = svg(&["a"], &[(8, vec![Samples::default()])]);
        assert!(!svg.contains("NaN"));
        assert_eq!(svg.matches(COLOURS[0]).count(), 1);
    }
}
