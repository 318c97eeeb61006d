//! The admission webhooks, and how the API server reaches them.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{RuleWithOperations, WebhookClientConfig};
use kube::ResourceExt as _;

use super::{Observed, Report, control_plane};

/// Names of the webhook configurations, as in upstream.
const MUTATING: &str = "jobset-mutating-webhook-configuration";
const VALIDATING: &str = "jobset-validating-webhook-configuration";

/// One webhook of a configuration.
struct Webhook<'s> {
    configuration: String,
    name: &'s str,
    client: &'s WebhookClientConfig,
    rules: &'s [RuleWithOperations],
}

impl Webhook<'_> {
    fn is_about_jobsets(&self) -> bool {
        self.rules.iter().any(|rule| {
            let groups = rule.api_groups.as_deref().unwrap_or_default();
            groups.iter().any(|group| group == "jobset.x-k8s.io")
        })
    }
}

pub(super) fn check(seen: &Observed, report: &mut Report) {
    report.section("webhooks");
    let (Some(mutating), Some(validating)) = (
        report.fetched("MutatingWebhookConfigurations", &seen.mutating),
        report.fetched("ValidatingWebhookConfigurations", &seen.validating),
    ) else {
        return;
    };
    let mut all: Vec<Webhook<'_>> = Vec::new();
    for configuration in mutating {
        for webhook in configuration.webhooks.iter().flatten() {
            all.push(Webhook {
                configuration: configuration.name_any(),
                name: &webhook.name,
                client: &webhook.client_config,
                rules: webhook.rules.as_deref().unwrap_or_default(),
            });
        }
    }
    for configuration in validating {
        for webhook in configuration.webhooks.iter().flatten() {
            all.push(Webhook {
                configuration: configuration.name_any(),
                name: &webhook.name,
                client: &webhook.client_config,
                rules: webhook.rules.as_deref().unwrap_or_default(),
            });
        }
    }
    let (ours, others): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|webhook| [MUTATING, VALIDATING].contains(&webhook.configuration.as_str()));
    for name in [MUTATING, VALIDATING] {
        let webhooks: Vec<&Webhook<'_>> = ours.iter().filter(|it| it.configuration == name).collect();
        if webhooks.is_empty() {
            report.warning(
                format!("{name} does not exist"),
                "only the controller finds mistakes in JobSets then: set webhook.enable=true in the chart",
            );
        } else {
            configuration(seen, report, name, &webhooks);
        }
    }
    let foreign: BTreeSet<String> = others
        .iter()
        .filter(|webhook| webhook.is_about_jobsets())
        .map(|webhook| format!("{} ({})", webhook.configuration, webhook.name))
        .collect();
    for webhook in foreign {
        report.warning(
            format!("another webhook is called for JobSets: {webhook}"),
            "if it is left from upstream's controller, delete it; a policy of your own is fine",
        );
    }
}

/// What to do about webhooks of another namespace. They are Lockstep's if its control plane is
/// there.
fn other(seen: &Observed, namespace: &str) -> String {
    let deployments = seen.deployments.iter().flatten();
    let is_lockstep = deployments
        .filter(|it| it.name_any() == control_plane::NAME)
        .any(|it| it.namespace().as_deref() == Some(namespace));
    if is_lockstep {
        format!("Lockstep is in {namespace}, and needs it: give --system-namespace {namespace}")
    } else {
        "it is left from another controller: delete it, then run helm upgrade lockstep".to_owned()
    }
}

/// Checks that the Services of a configuration's webhooks exist and that its CAs are valid.
fn configuration(seen: &Observed, report: &mut Report, name: &str, webhooks: &[&Webhook<'_>]) {
    let mut bad = false;
    for (namespace, service) in webhooks
        .iter()
        .filter_map(|it| service(it.client))
        .collect::<BTreeSet<_>>()
    {
        let is_missing = seen.services.as_ref().is_ok_and(|services| {
            !services
                .iter()
                .any(|it| it.name_any() == service && it.namespace().as_deref() == Some(namespace))
        });
        if namespace != seen.namespace {
            bad = true;
            report.error(
                format!(
                    "{name} leads to Service {namespace}/{service}, not to Lockstep in {}",
                    seen.namespace
                ),
                other(seen, namespace),
            );
        } else if is_missing {
            bad = true;
            report.error(
                format!("{name} leads to Service {namespace}/{service}, which does not exist"),
                "no JobSet can be created until it does: helm upgrade lockstep, or delete the configuration",
            );
        }
    }
    if bad {
        return;
    }
    let bundles: BTreeSet<&[u8]> = webhooks
        .iter()
        .map(|webhook| {
            webhook
                .client
                .ca_bundle
                .as_ref()
                .map_or(&[][..], |bundle| &bundle.0)
        })
        .collect();
    for bundle in bundles {
        let hint = "the control plane or cert-manager writes it: see its log; no JobSet can be created until it does";
        if bundle.is_empty() {
            report.error(format!("{name} has no CA"), hint);
        } else {
            control_plane::certificate(report, &format!("the CA in {name}"), bundle, seen.now, hint);
        }
    }
}

fn service(client: &WebhookClientConfig) -> Option<(&str, &str)> {
    let service = client.service.as_ref()?;
    Some((&service.namespace, &service.name))
}
