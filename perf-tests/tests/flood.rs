//! The generator of frames: what it sends arrives whole, as many as the interface counts, and what cannot be is told. Needs root.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::Output;

use testbed::exec;

/// Two network namespaces with a veth between them; they go with this.
struct Pair([String; 2]);

impl Pair {
    fn new(name: &str) -> Self {
        let names = ["a", "b"].map(|end| format!("flood-{name}-{end}-{}", std::process::id()));
        let pair = Self(names);
        let [a, b] = &pair.0;
        for line in [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("-n {a} link add a0 type veth peer name b0 netns {b}"),
            format!("-n {b} link set b0 address 02:00:00:00:00:0b"),
            format!("-n {b} address add 10.0.0.2/24 dev b0"),
            format!("-n {b} address add fd00::2/64 dev b0 nodad"),
            format!("-n {b} link set b0 up"),
            format!("-n {a} link set a0 up"),
        ] {
            exec::output(exec::command("ip").args(line.split(' '))).unwrap();
        }
        pair
    }

    /// Frames are taken by an end of a veth only with this at the other one.
    fn takes_frames(&self) {
        self.within(1, &["ethtool", "-K", "b0", "gro", "on"]);
    }

    fn within(&self, end: usize, words: &[&str]) -> String {
        exec::output(exec::command("ip").args(["netns", "exec", &self.0[end]]).args(words)).unwrap()
    }

    fn flood(&self, words: &str) -> Output {
        let program = env!("CARGO_BIN_EXE_perf-tests");
        let usual = ["netns", "exec", &self.0[0], program, "flood", "--interface", "a0"];
        let mut command = exec::command("ip");
        command.args(usual).args(["--mac", "02:00:00:00:00:0b", "--seconds", "1"]);
        command.args(words.split(' ')).output().unwrap()
    }

    /// Datagrams to a port where nobody listens, and those with a wrong checksum.
    fn arrived(&self, six: bool) -> (u64, u64) {
        let (file, names) = if six {
            ("/proc/net/snmp6", ["Udp6NoPorts", "Udp6InCsumErrors"])
        } else {
            ("/proc/net/snmp", ["NoPorts", "InCsumErrors"])
        };
        let text = self.within(1, &["cat", file]);
        let value = |name: &str| {
            let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
            if six {
                let line = words.iter().find(|line| line[0] == name).unwrap();
                return line[1].parse().unwrap();
            }
            let lines: Vec<_> = words.iter().filter(|line| line[0] == "Udp:").collect();
            let at = lines[0].iter().position(|word| *word == name).unwrap();
            lines[1][at].parse().unwrap()
        };
        (value(names[0]), value(names[1]))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = exec::command("ip").args(["netns", "del", name]).output();
        }
    }
}

/// The number before these words.
fn told(text: &str, after: &str) -> u64 {
    let (before, _) = text.split_once(after).unwrap_or_else(|| panic!("{text}"));
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn frames_of_both_families_arrive_whole_and_are_counted() {
    let pair = Pair::new("whole");
    pair.takes_frames();
    for (six, ends) in [(false, "--from 10.0.0.1 --to 10.0.0.2:9"), (true, "--from fd00::1 --to [fd00::2]:9")]
    {
        let before = pair.arrived(six);
        let out = pair.flood(&format!("{ends} --size 100 --flows 1000 --rate 20000"));
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
        let (made, sent) = (told(&text, " frames made"), told(&text, " sent by a0"));
        let after = pair.arrived(six);
        assert_eq!(after.1, before.1, "wrong checksums");
        let arrived = after.0 - before.0;
        // Nobody else sends here; some may be lost in a queue.
        assert!(made >= 1_000 && sent <= made + 50 && sent * 10 >= made * 9, "{text}");
        assert!(arrived <= sent && arrived * 10 >= sent * 9, "{arrived} arrived: {text}");
        assert!(made <= 21_000, "faster than asked: {text}");
    }
}

#[test]
fn what_takes_no_frames_and_what_is_wrong_is_told() {
    let pair = Pair::new("told");
    let said = |words: &str| {
        let out = pair.flood(words);
        assert!(!out.status.success(), "{words}: {}", String::from_utf8_lossy(&out.stdout));
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    let text = said("--from 10.0.0.1 --to 10.0.0.2:9");
    assert!(text.contains("a0 took ") && text.contains("gro on"), "{text}");
    let text = said("--from fd00::1 --to 10.0.0.2:9");
    assert!(text.contains("different families"), "{text}");
    let text = said("--from 10.0.0.1 --to 10.0.0.2:9 --size 64 --tunnel-from 10.0.0.1 --tunnel-to 10.0.0.2");
    assert!(text.contains("headers alone"), "{text}");
    let text = said("--from 10.0.0.1 --to 10.0.0.2:9 --first-port 60000 --flows 10000");
    assert!(text.contains("no ports above 65535"), "{text}");
    let text = said("--from 10.0.0.1 --to 10.0.0.2:9 --cpu 900");
    assert!(text.contains("--cpu 900"), "{text}");
}
