//! What a captured packet is on the wire: an aggregate as its segments, and every checksum completed. This is the only thing in
//! which two captures are made alike before they are compared; it follows from the kernel's own rules (`tcp_gso_segment`,
//! `__udp_gso_segment`, `inet_gso_segment`, `skb_checksum_help`).
//!
//! It heals nothing: a checksum that is left to the device is completed from the sum in the packet, so that a wrong
//! one stays wrong, and one that is said to be complete is left as it is.

use anyhow::{Context, Result, bail, ensure};

use super::checksum::{Sum, fix_ipv4};
use super::frame::{CWR, FIN, PSH};
use testbed::tools::packets::{Frame, GSO_ECN, GSO_TCP4, GSO_TCP6, GSO_UDP, NEEDS_CHECKSUM};

/// The packets on the wire that a captured one represents.
pub(super) fn wire(frame: &Frame) -> Result<Vec<Vec<u8>>> {
    match frame.offload.gso_type & !GSO_ECN {
        0 => Ok(vec![complete(frame)?]),
        GSO_TCP4 | GSO_TCP6 => segments(frame, false),
        GSO_UDP => segments(frame, true),
        other => bail!("segmentation type {other} is not known"),
    }
}

fn place(frame: &Frame) -> Option<(usize, usize)> {
    let offload = &frame.offload;
    let start = usize::from(offload.checksum_start);
    (offload.flags & NEEDS_CHECKSUM != 0).then_some((start, start + usize::from(offload.checksum_offset)))
}

/// A single packet with its checksum completed, if it was left to the device.
fn complete(frame: &Frame) -> Result<Vec<u8>> {
    let mut bytes = frame.bytes.clone();
    if let Some((start, at)) = place(frame) {
        let summed = bytes.get(start..).context("the checksum begins behind the packet")?;
        let sum = Sum::default().add(summed).complement_not_zero();
        put(&mut bytes, at, sum)?;
    }
    Ok(bytes)
}

fn segments(frame: &Frame, udp: bool) -> Result<Vec<Vec<u8>>> {
    let bytes = &frame.bytes;
    let (start, at) = place(frame).context("an aggregate whose checksum is complete")?;
    let size = usize::from(frame.offload.gso_size);
    ensure!(size > 0, "an aggregate without a segment size");
    let headers = if udp {
        start + 8
    } else {
        start + usize::from(bytes.get(start + 12).context("cut TCP header")? >> 4) * 4
    };
    let payload = bytes.get(headers..).context("cut headers")?;
    let count = payload.len().div_ceil(size).max(1);
    let mut list = Vec::new();
    for (number, chunk) in payload.chunks(size).enumerate() {
        let mut one = bytes.get(..headers).context("cut headers")?.to_vec();
        one.extend(chunk);
        let behind = one.len() - start;
        // The sum in the packet is that of the pseudo-header with the aggregate's length.
        let sum =
            Sum::default().word(get(bytes, at)?).word(!length16(bytes.len() - start)).word(length16(behind));
        ip_length(&mut one, number)?;
        if udp {
            put(&mut one, start + 4, length16(behind))?;
        } else {
            let first = bytes.get(start + 4..start + 8).and_then(|four| four.first_chunk()).context("cut")?;
            let step = u32::try_from(number * size)?;
            let sequence = u32::from_be_bytes(*first).wrapping_add(step);
            one[start + 4..start + 8].copy_from_slice(&sequence.to_be_bytes());
            if number > 0 && frame.offload.gso_type & GSO_ECN != 0 {
                one[start + 13] &= !CWR;
            }
            if number + 1 < count {
                one[start + 13] &= !(FIN | PSH);
            }
        }
        put(&mut one, at, 0)?;
        let sum = sum.add(&one[start..]).complement_not_zero();
        put(&mut one, at, sum)?;
        list.push(one);
    }
    Ok(list)
}

/// Length, identification and header checksum of the IP packet behind an Ethernet header.
fn ip_length(one: &mut [u8], number: usize) -> Result<()> {
    match get(one, 12)? {
        0x0800 => {
            let header = 14 + usize::from(one[14] & 0xf) * 4;
            let id = get(one, 18)?.wrapping_add(u16::try_from(number)?);
            put(one, 16, length16(one.len() - 14))?;
            put(one, 18, id)?;
            fix_ipv4(one.get_mut(14..header).context("cut IP header")?);
            Ok(())
        }
        0x86dd => put(one, 18, length16(one.len().saturating_sub(54))),
        other => bail!("an aggregate of EtherType {other:#06x}"),
    }
}

fn length16(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}

fn get(bytes: &[u8], at: usize) -> Result<u16> {
    let pair = bytes.get(at..at + 2).context("the packet is too short")?;
    Ok(u16::from_be_bytes([pair[0], pair[1]]))
}

fn put(bytes: &mut [u8], at: usize, value: u16) -> Result<()> {
    let pair = bytes.get_mut(at..at + 2).context("the packet is too short")?;
    pair.copy_from_slice(&value.to_be_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::checksum::pseudo_header;
    use super::super::frame::{ACK, Check, Packet, Upper};
    use super::*;
    use std::net::IpAddr;

    fn packet(upper: Upper, six: bool) -> Packet {
        let ip = |last: u16| -> IpAddr {
            if six { format!("fd00::{last}") } else { format!("10.0.0.{last}") }.parse().unwrap()
        };
        let mut packet = Packet::new([[2; 6], [4; 6]], ip(1), ip(2), [1000, 2000], upper);
        packet.payload = (0..=255).cycle().take(3001).collect();
        packet.check = Check::Offloaded;
        packet.id = 77;
        packet
    }

    fn tcp() -> Upper {
        Upper::Tcp { flags: ACK | PSH, options: Vec::new(), urgent: 0 }
    }

    /// The checksum is right when everything together sums up to ones.
    fn is_right(bytes: &[u8], packet: &Packet, protocol: u8) -> bool {
        let header = if packet.source.is_ipv4() { 34 } else { 54 };
        let sum = pseudo_header(packet.source, packet.destination, protocol, bytes.len() - header);
        sum.add(&bytes[header..]).folded() == 0xffff
    }

    #[test]
    fn what_was_left_to_the_device_is_what_a_complete_packet_has() {
        for six in [false, true] {
            for upper in [tcp(), Upper::Udp] {
                let left = packet(upper, six);
                let complete = Packet { check: Check::Right, ..left.clone() };
                assert_eq!(wire(&left.frame()).unwrap(), [complete.frame().bytes]);
            }
        }
    }

    #[test]
    fn segments_are_the_packets_that_the_sender_would_have_made_itself() {
        for six in [false, true] {
            for (upper, number) in [(tcp(), 6), (Upper::Udp, 17)] {
                let whole = Packet { segment: Some(1000), ..packet(upper, six) };
                let list = wire(&whole.frame()).unwrap();
                assert_eq!(list.len(), 4);
                let mut at = 0;
                for (count, segment) in (0..).zip(&list) {
                    let part = &whole.payload[at..whole.payload.len().min(at + 1000)];
                    let mut single = Packet {
                        payload: part.to_vec(),
                        check: Check::Right,
                        segment: None,
                        ..whole.clone()
                    };
                    single.id += if six { 0 } else { count };
                    single.sequence += u32::try_from(at).unwrap();
                    if let (Upper::Tcp { flags, .. }, true) = (&mut single.upper, count < 3) {
                        *flags = ACK;
                    }
                    assert_eq!(segment, &single.frame().bytes);
                    assert!(is_right(segment, &single, number));
                    at += part.len();
                }
            }
        }
    }

    #[test]
    fn a_wrong_sum_stays_wrong() {
        let mut frame = Packet { segment: Some(1000), ..packet(tcp(), false) }.frame();
        frame.bytes[14 + 20 + 16] ^= 1;
        let whole = packet(tcp(), false);
        assert!(wire(&frame).unwrap().iter().all(|segment| !is_right(segment, &whole, 6)));
        let mut frame = packet(Upper::Udp, false).frame();
        frame.bytes[14 + 20 + 6] ^= 1;
        assert!(!is_right(&wire(&frame).unwrap()[0], &whole, 17));
    }
}
