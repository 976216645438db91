use clap::Parser;

use super::*;

/// A command line of its own, as the whole program's has more.
#[derive(Debug, Parser)]
struct Whole {
    #[command(flatten)]
    args: Args,
}

fn parse(words: &[&str]) -> Result<Args, String> {
    let whole = Whole::try_parse_from([&["network"], words].concat());
    whole.map(|whole| whole.args).map_err(|error| error.to_string())
}

/// A network as kubectl prints it; `ready` is the status of its condition.
fn object(generation: i64, observed: i64, ready: &str, message: &str) -> Value {
    json!({"metadata": {"namespace": "shop", "name": "blue", "generation": generation},
        "spec": {"scope": "Cluster", "reach": "Outside", "subnets": ["172.16.24.0/24"]},
        "status": {"observedGeneration": observed, "addressesUsed": 2, "addressesFree": 251, "conditions": [
            {"type": "Ready", "status": ready, "message": message},
            {"type": "Conflict", "status": "False", "message": "nobody else has it"},
            {"type": "InUse", "status": "True", "message": "pods that are attached to it: 2"}]}})
}

/// A kubectl that prints an object for `get`, and writes what it is told to a file.
struct Fake {
    dir: tempfile::TempDir,
}

impl Fake {
    fn new(object: &Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("object"), object.to_string()).unwrap();
        let script = format!(
            "echo \"$@\" >> {log}\nif [ \"$1\" = get ]; then cat {object}; fi\nif [ \"$1\" = create ]; then cat >> {log}; fi\n",
            log = at("log").display(),
            object = at("object").display()
        );
        std::fs::write(at("kubectl"), script).unwrap();
        Self { dir }
    }

    fn run(&self, words: &[&str]) -> Result<Answer, String> {
        // By a shell of its own: a file that was just written may not be executed while another thread starts a program.
        let kubectl = format!("sh {}", self.dir.path().join("kubectl").display());
        let args = parse(&[words, &["--kubectl", &kubectl]].concat())?;
        run(&args).map_err(|error| error.to_string())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

#[test]
fn the_controllers_word_counts_once_it_has_seen_the_fields() {
    assert_eq!(verdict(&object(2, 1, "True", "")), None);
    assert_eq!(verdict(&object(2, 2, "True", "")), Some(Ok(())));
    assert_eq!(verdict(&object(2, 2, "False", "overlaps")), Some(Err("overlaps".to_owned())));
    assert_eq!(verdict(&json!({"metadata": {"generation": 1}})), None);
}

#[test]
fn a_network_is_made_from_flags_and_shown() {
    let fake = Fake::new(&object(1, 1, "True", "pods may attach to it"));
    let words = [
        "create",
        "shop/blue",
        "--subnet",
        "172.16.24.0/24,fd00:24::/64",
        "--reach",
        "outside",
        "--scope",
        "Cluster",
    ];
    let answer = fake.run(&words).unwrap();
    assert!(
        answer.text.contains("Network     shop/blue\n") && answer.text.contains("yes: pods may attach to it"),
        "{}",
        answer.text
    );
    let log = fake.log();
    assert!(log.starts_with("create -f -\n"), "{log}");
    assert!(
        log.contains(
            r#""spec":{"reach":"Outside","scope":"Cluster","subnets":["172.16.24.0/24","fd00:24::/64"]}"#
        ),
        "{log}"
    );
    assert!(!log.contains("delete"), "{log}");
}

#[test]
fn a_network_on_a_vlan_is_made_from_flags_and_a_vlan_needs_its_physical_network() {
    let mut made = object(1, 1, "True", "pods may attach to it");
    made["spec"]["reach"] = "Localnet".into();
    made["spec"]["localnet"] = json!({"physicalNetwork": "dc", "vlan": 100});
    let fake = Fake::new(&made);
    let words = ["create", "shop/blue", "--subnet", "172.16.24.0/24", "--reach", "localnet", "--vlan", "100"];
    assert!(fake.run(&words).unwrap_err().contains("--physical-network"));
    let answer = fake.run(&[words.as_slice(), &["--physical-network", "dc"]].concat()).unwrap();
    assert!(answer.text.contains("Localnet: VLAN 100 of physical network dc\n"), "{}", answer.text);
    let log = fake.log();
    assert!(log.contains(r#""localnet":{"physicalNetwork":"dc","vlan":100}"#), "{log}");
}

#[test]
fn what_the_controller_refuses_is_removed_again() {
    let fake = Fake::new(&object(1, 1, "False", "spec.subnets[0]: 172.16.24.0/24 overlaps something"));
    let error = fake.run(&["create", "shop/blue", "--subnet", "172.16.24.0/24"]).unwrap_err();
    assert_eq!(
        error,
        "virtual network shop/blue: spec.subnets[0]: 172.16.24.0/24 overlaps something; it is removed again"
    );
    assert!(
        fake.log().contains("delete virtualnetworks.slipstream.dev --namespace shop blue --wait=false"),
        "{}",
        fake.log()
    );
}

#[test]
fn the_form_before_is_converted() {
    let fake = Fake::new(&object(1, 1, "True", ""));
    let config = r#"{ "cnitype" : "ovn", "name": " ovn-ls-24", "subnet": " 172.16.24.0/24", "gateway": " 172.16.24.1" }"#;
    fake.run(&["create", "shop/ovn-ls-24", "--config", config]).unwrap();
    let log = fake.log();
    assert!(log.contains(r#""gateways":["172.16.24.1"],"reach":"Outside","scope":"Cluster""#), "{log}");
    let error = fake.run(&["create", "shop/other", "--config", config]).unwrap_err();
    assert!(error.contains("both must be the same"), "{error}");
}

#[test]
fn a_change_is_a_patch_of_what_may_change() {
    let fake = Fake::new(&object(1, 1, "True", ""));
    fake.run(&["update", "shop/blue", "--mtu", "1300", "--exclude", "172.16.24.9,172.16.24.128/25"]).unwrap();
    assert!(
        fake.log().contains(r#"{"spec":{"excludedRanges":["172.16.24.9","172.16.24.128/25"],"mtu":1300}}"#),
        "{}",
        fake.log()
    );
    fake.run(&["update", "shop/blue", "--exclude", "none"]).unwrap();
    assert!(fake.log().contains(r#"{"spec":{"excludedRanges":null}}"#), "{}", fake.log());
    fake.run(&["update", "shop/blue", "--peer", "other/red"]).unwrap();
    assert!(fake.log().contains(r#"{"spec":{"peers":["other/red"]}}"#), "{}", fake.log());
    fake.run(&["update", "shop/blue", "--peer", "none"]).unwrap();
    assert!(fake.log().contains(r#"{"spec":{"peers":null}}"#), "{}", fake.log());
    fake.run(&["update", "shop/blue", "--persistent", "true"]).unwrap();
    assert!(fake.log().contains(r#"{"spec":{"ipam":{"lifecycle":"Persistent"}}}"#), "{}", fake.log());
    fake.run(&["update", "shop/blue", "--persistent", "false"]).unwrap();
    assert!(fake.log().contains(r#"{"spec":{"ipam":null}}"#), "{}", fake.log());
    assert!(
        fake.run(&["update", "shop/blue"])
            .unwrap_err()
            .contains("--mtu, --exclude, --peer or --persistent is needed")
    );
}

#[test]
fn a_network_in_use_says_why_it_stays() {
    let fake = Fake::new(&json!({ "items": [object(1, 1, "True", "")] }));
    let answer = fake.run(&["delete", "shop/blue"]).unwrap();
    assert_eq!(answer.text, "virtual network shop/blue is being deleted: pods that are attached to it: 2\n");
    let fake = Fake::new(&json!({ "items": [] }));
    assert_eq!(fake.run(&["delete", "shop/blue"]).unwrap().text, "virtual network shop/blue is deleted\n");
}

#[test]
fn networks_are_listed() {
    let fake = Fake::new(&json!({ "items": [object(1, 1, "True", ""), object(1, 1, "False", "")] }));
    let answer = fake.run(&["list"]).unwrap();
    assert_eq!(
        answer.text,
        "NETWORK    SCOPE    REACH    SUBNETS         READY  USED  FREE\n\
         shop/blue  Cluster  Outside  172.16.24.0/24  yes       2   251\n\
         shop/blue  Cluster  Outside  172.16.24.0/24  no        2   251\n"
    );
}

#[test]
fn wrong_words_are_refused_with_what_would_be_right() {
    for (words, right) in [
        (&["get", "blue"][..], "NAMESPACE/NAME"),
        (&["create", "shop/blue"], "--subnet"),
        (&["create", "shop/blue", "--subnet", "x", "--reach", "far"], "supported: Isolated, ClusterRouter"),
        (&["create", "shop/blue", "--subnet", "x", "--config", "{}"], "cannot be used with"),
    ] {
        let error = parse(words).unwrap_err();
        assert!(error.contains(right), "{words:?}: {error}");
    }
}
