//! The XDP program is attached as the setting says, outlives the agent, is taken over by the next one, and goes with the setting.

use node_agent::bpf::{Mode, Options, Programs, Refusal, XdpState, XdpWanted};

use super::xdp::NATIVE;
use crate::sandbox::{Node, Shell};

const AUTO: Options = Options { xdp: XdpWanted::Auto, ..NATIVE };

fn node() -> Node {
    let node = Node::new();
    node.sh("ip link add up0 type veth peer name x0");
    node.sh("ip link add up1 type veth peer name x1");
    node.sh("ip link set up0 up");
    node
}

/// Whether an interface has an XDP program, as iproute2 shows it; a generic one fails the test.
fn attached(node: &Node, link: &str) -> bool {
    let link = link.to_owned();
    node.run(move || shown(&link))
}

#[expect(clippy::disallowed_methods, reason = "tests look at namespaces with the usual tools")]
fn shown(link: &str) -> bool {
    let output = std::process::Command::new("ip").args(["link", "show", "dev", link]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("xdpgeneric"), "{text}");
    text.contains("prog/xdp")
}

/// Loads with these options, and says what became of the XDP program.
fn load(node: &Node, options: Options, uplink: Option<&str>) -> XdpState {
    let dir = node.pins();
    let uplink = uplink.map(|name| node.ifindex(name));
    node.run(move || {
        let mut programs = Programs::load_with(&dir, options).unwrap();
        if let Some(uplink) = uplink {
            programs.set_uplink(uplink, Mode::Direct).unwrap();
        }
        programs.xdp().clone()
    })
}

#[test]
fn the_program_outlives_the_agent_and_follows_the_setting_and_the_uplink() {
    let node = node();
    let (up0, up1) = (node.ifindex("up0"), node.ifindex("up1"));
    let pin = |ifindex| vec![format!("xdp_uplink-{ifindex}")];
    assert_eq!(load(&node, NATIVE, None), XdpState::NoUplink);
    assert_eq!(load(&node, NATIVE, Some("up0")), XdpState::Attached(up0));
    assert!(attached(&node, "up0"));
    assert_eq!(node.list(&node.pins().join("xdp")), pin(up0));
    // The next agent finds the uplink and the link.
    assert_eq!(load(&node, NATIVE, None), XdpState::Attached(up0));
    assert!(attached(&node, "up0"));
    // Another uplink.
    assert_eq!(load(&node, NATIVE, Some("up1")), XdpState::Attached(up1));
    assert!(attached(&node, "up1") && !attached(&node, "up0"));
    assert_eq!(node.list(&node.pins().join("xdp")), pin(up1));
    // Another setting.
    assert_eq!(load(&node, AUTO, None), XdpState::Refused(Refusal::Veth));
    assert!(!attached(&node, "up1"));
    assert_eq!(load(&node, NATIVE, None), XdpState::Attached(up1));
    assert_eq!(load(&node, Options::default(), None), XdpState::Off);
    assert!(!attached(&node, "up1"));
    assert!(node.list(&node.pins().join("xdp")).is_empty());
}

#[test]
fn cleanup_detaches_it_and_so_does_an_uplink_that_is_given_back() {
    let node = node();
    load(&node, NATIVE, Some("up0"));
    assert!(attached(&node, "up0"));
    let dir = node.pins();
    let state = node.run(move || {
        let mut programs = Programs::load_with(&dir, NATIVE).unwrap();
        programs.clear_uplink().unwrap();
        programs.xdp().clone()
    });
    assert_eq!(state, XdpState::NoUplink);
    assert!(!attached(&node, "up0"));
    load(&node, NATIVE, Some("up0"));
    assert!(attached(&node, "up0"));
    let dir = node.pins();
    node.run(move || Programs::cleanup(&dir).unwrap());
    assert!(!attached(&node, "up0"));
    assert!(node.list(&node.pins()).is_empty());
}

#[test]
fn an_interface_whose_driver_has_no_native_xdp_is_left_alone_and_works() {
    let node = node();
    node.sh("ip link add br0 type bridge");
    node.sh("ip link set br0 up");
    let br0 = node.ifindex("br0");
    for options in [AUTO, NATIVE] {
        assert_eq!(load(&node, options, Some("br0")), XdpState::Refused(Refusal::Driver));
        assert!(!attached(&node, "br0"));
    }
    let dir = node.pins();
    node.run(move || {
        let mut programs = Programs::load_with(&dir, NATIVE).unwrap();
        assert_eq!(programs.uplink(), Some((br0, Mode::Direct, true)));
    });
}

#[test]
fn an_interface_that_another_program_has_is_left_to_it() {
    let node = node();
    let up0 = node.ifindex("up0");
    let others = node.pins().with_file_name("others");
    node.run(move || {
        let mut programs = Programs::load_with(&others, NATIVE).unwrap();
        programs.set_uplink(up0, Mode::Direct).unwrap();
        assert_eq!(*programs.xdp(), XdpState::Attached(up0));
    });
    assert_eq!(load(&node, NATIVE, Some("up0")), XdpState::Refused(Refusal::Taken));
    let others = node.pins().with_file_name("others");
    node.run(move || Programs::cleanup(&others).unwrap());
    // The next agent finds the place free. Where the kernel has no TCX the other one has taken our filters with its own.
    assert_eq!(load(&node, NATIVE, Some("up0")), XdpState::Attached(up0));
}
