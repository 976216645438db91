//! UDP backends of all services, and those that are gone. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use api::service::{Condition, EndpointSlice};
use api::{NamespacedName, Protocol};

/// Address and port of a backend.
pub type Backend = (IpAddr, u16);

/// UDP backends by slice.
#[derive(Debug, Default)]
pub(super) struct UdpBackends {
    slices: BTreeMap<NamespacedName, BTreeSet<Backend>>,
    /// Number of slices that have the backend.
    uses: HashMap<Backend, usize>,
    /// Backends that the last slice lost since they were asked for.
    gone: BTreeSet<Backend>,
}

impl UdpBackends {
    /// Sets the state of a slice; `None`: it was deleted.
    pub(super) fn set(&mut self, name: &NamespacedName, slice: Option<&EndpointSlice>) {
        let new = slice.map(backends).unwrap_or_default();
        let old = match new.is_empty() {
            true => self.slices.remove(name),
            false => self.slices.insert(name.clone(), new.clone()),
        };
        let old = old.unwrap_or_default();
        for backend in new.difference(&old) {
            *self.uses.entry(*backend).or_default() += 1;
            self.gone.remove(backend);
        }
        for backend in old.difference(&new) {
            self.lose(*backend);
        }
    }

    fn lose(&mut self, backend: Backend) {
        if let Some(count) = self.uses.get_mut(&backend) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.uses.remove(&backend);
                self.gone.insert(backend);
            }
        }
    }

    /// Drops slices that are not among `alive` (after a watch was restarted).
    pub(super) fn retain(&mut self, alive: &BTreeSet<NamespacedName>) {
        let dead: Vec<_> = self.slices.keys().filter(|name| !alive.contains(*name)).cloned().collect();
        for name in dead {
            self.set(&name, None);
        }
    }

    /// The backends that are gone since the last call, and did not come back.
    pub(super) fn take_gone(&mut self) -> BTreeSet<Backend> {
        std::mem::take(&mut self.gone)
    }

    /// Whether a slice has the backend.
    pub(super) fn contains(&self, backend: &Backend) -> bool {
        self.uses.contains_key(backend)
    }
}

/// UDP backends of a slice that serve.
fn backends(slice: &EndpointSlice) -> BTreeSet<Backend> {
    let ports = || slice.ports.iter().filter(|port| port.protocol == Protocol::Udp).map(|port| port.port);
    let serving = slice.endpoints.iter().filter(|endpoint| endpoint.condition != Condition::NotReady);
    serving.flat_map(|endpoint| ports().map(|port| (endpoint.address, port))).collect()
}

#[cfg(test)]
mod tests {
    use api::service::{EndpointPort, Hints, SliceEndpoint};

    use super::*;

    fn name(text: &str) -> NamespacedName {
        NamespacedName::new("default", text)
    }

    fn slice(text: &str, endpoints: &[(u8, Condition)]) -> EndpointSlice {
        let port = |protocol, port| EndpointPort { name: "dns".to_owned(), protocol, port };
        EndpointSlice {
            name: name(text),
            service: Some("dns".to_owned()),
            ports: vec![port(Protocol::Udp, 53), port(Protocol::Tcp, 53)],
            endpoints: endpoints
                .iter()
                .map(|(last, condition)| SliceEndpoint {
                    address: IpAddr::from([10, 244, 0, *last]),
                    node: None,
                    condition: *condition,
                    hints: Hints::default(),
                })
                .collect(),
        }
    }

    fn backend(last: u8) -> Backend {
        (IpAddr::from([10, 244, 0, last]), 53)
    }

    #[test]
    fn a_backend_is_gone_when_no_slice_has_it_or_it_does_not_serve_any_more() {
        let mut all = UdpBackends::default();
        let set = |all: &mut UdpBackends, text, endpoints: &[_]| {
            all.set(&name(text), Some(&slice(text, endpoints)));
        };
        set(&mut all, "a", &[(1, Condition::Ready), (2, Condition::Ready), (3, Condition::Ready)]);
        set(&mut all, "b", &[(2, Condition::Ready)]);
        assert!(all.take_gone().is_empty());
        set(&mut all, "a", &[(1, Condition::Terminating), (3, Condition::NotReady)]);
        assert_eq!(all.take_gone(), BTreeSet::from([backend(3)]), "2 is in the other slice, 1 serves");
        all.set(&name("b"), None);
        assert_eq!(all.take_gone(), BTreeSet::from([backend(2)]));
        assert!(all.contains(&backend(1)) && !all.contains(&backend(2)));
    }

    #[test]
    fn a_backend_that_is_back_is_not_gone_and_a_restarted_watch_loses_what_it_does_not_list() {
        let mut all = UdpBackends::default();
        all.set(&name("a"), Some(&slice("a", &[(1, Condition::Ready), (2, Condition::Ready)])));
        all.set(&name("a"), None);
        all.set(&name("b"), Some(&slice("b", &[(1, Condition::Ready)])));
        assert_eq!(all.take_gone(), BTreeSet::from([backend(2)]));
        all.retain(&BTreeSet::new());
        assert_eq!(all.take_gone(), BTreeSet::from([backend(1)]));
    }
}
