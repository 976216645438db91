//! Attach modes of pods and uplink, and names and link group of the links that the agent creates.
//!
//! Everything on the node that belongs to one interface of a pod is found by the interface's id: its links, its eBPF programs, its path.
//! The first interface of a container has the container's id. Any other has an id made of the container's and its number, see
//! [`interface_id`]. It has the form of a container id, so that the links are named by the same rule, and an older agent, which knows
//! one interface a container, takes it for a container of its own and clears it up as such.

use crate::kernel::link::MAX_NAME;
use api::hash::fnv1a;

/// Link group of links whose packets are for OVS only; an nftables rule drops them in the host's network stack.
pub const OVS_ONLY_GROUP: u32 = 0x5151;

/// How a pod or the uplink is attached to OVS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attach {
    /// The pod's host veth, or the uplink, is the OVS port.
    Direct,
    /// The OVS port is the far end of a second veth pair, the shim; eBPF programs forward packets between the pairs.
    Interposed,
}

impl Attach {
    /// `direct` or `interposed`, as in status and flags.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Interposed => "interposed",
        }
    }
}

/// Most interfaces that a container may have beside the first.
pub const MOST_FURTHER: usize = 99;

/// Characters of the container id that the agent reads back from an alias, whose length is limited.
const READ_BACK: usize = 200;

/// Length of the part of an interface id before the container id.
const HEAD: usize = MAX_NAME + 1;

/// The beginning of a container id that an alias has room for.
pub fn in_alias(container: &str) -> &str {
    container.get(..READ_BACK).unwrap_or(container)
}

/// Id of interface `number` of a container; 0 is the first one, which has the container's id.
///
/// Others: `x`, ten characters of the container's hash, the number in two digits, two more characters of the hash, `-` and the
/// container id. The links are named by the first 13 and 15 characters, so the hash stands there in place of the id: ids that differ
/// only behind their beginning give different names, and `x` keeps them apart from the hexadecimal ids of runtimes.
pub fn interface_id(container: &str, number: usize) -> String {
    if number == 0 {
        return container.to_owned();
    }
    let hash = fnv1a(in_alias(container).as_bytes());
    format!("x{}{number:02}{}-{container}", letters(hash, 10), letters(hash >> 50, 2))
}

/// The lowest bits of `hash` as letters and digits, five bits each.
fn letters(hash: u64, count: u32) -> String {
    let letter = |at: u32| {
        let five = (hash >> (5 * at)) & 31;
        u32::try_from(five).ok().and_then(|five| char::from_digit(five, 32)).unwrap_or('0')
    };
    (0..count).map(letter).collect()
}

/// Container of an interface: the id itself, unless it has the form of [`interface_id`] and its hash fits.
pub fn container_of(id: &str) -> &str {
    let further = id.get(HEAD..).filter(|container| {
        let number =
            id.get(11..13).and_then(|digits| digits.parse::<usize>().ok()).filter(|number| *number != 0);
        number.is_some_and(|number| interface_id(container, number) == id)
    });
    further.unwrap_or(id)
}

/// Whether this is the id of a container's first interface.
pub fn is_first(id: &str) -> bool {
    container_of(id).len() == id.len()
}

/// Id of the interface of `container` that has a link of this name; `None`: no link of this container has it.
pub fn interface_of_link(link: &str, container: &str) -> Option<String> {
    let has = |id: &String| Names::of(id).all().contains(&link);
    let first = Some(container.to_owned()).filter(has);
    first.or_else(|| {
        // The number's place in the names of host veth and shim.
        [11..13, 13..15].into_iter().find_map(|digits| {
            let number = link.get(digits)?.parse::<usize>().ok().filter(|number| *number != 0)?;
            Some(interface_id(container, number)).filter(has)
        })
    })
}

/// Names of the links of one interface of a container on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// Host veth of the pod: the first 15 characters of the interface's id. As in ovn-kubernetes for the first interface, whose id is the
    /// container's.
    pub host: String,
    /// Agent end of the shim, with eBPF programs.
    pub shim_agent: String,
    /// OVS end of the shim, the OVS port.
    pub shim_ovs: String,
}

impl Names {
    /// Names of the links of the interface with this id.
    pub fn of(id: &str) -> Self {
        let first = |n: usize| id.get(..n).unwrap_or(id);
        Self {
            host: first(15).to_owned(),
            shim_agent: format!("sa{}", first(13)),
            shim_ovs: format!("so{}", first(13)),
        }
    }

    /// All of them.
    fn all(&self) -> [&str; 3] {
        [&self.host, &self.shim_agent, &self.shim_ovs]
    }

    /// Name of the OVS port.
    pub fn ovs_port(&self, mode: Attach) -> &str {
        match mode {
            Attach::Direct => &self.host,
            Attach::Interposed => &self.shim_ovs,
        }
    }
}

/// Name of the agent end of the uplink's shim.
pub fn shim_agent_end(uplink: &str) -> String {
    fitting(format!("sa-{uplink}"))
}

/// Name of the OVS end of the uplink's shim, the OVS port.
pub fn shim_ovs_end(uplink: &str) -> String {
    fitting(format!("so-{uplink}"))
}

/// Truncates `name` to the maximum length of an interface name.
pub fn fitting(mut name: String) -> String {
    while name.len() > MAX_NAME {
        name.pop();
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_short_ids_are_taken_whole() {
        let names = Names::of("7fabc589b5b8dc1aa0123456789");
        assert_eq!((names.host.as_str(), names.shim_agent.as_str()), ("7fabc589b5b8dc1", "sa7fabc589b5b8d"));
        assert_eq!(names.shim_ovs.len(), 15);
        assert_eq!(Names::of("c1").shim_ovs, "soc1");
        assert_eq!(names.ovs_port(Attach::Direct), "7fabc589b5b8dc1");
    }

    const A: &str = "7fabc589b5b8dc1aa0123456789abcdef7fabc589b5b8dc1aa0123456789abcd";

    #[test]
    fn the_first_interface_has_the_containers_id() {
        assert_eq!((interface_id(A, 0).as_str(), container_of(A), is_first(A)), (A, A, true));
        // What looks like an id of another interface at first sight.
        for id in ["", "x", "c1", "x-c1", "xaaaaaaaaaa01bb-c1", "xaaaaaaaaaa01bb-", "é".repeat(20).as_str()]
        {
            assert!(container_of(id) == id && is_first(id), "{id}");
        }
    }

    #[test]
    fn every_interface_is_told_from_the_others_and_leads_back_to_its_container() {
        let near = format!("{}f", &A[..63]);
        let mut names = std::collections::BTreeSet::new();
        for container in [A, &near, &A[..20], "c1", "c2", "a.b_c-d"] {
            for number in 1..=MOST_FURTHER {
                let id = interface_id(container, number);
                assert_eq!((container_of(&id), is_first(&id)), (container, false), "{id}");
                let Names { host, shim_agent, shim_ovs } = Names::of(&id);
                for name in [host, shim_agent, shim_ovs] {
                    assert!(
                        name.len() == MAX_NAME && name.bytes().all(|b| b.is_ascii_alphanumeric()),
                        "{name}"
                    );
                    assert_eq!(interface_of_link(&name, container).as_ref(), Some(&id));
                    assert_eq!(interface_of_link(&name, "other"), None);
                    assert!(names.insert(name.clone()), "{name} twice");
                }
            }
        }
        let Names { host, shim_agent, shim_ovs } = Names::of(A);
        for name in [host, shim_agent, shim_ovs] {
            assert_eq!(interface_of_link(&name, A).as_deref(), Some(A));
        }
        for name in ["eth0", "", "ovn-k8s-mp0", "veth0123456789a", "éééééééé"] {
            assert_eq!(interface_of_link(name, A), None, "{name}");
        }
    }

    #[test]
    fn an_id_is_what_it_was_so_that_a_later_agent_finds_the_interface() {
        assert_eq!(interface_id("c1", 1), "xp2qkkqu0vj018h-c1");
    }

    #[test]
    fn a_container_id_too_long_for_an_alias_is_found_by_its_beginning() {
        let long = "7".repeat(300);
        let name = Names::of(&interface_id(&long, 3)).host;
        let id = interface_of_link(&name, in_alias(&long)).unwrap();
        assert_eq!(Names::of(&id), Names::of(&interface_id(&long, 3)));
    }
}
