//! Namespaces, and what is wrong with their external gateways: told on the Namespace, once.

use std::collections::BTreeSet;
use std::net::IpAddr;

use api::annotation::ROUTING_EXTERNAL_GWS;
use api::problem::Problem;

use super::{Effects, Notice, NoticeKind, ObjectRef, State, Watched};
use crate::index::Namespace;
use crate::plan::external_gateways;
use crate::unit::Unit;

/// What has been reported about a namespace's external gateways.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Messages about the annotation itself.
    annotation: BTreeSet<String>,
    /// Gateways that are out of reach of a node.
    out_of_reach: BTreeSet<IpAddr>,
}

fn notice(namespace: &str, message: String) -> Notice {
    let object = Some(ObjectRef::cluster_wide("Namespace", namespace));
    Notice { kind: NoticeKind::Malformed, object, message }
}

fn family(ipv4: bool) -> &'static str {
    if ipv4 { "IPv4" } else { "IPv6" }
}

impl State {
    /// Handles a report about namespaces.
    pub fn namespaces(&mut self, change: Watched<(Namespace, Vec<Problem>), String>) -> Effects {
        let mut effects = Effects::default();
        match change {
            Watched::Apply(seen) => self.apply_namespace(seen, &mut effects),
            Watched::Delete(name) => self.delete_namespace(&name, &mut effects),
            Watched::Reset(all) => {
                let there: BTreeSet<_> = all.iter().map(|(namespace, _)| namespace.name.clone()).collect();
                let gone: Vec<_> =
                    self.index.namespaces.keys().filter(|name| !there.contains(*name)).cloned().collect();
                for name in gone {
                    self.delete_namespace(&name, &mut effects);
                }
                for seen in all {
                    self.apply_namespace(seen, &mut effects);
                }
            }
        }
        self.tell_gateways(&mut effects);
        effects
    }

    fn apply_namespace(&mut self, (namespace, problems): (Namespace, Vec<Problem>), effects: &mut Effects) {
        let name = namespace.name.clone();
        let mut messages: BTreeSet<String> =
            problems.into_iter().map(|problem| format!("{}: {}", problem.object, problem.message)).collect();
        let foreign = namespace.external_gateways.ips.iter();
        let foreign = foreign.filter(|ip| !self.config.has_family(ip.is_ipv4()));
        messages.extend(foreign.map(|ip| {
            let (has, lacks) = (family(!ip.is_ipv4()), family(ip.is_ipv4()));
            format!(
                "namespace {name}: annotation {ROUTING_EXTERNAL_GWS}: gateway {ip} is not used, as pods of this cluster have no {lacks} \
                 addresses; an {has} address is needed"
            )
        }));
        let old = self.index.namespaces.get(&name).map(|old| &old.external_gateways);
        let is_same = old == Some(&namespace.external_gateways);
        effects.dirty.extend(self.index.apply_namespace(namespace));
        // Where another plugin has the pods' default network, the annotation is for that one.
        if !self.config.default_network {
            return;
        }
        let mut told = self.told_gateways.remove(&name).unwrap_or_default();
        effects
            .notices
            .extend(messages.difference(&told.annotation).map(|message| notice(&name, message.clone())));
        told.annotation = messages;
        if !is_same {
            told.out_of_reach.clear();
        }
        if !told.annotation.is_empty() || !told.out_of_reach.is_empty() {
            self.told_gateways.insert(name, told);
        }
    }

    fn delete_namespace(&mut self, name: &str, effects: &mut Effects) {
        self.told_gateways.remove(name);
        effects.dirty.extend(self.index.delete_namespace(name));
    }

    /// Reports the gateways that pods which became dirty do not reach as their nodes' ports have no address of the family. One node is
    /// named for each gateway.
    pub(super) fn tell_gateways(&mut self, effects: &mut Effects) {
        for unit in &effects.dirty {
            let Unit::Pod(name) = unit else { continue };
            let Some(pod) = self.index.pods.get(name) else { continue };
            let Some((port, gateways)) = external_gateways::out_of_reach(&self.index, pod) else { continue };
            let told = self.told_gateways.entry(name.namespace.clone()).or_default();
            for ip in gateways.into_iter().filter(|ip| told.out_of_reach.insert(*ip)) {
                let lacks = family(ip.is_ipv4());
                let message = format!(
                    "namespace {}: annotation {ROUTING_EXTERNAL_GWS}: gateway {ip} is not used on node {} and others like it, as port \
                     {port} has no {lacks} address; the node's interface to external gateways needs one",
                    name.namespace, pod.node
                );
                effects.notices.push(notice(&name.namespace, message));
            }
        }
    }
}
