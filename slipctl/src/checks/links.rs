//! What is found of the node's uplink and of its CNI files.

use super::Finding;
use super::host::Host;

/// Bytes that the tunnel adds to a packet of a pod: IPv6, UDP, Geneve with OVN's option, Ethernet.
const OVERHEAD: u64 = 78;
/// The configuration that the agent installs.
const OURS: &str = "10-slipstream.conf";

/// Uplink: whether it is known, long enough, and who manages it.
pub(super) fn uplink(host: &Host, pod_mtu: u64, findings: &mut Vec<Finding>) {
    let Some(name) = host.uplink() else {
        findings.push(Finding::failure(
            "uplink",
            "no default route",
            "the agent takes the interface of the default route as uplink",
            "add the route, or name the interface (agent.gatewayInterface)",
        ));
        return;
    };
    let link = format!("/sys/class/net/{name}");
    match host.number(&format!("{link}/mtu")) {
        Some(mtu) if mtu >= pod_mtu + OVERHEAD => {
            findings.push(Finding::ok("uplink", format!("{name}, MTU {mtu}, pods {pod_mtu}")));
        }
        Some(mtu) => findings.push(Finding::failure(
            "uplink",
            format!("{name} has MTU {mtu}, and pods {pod_mtu}"),
            "packets of pods grow by up to 78 bytes in the tunnel; longer ones are lost",
            &format!("network.mtu of at most {}", mtu.saturating_sub(OVERHEAD)),
        )),
        None => findings.push(Finding::warning(
            "uplink",
            format!("{name}: its MTU cannot be read"),
            "it must be 78 bytes longer than that of pods",
            "look at `ip link`",
        )),
    }
    findings.push(manager(host, &name, &link));
}

fn manager(host: &Host, name: &str, link: &str) -> Finding {
    let check = "network manager";
    let index = host.number(&format!("{link}/ifindex")).unwrap_or_default();
    let networkd = host.read(&format!("/run/systemd/netif/links/{index}")).unwrap_or_default();
    let network_manager = host.read(&format!("/run/NetworkManager/devices/{index}")).unwrap_or_default();
    let why = "the agent moves the node's addresses to a bridge; who manages the interface takes them back, or loses the lease";
    if host.exists(&format!("/run/systemd/netif/leases/{index}")) {
        return Finding::failure(
            check,
            format!("{name} has an address by DHCP of systemd-networkd"),
            why,
            "give the node a static address, or reserve it and set agent.gatewayLeases to keep",
        );
    }
    if networkd.contains("NETWORK_FILE=") {
        return Finding::warning(
            check,
            format!("systemd-networkd manages {name}"),
            why,
            "set KeepConfiguration=yes for it (docs/gateway.md)",
        );
    }
    if network_manager.contains("managed=true") {
        return Finding::warning(
            check,
            format!("NetworkManager manages {name}"),
            why,
            "make it unmanaged, or static with the bridge in mind (docs/gateway.md)",
        );
    }
    Finding::ok(check, format!("none of {name}"))
}

/// CNI files: whether another plugin comes first, and whether the runtime has `loopback`.
pub(super) fn cni(host: &Host, installed: bool, findings: &mut Vec<Finding>) {
    let (conf, bin) = ("/etc/cni/net.d", "/opt/cni/bin");
    let names = host.names(conf).unwrap_or_default();
    let is_conf = |name: &&String| [".conf", ".conflist", ".json"].iter().any(|end| name.ends_with(end));
    let first = names.iter().find(is_conf);
    let check = "CNI configuration";
    findings.push(match first {
        Some(first) if first.as_str() < OURS => Finding::failure(
            check,
            format!("{conf}/{first} comes before {OURS}"),
            "the container runtime takes the first file, so pods would get another plugin's network",
            "remove that plugin and its file",
        ),
        Some(first) if installed && first != OURS => Finding::failure(
            check,
            format!("{conf}/{OURS} is not there, {first} is"),
            "the container runtime takes the first file, so pods get another plugin's network",
            "look why the agent does not install it: slipctl status",
        ),
        None if installed => Finding::failure(
            check,
            format!("{conf} is empty"),
            "without a configuration no pod starts",
            "look why the agent does not install it: slipctl status",
        ),
        Some(first) => Finding::ok(check, format!("first is {first}")),
        None => Finding::ok(check, format!("{conf} has none yet")),
    });
    findings.push(match host.exists(&format!("{bin}/loopback")) {
        true => Finding::ok("CNI loopback", format!("{bin}/loopback")),
        false => Finding::warning(
            "CNI loopback",
            format!("{bin}/loopback is not there"),
            "containerd before 2.0 and CRI-O start it for every pod",
            "install the package of CNI plugins (containernetworking-plugins)",
        ),
    });
}
