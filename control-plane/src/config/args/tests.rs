use super::*;

fn args(args: &[&str]) -> Result<Args, clap::Error> {
    Args::from_command_line(["lockstep-control-plane"].iter().chain(args).map(Into::into))
}

#[test]
fn the_defaults_are_valid() {
    let args = args(&[]).unwrap();
    assert_eq!(
        args.hub_bind_address,
        BindAddress(Some("[::]:9444".parse().unwrap()))
    );
    assert_eq!((args.leader_elect, args.disable_webhooks), (None, false));
    assert!(args.replace_lost_pods);
    assert_eq!(args.zap.format(args.log_format), LogFormat::Text);
}

#[test]
fn flags_are_taken_as_go_programs_take_them() {
    for flags in [
        &["--leader-elect"][..],
        &["-leader-elect"],
        &["--leader-elect=true"],
        &["-leader-elect=1"],
        &["--leader-elect=false", "--leader-elect=T"],
    ] {
        assert_eq!(args(flags).unwrap().leader_elect, Some(true), "{flags:?}");
    }
    assert_eq!(args(&["-leader-elect=F"]).unwrap().leader_elect, Some(false));
    let error = args(&["--leader-elect=perhaps"]).unwrap_err().to_string();
    assert!(error.contains("it must be true or false"), "{error}");
    assert_eq!(args(&["-kube-api-qps", "-1"]).unwrap().kube_api_qps, Some(-1.0));
    let error = args(&["-nonsense"]).unwrap_err().to_string();
    assert!(error.contains("--nonsense"), "{error}");
    assert_eq!(
        args(&["-h"]).unwrap_err().kind(),
        clap::error::ErrorKind::DisplayHelp
    );
}

#[test]
fn the_log_flags_of_upstreams_deployments_are_taken() {
    let of = |flags: &[&str]| {
        let args = args(flags).unwrap();
        let level = args.zap.zap_log_level.map(ZapLevel::filter);
        (args.zap.format(args.log_format), level)
    };
    let debug = "info,lockstep_control_plane=debug,kube=warn";
    assert_eq!(of(&["--zap-log-level=2"]), (LogFormat::Text, Some(debug)));
    assert_eq!(of(&["--zap-log-level=error"]), (LogFormat::Text, Some("error")));
    assert_eq!(of(&["--zap-encoder=json"]), (LogFormat::Json, None));
    assert_eq!(
        of(&["--zap-encoder=console", "--log-format=json"]),
        (LogFormat::Text, None)
    );
    assert_eq!(of(&["--zap-devel=false"]), (LogFormat::Json, None));
    assert_eq!(
        of(&["--zap-devel=false", "--log-format=text"]),
        (LogFormat::Text, None)
    );
    let ignored = [
        "--zap-devel",
        "--zap-stacktrace-level=error",
        "--zap-time-encoding=rfc3339nano",
    ];
    assert_eq!(of(&ignored), (LogFormat::Text, None));
    for wrong in ["--zap-log-level=0", "--zap-log-level=loud", "--zap-encoder=xml"] {
        assert!(args(&[wrong]).is_err(), "{wrong}");
    }
}

#[test]
fn addresses_are_taken_as_go_programs_take_them() {
    let parsed = |text: &str| {
        text.parse::<BindAddress>()
            .map(|address| address.0.map(|a| a.to_string()))
    };
    assert_eq!(parsed(":8443"), Ok(Some("[::]:8443".to_owned())));
    assert_eq!(parsed("127.0.0.1:80"), Ok(Some("127.0.0.1:80".to_owned())));
    assert_eq!(parsed("localhost:80"), Ok(Some("127.0.0.1:80".to_owned())));
    assert_eq!(parsed("0"), Ok(None));
    assert!(parsed("8443").is_err());
    let error = args(&["--metrics-bind-address", "here"]).unwrap_err().to_string();
    assert!(error.contains("is not host:port"), "{error}");
}

#[test]
fn the_namespace_is_that_of_the_pod() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "product\n").unwrap();
    assert_eq!(default_namespace(file.path()), "product");
    assert_eq!(default_namespace(Path::new("/does/not/exist")), "lockstep-system");
}
