//! Certificates, tokens and kubeconfig files of one instance.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use super::network::{API_SERVICE, MAX_NODES};
use super::{ClusterError, node_name};

/// Users of the API server, each with its own token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum User {
    /// `system:masters`.
    Admin,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
    /// kube-proxy, on every node.
    Proxy,
    /// The kubelet of a node, counted from 1.
    Kubelet(u8),
}

impl User {
    /// Every user of an instance, including nodes that may be added later: the API server reads the
    /// tokens only once.
    fn all() -> impl Iterator<Item = Self> {
        [Self::Admin, Self::ControllerManager, Self::Scheduler, Self::Proxy]
            .into_iter()
            .chain((1..=MAX_NODES).map(Self::Kubelet))
    }

    fn name(&self) -> String {
        match self {
            Self::Admin => "admin".to_owned(),
            Self::ControllerManager => "system:kube-controller-manager".to_owned(),
            Self::Scheduler => "system:kube-scheduler".to_owned(),
            Self::Proxy => "system:kube-proxy".to_owned(),
            Self::Kubelet(index) => format!("system:node:{}", node_name(*index)),
        }
    }

    fn group(&self) -> &'static str {
        match self {
            // A ServiceAccount for every controller would delay the start by 4 s.
            Self::Admin | Self::ControllerManager => "system:masters",
            Self::Kubelet(_) => "system:nodes",
            _ => "system:authenticated",
        }
    }

    fn file(&self) -> String {
        match self {
            Self::Admin => "admin".to_owned(),
            Self::ControllerManager => "controller-manager".to_owned(),
            Self::Scheduler => "scheduler".to_owned(),
            Self::Proxy => "proxy".to_owned(),
            Self::Kubelet(index) => format!("kubelet-{index}"),
        }
    }
}

/// The folder with an instance's keys.
#[derive(Debug, Clone)]
pub(super) struct Pki {
    dir: PathBuf,
}

impl Pki {
    /// The keys of the instance in `state_dir`.
    pub(super) fn of(state_dir: &Path) -> Self {
        Self {
            dir: state_dir.join("pki"),
        }
    }

    /// Creates new keys for an API server at `address`:`port`.
    pub(super) fn create(&self, address: Ipv4Addr, port: u16) -> Result<(), ClusterError> {
        fs::create_dir_all(&self.dir).map_err(ClusterError::io(&self.dir))?;
        let (ca, ca_pem) = authority()?;
        self.write("ca.crt", &ca_pem)?;

        let mut serving = CertificateParams::new(vec![
            "localhost".to_owned(),
            "kubernetes".to_owned(),
            "kubernetes.default.svc".to_owned(),
            "kubernetes.default.svc.cluster.local".to_owned(),
        ])?;
        for ip in [address, Ipv4Addr::LOCALHOST, API_SERVICE] {
            serving
                .subject_alt_names
                .push(rcgen::SanType::IpAddress(IpAddr::V4(ip)));
        }
        self.issue(
            "apiserver",
            serving,
            "kube-apiserver",
            None,
            ExtendedKeyUsagePurpose::ServerAuth,
            &ca,
        )?;
        self.issue(
            "kubelet-client",
            CertificateParams::default(),
            "kube-apiserver-kubelet-client",
            Some("system:masters"),
            ExtendedKeyUsagePurpose::ClientAuth,
            &ca,
        )?;

        let accounts = KeyPair::generate()?;
        self.write("sa.key", &accounts.serialize_pem())?;
        self.write("sa.pub", &accounts.public_key_pem())?;

        let mut tokens = String::new();
        for user in User::all() {
            let token = format!("{:032x}", rand::random::<u128>());
            let name = user.name();
            // Writing to a String cannot fail.
            writeln!(tokens, "{token},{name},{name},{}", user.group()).ok();
            let config = kubeconfig(&format!("https://{address}:{port}"), &ca_pem, &token);
            self.write(&format!("{}.kubeconfig", user.file()), &config)?;
        }
        self.write("tokens.csv", &tokens)
    }

    /// The path of a file, such as `ca.crt`.
    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// The kubeconfig of a user.
    pub(super) fn kubeconfig(&self, user: &User) -> PathBuf {
        self.path(&format!("{}.kubeconfig", user.file()))
    }

    fn issue(
        &self,
        file: &str,
        mut params: CertificateParams,
        name: &str,
        organization: Option<&str>,
        usage: ExtendedKeyUsagePurpose,
        ca: &Issuer<'_, KeyPair>,
    ) -> Result<(), ClusterError> {
        params.distinguished_name.push(DnType::CommonName, name);
        if let Some(organization) = organization {
            params
                .distinguished_name
                .push(DnType::OrganizationName, organization);
        }
        params.extended_key_usages.push(usage);
        params.key_usages.push(KeyUsagePurpose::DigitalSignature);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, ca)?;
        self.write(&format!("{file}.crt"), &certificate.pem())?;
        self.write(&format!("{file}.key"), &key.serialize_pem())
    }

    fn write(&self, file: &str, text: &str) -> Result<(), ClusterError> {
        let path = self.path(file);
        fs::write(&path, text).map_err(ClusterError::io(&path))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(ClusterError::io(&path))
    }
}

fn authority() -> Result<(Issuer<'static, KeyPair>, String), ClusterError> {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "lockstep-testbed-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let key = KeyPair::generate()?;
    let pem = params.self_signed(&key)?.pem();
    Ok((Issuer::new(params, key), pem))
}

fn kubeconfig(server: &str, ca_pem: &str, token: &str) -> String {
    let ca = STANDARD.encode(ca_pem);
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters: [{{name: testbed, cluster: {{server: \"{server}\", certificate-authority-data: {ca}}}}}]\n\
         users: [{{name: user, user: {{token: \"{token}\"}}}}]\n\
         contexts: [{{name: testbed, context: {{cluster: testbed, user: user}}}}]\n\
         current-context: testbed\n"
    )
}
