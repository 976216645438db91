//! Connections that OVS does not track any more: their entries end, in both directions, and no others.

use std::net::SocketAddr;

use node_agent::flow_cache::{Connections, Flow, FlowCache};
use node_agent::kernel::conntrack_events::Ends;

use super::world::{Shape, TCP, UDP, World, is_fast, learn, learn_back};

const SIX: Shape = Shape { six: true, ..UDP };

fn ends(flow: &Flow) -> Ends {
    Ends {
        source: SocketAddr::new(flow.source, flow.source_port),
        destination: SocketAddr::new(flow.destination, flow.destination_port),
    }
}

#[test]
fn both_directions_of_a_connection_end_and_those_of_others_do_not() {
    World::both(|world| {
        for shape in [UDP, TCP, SIX] {
            learn(&world, shape);
            learn_back(&world, shape);
        }
        let flows = world.cache.flows(10).unwrap();
        assert_eq!(flows.len(), 6, "{:?}", world.reasons());
        for (shape, protocol, six) in [(UDP, 17, false), (TCP, 6, false), (SIX, 17, true)] {
            let flow = flows.iter().find(|f| f.protocol == protocol && f.source.is_ipv6() == six).unwrap();
            let mut connections = Connections::default();
            // The other protocol's connection between the same ends is another one.
            connections.insert(
                if protocol == 6 { 17 } else { 6 },
                Ends { source: ends(flow).destination, ..ends(flow) },
            );
            assert_eq!(world.cache.end_connections(&connections).unwrap(), 0);
            connections.insert(protocol, ends(flow));
            assert!(is_fast(&world, shape), "{:?}", world.reasons());
            assert_eq!(world.cache.end_connections(&connections).unwrap(), 2);
            assert!(!is_fast(&world, shape), "{:?}", world.reasons());
            assert_eq!(world.cache.end_connections(&connections).unwrap(), 0, "they are gone");
        }
        learn(&world, UDP);
        assert!(is_fast(&world, UDP), "what ended can be learned again: {:?}", world.reasons());
    });
}
