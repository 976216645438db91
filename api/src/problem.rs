//! Problems of Kubernetes objects, described so that an operator finds the field to change.

use crate::NamespacedName;

/// A part of an object that cannot be used as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Kind and name, such as `node n1`.
    pub object: String,
    /// The problem, with the field and the correct content.
    pub message: String,
}

/// Collects the problems of one object.
#[derive(Debug)]
pub struct Problems {
    object: String,
    found: Vec<Problem>,
}

impl Problems {
    /// The object has no problems yet. `kind` is written as in `service red/web`.
    pub fn new(kind: &str, name: &NamespacedName) -> Self {
        Self { object: format!("{kind} {name}"), found: Vec::new() }
    }

    /// `field` is a path such as `spec.ingress[0].ports[1].endPort`; `problem` names the error and the correct content.
    pub fn add(&mut self, field: impl std::fmt::Display, problem: impl std::fmt::Display) {
        self.found.push(Problem { object: self.object.clone(), message: format!("{field}: {problem}") });
    }

    /// A port number; `None`, with a problem, if it is not from 1 to 65535.
    pub fn port(&mut self, field: impl std::fmt::Display, value: i32) -> Option<u16> {
        let port = u16::try_from(value).ok().filter(|port| *port != 0);
        if port.is_none() {
            self.add(field, format_args!("port {value} is not between 1 and 65535"));
        }
        port
    }

    /// The problems found.
    pub fn into_inner(self) -> Vec<Problem> {
        self.found
    }
}
