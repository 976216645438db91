//! Faults that tests inject.

use crate::flow_cache::scope::Rule;

/// Faults that a test injects to show that its checks detect them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultInjection {
    /// `SLIPSTREAM_TEST_IGNORE_FLOW_EVENTS=1` (feature `test-hooks`): flow changes do not invalidate the cache.
    pub ignore_flows: bool,
    /// `SLIPSTREAM_TEST_WITHOUT_RULE=NAME` (feature `test-hooks`): flows of br-int that this rule answers concern nothing.
    pub without: Option<Rule>,
    /// `SLIPSTREAM_TEST_KEEP_SEQUENCE_CHECK=1` (feature `test-hooks`): the TCP sequence check of OVS's connection tracking is
    /// queried but not disabled.
    pub keep_sequence_check: bool,
}

impl FaultInjection {
    /// Reads the faults from the environment.
    #[cfg(feature = "test-hooks")]
    pub fn from_environment() -> Self {
        let set = |name: &str| std::env::var(name).is_ok_and(|value| value == "1");
        Self {
            ignore_flows: set("SLIPSTREAM_TEST_IGNORE_FLOW_EVENTS"),
            without: std::env::var("SLIPSTREAM_TEST_WITHOUT_RULE").ok().and_then(|name| Rule::named(&name)),
            keep_sequence_check: set("SLIPSTREAM_TEST_KEEP_SEQUENCE_CHECK"),
        }
    }
}
