//! The de-facto standard's annotation of further networks, and the definitions that it names.

use api::NamespacedName;
use api::ipam_claim::{self, Claim};
use api::multi_policy;
use api::network_attachment::Definition;
use api::pod_attachments::{MAX_INTERFACE_NAME, MAX_SELECTIONS, NetworkRef, SELECTIONS, selections};
use serde_json::{Value, json};

/// The annotation's value and the configuration of a definition, with a byte 0 between them.
pub fn network_attachments(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (annotation, config) = text.split_once('\0').unwrap_or((text, ""));
    claims_and_policies(annotation, config);
    let network = match Definition::read(&NamespacedName::new("shop", "blue"), &json!({ "config": config })) {
        Definition::Network(network) => {
            let again = json!({"type": "slipstream-cni", "network": network.to_string()}).to_string();
            let again = Definition::read(&NamespacedName::new("x", "y"), &json!({ "config": again }));
            assert_eq!(again, Definition::Network(network.clone()), "the name says all");
            network
        }
        Definition::Unusable(why) => {
            assert!(!why.is_empty() && why.chars().count() < 500, "{why}");
            return;
        }
        Definition::Foreign => NetworkRef { namespace: None, name: "blue".to_owned() },
    };
    match selections(annotation) {
        Ok(found) => {
            assert!(found.len() <= MAX_SELECTIONS);
            for one in &found {
                assert!(!one.definition.name.is_empty() && !one.interface.is_empty());
                match one.attachment(network.clone()) {
                    Ok(attachment) => {
                        assert!((1..=MAX_INTERFACE_NAME).contains(&attachment.interface.len()));
                        assert!(attachment.ips.len() <= 2 && attachment.gateways.len() <= 2);
                        assert_eq!(attachment.default_route, !attachment.gateways.is_empty());
                        assert!(
                            attachment.claim.is_none_or(|claim| !claim.is_empty() && !claim.contains('/'))
                        );
                        assert!(attachment.mac.is_none_or(|mac| mac.0[0] & 1 == 0));
                    }
                    Err(error) => told(&error),
                }
            }
        }
        Err(error) => told(&error),
    }
}

/// It fits into an Event.
fn told(error: &api::pod_attachments::RequestError) {
    assert!(error.key == SELECTIONS && !error.problem.is_empty());
    let length = error.to_string().chars().count();
    assert!(length < 1000, "{length} characters");
}

/// The same text as the names in a policy's annotation, and as an IPAMClaim.
fn claims_and_policies(annotation: &str, object: &str) {
    match multi_policy::networks(annotation) {
        Ok(named) => assert!((1..=MAX_SELECTIONS).contains(&named.len())),
        Err(error) => assert!(error.chars().count() < 1000, "{error}"),
    }
    let Ok(object) = serde_json::from_str::<Value>(object) else { return };
    match Claim::read(&object["spec"], &object["status"]) {
        Ok(claim) => {
            let again = json!({"network": claim.network.to_string(), "ipRequests": claim.requests});
            let status = json!({"ips": claim.ips, "ownerPod": claim.pod});
            assert_eq!(Claim::read(&again, &status), Ok(claim.clone()), "what is written says the same");
            assert!(claim.ips.len() <= 2 && claim.requests.len() <= 2);
        }
        Err(error) => assert!(!error.is_empty() && error.chars().count() < 1000, "{error}"),
    }
    let name = object["name"].as_str().unwrap_or("web-0");
    assert!(ipam_claim::name_of("web-0", name).len() <= 253);
}
