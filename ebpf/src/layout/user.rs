//! Lets user space put the map types into maps.
#![allow(unsafe_code, reason = "aya::Pod is an unsafe marker trait; the types' layout is asserted in `maps`")]

use super::{
    flow::{Conn, Divergence, EgressFlow, EgressKey, IngressFlow, IngressKey, Note, Slot, Tuple4, Tuple6},
    maps::{Budget, Config, Port, PortCounters, TunnelCounters, TunnelKey},
};

macro_rules! pod {
    ($($type:ty),* $(,)?) => {
        $(
            // SAFETY: repr(C), integers and arrays of them only, padding is an explicit field, size asserted.
            unsafe impl aya::Pod for $type {}
        )*
    };
}

pod!(Config, Budget, Port, PortCounters, TunnelKey, TunnelCounters);
pod!(EgressFlow, IngressFlow, Conn, Note, Divergence);
pod!(EgressKey<Tuple4>, EgressKey<Tuple6>, IngressKey<Tuple4>, IngressKey<Tuple6>, Tuple4, Tuple6);
pod!(Slot<Tuple4>, Slot<Tuple6>);
