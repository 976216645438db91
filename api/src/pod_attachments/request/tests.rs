use proptest::prelude::*;

use super::*;

fn read(pairs: &[(&str, &str)]) -> Result<PodAttachments, RequestError> {
    parse(|key| pairs.iter().find(|(known, _)| *known == key).map(|(_, value)| *value))
}

fn request(value: &str) -> PodAttachments {
    read(&[(REQUEST, value)]).unwrap()
}

fn summary(found: &PodAttachments) -> Vec<String> {
    let one = |a: &Attachment| {
        let ips: Vec<_> = a.ips.iter().map(|ip| format!("{}/{:?}", ip.ip, ip.prefix_len)).collect();
        let mac = a.mac.map(|mac| mac.to_string()).unwrap_or_default();
        let gateway = a.gateways.iter().map(ToString::to_string).collect::<String>();
        format!("{} {} [{}] {mac} {gateway} {}", a.network, a.interface, ips.join(" "), a.default_route)
    };
    found.attachments.iter().map(one).collect()
}

#[test]
fn bare_objects_as_published_are_a_list() {
    let found = request(
        r#"{ "name": "ovn-ls-25", "interface": "net0" },
{ "name": "ovn-ls-26", "interface": "net1", "ip_address":"172.16.26.3", "mac_address":"0a:00:00:00:00:15" }"#,
    );
    assert_eq!(
        summary(&found),
        ["ovn-ls-25 net0 []   false", "ovn-ls-26 net1 [172.16.26.3/None] 0a:00:00:00:00:15  false"]
    );
}

#[test]
fn a_list_in_the_other_spelling_as_published() {
    let found = request(
        r#"[
{ "name": "ovn-ls-24", "interface": "net1", "ipAddress": "172.16.24.55", "macAddress": "0A:00:00:00:00:4E" },
{"name": "ovn-ls-24", "interface": "net2"}
]"#,
    );
    assert_eq!(
        summary(&found),
        ["ovn-ls-24 net1 [172.16.24.55/None] 0a:00:00:00:00:4e  false", "ovn-ls-24 net2 []   false"]
    );
}

const WHOLE: &str = r#"{
"ovnNetwork":[
{
"name":"ovn-ls-26",
"interface":"net0",
"defaultGateway":"true"
},
{
"name":"ovn-ls-24",
"interface":"net1",
"defaultGateway":"false",
"ip_address":"172.16.24.2/24",
"mac_address":"0a:00:00:00:00:1e",
"gateway_ip":"172.16.24.1"
}
],
"ovnNetworkRoutes":[
{
"dst":"172.16.29.1/24",
"gw":"172.16.24.1"
}
]
}"#;

#[test]
fn an_object_with_interfaces_and_routes_as_published() {
    let found = request(WHOLE);
    assert_eq!(
        summary(&found),
        [
            "ovn-ls-26 net0 []   true",
            "ovn-ls-24 net1 [172.16.24.2/Some(24)] 0a:00:00:00:00:1e 172.16.24.1 false"
        ]
    );
    let route = Route { dest: "172.16.29.0/24".parse().unwrap(), next_hop: "172.16.24.1".parse().unwrap() };
    assert_eq!(found.routes, [route]);
    assert_eq!(read(&[(NFN_REQUEST, WHOLE)]).unwrap(), found, "by the other key as well");
}

#[test]
fn routes_by_themselves_as_published() {
    let interfaces = r#"[{"name":"ovn-ls-24","interface":"net1"}]"#;
    let routes = r#"[{ "dst": "172.16.29.1/24", "gw": “172.16.24.1” }]"#;
    let found = read(&[(REQUEST, interfaces), (ROUTES, routes)]).unwrap();
    assert_eq!(found.routes.len(), 1);
    let error = read(&[(ROUTES, routes)]).unwrap_err();
    assert!(error.to_string().contains("the route to 172.16.29.0/24 has no interface"), "{error}");
}

#[test]
fn the_form_of_ovn4nfv_is_read() {
    let text = r#"{"type": "ovn4nfv", "interface": [{"name": "blue", "interface": "net0", "defaultGateway": false}]}"#;
    assert_eq!(summary(&read(&[(NFN_REQUEST, text)]).unwrap()), ["blue net0 []   false"]);
    let error = read(&[(NFN_REQUEST, &text.replace("ovn4nfv", "sriov"))]).unwrap_err();
    assert!(error.to_string().contains(r#"`type` is "sriov"; `ovn4nfv`"#), "{error}");
}

#[test]
fn nothing_asked_for_is_nothing() {
    assert!(read(&[]).unwrap().is_empty());
    assert!(request("[]").is_empty() && request(" ").is_empty());
}

#[test]
fn a_single_object_a_namespace_blanks_and_both_families() {
    let found = request(
        r#"{"name": " shop/blue ", "interface": " net7", "ip_address": "172.16.24.2, fd00:24::2/64", "mac_address": ""}"#,
    );
    assert_eq!(summary(&found), ["shop/blue net7 [172.16.24.2/None fd00:24::2/Some(64)]   false"]);
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let entry = |more: &str| format!(r#"[{{"name":"blue","interface":"net1"{more}}}]"#);
    let eleven: Vec<String> =
        (0..11).map(|at| format!(r#"{{"name":"blue","interface":"net{at}"}}"#)).collect();
    for (value, words) in [
        ("{".to_owned(), "it is not JSON"),
        ("7".to_owned(), "must be a list of interfaces"),
        ("[7]".to_owned(), "`[0]` is 7; must be an object"),
        ("{}".to_owned(), "there is no list `ovnNetwork`"),
        (r#"{"ovnNetwork":{}}"#.to_owned(), "`ovnNetwork`: must be one list"),
        (r#"{"ovnNetwork":[],"vlan":1}"#.to_owned(), "unknown field `vlan`"),
        (r#"{"ovnNetwork":[{"name":"blue"}]}"#.to_owned(), "`ovnNetwork[0].interface` is missing"),
        (r#"[{"interface":"net1"}]"#.to_owned(), "`[0].name` is missing"),
        (r#"[{"name":"a.b","interface":"net1"}]"#.to_owned(), "`[0].name`: `a.b` is no name of a network"),
        (entry(r#","vlan":"7""#), "unknown field `[0].vlan`; supported: name, interface"),
        (entry(r#","ip_address":7"#), "`[0].ip_address` is 7; must be a string"),
        (entry(r#","ip_address":"172.16.24.300""#), "`172.16.24.300` is no address"),
        (entry(r#","ip_address":"172.16.24.2,172.16.24.3""#), "two addresses of one family"),
        (entry(r#","ip_address":"1.2.3.4","ipAddress":"1.2.3.4""#), "both `ip_address` and `ipAddress`"),
        (entry(r#","mac_address":"0a:00""#), "`[0].mac_address`: `0a:00` is not a MAC address"),
        (entry(r#","mac_address":"01:00:00:00:00:01""#), "its first byte must be even"),
        (entry(r#","gateway_ip":"here""#), "`[0].gateway_ip`: `here` is no address"),
        (entry(r#","defaultGateway":"yes""#), r#"`[0].defaultGateway` is "yes"; must be true or false"#),
        (format!("[{}]", eleven.join(",")), "11 interfaces; 10 are possible"),
        (
            r#"[{"name":"blue","interface":"net1"},{"name":"red","interface":"net1"}]"#.to_owned(),
            "`[1].interface`: `net1` is there twice",
        ),
        (
            r#"[{"name":"blue","interface":"net1","defaultGateway":true},{"name":"red","interface":"net2","defaultGateway":"true"}]"#
                .to_owned(),
            "true for net1 and net2; a pod has one default route",
        ),
    ] {
        let error = read(&[(REQUEST, &value)]).unwrap_err();
        assert_eq!(error.key, REQUEST);
        assert!(error.problem.contains(words), "{value}: {error}");
    }
    for name in ["net", "net-1", "net_1", "", "averylonginterf1", "ne t1", "nét1"] {
        let value = format!(r#"[{{"name":"blue","interface":"{name}"}}]"#);
        let error = read(&[(REQUEST, &value)]).unwrap_err();
        assert!(error.problem.contains("`[0].interface`"), "{name}: {error}");
    }
}

#[test]
fn a_wrong_route_is_named() {
    let interfaces = r#"[{"name":"blue","interface":"net1"}]"#;
    for (routes, words) in [
        ("{}", "must be a list"),
        ("[7]", "`[0]` is 7"),
        (r#"[{"dst":"10.0.0.0/8"}]"#, "`[0].gw` is missing"),
        (r#"[{"dst":"10.0.0.0/8","gw":"172.16.24.1","via":"x"}]"#, "unknown field `[0].via`"),
        (r#"[{"dst":"ten","gw":"172.16.24.1"}]"#, "`[0].dst`: `ten` is no CIDR"),
        (r#"[{"dst":"10.0.0.0/8","gw":"there"}]"#, "`[0].gw`: `there` is no address"),
        (r#"[{"dst":"fd00::/64","gw":"172.16.24.1"}]"#, "different families"),
        (r#"[{"dst":"0.0.0.0/0","gw":"172.16.24.1"}]"#, "which `defaultGateway` decides"),
    ] {
        let error = read(&[(REQUEST, interfaces), (ROUTES, routes)]).unwrap_err();
        assert_eq!(error.key, ROUTES);
        assert!(error.problem.contains(words), "{routes}: {error}");
    }
}

#[test]
fn both_keys_at_once_are_refused() {
    let list = r#"[{"name":"blue","interface":"net1"}]"#;
    let error = read(&[(REQUEST, list), (NFN_REQUEST, list)]).unwrap_err();
    assert!(error.to_string().contains(NFN_REQUEST), "{error}");
}

proptest! {
    #[test]
    fn garbage_never_panics(text in ".{0,300}") {
        let _ = read(&[(REQUEST, &text)]);
        let _ = read(&[(NFN_REQUEST, &text), (ROUTES, &text)]);
    }
}

#[test]
fn a_destination_has_one_route_and_there_are_not_too_many() {
    let routes = |list: String| {
        let pairs = [(REQUEST, r#"[{"name": "a", "interface": "net1"}]"#), (ROUTES, list.as_str())];
        read(&pairs).map(|found| found.routes.len()).map_err(|error| error.to_string())
    };
    let route = |dst: String| format!(r#"{{"dst": "{dst}", "gw": "172.16.24.1"}}"#);
    let twice = [route("10.9.1.0/24".into()), route("10.9.1.7/24".into())].join(",");
    assert!(
        routes(format!("[{twice}]"))
            .unwrap_err()
            .contains("`[1].dst`: there is a route to 10.9.1.0/24 already")
    );
    let many = |count: usize| {
        let all: Vec<_> = (0..count).map(|at| route(format!("10.{}.{}.0/24", at / 250, at % 250))).collect();
        routes(format!("[{}]", all.join(",")))
    };
    assert_eq!(many(MAX_ROUTES), Ok(MAX_ROUTES));
    assert!(many(MAX_ROUTES + 1).unwrap_err().contains("more than 100 routes"));
}

#[test]
fn long_values_are_quoted_in_part() {
    let long = "n".repeat(5000);
    for value in [
        format!(r#"[{{"name": "{long}", "interface": "net1"}}]"#),
        format!(r#"[{{"{long}": 1}}]"#),
        format!(r#"["{long}"]"#),
        format!(r#"{{"type": "{long}"}}"#),
    ] {
        let error = read(&[(REQUEST, &value)]).unwrap_err().to_string();
        assert!(error.len() < 600 && error.contains('…'), "{error}");
    }
}
