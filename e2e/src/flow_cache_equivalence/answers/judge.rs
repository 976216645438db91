//! Whether OVN's answer to a question about a flow is what it has to be.

use std::net::IpAddr;

use super::super::checksum::{Sum, pseudo_header};
use super::super::frame::{ICMP, ICMP6, RST, TCP, UDP};
use super::super::marks::LABELS;
use super::super::pairs::header::{Word, ip};
use super::super::pairs::mark::Mark;
use super::questions::{Answer, Question};
use testbed::tools::packets::to_hex;

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

pub(super) fn is_answer(frame: &[u8], question: &Question) -> bool {
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

pub(super) fn judge(question: &Question, fast: &[Vec<u8>], slow: &[Vec<u8>]) -> Result<String, String> {
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

#[cfg(test)]
mod tests {
    use super::super::super::frame::{Packet, Upper};
    use super::super::super::pairs::posts::Sender;
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
}
