use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Archive, EntryType};

use super::product::{Programs, control_plane, node_daemon, sboms};
use super::python::parse_ldd;
use super::{Image, busybox};

fn sample() -> Image {
    Image::new("localhost/sample:1")
        .entrypoint(["/app/run"])
        .cmd(["--fast"])
        .env("PATH", "/bin")
        .workdir("/app")
        .user("1000:1000")
        .bytes("/app/run", "#!/bin/sh\n", 0o755)
        .symlink("/bin/again", "../app/run")
}

/// The files in an OCI archive by name.
fn unpack(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut archive = Archive::new(File::open(path).unwrap());
    let mut files = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_string_lossy().into_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        files.insert(name, content);
    }
    files
}

fn written(image: &Image) -> (Vec<u8>, BTreeMap<String, Vec<u8>>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(image.archive_name());
    image.write(&path).unwrap();
    (std::fs::read(&path).unwrap(), unpack(&path))
}

/// The JSON blob that a descriptor leads to, after checking its digest and size.
fn follow(files: &BTreeMap<String, Vec<u8>>, descriptor: &Value) -> Vec<u8> {
    let digest = descriptor["digest"].as_str().unwrap();
    let content = &files[&format!("blobs/{}", digest.replace(':', "/"))];
    let sum: String = Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(digest, format!("sha256:{sum}"));
    assert_eq!(descriptor["size"], json!(content.len()));
    content.clone()
}

#[test]
fn an_archive_is_an_image_layout_whose_digests_are_right() {
    let (_, files) = written(&sample());
    assert_eq!(files["oci-layout"], br#"{"imageLayoutVersion":"1.0.0"}"#);
    let index: Value = serde_json::from_slice(&files["index.json"]).unwrap();
    let entry = &index["manifests"][0];
    assert_eq!(
        entry["annotations"]["io.containerd.image.name"],
        "localhost/sample:1"
    );

    let manifest: Value = serde_json::from_slice(&follow(&files, entry)).unwrap();
    let config: Value = serde_json::from_slice(&follow(&files, &manifest["config"])).unwrap();
    assert_eq!(
        config["config"],
        json!({
            "Entrypoint": ["/app/run"], "Cmd": ["--fast"], "Env": ["PATH=/bin"],
            "WorkingDir": "/app", "User": "1000:1000",
        })
    );
    assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
    follow(&files, &manifest["layers"][0]);
}

#[test]
fn a_layer_has_files_links_and_the_folders_above_them() {
    let (_, files) = written(&sample());
    let index: Value = serde_json::from_slice(&files["index.json"]).unwrap();
    let manifest: Value = serde_json::from_slice(&follow(&files, &index["manifests"][0])).unwrap();
    let layer = follow(&files, &manifest["layers"][0]);
    let mut seen = Vec::new();
    for entry in Archive::new(layer.as_slice()).entries().unwrap() {
        let entry = entry.unwrap();
        let header = entry.header();
        let name = entry
            .path()
            .unwrap()
            .to_string_lossy()
            .trim_end_matches('/')
            .to_owned();
        seen.push((name, header.entry_type(), header.mode().unwrap()));
        assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
    }
    for expected in [
        ("app", EntryType::Directory, 0o755),
        ("app/run", EntryType::Regular, 0o755),
        ("bin/again", EntryType::Symlink, 0o777),
        ("tmp", EntryType::Directory, 0o1777),
    ] {
        let (name, kind, mode) = expected;
        assert!(
            seen.contains(&(name.to_owned(), kind, mode)),
            "{name} is not in {seen:?}"
        );
    }
    let place = |wanted: &str| seen.iter().position(|(name, ..)| name == wanted);
    assert!(place("app") < place("app/run"));
}

#[test]
fn the_same_image_gives_the_same_bytes() {
    assert_eq!(written(&sample()).0, written(&sample()).0);
    assert_ne!(written(&sample()).0, written(&sample().cmd(["--slow"])).0);
}

/// The output of a build: three programs, with times and permission bits that differ between
/// builds.
fn built(content: &str, age: Duration, mode: u32) -> (tempfile::TempDir, Programs) {
    let target = tempfile::tempdir().unwrap();
    let programs = Programs::release(target.path());
    for path in [
        &programs.control_plane,
        &programs.node_daemon,
        &programs.pod_agent,
    ] {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let name = path.file_name().unwrap().display();
        std::fs::write(path, format!("{content} of {name}")).unwrap();
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    }
    (target, programs)
}

#[test]
fn the_same_binaries_give_the_same_archives() {
    let archives = |programs: &Programs| {
        [control_plane(programs), node_daemon(programs)].map(|image| written(&image.unwrap()).0)
    };
    let (_first, first) = built("code", Duration::from_secs(86_400), 0o755);
    let (_again, again) = built("code", Duration::ZERO, 0o775);
    assert_eq!(archives(&first), archives(&again));
    let (_changed, changed) = built("other code", Duration::ZERO, 0o755);
    for (before, after) in archives(&first).iter().zip(archives(&changed)) {
        assert_ne!(*before, after);
    }
    assert_eq!(sboms().unwrap(), sboms().unwrap());
}

#[test]
fn the_control_plane_does_not_run_as_root() {
    let (_target, programs) = built("code", Duration::ZERO, 0o755);
    assert_eq!(
        control_plane(&programs).unwrap().user.as_deref(),
        Some("65532:65532")
    );
}

#[test]
fn an_image_without_a_command_says_nothing_about_one() {
    let (_, files) = written(&Image::new("localhost/empty:1"));
    let index: Value = serde_json::from_slice(&files["index.json"]).unwrap();
    let manifest: Value = serde_json::from_slice(&follow(&files, &index["manifests"][0])).unwrap();
    let config: Value = serde_json::from_slice(&follow(&files, &manifest["config"])).unwrap();
    assert_eq!(config["config"], json!({}));
}

#[test]
fn a_missing_file_is_named() {
    let error = Image::new("localhost/x:1")
        .file("/x", "/no/such/file")
        .unwrap_err();
    assert!(error.to_string().contains("/no/such/file"), "{error}");
}

#[test]
fn busybox_has_a_shell() {
    let image = busybox().unwrap();
    for command in ["sh", "sleep", "kill", "nslookup"] {
        assert!(
            image.files.contains_key(&Path::new("/bin").join(command)),
            "{command}"
        );
    }
}

#[test]
fn the_loader_and_the_libraries_that_it_names_are_found() {
    let printed = "/usr/bin/python3.11:\n\
                   \tlinux-vdso.so.1 (0x00007ffd)\n\
                   \tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f)\n\
                   \tlibnone.so.1 => not found\n\
                   \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
    let expected = ["/lib/x86_64-linux-gnu/libz.so.1", "/lib64/ld-linux-x86-64.so.2"];
    assert_eq!(parse_ldd(printed), expected.map(PathBuf::from).into());
}
