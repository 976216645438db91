//! What the tests of several packages need: paths of the project's cache, OVSDB servers and network namespaces of their own, waiting for
//! something to hold, and the reference that ovn-kubernetes left. Used as a dev-dependency, and by the package `e2e`.
#![forbid(unsafe_code)]
#![expect(clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

pub mod cache;
pub mod namespaces;
pub mod ovn_reference;
pub mod ovs;
pub mod wait;
