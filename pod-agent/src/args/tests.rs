use super::*;

fn run(line: &str) -> Result<Invocation, ArgsError> {
    parse(line.split_whitespace().map(OsString::from))
}

fn args(line: &str) -> Args {
    match run(line) {
        Ok(Invocation::Run(args)) => args,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn full_line() {
    let expected = Args {
        socket: "/s".into(),
        container: "worker".into(),
        container_id: "abc".into(),
        grace_default: Duration::from_millis(250),
        termination_grace: Some(Duration::from_secs(30)),
        heartbeat: Some("/h".into()),
        command: vec!["python3".into(), "--socket".into(), "--".into()],
        allow_not_pid1: false,
    };
    let spaced = "--socket /s --container worker --container-id abc --grace-default-ms 250 --termination-grace-ms 30000 --heartbeat /h -- python3 --socket --";
    let joined = "--socket=/s --container=worker --container-id=abc --grace-default-ms=250 --termination-grace-ms=30000 --heartbeat=/h -- python3 --socket --";
    assert_eq!(args(spaced), expected);
    assert_eq!(args(joined), expected);
}

#[test]
fn the_container_may_be_found_by_others_and_the_agent_copied() {
    assert_eq!(args("--socket /s --container w -- x").container_id, "");
    assert_eq!(run("--copy-to /d"), Ok(Invocation::Copy("/d".into())));
}

#[test]
fn arguments_of_the_worker_may_be_any_bytes() {
    use std::os::unix::ffi::OsStringExt;
    let odd = OsString::from_vec(vec![0xff, b'=', 0xfe]);
    let mut line: Vec<OsString> = "--socket /s --container w --container-id i -- cat"
        .split(' ')
        .map(Into::into)
        .collect();
    line.push(odd.clone());
    match parse(line) {
        Ok(Invocation::Run(args)) => assert_eq!(args.command, vec![OsString::from("cat"), odd]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn refusals_name_the_option() {
    let long = "x".repeat(108);
    let cases = [
        ("", "option --socket is required"),
        ("--socket", "option --socket needs a value"),
        (
            "--socket /s --container-id i -- x",
            "option --container is required",
        ),
        ("--copy-to", "option --copy-to needs a value"),
        (
            "--socket /s --container w --container-id i",
            "no worker command: it follows after --",
        ),
        (
            "--socket /s --container w --container-id i --",
            "no worker command: it follows after --",
        ),
        ("--socket /s --socket /t", "option --socket was given twice"),
        ("--what", "unknown option \"--what\""),
        ("python3", "unknown option \"python3\""),
        ("--allow-not-pid1=yes", "unknown option \"--allow-not-pid1=yes\""),
        (
            "--socket /s --container w --container-id i --grace-default-ms 5s -- x",
            "option --grace-default-ms: \"5s\" is not a number of milliseconds",
        ),
    ];
    for (line, message) in cases {
        match run(line) {
            Err(error) => assert_eq!(error.to_string(), message, "{line}"),
            other => panic!("{line}: {other:?}"),
        }
    }
    assert!(run(&format!("--socket {long} --container w --container-id i -- x")).is_err());
}

#[test]
fn help_and_version() {
    assert!(matches!(run("--help"), Ok(Invocation::Print(text)) if text.contains("usage:")));
    assert_eq!(
        run("--version"),
        Ok(Invocation::Print(env!("CARGO_PKG_VERSION").into()))
    );
}
