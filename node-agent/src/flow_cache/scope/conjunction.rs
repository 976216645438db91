//! R4: a flow that takes part in a conjunction acts on a packet only if one flow of every dimension matches the packet.

use super::facts::Fact;
use super::impact::{Rule, Scope, Why};
use super::index::{Dimensions, Index};
use super::rules;
use crate::ovs::openflow::Match;

/// A conjunction, and the dimension that the flow itself is in; none for a flow that matches its id.
type Membership = (u32, Option<u8>);

/// Appends the scopes of a flow by its own match, or by a dimension that it does not belong to, and tells by which rule. `versions`: facts of
/// what the flow was and is.
pub(super) fn scopes<'a>(
    index: &Index,
    table: u8,
    matched: &Match,
    versions: impl Iterator<Item = &'a [Fact]> + Clone,
    scopes: &mut Vec<Scope>,
) -> Result<Rule, Why> {
    let begin = scopes.len();
    let own = rules::direct(index, table, matched, scopes);
    let Err(why) = own else { return own };
    scopes.truncate(begin);
    let clauses = |facts: &'a [Fact]| {
        facts.iter().filter_map(|fact| match fact {
            Fact::Clause(_, part) => Some((part.id, Some(part.clause))),
            _ => None,
        })
    };
    // A flow that was no clause, or is none any more, acts or acted by itself.
    if matched.conjunction.is_none() && versions.clone().any(|facts| clauses(facts).next().is_none()) {
        return Err(why);
    }
    let clauses = versions.flat_map(clauses);
    let mut member = false;
    for membership in matched.conjunction.map(|id| (id, None)).into_iter().chain(clauses) {
        member = true;
        by_dimension(index, table, membership, scopes).ok_or(why)?;
    }
    if member { Ok(Rule::Conjunction) } else { Err(why) }
}

/// Appends the scopes of the smallest dimension that has any. A conjunction of which no other dimension has a flow never acts.
fn by_dimension(index: &Index, table: u8, (id, own): Membership, scopes: &mut Vec<Scope>) -> Option<()> {
    let Some(dimensions) = index.dimensions(table, id) else { return Some(()) };
    let mut others: Vec<_> = of(dimensions, own).collect();
    if others.is_empty() {
        return Some(());
    }
    others.sort_unstable_by_key(|(_, flows)| flows.len());
    let begin = scopes.len();
    for (_, flows) in others {
        if flows.iter().all(|flow| rules::direct(index, table, &flow.matched(), scopes).is_ok()) {
            return Some(());
        }
        scopes.truncate(begin);
    }
    None
}

fn of(
    dimensions: &Dimensions,
    own: Option<u8>,
) -> impl Iterator<Item = (&u8, &super::counted::Counted<super::name::Name>)> {
    dimensions.iter().filter(move |(clause, _)| Some(**clause) != own)
}
