//! The kind VirtualNetwork in `deploy/` is the one that the programs know.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::path::Path;

use api::ipam_claim;
use api::virtual_network::{
    self, Ipam, Lifecycle, Localnet, Reach, Scope, VirtualNetwork, VirtualNetworkSpec, VirtualNetworkStatus,
    condition,
};
use serde_json::{Value, json};

fn objects(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_saphyr::from_multiple(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn schema() -> Value {
    let kind = objects("virtual-network.yaml").remove(0);
    kind["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn its_names_are_those_of_the_programs() {
    let kind = objects("virtual-network.yaml").remove(0);
    assert_eq!(kind["metadata"]["name"], format!("{}.{}", virtual_network::PLURAL, virtual_network::GROUP));
    let spec = &kind["spec"];
    assert_eq!(
        (&spec["group"], &spec["names"]["plural"], &spec["names"]["kind"], &spec["versions"][0]["name"]),
        (
            &json!(virtual_network::GROUP),
            &json!(virtual_network::PLURAL),
            &json!(virtual_network::KIND),
            &json!(virtual_network::VERSION)
        )
    );
    assert_eq!(spec["versions"][0]["subresources"], json!({"status": {}}));
}

#[test]
fn the_names_of_claims_are_those_of_the_programs() {
    let kind = objects("ipam-claim.yaml").remove(0);
    assert_eq!(kind["metadata"]["name"], format!("{}.{}", ipam_claim::PLURAL, ipam_claim::GROUP));
    let (spec, version) = (&kind["spec"], &kind["spec"]["versions"][0]);
    assert_eq!(
        (&spec["names"]["kind"], &version["name"]),
        (&json!(ipam_claim::KIND), &json!(ipam_claim::VERSION))
    );
    assert_eq!(format!("{}/{}", ipam_claim::GROUP, ipam_claim::VERSION), ipam_claim::API_VERSION);
    let properties = &version["schema"]["openAPIV3Schema"]["properties"];
    for field in ["network", "interface", "ipRequests"] {
        assert!(properties["spec"]["properties"][field].is_object(), "{field}");
    }
    assert_eq!(properties["status"]["required"], json!(["ips", "ownerPod"]), "both are written");
}

#[test]
fn its_fields_are_those_that_are_read() {
    let whole = VirtualNetworkSpec {
        subnets: vec!["172.16.24.0/24".to_owned()],
        gateways: vec!["172.16.24.1".to_owned()],
        excluded_ranges: vec!["172.16.24.9".to_owned()],
        localnet: Some(Localnet { physical_network: "dc".to_owned(), vlan: Some(100) }),
        peers: vec!["shop/red".to_owned()],
        mtu: Some(1300),
        mac_prefix: Some("0a:11".to_owned()),
        ipam: Some(Ipam::PERSISTENT),
        ..VirtualNetworkSpec::default()
    };
    let schema = schema();
    let fields = &schema["properties"]["spec"]["properties"];
    assert_eq!(keys(fields), keys(&serde_json::to_value(&whole).unwrap()));
    let reaches = [Reach::Isolated, Reach::ClusterRouter, Reach::Outside, Reach::Localnet];
    assert_eq!(fields["reach"]["enum"], serde_json::to_value(reaches).unwrap());
    assert_eq!(fields["reach"]["default"], serde_json::to_value(whole.reach).unwrap());
    assert_eq!(fields["scope"]["enum"], serde_json::to_value([Scope::Namespace, Scope::Cluster]).unwrap());
    assert_eq!(fields["scope"]["default"], serde_json::to_value(whole.scope).unwrap());
    let lifecycle = &fields["ipam"]["properties"]["lifecycle"]["enum"];
    assert_eq!(*lifecycle, serde_json::to_value([Lifecycle::Persistent]).unwrap());
    let localnet = serde_json::to_value(whole.localnet.as_ref().unwrap()).unwrap();
    assert_eq!(keys(&fields["localnet"]["properties"]), keys(&localnet));
    let vlan = &fields["localnet"]["properties"]["vlan"];
    assert_eq!((&vlan["minimum"], &vlan["maximum"]), (&json!(1), &json!(4094)));
    for fixed in ["scope", "subnets", "reach", "localnet"] {
        assert_eq!(fields[fixed]["x-kubernetes-validations"][0]["rule"], "self == oldSelf", "{fixed}");
    }
    let status = VirtualNetworkStatus {
        conditions: vec![virtual_network::Condition::default()],
        observed_generation: Some(1),
        ..VirtualNetworkStatus::default()
    };
    let status = serde_json::to_value(&status).unwrap();
    let known = &schema["properties"]["status"]["properties"];
    assert_eq!(keys(known), keys(&status));
    assert_eq!(keys(&known["conditions"]["items"]["properties"]), keys(&status["conditions"][0]));
    let told = known["conditions"]["description"].as_str().unwrap();
    assert!(
        [condition::READY, condition::CONFLICT, condition::IN_USE, condition::PEERS]
            .iter()
            .all(|kind| told.contains(kind))
    );
}

#[test]
fn the_examples_can_be_had() {
    let limits = virtual_network::Limits {
        own: Vec::new(),
        node_prefixes: vec![(api::addr::Family::V4, 24)],
        mtu: 1400,
    };
    let examples = objects("examples/60-virtual-network.yaml");
    assert!(!examples.is_empty());
    for object in examples {
        assert_eq!(object["apiVersion"], virtual_network::API_VERSION);
        let network: VirtualNetwork = serde_json::from_value(object).unwrap();
        network.read_spec().unwrap().check(&limits).unwrap();
    }
}

#[test]
fn the_controller_may_read_and_write_them() {
    let roles = objects("rbac.yaml");
    let controller =
        |role: &&Value| role["kind"] == "ClusterRole" && role["metadata"]["name"] == "slipstream-controller";
    let rules = roles.iter().find(controller).unwrap()["rules"].as_array().unwrap().clone();
    let may = |resource: &str, verb: &str| {
        let has = |list: &Value, word: &str| list.as_array().unwrap().iter().any(|one| one == word);
        rules.iter().any(|rule| {
            has(&rule["apiGroups"], virtual_network::GROUP)
                && has(&rule["resources"], resource)
                && has(&rule["verbs"], verb)
        })
    };
    for verb in ["get", "list", "watch", "patch"] {
        assert!(may(virtual_network::PLURAL, verb), "{verb}");
    }
    assert!(may("virtualnetworks/status", "patch"));
}
