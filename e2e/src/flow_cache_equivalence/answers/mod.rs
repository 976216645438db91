//! What OVN answers itself, from the packet that was sent: echo replies of its routers, DNS, resets, and ICMP errors, which quote the
//! packet. Through OVS with the cache at work, and with the cache switched off (`slipctl path node ovs`), the sender gets the same bytes;
//! nothing is learned of such packets.
//!
//! Not the same is the identification of DNS answers. They have that of the question, which is a number inside OVS, and other bytes
//! behind it, so that nothing tells whose number it is. The flag or the range that says that it is a number is taken away.

mod judge;
mod questions;

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::cases::{Addresses, Case, Kind};
use super::pairs::posts::Posts;
use super::pairs::session::place;
use super::pairs::trace::{Entries, spec};
use super::scene::{NAMESPACE, Scene};
use super::segments;
use super::warm_up::{Caches, learn};
use crate::demo::echoes::Service;
use crate::harness::Checks;
use judge::{is_answer, judge};
use questions::{NODE_PORT, PORT, Question, questions};
use testbed::cluster::Bed;
use testbed::exec;

/// Number of the flow between pods that shows that the caches work.
const CONTROL: u16 = 570;
/// Until an answer has come, which goes by way of ovn-controller.
const SETTLE: Duration = Duration::from_millis(120);
const PAUSE: Duration = Duration::from_millis(1);
/// How often a packet is sent until it is answered.
const TRIES: usize = 5;
/// How long OVN may take to hear of the service.
const HEARD: Duration = Duration::from_secs(20);
/// The row of OVN's DNS.
const RECORD: &str = "records={\"exact.test\"=\"10.1.2.3 fd00:1::3\"}";

/// Runs it and checks.
pub(super) fn run(scene: &mut Scene<'_>, checks: &mut Checks) -> Result<()> {
    let service = Service {
        namespace: NAMESPACE,
        name: "empty",
        port: PORT,
        backends: &[],
        node_port: Some(NODE_PORT),
        local: false,
    };
    let addresses = service.create(scene.bed)?;
    let dns = Dns::add(scene.bed)?;
    let played = play(scene, &addresses, checks);
    dns.remove(scene.bed)?;
    service.delete(scene.bed)?;
    played
}

fn play(scene: &mut Scene<'_>, addresses: &[IpAddr], checks: &mut Checks) -> Result<()> {
    let mut posts = Posts::start(scene.bed)?;
    let questions = questions(scene, addresses)?;
    scene.open()?;
    for question in &questions {
        exec::retry(HEARD, &question.name, || {
            ensure!(!ask(scene, &mut posts, question)?.is_empty(), "no answer");
            Ok(())
        })?;
    }
    let fast = questions.iter().map(|one| noted(scene, &mut posts, one)).collect::<Result<Vec<_>>>()?;
    let entries = Entries::read(scene)?;
    scene.path("ovs")?;
    let slow = questions.iter().map(|one| answered(scene, &mut posts, one)).collect::<Result<Vec<_>>>();
    scene.path("auto")?;
    for ((question, fast), slow) in questions.iter().zip(&fast).zip(&slow?) {
        let outcome = judge(question, fast, slow).and_then(|text| {
            let learned = spec(&question.packet).is_some_and(|spec| entries.has(0, &spec));
            if learned { Err(format!("{text}, but an entry was made")) } else { Ok(text) }
        });
        checks.check(&question.name, outcome);
    }
    let addresses = Addresses::of(scene);
    let control = Case::flow(Kind { udp: true, six: false, far: true }, CONTROL);
    learn(scene, &addresses, &[&control])?;
    let known = Caches::read(scene)?.know(&addresses, &control);
    checks.check(
        "the caches still learn",
        if known { Ok(String::new()) } else { Err("a plain flow is not learned".to_owned()) },
    );
    Ok(())
}

/// Sends the packet once; the answers.
fn ask(scene: &mut Scene<'_>, posts: &mut Posts, question: &Question) -> Result<Vec<Vec<u8>>> {
    drop(posts.take(scene));
    posts.send(scene, question.sender, vec![question.packet.frame()], PAUSE)?;
    thread::sleep(SETTLE);
    let end = place(question.sender);
    let mut answers = Vec::new();
    for (place, capture) in posts.take(scene) {
        if place == end && is_answer(&capture.frame.bytes, question) {
            answers.extend(segments::wire(&capture.frame)?);
        }
    }
    Ok(answers)
}

/// Asks until there is one answer; OVS drops what it has no time for.
fn answered(scene: &mut Scene<'_>, posts: &mut Posts, question: &Question) -> Result<Vec<Vec<u8>>> {
    let mut answers = Vec::new();
    for _ in 0..TRIES {
        answers = ask(scene, posts, question)?;
        if answers.len() == 1 {
            break;
        }
    }
    Ok(answers)
}

/// The same of a packet that is noted, with learning on all the while.
fn noted(scene: &mut Scene<'_>, posts: &mut Posts, question: &Question) -> Result<Vec<Vec<u8>>> {
    let mut answers = Vec::new();
    for _ in 0..TRIES {
        let before = scene.reason(0, "learning_off")?;
        // UDP is noted from the second packet on.
        drop(ask(scene, posts, question)?);
        answers = answered(scene, posts, question)?;
        if scene.reason(0, "learning_off")? == before {
            break;
        }
    }
    Ok(answers)
}

/// A row of OVN's DNS for the first node's switch.
struct Dns(String);

/// That switch.
const SWITCH: &str = "n1";

impl Dns {
    fn add(bed: &Bed) -> Result<Self> {
        let row = bed.nbctl(&["create", "DNS", RECORD])?.trim().to_owned();
        bed.nbctl(&["add", "Logical_Switch", SWITCH, "dns_records", &row])?;
        Ok(Self(row))
    }

    fn remove(self, bed: &Bed) -> Result<()> {
        let Self(row) = self;
        let args = ["remove", "Logical_Switch", SWITCH, "dns_records", &row, "--", "destroy", "DNS", &row];
        bed.nbctl(&args).map(drop)
    }
}
