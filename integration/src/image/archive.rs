//! Writes the OCI archive of an image.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use super::{Entry, Image, ImageError, io as at};

const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Writes the archive to a file beside `path`, then renames it. Returns the manifest's digest.
pub(super) fn write(image: &Image, path: &Path) -> Result<String, ImageError> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let scratch = tempfile::NamedTempFile::new_in(dir).map_err(at(dir))?;
    let layer = Layer::of(image, dir)?;

    let config = to_bytes(&json!({
        "architecture": architecture(),
        "os": "linux",
        "config": runtime_config(image),
        "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
    }));
    let manifest = to_bytes(&json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor(CONFIG, &config),
        "layers": [{"mediaType": LAYER, "digest": layer.digest, "size": layer.size}],
    }));
    let mut entry = descriptor(MANIFEST, &manifest);
    entry["annotations"] = json!({
        "io.containerd.image.name": image.name,
        "org.opencontainers.image.ref.name": image.name,
    });
    let index = to_bytes(&json!({"schemaVersion": 2, "manifests": [entry]}));

    let mut archive = Builder::new(BufWriter::new(scratch.as_file()));
    let mut put = |name: &str, size: u64, content: &mut dyn Read| {
        archive
            .append_data(&mut header(EntryType::Regular, 0o644, size), name, content)
            .map_err(at(path))
    };
    let layout = br#"{"imageLayoutVersion":"1.0.0"}"#;
    for (name, content) in [
        ("oci-layout".to_owned(), layout.as_slice()),
        ("index.json".to_owned(), &index),
        (blob(&digest(&manifest)), &manifest),
        (blob(&digest(&config)), &config),
    ] {
        put(&name, content.len() as u64, &mut &*content)?;
    }
    put(&blob(&layer.digest), layer.size, &mut BufReader::new(&layer.file))?;
    archive
        .into_inner()
        .and_then(|mut inner| inner.flush())
        .map_err(at(path))?;
    scratch.persist(path).map_err(|error| at(path)(error.error))?;
    Ok(digest(&manifest))
}

/// The file system layer, in a temporary file.
struct Layer {
    file: File,
    digest: String,
    size: u64,
}

impl Layer {
    fn of(image: &Image, scratch_dir: &Path) -> Result<Self, ImageError> {
        let file = tempfile::tempfile_in(scratch_dir).map_err(at(scratch_dir))?;
        let writer = Hashing {
            inner: BufWriter::new(file),
            hash: Sha256::new(),
            size: 0,
        };
        let mut layer = Builder::new(writer);
        for (path, entry) in with_parents(&image.files) {
            append(&mut layer, &path, &entry, image.dated).map_err(|error| match &entry {
                Entry::File { source, .. } => at(source)(error),
                _ => at(&path)(error),
            })?;
        }
        let Hashing { inner, hash, size } = layer.into_inner().map_err(at(scratch_dir))?;
        let mut file = inner
            .into_inner()
            .map_err(|error| at(scratch_dir)(error.into_error()))?;
        file.rewind().map_err(at(scratch_dir))?;
        Ok(Self {
            file,
            digest: format!("sha256:{}", hex(&hash.finalize())),
            size,
        })
    }
}

/// All entries and their parent folders, parents first.
fn with_parents(files: &BTreeMap<PathBuf, Entry>) -> BTreeMap<PathBuf, Entry> {
    let mut all = BTreeMap::new();
    for (path, entry) in files {
        for parent in path
            .ancestors()
            .skip(1)
            .filter(|parent| parent.parent().is_some())
        {
            all.entry(parent.to_owned()).or_insert(Entry::Dir(0o755));
        }
        all.insert(path.clone(), entry.clone());
    }
    all
}

fn append(layer: &mut Builder<impl Write>, path: &Path, entry: &Entry, dated: bool) -> io::Result<()> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    match entry {
        Entry::Dir(mode) => {
            layer.append_data(&mut header(EntryType::Directory, *mode, 0), relative, io::empty())
        }
        Entry::Symlink(target) => {
            layer.append_link(&mut header(EntryType::Symlink, 0o777, 0), relative, target)
        }
        Entry::Bytes { data, mode } => {
            let mut header = header(EntryType::Regular, *mode, data.len() as u64);
            layer.append_data(&mut header, relative, data.as_slice())
        }
        Entry::File { source, mode } => {
            let metadata = fs::metadata(source)?;
            let size = metadata.len();
            let mut header = header(EntryType::Regular, *mode, size);
            if dated {
                header.set_mtime(metadata.mtime().cast_unsigned());
            }
            // A file that grows during the copy must not break the archive.
            layer.append_data(&mut header, relative, File::open(source)?.take(size))
        }
    }
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// The part of the configuration about how a container is run.
fn runtime_config(image: &Image) -> Value {
    let mut config = json!({});
    for (key, list) in [
        ("Entrypoint", &image.entrypoint),
        ("Cmd", &image.cmd),
        ("Env", &image.env),
    ] {
        if !list.is_empty() {
            config[key] = json!(list);
        }
    }
    for (key, text) in [("WorkingDir", &image.workdir), ("User", &image.user)] {
        if let Some(text) = text {
            config[key] = json!(text);
        }
    }
    config
}

fn descriptor(media_type: &str, content: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": digest(content), "size": content.len()})
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn to_bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn blob(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}

fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(content)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Counts and hashes bytes on their way to a writer.
struct Hashing<W> {
    inner: W,
    hash: Sha256,
    size: u64,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(bytes.get(..written).unwrap_or(bytes));
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
