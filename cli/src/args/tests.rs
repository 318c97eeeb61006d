use clap::CommandFactory as _;

use super::*;

#[test]
fn the_command_line_is_sound() {
    Args::command().debug_assert();
}

#[test]
fn options_of_the_cluster_may_stand_anywhere() {
    let before = Args::try_parse_from(["kubectl-lockstep", "-n", "team", "restart", "ring"]).unwrap();
    let after = Args::try_parse_from(["kubectl-lockstep", "restart", "ring", "-n", "team"]).unwrap();
    for args in [before, after] {
        assert_eq!(args.cluster.namespace.as_deref(), Some("team"));
        assert!(
            matches!(args.command, Command::Restart(Restart { jobset, timeout, .. })
            if jobset == "ring" && timeout == Duration::from_secs(120))
        );
    }
}

#[test]
fn options_are_short_as_those_of_kubectl() {
    let line = ["kubectl-lockstep", "status", "-o", "json", "-A", "-w"];
    let args = Args::try_parse_from(line).unwrap();
    assert!(
        matches!(args.command, Command::Status(Status { all_namespaces: true, watch: true, output, .. })
        if output.form == Some(Form::Json))
    );
}

#[test]
fn contradictions_are_refused() {
    for wrong in [
        &["status", "ring", "-A"][..],
        &["restart"],
        &["restart", "ring", "--timeout", "soon"],
        &["restart", "ring", "--dry-run", "--wait"],
        &["suspend"],
        &["status", "--token", "t", "--service-account", "a"],
        &["status", "--no-platform", "--server", "localhost:1"],
        &["timeline", "ring", "--html", "a.html", "-o", "json"],
    ] {
        let line = ["kubectl-lockstep"].iter().chain(wrong);
        assert!(Args::try_parse_from(line).is_err(), "{wrong:?}");
    }
}

#[test]
fn help_names_the_exit_codes() {
    let help = Args::command().render_help().to_string();
    for code in ["0 ", "1 ", "2 ", "3 ", "64 "] {
        assert!(help.contains(&format!("\n  {code}")), "{help}");
    }
}
