//! Desired rows and edges by numbers. Hundreds of thousands of rows are in several edges each; a number is four bytes, where a
//! key with its column is forty.

use std::collections::BTreeSet;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};
use slab::Slab;

use super::shared::Columns;
use crate::plan::{Edge, Member, RowKey};

/// The number of a row or text, as long as a unit wants it or an edge of it.
pub(super) type Id = u32;

/// An edge by numbers. The column is an index into [`Graph::columns`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Link {
    pub(super) owner: Id,
    column: u32,
    member: Id,
}

/// An edge into a row, and how many units want it.
#[derive(Debug)]
struct Parent {
    owner: Id,
    column: u32,
    units: u32,
}

#[derive(Debug)]
struct Node {
    member: Member,
    /// Columns of a row that is wanted.
    columns: Option<Columns>,
    /// Units that want the row.
    units: u32,
    /// Column and member of the edges out of it.
    edges: Option<BTreeSet<(u32, Id)>>,
    /// Sorted by owner and column.
    parents: Vec<Parent>,
}

impl Node {
    fn is_used(&self) -> bool {
        self.units > 0 || self.columns.is_some() || self.edges.is_some() || !self.parents.is_empty()
    }
}

/// Rows, texts and the edges between them.
#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: Slab<Node>,
    by_member: HashTable<Id>,
    hasher: DefaultHashBuilder,
    /// Names of the columns of edges: about a dozen.
    columns: Vec<&'static str>,
}

/// The name of a row or text, by which it is looked up.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Name<'a> {
    Row(&'a RowKey),
    Text(&'a str),
}

impl<'a> From<&'a Member> for Name<'a> {
    fn from(member: &'a Member) -> Self {
        match member {
            Member::Row(key) => Self::Row(key),
            Member::Text(text) => Self::Text(text),
        }
    }
}

fn id(place: usize) -> Id {
    // More than 4 billion rows do not fit into memory.
    Id::try_from(place).unwrap_or(Id::MAX)
}

fn place(id: Id) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

impl Graph {
    fn node(&self, id: Id) -> Option<&Node> {
        self.nodes.get(place(id))
    }

    fn find(&self, name: Name<'_>) -> Option<Id> {
        let hash = self.hasher.hash_one(name);
        let same = |id: &Id| self.node(*id).is_some_and(|node| Name::from(&node.member) == name);
        self.by_member.find(hash, same).copied()
    }

    fn find_node(&self, key: &RowKey) -> Option<&Node> {
        self.node(self.find(Name::Row(key))?)
    }

    /// The number of a row or text; assigned if it has none.
    pub(super) fn id(&mut self, member: Member) -> Id {
        let name = Name::from(&member);
        if let Some(known) = self.find(name) {
            return known;
        }
        let hash = self.hasher.hash_one(name);
        let node = Node { member, columns: None, units: 0, edges: None, parents: Vec::new() };
        let id = id(self.nodes.insert(node));
        let Self { nodes, by_member, hasher, .. } = self;
        let rehash =
            |id: &Id| nodes.get(place(*id)).map_or(0, |node| hasher.hash_one(Name::from(&node.member)));
        by_member.insert_unique(hash, id, rehash);
        id
    }

    /// Drops a number that is not in use any more.
    fn forget(&mut self, id: Id) {
        if self.node(id).is_none_or(Node::is_used) {
            return;
        }
        if let Some(node) = self.nodes.try_remove(place(id))
            && let Ok(entry) =
                self.by_member.find_entry(self.hasher.hash_one(Name::from(&node.member)), |one| *one == id)
        {
            entry.remove();
        }
    }

    fn column(&self, name: &'static str) -> Option<u32> {
        self.columns.iter().position(|column| *column == name).map(id)
    }

    /// An edge by numbers.
    pub(super) fn link(&mut self, edge: Edge) -> Link {
        let column = self.column(edge.column).unwrap_or_else(|| {
            self.columns.push(edge.column);
            id(self.columns.len() - 1)
        });
        Link { owner: self.id(Member::Row(edge.owner)), column, member: self.id(edge.member) }
    }

    /// The edge of a link.
    pub(super) fn edge(&self, link: Link) -> Option<Edge> {
        let column = self.columns.get(place(link.column))?;
        Some(Edge {
            owner: self.key(link.owner)?.clone(),
            column,
            member: self.node(link.member)?.member.clone(),
        })
    }

    /// The key of a row's number.
    pub(super) fn key(&self, id: Id) -> Option<&RowKey> {
        match &self.node(id)?.member {
            Member::Row(key) => Some(key),
            Member::Text(_) => None,
        }
    }

    /// Columns of a row, and the number of units that want it.
    pub(super) fn row(&self, key: &RowKey) -> Option<(&Columns, u32)> {
        let node = self.find_node(key)?;
        Some((node.columns.as_ref()?, node.units))
    }

    /// Rows that are wanted.
    pub(super) fn rows(&self) -> impl Iterator<Item = &RowKey> {
        self.nodes.iter().filter(|(_, node)| node.columns.is_some()).filter_map(|(at, _)| self.key(id(at)))
    }

    /// Columns of a row by its number, and the number of units that want it.
    pub(super) fn columns_of(&self, id: Id) -> Option<(&Columns, u32)> {
        let node = self.node(id)?;
        Some((node.columns.as_ref()?, node.units))
    }

    /// Sets a row's columns.
    pub(super) fn set_columns(&mut self, id: Id, columns: Columns) {
        if let Some(node) = self.nodes.get_mut(place(id)) {
            node.columns = Some(columns);
        }
    }

    /// One more unit wants a row.
    pub(super) fn count(&mut self, id: Id) {
        if let Some(node) = self.nodes.get_mut(place(id)) {
            node.units += 1;
        }
    }

    /// One unit less wants a row; returns its key when it was the last.
    pub(super) fn uncount(&mut self, id: Id) -> Option<RowKey> {
        let node = self.nodes.get_mut(place(id))?;
        node.units = node.units.saturating_sub(1);
        if node.units > 0 {
            return None;
        }
        node.columns = None;
        let key = self.key(id).cloned();
        self.forget(id);
        key
    }

    /// One more unit wants an edge. Returns whether the edge is new.
    pub(super) fn count_link(&mut self, link: Link) -> bool {
        let Some(member) = self.nodes.get_mut(place(link.member)) else { return false };
        match member.parent(link) {
            Ok(at) => {
                if let Some(parent) = member.parents.get_mut(at) {
                    parent.units += 1;
                }
                return false;
            }
            Err(at) => {
                // Most members have one or two parents, and there are very many members.
                member.parents.reserve_exact(1);
                member.parents.insert(at, Parent { owner: link.owner, column: link.column, units: 1 });
            }
        }
        if let Some(owner) = self.nodes.get_mut(place(link.owner)) {
            owner.edges.get_or_insert_default().insert((link.column, link.member));
        }
        true
    }

    /// One unit less wants an edge. Returns the edge if it was the last one.
    pub(super) fn uncount_link(&mut self, link: Link) -> Option<Edge> {
        let member = self.nodes.get_mut(place(link.member))?;
        let at = member.parent(link).ok()?;
        let parent = member.parents.get_mut(at)?;
        parent.units -= 1;
        if parent.units > 0 {
            return None;
        }
        member.parents.remove(at);
        let edge = self.edge(link);
        if let Some(owner) = self.nodes.get_mut(place(link.owner))
            && let Some(edges) = &mut owner.edges
        {
            edges.remove(&(link.column, link.member));
            if edges.is_empty() {
                owner.edges = None;
            }
        }
        self.forget(link.member);
        self.forget(link.owner);
        edge
    }

    /// Whether an edge is wanted.
    pub(super) fn has_edge(&self, owner: &RowKey, column: &'static str, member: &Member) -> bool {
        let found = || {
            let edges = self.find_node(owner)?.edges.as_ref()?;
            Some(edges.contains(&(self.column(column)?, self.find(member.into())?)))
        };
        found().unwrap_or(false)
    }

    /// Edges out of a row.
    pub(super) fn edges_of(&self, owner: &RowKey) -> impl Iterator<Item = (&'static str, &Member)> {
        let edges = self.find_node(owner).and_then(|node| node.edges.as_ref());
        edges.into_iter().flat_map(|edges| edges.iter()).filter_map(|(column, member)| {
            Some((*self.columns.get(place(*column))?, &self.node(*member)?.member))
        })
    }

    /// Edges into a row.
    pub(super) fn parents_of(&self, member: &RowKey) -> impl Iterator<Item = (&RowKey, &'static str)> {
        let parents = self.find_node(member).map(|node| &node.parents);
        parents
            .into_iter()
            .flatten()
            .filter_map(|parent| Some((self.key(parent.owner)?, *self.columns.get(place(parent.column))?)))
    }
}

impl Node {
    fn parent(&self, link: Link) -> Result<usize, usize> {
        let desired = (link.owner, link.column);
        self.parents.binary_search_by(|parent| (parent.owner, parent.column).cmp(&desired))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Table;

    fn edge(owner: &str, member: &str) -> Edge {
        let row = |name: &str| RowKey::new(Table::PortGroup, name);
        Edge { owner: row(owner), column: "ports", member: Member::Row(row(member)) }
    }

    #[test]
    fn an_edge_is_there_as_long_as_a_unit_wants_it_and_leaves_nothing() {
        let mut graph = Graph::default();
        let one = edge("a", "b");
        let link = graph.link(one.clone());
        assert!(graph.count_link(link) && !graph.count_link(link));
        assert!(
            graph.has_edge(&one.owner, "ports", &one.member)
                && !graph.has_edge(&one.owner, "acls", &one.member)
        );
        assert_eq!(graph.edges_of(&one.owner).collect::<Vec<_>>(), [("ports", &one.member)]);
        let Member::Row(member) = &one.member else { panic!() };
        assert_eq!(graph.parents_of(member).collect::<Vec<_>>(), [(&one.owner, "ports")]);
        assert_eq!(graph.uncount_link(link), None);
        assert_eq!(graph.uncount_link(link), Some(one));
        assert_eq!((graph.nodes.len(), graph.by_member.len()), (0, 0));
    }

    #[test]
    fn a_text_and_a_row_of_one_name_are_two() {
        let mut graph = Graph::default();
        let row = graph.id(Member::Row(RowKey::new(Table::AddressSet, "x")));
        let text = graph.id(Member::Text("x".to_owned()));
        let other = graph.id(Member::Row(RowKey::new(Table::PortGroup, "x")));
        assert!(row != text && row != other && text != other);
        assert_eq!(graph.id(Member::Text("x".to_owned())), text);
    }
}
