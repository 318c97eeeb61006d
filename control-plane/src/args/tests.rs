use super::*;

fn args(args: &[&str]) -> Result<Args, clap::Error> {
    Args::try_parse_from(["lockstep-control-plane"].iter().chain(args))
}

#[test]
fn the_defaults_work_alone() {
    let args = args(&[]).unwrap();
    assert_eq!(
        args.health_probe_bind_address,
        BindAddress(Some("[::]:8081".parse().unwrap()))
    );
    assert_eq!(
        args.hub_bind_address,
        BindAddress(Some("0.0.0.0:9444".parse().unwrap()))
    );
    assert_eq!(args.log_format, LogFormat::Text);
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
