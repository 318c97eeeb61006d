use super::*;
use crate::view::testing::now;

fn restart(took_ms: f64, cause: &str) -> Timeline {
    let span = |phase, from_ms, to_ms| Span {
        phase,
        what: "until the next",
        from_ms,
        to_ms,
    };
    Timeline {
        namespace: "team".into(),
        name: "ring".into(),
        generation: Some(2),
        level: Some("Process".into()),
        failed_at: Some(now()),
        took_ms,
        workers: Some(4),
        replaced_pods: Some(0),
        from_standbys: None,
        ahead_ms: None,
        cause: cause.into(),
        phases: vec![span("detect", 0.0, 1.2), span("run", 1.2, took_ms)],
    }
}

#[test]
fn it_is_one_file_that_fetches_and_runs_nothing() {
    let page = page(&restart(31.2, "worker a[1]/worker exited with code 3"));
    for part in [
        "<title>Restart of team/ring</title>",
        "generation 2, took 31.2 ms, by Process, 4 workers",
        "<p>worker a[1]/worker exited with code 3</p>",
        ">detect</text><rect x=\"90.0\"",
        ">5 ms</text>",
        "<td class=\"number\">30.0 ms</td>",
    ] {
        assert!(page.contains(part), "no {part}: {page}");
    }
    for foreign in ["<script", "http:", "https:", "src=", "href="] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert_eq!(page.matches("<rect").count(), 2);
}

#[test]
fn names_of_pods_are_text() {
    let page = page(&restart(31.2, "</p><script>alert(\"1\") & more</script>"));
    assert!(page.contains("&lt;/p&gt;&lt;script&gt;alert(&quot;1&quot;) &amp; more&lt;/script&gt;"));
}

#[test]
fn the_scale_has_few_lines_for_any_duration() {
    for took in [0.0, 0.3, 1.0, 31.2, 99.9, 4_700.0, 600_000.0] {
        let lines = page(&restart(took, "")).matches("<line").count();
        assert!((2..=9).contains(&lines), "{lines} lines for {took} ms");
    }
}

#[test]
fn a_clock_that_is_ahead_does_not_draw_outside_the_page() {
    let mut restart = restart(31.2, "");
    restart.phases[0].to_ms = 1003.0;
    let page = page(&restart);
    let widths: Vec<f64> = page
        .split(" width=\"")
        .filter_map(|rest| rest.split('"').next()?.parse().ok())
        .collect();
    assert_eq!(widths.len(), 2, "{page}");
    assert!(widths.iter().all(|width| *width <= WIDTH), "{page}");
}
