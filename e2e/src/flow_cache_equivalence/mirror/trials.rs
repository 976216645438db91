//! The mirrors that are tried, and who is slow while they are there.

use super::super::scene::Who;
use super::ovs::{Port, Select};

/// The bridges.
const INTEGRATION: &str = "br-int";
const GATEWAY: &str = "breth0";

/// Who is slow then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slow {
    Node,
    Pods(&'static [Who]),
    /// The tunnel and the gateway.
    Uplink,
}

/// A mirror, and what it must do.
pub(super) struct Trial {
    pub(super) name: &'static str,
    pub(super) bridge: &'static str,
    pub(super) select: Select,
    pub(super) output: Port,
    pub(super) slow: Slow,
    /// Part of the reason.
    pub(super) why: &'static str,
    /// Whether it copies packets of the flow from a to c, and from a to b.
    pub(super) copies: [bool; 2],
}

pub(super) const TRIALS: &[Trial] = &[
    Trial {
        name: "what a pod sends",
        bridge: INTEGRATION,
        select: Select::From(Port::Pod(Who::A)),
        output: Port::Copies,
        slow: Slow::Pods(&[Who::A]),
        why: "the port is mirrored (mirror exact)",
        copies: [true, true],
    },
    Trial {
        name: "what a pod gets",
        bridge: INTEGRATION,
        select: Select::To(Port::Pod(Who::C)),
        output: Port::Copies,
        slow: Slow::Node,
        why: "copies what leaves OVS",
        copies: [true, false],
    },
    Trial {
        name: "everything",
        bridge: INTEGRATION,
        select: Select::All,
        output: Port::Copies,
        slow: Slow::Node,
        why: "copies what leaves OVS",
        copies: [true, true],
    },
    Trial {
        name: "what leaves by a tunnel",
        bridge: INTEGRATION,
        select: Select::To(Port::Tunnel),
        output: Port::Copies,
        slow: Slow::Node,
        why: "packets of any pod may pass",
        copies: [false, true],
    },
    Trial {
        name: "what comes from the gateway bridge",
        bridge: INTEGRATION,
        select: Select::From(Port::Patch),
        output: Port::Copies,
        slow: Slow::Node,
        why: "packets of any pod may pass",
        copies: [false, false],
    },
    Trial {
        name: "what a pod sends, to another pod's port",
        bridge: INTEGRATION,
        select: Select::From(Port::Pod(Who::A)),
        output: Port::Pod(Who::C),
        slow: Slow::Pods(&[Who::A, Who::C]),
        why: "mirror exact",
        copies: [true, true],
    },
    Trial {
        name: "what comes by the uplink",
        bridge: GATEWAY,
        select: Select::From(Port::Uplink),
        output: Port::Copies,
        slow: Slow::Uplink,
        why: "mirrored (mirror exact)",
        copies: [false, false],
    },
];

impl Trial {
    /// Whether packets from a, to the other node or not, have to come to OVS.
    pub(super) fn concerns(&self, far: bool) -> bool {
        match self.slow {
            Slow::Node => true,
            Slow::Pods(list) => list.contains(&Who::A) || (!far && list.contains(&Who::C)),
            Slow::Uplink => far,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_to_come_to_ovs_is_what_the_slow_one_sends_or_gets() {
        let concerned = |slow| {
            let trial = Trial {
                slow,
                name: "",
                bridge: "",
                select: Select::All,
                output: Port::Copies,
                why: "",
                copies: [true; 2],
            };
            [trial.concerns(false), trial.concerns(true)]
        };
        assert_eq!(concerned(Slow::Node), [true, true]);
        assert_eq!(concerned(Slow::Pods(&[Who::C])), [true, false]);
        assert_eq!(concerned(Slow::Uplink), [false, true]);
    }
}
