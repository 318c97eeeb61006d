//! One restart as a self-contained page: HTML with an SVG, without scripts or external resources.

use std::fmt::Write as _;

use super::timeline::facts;
use super::visible::{MESSAGE, line};
use crate::view::time;
use crate::view::timeline::{Span, Timeline};

#[cfg(test)]
mod tests;

/// Sizes of the drawing, in units of the SVG.
const WIDTH: f64 = 800.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 90.0;
const ROW: f64 = 30.0;
/// Most lines of the scale.
const TICKS: f64 = 8.0;

const STYLE: &str = "\
:root { color-scheme: light dark; --ink: #1f2328; --faint: #8b949e; --line: #d0d7de; --bar: #2f6fde; --paper: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --faint: #8b949e; --line: #30363d; --bar: #58a6ff; --paper: #0d1117; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: 0; }
p { margin: .3rem 0; }
svg { width: 100%; height: auto; margin: 1rem 0; }
svg text { font: 13px system-ui, sans-serif; fill: var(--ink); }
svg .faint { fill: var(--faint); }
svg line { stroke: var(--line); }
svg rect { fill: var(--bar); }
table { border-collapse: collapse; }
th, td { text-align: left; padding: .2rem 1.2rem .2rem 0; border-bottom: 1px solid var(--line); }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
";

/// The page as HTML.
pub(crate) fn page(timeline: &Timeline) -> String {
    let name = escape(&format!("{}/{}", timeline.namespace, timeline.name));
    let facts = escape(&facts(timeline).replace("  ", ", "));
    let cause = escape(&timeline.cause);
    let drawing = drawing(timeline);
    let rows: String = timeline.phases.iter().map(row).collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>Restart of {name}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>Restart of {name}</h1>\n<p>{facts}</p>\n<p>{cause}</p>\n{drawing}\
         <table>\n<tr><th>phase</th><th>from</th><th>took</th><th>what</th></tr>\n{rows}</table>\n</body>\n</html>\n"
    )
}

/// One bar for each phase, all on one scale.
fn drawing(timeline: &Timeline) -> String {
    let whole = timeline.scale_ms().max(0.1);
    let x = |millis: f64| LEFT + millis / whole * (WIDTH - LEFT - RIGHT);
    let bottom = (0..timeline.phases.len()).fold(ROW, |bottom, _| bottom + ROW);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {bottom}\" role=\"img\" aria-label=\"phases of the restart, in milliseconds after the failure\">\n"
    );
    let step = step(whole);
    let mut tick = 0.0;
    while tick <= whole {
        let at = x(tick);
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" y1=\"22\" x2=\"{at:.1}\" y2=\"{bottom}\"/><text class=\"faint\" x=\"{at:.1}\" y=\"14\" text-anchor=\"middle\">{}</text>",
            label(tick)
        );
        tick += step;
    }
    let mut top = ROW;
    for span in &timeline.phases {
        let (from, to) = (x(span.from_ms), x(span.to_ms));
        let middle = top + 19.0;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{middle}\" text-anchor=\"end\">{}</text><rect x=\"{from:.1}\" y=\"{}\" width=\"{:.1}\" height=\"18\" rx=\"2\"><title>{}</title></rect><text x=\"{:.1}\" y=\"{middle}\">{}</text>",
            LEFT - 10.0,
            span.phase,
            top + 5.0,
            (to - from).max(1.5),
            escape(span.what),
            to.max(from + 1.5) + 5.0,
            time::took(span.took_ms()),
        );
        top += ROW;
    }
    svg.push_str("</svg>\n");
    svg
}

fn row(span: &Span) -> String {
    format!(
        "<tr><td>{}</td><td class=\"number\">{:.1} ms</td><td class=\"number\">{}</td><td>{}</td></tr>\n",
        span.phase,
        span.from_ms,
        time::took(span.took_ms()),
        escape(span.what)
    )
}

/// The distance between two lines of the scale: 1, 2 or 5 times a power of ten.
fn step(whole: f64) -> f64 {
    let least = whole / TICKS;
    let power = 10.0_f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= least);
    factor.unwrap_or(10.0) * power
}

/// A label of the scale, with only the digits that the step needs.
fn label(millis: f64) -> String {
    let rounded = (millis * 1000.0).round() / 1000.0;
    format!("{rounded} ms")
}

/// Escapes text for HTML, and the characters that change the direction of text or hide it.
fn escape(text: &str) -> String {
    let text = line(text, MESSAGE);
    text.chars()
        .fold(String::with_capacity(text.len()), |mut safe, c| {
            match c {
                '&' => safe.push_str("&amp;"),
                '<' => safe.push_str("&lt;"),
                '>' => safe.push_str("&gt;"),
                '"' => safe.push_str("&quot;"),
                c => safe.push(c),
            }
            safe
        })
}
