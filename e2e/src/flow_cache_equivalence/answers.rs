//! What OVN answers itself, from the packet that was sent: echo replies of its routers, DNS, resets, and ICMP errors, which quote the
//! packet. Through OVS with the cache at work, and with the cache switched off (`slipctl path node ovs`), the sender gets the same bytes;
//! nothing is learned of such packets.
//!
//! Not the same is the identification of DNS answers. They have that of the question, which is a number inside OVS, and other bytes
//! behind it, so that nothing tells whose number it is. The flag or the range that says that it is a number is taken away.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::cases::{Addresses, Case, Kind, tcp};
use super::checksum::{Sum, pseudo_header};
use super::frame::{ACK, ICMP, ICMP6, Packet, RST, SYN, TCP, UDP, Upper};
use super::lessons::{Caches, learn};
use super::marks::LABELS;
use super::pairs::header::{Word, ip};
use super::pairs::mark::Mark;
use super::pairs::posts::{Posts, Sender};
use super::pairs::route;
use super::pairs::session::place;
use super::pairs::trace::{Entries, spec};
use super::scene::{NAMESPACE, Scene, Who};
use super::segments;
use testbed::cluster::Bed;
use testbed::cluster::config::{EXT_IP, OUTSIDE_IP, OUTSIDE_IP_6, node_ip, underlay_ip6};
use testbed::demo::echoes::Service;
use testbed::exec;
use testbed::tools::packets::to_hex;
use testbed::ui::Checks;

/// Number of the first flow.
const FIRST: u8 = 160;
/// Number of the flow between pods that shows that the caches work.
const CONTROL: u16 = 570;
/// Until an answer has come, which goes by way of ovn-controller.
const SETTLE: Duration = Duration::from_millis(120);
const PAUSE: Duration = Duration::from_millis(1);
/// How often a packet is sent until it is answered.
const TRIES: usize = 5;
/// Port of the service without backends, and its node port.
const PORT: u16 = 7300;
const NODE_PORT: u16 = 30_183;
/// How long OVN may take to hear of it.
const HEARD: Duration = Duration::from_secs(20);
/// What OVN's DNS is asked (RFC 1035, 4.1.2), and its row.
const NAME: &[u8] = b"\x05exact\x04test\0";
const RECORD: &str = "records={\"exact.test\"=\"10.1.2.3 fd00:1::3\"}";
const DNS: u16 = 53;

/// What is sent, and what comes back.
#[derive(Debug)]
struct Question {
    name: String,
    sender: Sender,
    packet: Packet,
    answer: Answer,
}

/// What the answer has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The packet turned round.
    Echo,
    /// An ICMP error that quotes it.
    Error,
    /// TCP RST.
    Reset,
    /// Of OVN's DNS.
    Dns,
}

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

/// The same, with learning on all the while.
fn noted(scene: &mut Scene<'_>, posts: &mut Posts, question: &Question) -> Result<Vec<Vec<u8>>> {
    let mut answers = Vec::new();
    for _ in 0..TRIES {
        let before = scene.reason(0, "learning_off")?;
        answers = answered(scene, posts, question)?;
        if scene.reason(0, "learning_off")? == before {
            break;
        }
    }
    Ok(answers)
}

/// Protocol and what is behind the header of an IP packet without options.
fn upper(ip: &[u8]) -> Option<(u8, &[u8])> {
    match ip.first()? >> 4 {
        4 => Some((*ip.get(9)?, ip.get(20..)?)),
        6 => Some((*ip.get(6)?, ip.get(40..)?)),
        _ => None,
    }
}

/// The packet that an ICMP error quotes.
fn quoted(frame: &[u8]) -> Option<&[u8]> {
    let (protocol, icmp) = upper(ip(frame)?)?;
    let error = match protocol {
        ICMP => matches!(icmp.first()?, 3 | 11),
        ICMP6 => matches!(icmp.first()?, 1..=4),
        _ => false,
    };
    icmp.get(8..).filter(|_| error)
}

/// The ports of TCP or UDP.
fn ports(upper: &[u8]) -> Option<[u16; 2]> {
    let port = |at: usize| Some(u16::from_be_bytes([*upper.get(at)?, *upper.get(at + 1)?]));
    Some([port(0)?, port(2)?])
}

fn is_answer(frame: &[u8], question: &Question) -> bool {
    let asked = &question.packet;
    let check = || -> Option<bool> {
        let (protocol, upper) = upper(ip(frame)?)?;
        let turned = || ports(upper) == Some([asked.ports[1], asked.ports[0]]);
        let mark = || Mark::find(frame) == Mark::find(&asked.payload);
        Some(match question.answer {
            Answer::Echo => matches!((protocol, upper.first()?), (ICMP, 0) | (ICMP6, 129)) && mark(),
            Answer::Error => {
                // Eight bytes behind the header are sure to be there (RFC 792).
                let (protocol, inside) = self::upper(quoted(frame)?)?;
                matches!(protocol, TCP | UDP) && ports(inside) == Some(asked.ports)
            }
            Answer::Reset => protocol == TCP && turned() && *upper.get(13)? & RST != 0,
            Answer::Dns => protocol == UDP && turned(),
        })
    };
    check().unwrap_or(false)
}

/// Whether the checksums of an ICMP error, and of the header that it quotes, are right.
fn sums_are_right(frame: &[u8]) -> Option<bool> {
    let ip = ip(frame)?;
    let (protocol, icmp) = upper(ip)?;
    let outer = if protocol == ICMP6 {
        let address = |at: usize| Some(IpAddr::from(*ip.get(at..)?.first_chunk::<16>()?));
        pseudo_header(address(8)?, address(24)?, ICMP6, icmp.len()).add(icmp)
    } else {
        Sum::default().add(icmp)
    };
    let inner = quoted(frame)?;
    let inner_is_right = inner.first()? >> 4 != 4 || Sum::default().add(inner.get(..20)?).folded() == 0xffff;
    Some(outer.folded() == 0xffff && inner_is_right)
}

/// The frame with the word of its IP packet set to nothing, and the header's checksum with it.
fn without_word(mut frame: Vec<u8>) -> Vec<u8> {
    match frame.get(14).map(|first| first >> 4) {
        Some(4) => {
            frame[18..20].fill(0);
            frame[24..26].fill(0);
        }
        Some(6) => {
            frame[15] &= 0xf0;
            frame[16..18].fill(0);
        }
        _ => {}
    }
    frame
}

fn judge(question: &Question, fast: &[Vec<u8>], slow: &[Vec<u8>]) -> Result<String, String> {
    let ([fast], [slow]) = (fast, slow) else {
        return Err(format!("{} answers with the cache at work, {} without", fast.len(), slow.len()));
    };
    let sent = Word::sent(&question.packet).ok_or("no IP packet was sent")?;
    let of = |packet: Option<&[u8]>| packet.and_then(Word::of);
    let exactly = |got: Option<Word>, what: &str| {
        if got == Some(sent) { Ok(()) } else { Err(format!("{sent:x?} was sent, and {got:x?} {what}")) }
    };
    let same = match question.answer {
        Answer::Echo => exactly(of(ip(fast)), "answered").map(|()| fast == slow)?,
        Answer::Error => {
            exactly(of(quoted(fast)), "quoted")?;
            if sums_are_right(fast) != Some(true) {
                return Err(format!("a checksum is wrong: {}", to_hex(fast)));
            }
            fast == slow
        }
        Answer::Reset => fast == slow,
        Answer::Dns => without_word(fast.clone()) == without_word(slow.clone()),
    };
    match of(ip(fast)) {
        Some(Word::V4 { flags, .. }) if flags & 0b100 != 0 => {
            return Err("the answer has a number".to_owned());
        }
        Some(Word::V6 { label }) if label >= LABELS && question.answer != Answer::Echo => {
            return Err(format!("the answer has a number: label {label:#x}"));
        }
        _ => {}
    }
    if same {
        Ok("the same bytes".to_owned())
    } else {
        Err(format!("with the cache at work and without:\n  {}\n  {}", to_hex(fast), to_hex(slow)))
    }
}

/// The first address of a pod's subnet, which is its router's.
fn router(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, _] = ip.octets();
            Ipv4Addr::new(a, b, c, 1).into()
        }
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 1).into()
        }
    }
}

/// A question to OVN's DNS.
fn query(six: bool) -> Vec<u8> {
    let kind = if six { 28 } else { 1 };
    // Identification, recursion desired, one question; its type and class.
    let head = [0x13, 0x37, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    [&head, NAME, &[0, kind, 0, 1]].concat()
}

fn questions(scene: &Scene<'_>, service: &[IpAddr]) -> Result<Vec<Question>> {
    let addresses = Addresses::of(scene);
    let mut list = Vec::new();
    for six in [false, true] {
        let underlay = |ip| -> IpAddr { if six { underlay_ip6(ip).into() } else { IpAddr::from(ip) } };
        let vip = service.iter().copied().find(|ip| ip.is_ipv6() == six);
        let vip = vip.with_context(|| format!("the service has {service:?}"))?;
        let outside = if six { IpAddr::from(OUTSIDE_IP_6) } else { OUTSIDE_IP.into() };
        let mut add = |name: &str,
                       sender,
                       to: IpAddr,
                       port,
                       upper: Upper,
                       answer,
                       edit: fn(&mut Packet)|
         -> Result<()> {
            let number = FIRST + u8::try_from(list.len())?;
            let ports = [21_000 + u16::from(number), port];
            // To its router, from where it goes to wherever.
            let mut packet = addresses.packet(Who::A, Who::B, six, ports, upper.clone());
            packet.destination = to;
            if sender == Sender::Outside {
                let route = route::to(scene, "ext", to)?;
                packet = Packet::new([route.next, route.own], route.source, to, ports, upper);
            }
            packet.payload = Mark { flow: number, back: false, variant: 0 }.payload(40);
            (packet.id, packet.label) = (0x2468, Some(0x1_3579));
            edit(&mut packet);
            let name = format!("IPv{}: {name}", if six { 6 } else { 4 });
            list.push(Question { name, sender, packet, answer });
            Ok(())
        };
        let pod = Sender::Pod(Who::A);
        let near = router(if six { scene.member(Who::A).ipv6 } else { scene.member(Who::A).ipv4.into() });
        let echo = Upper::Icmp { kind: if six { 128 } else { 8 }, code: 0, rest: [0, 7, 0, 1] };
        add("a router's echo reply", pod, near, 0, echo.clone(), Answer::Echo, |_| {})?;
        add("a router's echo reply to a label of the range", pod, near, 0, echo, Answer::Echo, |packet| {
            packet.label = Some(LABELS + 5);
        })?;
        add("an answer of OVN's DNS", pod, outside, DNS, Upper::Udp, Answer::Dns, |packet| {
            packet.payload = query(packet.source.is_ipv6());
        })?;
        add("a service without backends, UDP", pod, vip, PORT, Upper::Udp, Answer::Error, |_| {})?;
        add("a service without backends, SYN", pod, vip, PORT, tcp(SYN), Answer::Reset, |packet| {
            packet.acknowledged = 0;
        })?;
        add("a service without backends, data", pod, vip, PORT, tcp(ACK), Answer::Reset, |_| {})?;
        add(
            "its node port from outside",
            Sender::Outside,
            underlay(node_ip(1)),
            NODE_PORT,
            Upper::Udp,
            Answer::Error,
            |_| {},
        )?;
        // Of the second router OVN 25.03 sends no ICMPv6 error.
        if !six {
            add(
                "hops that end at the second router",
                pod,
                underlay(EXT_IP),
                PORT,
                Upper::Udp,
                Answer::Error,
                |packet| {
                    packet.ttl = 2;
                },
            )?;
        }
        let far = if six { scene.member(Who::B).ipv6 } else { scene.member(Who::B).ipv4.into() };
        add("a packet that is too long", pod, far, PORT, Upper::Udp, Answer::Error, |packet| {
            packet.payload.resize(1401 - if packet.source.is_ipv6() { 48 } else { 28 }, 7);
        })?;
    }
    Ok(list)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn question(six: bool, answer: Answer) -> Question {
        let ip = |last: u8| if six { format!("fd00::{last}") } else { format!("10.0.0.{last}") };
        let (a, b) = (ip(1).parse().unwrap(), ip(2).parse().unwrap());
        let mut packet = Packet::new([[2; 6], [4; 6]], a, b, [1000, 2000], Upper::Udp);
        packet.payload = Mark { flow: 1, back: false, variant: 0 }.payload(40);
        Question { name: String::new(), sender: Sender::Outside, packet, answer }
    }

    /// An ICMP error about a packet.
    fn error(about: &Packet) -> Vec<u8> {
        let (kind, code) = if about.source.is_ipv6() { (1, 4) } else { (3, 3) };
        let mut packet = Packet::new(
            [[4; 6], [2; 6]],
            about.destination,
            about.source,
            [0, 0],
            Upper::Icmp { kind, code, rest: [0; 4] },
        );
        packet.payload = about.ip();
        packet.frame().bytes
    }

    #[test]
    fn an_error_must_quote_what_was_sent_and_have_right_sums() {
        for six in [false, true] {
            let question = question(six, Answer::Error);
            let right = error(&question.packet);
            assert!(is_answer(&right, &question));
            let judge =
                |frame: &Vec<u8>| judge(&question, std::slice::from_ref(frame), std::slice::from_ref(&right));
            assert!(judge(&right).is_ok(), "{:?}", judge(&right));
            let numbered =
                Packet { id: 9, reserved: !six, label: Some(LABELS + 9), ..question.packet.clone() };
            assert!(judge(&error(&numbered)).unwrap_err().contains("quoted"));
            let mut wrong = right.clone();
            *wrong.last_mut().unwrap() ^= 1;
            assert!(judge(&wrong).unwrap_err().contains("checksum"));
            // Another flow's.
            let other = Packet { ports: [7, 2000], ..question.packet.clone() };
            assert!(!is_answer(&error(&other), &question));
        }
    }

    #[test]
    fn an_answer_of_dns_may_have_another_identification_but_no_number() {
        for six in [false, true] {
            let question = question(six, Answer::Dns);
            let answer = |id, label, reserved| {
                let asked = &question.packet;
                let ports = [asked.ports[1], asked.ports[0]];
                let mut packet =
                    Packet::new([[4; 6], [2; 6]], asked.destination, asked.source, ports, Upper::Udp);
                (packet.id, packet.label, packet.reserved) = (id, Some(label), reserved);
                vec![packet.frame().bytes]
            };
            let right = answer(1, 1, false);
            assert!(is_answer(&right[0], &question));
            assert!(judge(&question, &answer(2, 2, false), &right).is_ok());
            assert!(judge(&question, &answer(2, LABELS, true), &right).is_err());
            assert!(judge(&question, &[], &right).is_err());
        }
    }

    #[test]
    fn routers_are_the_first_of_their_subnets() {
        assert_eq!(router("10.244.3.17".parse().unwrap()), "10.244.3.1".parse::<IpAddr>().unwrap());
        assert_eq!(
            router("fd00:10:244:2::17".parse().unwrap()),
            "fd00:10:244:2::1".parse::<IpAddr>().unwrap()
        );
        assert_eq!(query(true).len(), 12 + 12 + 4);
    }
}
