use super::*;

#[test]
fn a_program_that_cannot_be_run_is_told_from_one_that_failed() {
    let said = |code, signal| {
        sentence(&Cause {
            reason: Reason::WorkerExited,
            identity: None,
            pod: "js-w-0-1-abcde".to_owned(),
            node: "node-7".to_owned(),
            exit: Some(Exit { code, signal }),
            at: None,
        })
    };
    let place = " (pod js-w-0-1-abcde, node node-7)";
    for (code, signal, how) in [
        (3, 0, " with code 3"),
        (126, 0, " with code 126 (not executable, or permission denied?)"),
        (127, 0, " with code 127 (executable not found?)"),
        (137, 9, " by signal 9"),
    ] {
        assert_eq!(said(code, signal), format!("a worker exited{how}{place}"));
    }
}
