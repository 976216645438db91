//! A change of suite `scoped_changes`, and what undoes it.

use anyhow::Result;
use testbed::cluster::Bed;

/// What a change may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// Never everything.
    Scopes,
    /// Everything as well.
    Any,
}

type Act = Box<dyn Fn(&Bed) -> Result<()>>;

pub(super) struct Change {
    pub(super) name: String,
    pub(super) expected: Expected,
    pub(super) make: Act,
    pub(super) undo: Act,
}

impl Change {
    pub(super) fn new(
        name: &str,
        expected: Expected,
        make: impl Fn(&Bed) -> Result<()> + 'static,
        undo: impl Fn(&Bed) -> Result<()> + 'static,
    ) -> Self {
        Self { name: name.to_owned(), expected, make: Box::new(make), undo: Box::new(undo) }
    }

    /// Two calls of `ovn-nbctl`, each of commands that are separated by `--`.
    pub(super) fn by_hand(make: &[&str], undo: &[&str]) -> Self {
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let call = |words: Vec<String>| {
            move |bed: &Bed| -> Result<()> {
                let words: Vec<&str> =
                    ["--wait=hv", "--"].into_iter().chain(words.iter().map(String::as_str)).collect();
                bed.nbctl(&words)?;
                Ok(())
            }
        };
        Self::new(&make.join(" "), Expected::Any, call(owned(make)), call(owned(undo)))
    }
}
