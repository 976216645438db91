//! A call of the CNI executable: environment and configuration, the request on the socket, and the reply.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::MacAddr;
use api::cni::{Reply, Request};
use node_agent::cni::request::{Call, Command, VERSIONS, version_of};
use node_agent::cni::result::AddResult;
use node_agent::cni::{CniError, check};
use serde_json::{Value, json};

/// Either a request as on the socket, or the environment as lines `KEY=VALUE`, an empty line, and the configuration.
pub fn cni_request(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(request) = serde_json::from_str(text) {
        call(&request);
    }
    let (lines, config) = text.split_once("\n\n").unwrap_or((text, ""));
    let env = lines.lines().filter_map(|line| line.split_once('='));
    let env = env.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    call(&Request { env, config: config.to_owned(), started_ns: 7 });
}

fn call(request: &Request) {
    as_sent(request);
    let version = version_of(&request.config);
    assert!(VERSIONS.contains(&version.as_str()));
    match Call::parse(request) {
        Ok(call) => valid(&call),
        Err(error) => worded(&error, &version),
    }
}

/// The agent must read what the executable sends.
fn as_sent(request: &Request) {
    let text = serde_json::to_string(request).unwrap();
    assert_eq!(serde_json::from_str::<Request>(&text).as_ref().ok(), Some(request));
}

/// An error is sent to the executable, which prints it unchanged.
fn worded(error: &CniError, version: &str) {
    assert!(error.code != 0 && !error.msg.is_empty());
    let reply = Reply { stdout: error.to_json(version), exit_code: 1 };
    let text = serde_json::to_string(&reply).unwrap();
    assert_eq!(serde_json::from_str::<Reply>(&text).as_ref().ok(), Some(&reply));
    let object: Value = serde_json::from_str(&reply.stdout).unwrap();
    assert_eq!((&object["code"], &object["cniVersion"]), (&json!(error.code), &json!(version)));
}

/// Names in an accepted call must be valid for the kernel and the file system.
fn valid(call: &Call) {
    assert!(VERSIONS.contains(&call.conf.version.as_str()));
    if call.command == Command::Version {
        return;
    }
    assert!(!call.conf.name.is_empty() && !call.conf.name.contains(['/', '\0', ' ']));
    if matches!(call.command, Command::Add | Command::Del | Command::Check) {
        assert!(!call.container_id.is_empty() && !call.container_id.contains(['/', '\0', ' ']));
        assert!((1..=15).contains(&call.ifname.len()));
        assert!(!call.ifname.contains(['/', ':', '%', '\0']) && !call.ifname.contains(char::is_whitespace));
        assert!(call.ifname != "." && call.ifname != "..");
    }
    if call.command == Command::Add {
        let pod = call.pod().unwrap();
        assert!(call.netns.is_some() && !pod.namespace.is_empty() && !pod.name.is_empty());
        assert_eq!(call.conf.prev_result, None);
        result(call);
    }
    if let Some(prev) = &call.conf.prev_result {
        match check::expected(prev, &call.ifname) {
            Ok(side) => assert_eq!(side.ifname, call.ifname),
            Err(error) => worded(&error, &call.conf.version),
        }
    }
    if let Some(keep) = &call.conf.valid_attachments {
        // GC must read the same list with either spelling of the key.
        let list: Vec<_> =
            keep.iter().map(|(id, name)| json!({ "containerID": id, "ifname": name })).collect();
        for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
            let config = json!({ "cniVersion": call.conf.version, "name": call.conf.name, key: list });
            assert_eq!(again(call, Command::Del, &config).conf.valid_attachments.as_ref(), Some(keep));
        }
    }
}

/// CHECK must be able to read the result of ADD from `prevResult`.
fn result(call: &Call) {
    let mac: MacAddr = "0a:58:0a:f4:00:04".parse().unwrap();
    let gateway: IpAddr = "10.244.0.1".parse().unwrap();
    let made = AddResult {
        host: "host".to_owned(),
        host_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        ifname: call.ifname.clone(),
        mac,
        sandbox: call.netns.clone().unwrap_or_default(),
        mtu: 1400,
        ips: vec![("10.244.0.4/24".parse().unwrap(), Some(gateway)), ("fd00::4/64".parse().unwrap(), None)],
    };
    let prev = made.to_json(&call.conf.version);
    let version = if call.conf.version == "0.3.1" { "0.4.0" } else { &call.conf.version };
    let config = json!({ "cniVersion": version, "name": call.conf.name, "prevResult": prev });
    let checked = again(call, Command::Check, &config);
    let side = check::expected(checked.conf.prev_result.as_ref().unwrap(), &checked.ifname).unwrap();
    assert_eq!((side.mac, side.gateways), (mac, vec![gateway]));
    assert_eq!(side.addresses, made.ips.iter().map(|(address, _)| *address).collect::<Vec<_>>());
}

/// The call with another command and configuration.
fn again(call: &Call, command: Command, config: &Value) -> Call {
    let id = if call.container_id.is_empty() { "c1" } else { &call.container_id };
    let name = if call.ifname.is_empty() { "eth0" } else { &call.ifname };
    let env = [
        ("CNI_COMMAND", command.word()),
        ("CNI_CONTAINERID", id),
        ("CNI_NETNS", call.netns.as_deref().unwrap_or("/run/netns/x")),
        ("CNI_IFNAME", name),
    ];
    let env: BTreeMap<String, String> =
        env.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    Call::parse(&Request { env, config: config.to_string(), started_ns: 0 }).unwrap()
}
