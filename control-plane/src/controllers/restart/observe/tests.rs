//! The exit codes that nodes receive.

use lockstep_core::restart::TerminalAction;

use super::*;

fn rule(job: usize, codes: &[i32]) -> TerminalRule {
    TerminalRule {
        job: format!("js-w-{job}"),
        container: None,
        negated: false,
        codes: codes.to_vec(),
        action: TerminalAction::FailJob,
    }
}

fn told(rules: &[TerminalRule], jobs: usize) -> Vec<(String, bool, Vec<i32>)> {
    let told = terminal(rules, jobs).into_iter();
    told.map(|code| (code.job, code.negated, code.codes)).collect()
}

#[test]
fn a_rule_of_all_jobs_is_told_once() {
    let mut rules: Vec<_> = (0..10_000).map(|job| rule(job, &[3; 200])).collect();
    assert_eq!(told(&rules, 10_000), [(String::new(), false, vec![3; 200])]);
    // A code of only some Jobs applies only to these.
    rules.truncate(2);
    rules.push(rule(1, &[4]));
    rules.push(rule(1, &[4]));
    let of = |job: &str, codes: &[i32]| (job.to_owned(), false, codes.to_vec());
    assert_eq!(told(&rules, 2), [of("", &[3; 200]), of("js-w-1", &[4])]);
    let of_both = told(&rules, 3);
    assert_eq!(
        of_both,
        [
            of("js-w-0", &[3; 200]),
            of("js-w-1", &[3; 200]),
            of("js-w-1", &[4])
        ]
    );
    assert!(told(&[], 3).is_empty());
}

#[test]
fn where_there_are_too_many_kubernetes_decides_about_every_exit() {
    let rules: Vec<_> = (0..1_000).map(|job| rule(job, &[3; 1_000])).collect();
    assert_eq!(told(&rules, 1_001), [(String::new(), true, vec![])]);
}
