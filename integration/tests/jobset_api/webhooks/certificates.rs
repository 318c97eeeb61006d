//! The certificates of the webhooks, and the CA that the API server trusts.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use lockstep_integration::harness::eventually;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::json;

use super::setup::{self, MUTATING, VALIDATING};
use crate::scene::{PATIENCE, Scene};

pub(super) const SECRET: &str = "jobset-webhook-server-cert";

/// Writes a certificate of this machine and its key to `dir`. Returns the certificate of the CA
/// that signed it.
fn certify(dir: &Path) -> Result<String> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key)?.pem();
    let issuer = Issuer::from_params(&params, key);
    let key = KeyPair::generate()?;
    let cert = CertificateParams::new(vec!["127.0.0.1".to_owned()])?.signed_by(&key, &issuer)?;
    std::fs::write(dir.join("tls.crt"), cert.pem())?;
    std::fs::write(dir.join("tls.key"), key.serialize_pem())?;
    Ok(ca)
}

pub(super) async fn files_that_somebody_else_keeps_are_served_by_a_replica_that_does_not_lead(
    scene: Scene,
) -> Result<()> {
    let client = &scene.namespace.access.client;
    let dir = scene.control_plane().dir().join("webhook-certificates");
    std::fs::create_dir_all(&dir)?;
    let first_ca = certify(&dir)?;
    let dir_flag = [
        "--webhook-cert-dir",
        dir.to_str().context("a path that is not text")?,
    ];
    let replica = scene.control_plane().replica("second", &dir_flag)?;
    replica.start().await?;
    replica.until_ready().await?;

    let manifests = setup::configurations(&scene, "-files", "files", replica.webhook_port(), &[]).await?;
    for mut manifest in manifests {
        for webhook in manifest["webhooks"].as_array_mut().context("no webhooks")? {
            webhook["clientConfig"]["caBundle"] = json!(BASE64_STANDARD.encode(&first_ca));
        }
        setup::create(client, manifest).await?;
    }
    setup::switch(&scene, "files").await?;
    setup::until_served(&scene).await?;

    // The server takes a new pair by another CA without a restart.
    let second_ca = certify(&dir)?;
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let names = [format!("{MUTATING}-files"), format!("{VALIDATING}-files")];
    let mut webhooks = mutating.get(&names[0]).await?.webhooks.unwrap_or_default();
    for webhook in &mut webhooks {
        webhook.client_config.ca_bundle = Some(k8s_openapi::ByteString(second_ca.clone().into_bytes()));
    }
    let trusting = json!({"webhooks": webhooks});
    mutating
        .patch(&names[0], &PatchParams::default(), &Patch::Merge(trusting))
        .await?;
    let mut webhooks = validating.get(&names[1]).await?.webhooks.unwrap_or_default();
    for webhook in &mut webhooks {
        webhook.client_config.ca_bundle = Some(k8s_openapi::ByteString(second_ca.clone().into_bytes()));
    }
    let trusting = json!({"webhooks": webhooks});
    validating
        .patch(&names[1], &PatchParams::default(), &Patch::Merge(trusting))
        .await?;
    setup::until_served(&scene).await?;

    mutating.delete(&names[0], &DeleteParams::default()).await?;
    validating.delete(&names[1], &DeleteParams::default()).await?;
    ensure!(replica.stop().await?.success(), "{}", replica.log());
    Ok(())
}

pub(super) async fn what_the_api_server_must_trust_is_put_back_and_a_lost_secret_made_anew(
    scene: Scene,
) -> Result<()> {
    setup::enable(&scene).await?;
    let client = scene.namespace.access.client.clone();
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let bundles = async || {
        let webhooks = mutating.get(MUTATING).await?.webhooks.unwrap_or_default();
        let bundles = webhooks
            .into_iter()
            .map(|webhook| webhook.client_config.ca_bundle);
        anyhow::Ok(bundles.collect::<Vec<_>>())
    };
    let before = bundles().await?;
    ensure!(
        before.len() == 3 && before.iter().all(Option::is_some),
        "{before:?}"
    );

    let mut webhooks = mutating.get(MUTATING).await?.webhooks.unwrap_or_default();
    webhooks[0].client_config.ca_bundle = None;
    let without = json!({"webhooks": webhooks});
    mutating
        .patch(MUTATING, &PatchParams::default(), &Patch::Merge(without))
        .await?;
    eventually("the CA is put back", PATIENCE, async || {
        ensure!(bundles().await? == before, "it is not");
        Ok(())
    })
    .await?;

    let secrets: Api<Secret> = Api::namespaced(client, "lockstep-system");
    secrets.delete(SECRET, &DeleteParams::default()).await?;
    eventually("there is a new CA", PATIENCE, async || {
        let after = bundles().await?;
        ensure!(
            after.iter().all(|ca| ca.is_some() && *ca != before[0]),
            "there is not"
        );
        let secret = secrets.get(SECRET).await?.data.unwrap_or_default();
        ensure!(secret.get("ca.crt") == after[0].as_ref());
        Ok(())
    })
    .await?;
    setup::until_served(&scene).await?;

    // The next process uses the existing certificates.
    let kept = bundles().await?;
    scene.control_plane().kill().await?;
    scene.control_plane().start().await?;
    scene.control_plane().until_ready().await?;
    setup::until_served(&scene).await?;
    ensure!(bundles().await? == kept, "a new CA without need");
    Ok(())
}
