//! Laws of values and differences, on arbitrary ones.

#![allow(clippy::unwrap_used, reason = "helpers of tests are test code")]

use std::collections::{BTreeMap, BTreeSet};

use ovsdb_client::column::{Column, Mode};
use ovsdb_client::{Atom, Datum, Map, Set, Uuid};
use proptest::prelude::*;
use serde::de::IntoDeserializer;
use serde_json::Value;

fn atom() -> impl Strategy<Value = Atom> {
    prop_oneof![
        any::<i64>().prop_map(Atom::Integer),
        any::<bool>().prop_map(Atom::Boolean),
        ".*".prop_map(Atom::String),
        any::<u128>().prop_map(|bits| Atom::Uuid(Uuid::from_u128(bits))),
        "[a-z_][a-z0-9_]{0,5}".prop_map(Atom::NamedUuid),
        // JSON knows no infinities; an integral real comes back as an integer.
        any::<i32>().prop_map(|n| Atom::Real(f64::from(n) + 0.5)),
    ]
}

fn datum() -> impl Strategy<Value = Datum> {
    prop_oneof![
        prop::collection::vec(atom(), 0..5).prop_map(Datum::Set),
        prop::collection::vec((atom(), atom()), 0..5).prop_map(|pairs| Datum::Map(
            pairs.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect()
        )),
    ]
}

fn set<T: Column>(column: &mut T, mode: Mode, wire: &Value) {
    column.set(mode, wire.clone().into_deserializer()).expect("the column takes the value");
}

fn wire(datum: impl Into<Datum>) -> Value {
    serde_json::to_value(datum.into()).expect("a datum is JSON")
}

/// What `modify` carries for a set: what is in one and not the other.
fn set_difference<T: Ord + Clone>(old: &BTreeSet<T>, new: &BTreeSet<T>) -> BTreeSet<T> {
    old.symmetric_difference(new).cloned().collect()
}

/// What `modify` carries for a map: removed pairs as they were, added and changed pairs as they are.
fn map_difference<K: Ord + Clone, V: Eq + Clone>(
    old: &BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
) -> BTreeMap<K, V> {
    let removed = old.iter().filter(|(key, _)| !new.contains_key(*key));
    let changed = new.iter().filter(|(key, value)| old.get(*key) != Some(*value));
    removed.chain(changed).map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn small_sets() -> impl Strategy<Value = BTreeSet<String>> {
    prop::collection::btree_set("[ab]{0,3}", 0..6)
}

fn small_maps() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map("[ab]{0,2}", "[xy]{0,1}", 0..6)
}

proptest! {
    #[test]
    fn a_value_survives_the_wire(value in datum()) {
        let text = serde_json::to_string(&value).unwrap();
        prop_assert_eq!(serde_json::from_str::<Datum>(&text).unwrap(), value, "{}", text);
    }

    #[test]
    fn equality_is_of_values_not_of_order(atoms in prop::collection::vec(atom(), 0..6)) {
        let backwards: Vec<_> = atoms.iter().rev().cloned().collect();
        prop_assert_eq!(Datum::Set(atoms.clone()), Datum::Set(backwards));
        prop_assert_eq!(Datum::Set(atoms.clone()), Datum::set(atoms));
    }

    #[test]
    fn the_order_of_atoms_is_total(a in atom(), b in atom(), c in atom()) {
        prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
        prop_assert!(!(a <= b && b <= c) || a <= c);
        prop_assert_eq!(a == b, a.cmp(&b).is_eq());
    }

    #[test]
    fn replacing_a_column_gives_the_value(old in small_maps(), new in small_maps(), set_old in small_sets(), set_new in small_sets()) {
        let mut column = Map::from(old);
        set(&mut column, Mode::Replace, &wire(&new));
        prop_assert_eq!(&column, &Map::from(new.clone()));
        prop_assert_eq!(column.datum(), Datum::from(&new));
        let mut column = Set::from(set_old);
        set(&mut column, Mode::Replace, &wire(&set_new));
        prop_assert_eq!(&column, &Set::from(set_new.clone()));
        prop_assert_eq!(column.datum(), Datum::from(&set_new));
    }

    #[test]
    fn a_difference_leads_from_old_to_new_and_for_sets_back(old in small_sets(), new in small_sets()) {
        let difference = wire(set_difference(&old, &new));
        let mut column = Set::from(old.clone());
        set(&mut column, Mode::Difference, &difference);
        prop_assert_eq!(&column, &Set::from(new));
        set(&mut column, Mode::Difference, &difference);
        prop_assert_eq!(column, Set::from(old));
    }

    #[test]
    fn a_map_difference_leads_from_old_to_new(old in small_maps(), new in small_maps()) {
        let mut column = Map::from(old.clone());
        set(&mut column, Mode::Difference, &wire(map_difference(&old, &new)));
        prop_assert_eq!(column, Map::from(new));
    }

    #[test]
    fn a_difference_to_what_holds_one_value_is_the_value(old in any::<Option<i64>>(), new in any::<Option<i64>>(), text in ".*", other in ".*") {
        let mut column = old;
        set(&mut column, Mode::Difference, &wire(new));
        prop_assert_eq!(column, new);
        let mut column = text;
        set(&mut column, Mode::Difference, &wire(&other));
        prop_assert_eq!(column, other);
    }

    #[test]
    fn reading_arbitrary_json_never_panics(text in "[\\[\\]\"a-z0-9,:{} -]{0,40}") {
        let _ = serde_json::from_str::<Datum>(&text);
        if let Ok(value) = serde_json::from_str::<Value>(&text) {
            let _ = Set::<Uuid>::default().set(Mode::Replace, value.clone());
            let _ = Map::<String, i64>::default().set(Mode::Difference, value);
        }
    }
}

#[test]
fn the_forms_of_the_wire_are_those_of_the_rfc() {
    let id = Uuid::from_u128(1);
    for (datum, text) in [
        (Datum::EMPTY, r#"["set",[]]"#.to_owned()),
        (Datum::from(None::<String>), r#"["set",[]]"#.to_owned()),
        (Datum::from(["one"]), r#""one""#.to_owned()),
        (Datum::from([2, 1]), r#"["set",[1,2]]"#.to_owned()),
        (Datum::from(id), format!(r#"["uuid","{id}"]"#)),
        (Datum::from(vec![Atom::NamedUuid("row0".to_owned())]), r#"["named-uuid","row0"]"#.to_owned()),
        (
            Datum::from(BTreeMap::from([("k".to_owned(), "v".to_owned())])),
            r#"["map",[["k","v"]]]"#.to_owned(),
        ),
        (Datum::from(BTreeMap::<String, String>::new()), r#"["map",[]]"#.to_owned()),
    ] {
        assert_eq!(serde_json::to_string(&datum).unwrap(), text);
        assert_eq!(serde_json::from_str::<Datum>(&text).unwrap(), datum);
    }
}
