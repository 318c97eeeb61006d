//! Which commands can have a standby: those that a Python interpreter runs, by its name or by the
//! first line of a script. This module runs nothing to find out.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Longest first line of a script that the kernel reads, in bytes.
const MAX_LINE: u64 = 256;
/// Options of the interpreter that take their value from the next argument, if it is not joined to
/// them.
const WITH_VALUE: &[u8] = b"WX";
/// Options after which the program's own arguments begin.
const LAST: &[u8] = b"cm";

/// Why a command cannot have a standby.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotPython {
    #[error("the command is not started by Python: {0}")]
    Other(String),
    #[error("{0} is a script that starts Python")]
    Script(String),
    #[error("option -{0} of the interpreter excludes standbys")]
    Option(char),
}

/// Says why `command` cannot have a standby, if it cannot. Programs are looked up in `path`, the
/// container's PATH.
pub(crate) fn recognise(command: &[OsString], path: &OsStr) -> Result<(), NotPython> {
    let Some((program, args)) = command.split_first() else {
        return Err(NotPython::Other(String::new()));
    };
    let other = || NotPython::Other(shown(program));
    if is_python(Path::new(program)) {
        check_program(program, path)?;
        return check_options(args);
    }
    let line = find(program, path).and_then(|script| first_line(&script));
    let (program, words) = line.as_deref().and_then(interpreter).ok_or_else(other)?;
    check_program(&program, path)?;
    check_options(&words)
}

/// True if `name` is in `path`, and starts a Python that can have standbys.
pub(super) fn is_there(name: &OsStr, path: &OsStr) -> bool {
    find(name, path).is_some() && recognise(&[name.to_owned()], path).is_ok()
}

/// A script with the name of Python, such as pyenv's, runs its own commands before the interpreter.
/// A standby would run these ahead, and load the hook in any Python that they call.
fn check_program(program: &OsStr, path: &OsStr) -> Result<(), NotPython> {
    match find(program, path).and_then(|file| first_line(&file)) {
        Some(_) => Err(NotPython::Script(shown(program))),
        None => Ok(()),
    }
}

/// True for the file names `python`, `python3` and `python3.N`.
fn is_python(program: &Path) -> bool {
    let Some(name) = program.file_name().and_then(OsStr::to_str) else {
        return false;
    };
    let minor = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
    match name.strip_prefix("python") {
        Some("" | "3") => true,
        Some(rest) => rest.strip_prefix("3.").is_some_and(minor),
        None => false,
    }
}

/// Goes through the interpreter's own options as CPython does.
fn check_options(args: &[OsString]) -> Result<(), NotPython> {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let arg = arg.as_bytes();
        if arg == b"--" || arg.first() != Some(&b'-') || arg.len() == 1 {
            // The script, or `-`: the arguments after it are the program's.
            return Ok(());
        }
        if arg.starts_with(b"--") {
            if arg == b"--check-hash-based-pycs" {
                args.next();
                continue;
            }
            return Err(NotPython::Option('-'));
        }
        for (at, option) in arg.iter().enumerate().skip(1) {
            match option {
                b'E' | b'I' | b'S' | b'i' | b'h' | b'?' | b'V' => {
                    return Err(NotPython::Option(char::from(*option)));
                }
                option if LAST.contains(option) => return Ok(()),
                option if WITH_VALUE.contains(option) => {
                    if at + 1 == arg.len() {
                        args.next();
                    }
                    break;
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// The file that would be executed.
fn find(program: &OsStr, path: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    std::env::split_paths(path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// The part of a script's first line that the kernel reads, if the file is a script.
fn first_line(script: &Path) -> Option<Vec<u8>> {
    if !script.is_file() {
        return None;
    }
    let mut text = Vec::new();
    File::open(script)
        .ok()?
        .take(MAX_LINE)
        .read_to_end(&mut text)
        .ok()?;
    let end = text.iter().position(|byte| *byte == b'\n')?;
    text.truncate(end);
    text.strip_prefix(b"#!").map(<[u8]>::to_vec)
}

/// The interpreter that a script's first line names, and its options, if that is Python.
fn interpreter(line: &[u8]) -> Option<(OsString, Vec<OsString>)> {
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .map(OsStr::from_bytes);
    let mut program = Path::new(words.next()?);
    if program.file_name() == Some(OsStr::new("env")) {
        let mut word = words.next()?;
        if word == "-S" {
            word = words.next()?;
        }
        program = Path::new(word);
    }
    let found = || (program.into(), words.map(OsStr::to_owned).collect());
    is_python(program).then(found)
}

fn shown(program: &OsStr) -> String {
    let mut text = program.to_string_lossy().into_owned();
    text.truncate(text.floor_char_boundary(100));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<(), NotPython> {
        let command: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        recognise(&command, OsStr::new("/nowhere"))
    }

    #[test]
    fn interpreters_are_known_by_their_names() {
        for line in [
            "python train.py",
            "python3",
            "python3.12 -u train.py -E",
            "/opt/conda/bin/python -m pkg.train -S",
            "./venv/bin/python3 -c pass",
            "python3 -X dev -W error -OO -u train.py",
            "python3 -Xdev -Werror -",
            "python3 -um train -i",
            "python3 --check-hash-based-pycs always train.py",
            "python3 -- -E",
        ] {
            assert_eq!(of(line), Ok(()), "{line}");
        }
        for line in [
            "pythonw x",
            "python2 x",
            "python3.x y",
            "python3. y",
            "ipython x",
            "sh -c python3",
            "torchrun x",
        ] {
            assert!(matches!(of(line), Err(NotPython::Other(_))), "{line}");
        }
    }

    #[test]
    fn options_that_leave_the_hook_out_are_named() {
        for (line, option) in [
            ("python3 -E train.py", 'E'),
            ("python3 -uI train.py", 'I'),
            ("python3 -S -c pass", 'S'),
            ("python3 -X dev -i train.py", 'i'),
            ("python3 -V", 'V'),
            ("python3 --help", '-'),
        ] {
            assert_eq!(of(line), Err(NotPython::Option(option)), "{line}");
        }
    }

    #[test]
    fn a_script_is_what_its_first_line_names() {
        let dir = tempfile::tempdir().unwrap();
        let run = |line: &str| {
            std::fs::write(dir.path().join("torchrun"), line).unwrap();
            recognise(&["torchrun".into(), "-E".into()], dir.path().as_os_str())
        };
        assert_eq!(run("#!/usr/bin/python3\nimport x"), Ok(()));
        assert_eq!(run("#! /usr/bin/env python3\n"), Ok(()));
        assert_eq!(run("#!/usr/bin/env -S python3 -u\n"), Ok(()));
        assert_eq!(run("#!/usr/bin/python3 -E\n"), Err(NotPython::Option('E')));
        for other in [
            "#!/bin/sh\n",
            "import x\n",
            "",
            "#!/usr/bin/env\n",
            "#!/usr/bin/python3",
        ] {
            assert_eq!(
                run(other),
                Err(NotPython::Other("torchrun".to_owned())),
                "{other}"
            );
        }
        std::fs::write(dir.path().join("python3"), "#!/bin/sh\nexec real \"$@\"").unwrap();
        let script = Err(NotPython::Script("python3".to_owned()));
        let path = dir.path().as_os_str();
        assert_eq!(recognise(&["python3".into(), "x.py".into()], path), script);
        std::fs::write(dir.path().join("run"), "#!/usr/bin/env python3\n").unwrap();
        assert_eq!(recognise(&["run".into()], path), script);
        let long = format!("#!{}/python3\n", "x".repeat(300));
        assert!(run(&long).is_err());
        assert!(recognise(&["missing".into()], dir.path().as_os_str()).is_err());
        assert!(recognise(&[], dir.path().as_os_str()).is_err());
    }
}
