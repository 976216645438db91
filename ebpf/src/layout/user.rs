//! Lets user space put the map types into maps.
#![allow(unsafe_code, reason = "aya::Pod is an unsafe marker trait; the types' layout is asserted in `maps`")]

use super::{
    flow::{Divergence, Entry, Note, Tuple4, Tuple6},
    maps::{Budget, Config, Port, PortCounters, TunnelCounters, TunnelKey},
    service::ServiceKey,
};

macro_rules! pod {
    ($($type:ty),* $(,)?) => {
        $(
            // SAFETY: repr(C), integers and arrays of them only, padding is an explicit field, size asserted.
            unsafe impl aya::Pod for $type {}
        )*
    };
}

pod!(Config, Budget, Port, PortCounters, TunnelKey, TunnelCounters, ServiceKey);
pod!(Divergence, Tuple4, Tuple6, Entry<Tuple4>, Entry<Tuple6>, Note<Tuple4>, Note<Tuple6>);
