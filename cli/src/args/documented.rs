//! Every command line that the documentation shows parses.

use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};

use super::Args;

/// How a command line begins.
const NAMES: [&str; 2] = ["kubectl lockstep ", "kubectl-lockstep "];
/// Characters that end a command line within a line.
const ENDS: [char; 6] = ['#', '|', '>', ')', '`', '&'];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    let listed = std::fs::read_dir(root().join("docs")).unwrap();
    let listed = listed.map(|entry| entry.unwrap().path());
    pages.extend(listed.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    pages
}

/// The command lines of a page: those in code blocks, and those in backticks within a sentence.
fn command_lines(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
            continue;
        }
        for name in NAMES {
            for (at, _) in line.match_indices(name) {
                let before = line[..at].chars().next_back();
                let begins = match before {
                    None | Some('(') => is_code,
                    Some(' ') => is_code && line[..at].trim_end().ends_with('$'),
                    Some('`') => true,
                    Some(_) => false,
                };
                let rest = &line[at + name.len()..];
                let rest = rest.split(ENDS).next().unwrap_or_default();
                // A key to press, such as <TAB>, is not an argument.
                if begins && !rest.contains('<') {
                    found.push(rest.trim().to_owned());
                }
            }
        }
    }
    found
}

/// The parse error of a command line. A command that is only named is valid without arguments.
fn wrong(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let command = Args::command();
    if let [word] = words.as_slice()
        && command.find_subcommand(word).is_some()
    {
        return None;
    }
    match Args::try_parse_from(["kubectl-lockstep"].iter().chain(&words)) {
        Ok(_) => None,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayVersion | ErrorKind::DisplayHelp) => None,
        Err(error) => Some(error.to_string()),
    }
}

#[test]
fn every_command_line_of_the_documentation_parses() {
    let mut seen = 0;
    for page in pages() {
        for line in command_lines(&std::fs::read_to_string(&page).unwrap()) {
            seen += 1;
            if let Some(why) = wrong(&line) {
                panic!("{}: kubectl lockstep {line}\n{why}", page.display());
            }
        }
    }
    assert!(seen > 20, "only {seen} command lines were found");
}

#[test]
fn every_command_is_documented() {
    let text = std::fs::read_to_string(root().join("docs/cli.md")).unwrap();
    for command in Args::command().get_subcommands() {
        let name = command.get_name();
        assert!(
            text.contains(&format!("`{name} ")) || text.contains(&format!("`{name}`")),
            "docs/cli.md does not have {name}"
        );
    }
}

#[test]
fn only_command_lines_are_found() {
    let text = "Run `kubectl lockstep status -A` or kubectl lockstep x.\n```\n$ kubectl lockstep check   # all\nsource <(kubectl-lockstep completion bash)\n\
                install target/kubectl-lockstep /usr/bin\n```\n`kubectl lockstep <TAB>`";
    assert_eq!(command_lines(text), ["status -A", "check", "completion bash"]);
    assert!(wrong("status --nowhere").is_some() && wrong("restart").is_none());
}
