use clap::CommandFactory as _;

use super::*;

#[test]
fn the_command_line_is_sound() {
    Args::command().debug_assert();
}

#[test]
fn cluster_options_may_be_anywhere() {
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
fn short_options_are_those_of_kubectl() {
    let line = ["kubectl-lockstep", "status", "-o", "json", "-A", "-w"];
    let args = Args::try_parse_from(line).unwrap();
    assert!(
        matches!(args.command, Command::Status(Status { all_namespaces: true, watch: true, output, .. })
        if output.form == Some(Form::Json))
    );
}

#[test]
fn workers_are_named_as_in_the_annotation() {
    for (option, value, target) in [
        ("--replicated-job", "ps", "replicatedJob/ps"),
        ("--job", "ring-ps-0", "job/ring-ps-0"),
        ("--worker", "ring-ps-0/1", "worker/ring-ps-0/1"),
        ("--worker", "ring-ps-0/1/main", "worker/ring-ps-0/1/main"),
    ] {
        let line = ["kubectl-lockstep", "restart", "ring", option, value];
        let Command::Restart(restart) = Args::try_parse_from(line).unwrap().command else {
            panic!("{line:?}")
        };
        assert_eq!(restart.target.get().unwrap().to_string(), target);
    }
}

#[test]
fn contradictions_are_refused() {
    for wrong in [
        &["status", "ring", "-A"][..],
        &["restart"],
        &["restart", "ring", "--timeout", "soon"],
        &["restart", "ring", "--dry-run", "--wait"],
        &["restart", "ring", "--job", "ring-ps-0", "--replicated-job", "ps"],
        &["restart", "ring", "--worker", "ring-ps-0"],
        &["suspend"],
        &["status", "--token", "t", "--service-account", "a"],
        &["status", "--token", "t", "--as", "u"],
        &["status", "--no-platform", "--server", "localhost:1"],
        &["timeline", "ring", "--html", "a.html", "-o", "json"],
    ] {
        let line = ["kubectl-lockstep"].iter().chain(wrong);
        assert!(Args::try_parse_from(line).is_err(), "{wrong:?}");
    }
}

#[test]
fn the_command_line_takes_precedence_over_the_token_of_the_environment() {
    for (line, environment, token) in [
        (&["status"][..], Some("env"), Some("env")),
        (&["status"], Some(""), None),
        (&["status"], None, None),
        (&["status", "--token", "given"], Some("env"), Some("given")),
        (&["status", "--service-account", "a"], Some("env"), None),
        (&["--as", "u", "status"], Some("env"), None),
    ] {
        let args = Args::try_parse_from(["kubectl-lockstep"].iter().chain(line)).unwrap();
        let cluster = args.cluster.or_token(environment.map(str::to_owned));
        assert_eq!(cluster.token.as_deref(), token, "{line:?}");
    }
}

#[test]
fn help_names_the_exit_codes() {
    let help = Args::command().render_help().to_string();
    for code in ["0 ", "1 ", "2 ", "3 ", "64 "] {
        assert!(help.contains(&format!("\n  {code}")), "{help}");
    }
}
