//! Columns that are the same in rows of many kinds.

use std::collections::BTreeMap;

use api::ovn_name;
use ovsdb_client::Datum;

/// Tier of ordinary network policy, below administrators' policies.
pub const POLICY_TIER: i64 = 2;
/// Priority of ACLs that allow.
pub const ALLOW_PRIORITY: i64 = 1001;

/// A map column.
pub fn map<const N: usize>(pairs: [(&str, &str); N]) -> Datum {
    Datum::map(pairs)
}

/// `external_ids` of a generated row: the owner's marks and `extra`.
pub fn owner_ids(id: &str, owner_type: &str, name: &str, extra: &[(&str, &str)]) -> Datum {
    let mut ids = BTreeMap::from([
        (ovn_name::key::ID, id),
        (ovn_name::key::OWNER_CONTROLLER, ovn_name::OWNER),
        (ovn_name::key::OWNER_TYPE, owner_type),
        (ovn_name::key::NAME, name),
    ]);
    ids.extend(extra.iter().copied());
    Datum::map(ids)
}
