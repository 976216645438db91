//! What to do with a packet, as far as this is decided here: the wiring of the port, never a policy.

use crate::layout::maps::{PORT_INTERPOSED, PORT_PRESENT, Port};

/// What a program does with the packet after counting it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// Go on to whatever comes next at this hook (`TC_ACT_UNSPEC`): in direct mode OVS, or the pod.
    Pass,
    /// Send it out of the interface with this index.
    Redirect(u32),
    /// No such port: pass, and count [`crate::Reason::UnknownPort`].
    Unknown,
}

/// The wiring of the port a packet was seen on.
#[inline(always)]
pub fn wiring(port: Option<&Port>) -> Wiring {
    let Some(port) = port else { return Wiring::Unknown };
    if port.flags & PORT_PRESENT == 0 {
        return Wiring::Unknown;
    }
    if port.flags & PORT_INTERPOSED != 0 && port.redirect != 0 {
        return Wiring::Redirect(port.redirect);
    }
    Wiring::Pass
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_array_slot_is_an_unknown_port() {
        assert_eq!(wiring(Some(&Port::default())), Wiring::Unknown);
        assert_eq!(wiring(None), Wiring::Unknown);
    }

    #[test]
    fn direct_ports_pass_even_with_a_stale_redirect() {
        let port = Port { flags: PORT_PRESENT, redirect: 7, ..Port::default() };
        assert_eq!(wiring(Some(&port)), Wiring::Pass);
    }

    #[test]
    fn interposed_ports_redirect_but_never_to_interface_zero() {
        let flags = PORT_PRESENT | PORT_INTERPOSED;
        assert_eq!(wiring(Some(&Port { flags, redirect: 7, ..Port::default() })), Wiring::Redirect(7));
        assert_eq!(wiring(Some(&Port { flags, redirect: 0, ..Port::default() })), Wiring::Pass);
    }
}
