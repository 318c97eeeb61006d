//! Sentences for the hook's messages about standbys that are of no use.

/// Why a module is not imported ahead.
pub(super) fn of_module(said: &str) -> String {
    let (what, of) = said.split_once(' ').unwrap_or((said, ""));
    match (what, of) {
        ("socket", "") => "it opens a port".to_owned(),
        ("writes", path) if !path.is_empty() => format!("it opens {path} to write"),
        ("user", name) if !name.is_empty() => {
            format!("it imports {name}, which is not of the interpreter's installation")
        }
        ("reads", name) if !name.is_empty() => format!("it reads {name}, which each attempt has for itself"),
        ("main", name) if !name.is_empty() => format!("it imports {name}, the program itself"),
        (device, "") if device.starts_with("/dev/") => format!("it opens {device}"),
        _ => said.to_owned(),
    }
}

/// Why a standby does not go on, or cannot wait.
pub(super) fn of_refusal(said: &str) -> String {
    let (what, of) = said.split_once(' ').unwrap_or((said, ""));
    match (what, of) {
        ("environment", name) if !name.is_empty() => {
            format!("variable {name} has changed, which may have been read while importing")
        }
        ("shadowed", name) if !name.is_empty() => {
            format!("a file of the program has the name of module {name}, which was imported ahead")
        }
        ("changed", name) if !name.is_empty() => format!("module {name} has changed since it was imported"),
        ("oom_score_adj", "") => "its oom_score_adj cannot be set back".to_owned(),
        ("sitecustomize" | "usercustomize", "") => {
            format!("the installation has a {what} of its own, which may change what is imported")
        }
        ("Python", version) if !version.is_empty() => format!("Python {version} is not supported"),
        _ => format!("the hook: {said}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_sentences() {
        for (said, read) in [
            ("socket", "it opens a port"),
            ("writes /tmp/a b", "it opens /tmp/a b to write"),
            (
                "user own",
                "it imports own, which is not of the interpreter's installation",
            ),
            ("main train", "it imports train, the program itself"),
            ("reads RANK", "it reads RANK, which each attempt has for itself"),
            ("/dev/nvidia0", "it opens /dev/nvidia0"),
            ("ValueError: no good", "ValueError: no good"),
            ("writes", "writes"),
            ("", ""),
        ] {
            assert_eq!(of_module(said), read);
        }
        for (said, read) in [
            (
                "environment TZ",
                "variable TZ has changed, which may have been read while importing",
            ),
            (
                "shadowed csv",
                "a file of the program has the name of module csv, which was imported ahead",
            ),
            ("changed csv", "module csv has changed since it was imported"),
            ("oom_score_adj", "its oom_score_adj cannot be set back"),
            (
                "usercustomize",
                "the installation has a usercustomize of its own, which may change what is imported",
            ),
            ("Python 3.7", "Python 3.7 is not supported"),
            ("OSError(9)", "the hook: OSError(9)"),
        ] {
            assert_eq!(of_refusal(said), read);
        }
    }
}
