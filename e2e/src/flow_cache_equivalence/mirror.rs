//! Mirrors of OVS, while flows are cached: what is copied must come to OVS, every packet. The entries of such flows end, the path says why,
//! copies have no number of the fast path in them, nothing is learned from a copy, and the packets arrive all the while. Without the
//! mirror the flows are fast again.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cases::{Addresses, Case, Kind};
use super::frame::Packet;
use super::lessons::{Caches, learn};
use super::pairs::header::{Word, ip};
use super::pairs::mark::Mark;
use super::scene::{NAMESPACE, Scene, Who};
use super::tap::Tap;
use testbed::exec;
use testbed::tools::packets::Capture;
use testbed::ui::Checks;

/// The node, its bridges, and the port that gets the copies.
const NODE: &str = "n1";
const INTEGRATION: &str = "br-int";
const GATEWAY: &str = "breth0";
const COPIES: &str = "eqcopies";
/// Name of the mirror.
const MIRROR: &str = "exact";
/// Numbers of the flows from a to c and to b; of TCP and UDP, each with both families.
const FIRST: u16 = 580;
/// How long the agent may take to follow the database.
const SOON: Duration = Duration::from_secs(5);
/// Until OVS has carried out the change of its database, too.
const ENFORCED: Duration = Duration::from_millis(400);
/// Packets of each flow while the mirror is there.
const COUNT: u8 = 20;
/// How often the flows are taught.
const LESSONS: u32 = 8;
const PAUSE: Duration = Duration::from_millis(1);
const SETTLE: Duration = Duration::from_millis(150);

/// A port by what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Port {
    Pod(Who),
    /// The tunnel to the other node.
    Tunnel,
    /// The way to the gateway bridge.
    Patch,
    /// OVS's end of the uplink.
    Uplink,
    /// An internal port that exists for this test.
    Copies,
}

/// Which packets a mirror selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Select {
    All,
    From(Port),
    To(Port),
}

/// Who is slow then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slow {
    Node,
    Pods(&'static [Who]),
    /// The tunnel and the gateway.
    Uplink,
}

/// A mirror, and what it must do.
struct Trial {
    name: &'static str,
    bridge: &'static str,
    select: Select,
    output: Port,
    slow: Slow,
    /// Part of the reason.
    why: &'static str,
    /// Whether it copies packets of the flow from a to c, and from a to b.
    copies: [bool; 2],
}

const TRIALS: &[Trial] = &[
    Trial {
        name: "what a pod sends",
        bridge: INTEGRATION,
        select: Select::From(Port::Pod(Who::A)),
        output: Port::Copies,
        slow: Slow::Pods(&[Who::A]),
        why: "the port is mirrored (mirror exact)",
        copies: [true, true],
    },
    Trial {
        name: "what a pod gets",
        bridge: INTEGRATION,
        select: Select::To(Port::Pod(Who::C)),
        output: Port::Copies,
        slow: Slow::Node,
        why: "copies what leaves OVS",
        copies: [true, false],
    },
    Trial {
        name: "everything",
        bridge: INTEGRATION,
        select: Select::All,
        output: Port::Copies,
        slow: Slow::Node,
        why: "copies what leaves OVS",
        copies: [true, true],
    },
    Trial {
        name: "what leaves by a tunnel",
        bridge: INTEGRATION,
        select: Select::To(Port::Tunnel),
        output: Port::Copies,
        slow: Slow::Node,
        why: "packets of any pod may pass",
        copies: [false, true],
    },
    Trial {
        name: "what comes from the gateway bridge",
        bridge: INTEGRATION,
        select: Select::From(Port::Patch),
        output: Port::Copies,
        slow: Slow::Node,
        why: "packets of any pod may pass",
        copies: [false, false],
    },
    Trial {
        name: "what a pod sends, to another pod's port",
        bridge: INTEGRATION,
        select: Select::From(Port::Pod(Who::A)),
        output: Port::Pod(Who::C),
        slow: Slow::Pods(&[Who::A, Who::C]),
        why: "mirror exact",
        copies: [true, true],
    },
    Trial {
        name: "what comes by the uplink",
        bridge: GATEWAY,
        select: Select::From(Port::Uplink),
        output: Port::Copies,
        slow: Slow::Uplink,
        why: "mirrored (mirror exact)",
        copies: [false, false],
    },
];

/// Runs it and checks.
pub(super) fn run(scene: &mut Scene<'_>, checks: &mut Checks) -> Result<()> {
    for trial in TRIALS {
        let port = Copies::add(scene, trial.bridge)?;
        let outcome = attempt(scene, trial, &port);
        // Also where something went wrong: the next one finds none.
        let removed = unset(scene, trial.bridge);
        port.remove(scene, trial.bridge)?;
        let outcome = outcome?;
        removed?;
        let name = format!("a mirror of {} on {}", trial.name, trial.bridge);
        checks.check(&name, outcome);
        checks.check(format_args!("{name}, and it is gone"), again(scene)?);
    }
    for reason in ["diverged", "several_out"] {
        let count = scene.reason(0, reason)? + scene.reason(1, reason)?;
        let outcome = if count == 0 { Ok(String::new()) } else { Err(format!("{count} times")) };
        checks.check(format_args!("nothing is counted as {reason}"), outcome);
    }
    Ok(())
}

/// The flows: UDP and TCP, both families, to the pod on this node and the one on the other.
fn flows() -> Vec<Case> {
    (FIRST..).zip(Kind::all()).map(|(number, kind)| Case::flow(kind, number)).collect()
}

/// The packets that are sent by a flow, each with what tells it from others.
fn packets(addresses: &Addresses, case: &Case) -> Vec<(Mark, Packet)> {
    let there = addresses.pair(case.kind, case.number).there;
    let flow = u8::try_from(case.number - FIRST).unwrap_or(u8::MAX);
    (0..COUNT)
        .map(|variant| {
            let mark = Mark { flow, back: false, variant };
            let id = 0x1000 + u16::from(variant);
            let label = Some(0x2_0000 + u32::from(variant));
            (mark, Packet { id, label, payload: mark.payload(64), ..there.clone() })
        })
        .collect()
}

/// Sets the mirror while all flows are cached; what came of it.
fn attempt(scene: &mut Scene<'_>, trial: &Trial, port: &Copies) -> Result<Result<String, String>> {
    let addresses = Addresses::of(scene);
    let list = flows();
    let cases: Vec<&Case> = list.iter().collect();
    if let Err(unknown) = known(scene, &addresses, &cases)? {
        return Ok(Err(unknown));
    }
    set(scene, trial)?;
    let said = exec::retry(SOON, trial.name, || is_slow(scene, trial))?;
    thread::sleep(ENFORCED);
    // From here on every packet comes to OVS.
    let (mut sent, mut missing) = (Vec::new(), Vec::new());
    let start = Caches::read(scene)?;
    scene.forget();
    drop(port.tap.take());
    for case in &cases {
        let packets = packets(&addresses, case);
        let frames = packets.iter().map(|(_, packet)| packet.frame()).collect();
        scene.tap(Who::A)?.send(frames, PAUSE)?;
        sent.push((*case, packets));
    }
    thread::sleep(SETTLE);
    let end = Caches::read(scene)?;
    let copies = if trial.output == Port::Copies { port.tap.take() } else { scene.member(Who::C).tap.take() };
    let arrived = [Who::C, Who::B].map(|who| scene.member(who).tap.take());
    let mut copied = 0;
    for (case, packets) in &sent {
        let concerned = trial.concerns(case.kind.far);
        if concerned {
            let [out, _] = addresses.keys(case.kind, case.number);
            if end.flow(0, &out).is_some_and(|flow| flow.valid) {
                return Ok(Err(format!("{}: there is an entry", case.name)));
            }
            let carried = start.carried(&end, 0, &out).unwrap_or_default();
            if carried > 0 {
                return Ok(Err(format!("{}: the cache carried {carried} packets", case.name)));
            }
        }
        // A port that gets copies gets nothing else, and the copies are all that comes to it.
        let at = if case.kind.far {
            Some(&arrived[1])
        } else {
            Some(&arrived[0]).filter(|_| trial.output == Port::Copies)
        };
        for (mark, packet) in packets {
            let sent = Word::sent(packet).context("no IP packet")?;
            if let Some(at) = at {
                let (count, leak) = look(at, *mark, sent);
                if let Some(leak) = leak {
                    return Ok(Err(format!("{}: {leak}", case.name)));
                }
                if count != 1 {
                    missing.push(format!("{} {}: {count}", case.name, mark.variant));
                }
            }
            let (count, leak) = look(&copies, *mark, sent);
            if let Some(leak) = leak {
                return Ok(Err(format!("{}: a copy: {leak}", case.name)));
            }
            let wanted = trial.copies[usize::from(case.kind.far)];
            if wanted && count == 0 {
                return Ok(Err(format!("{}: packet {} was not copied", case.name, mark.variant)));
            }
            copied += count;
        }
    }
    // OVS may lose some on a busy machine.
    if missing.len() > cases.len() {
        return Ok(Err(format!("did not arrive once: {}", missing.join(", "))));
    }
    Ok(Ok(format!("{said}; {copied} copies, none with a number")))
}

impl Trial {
    /// Whether packets from a, to the other node or not, have to come to OVS.
    fn concerns(&self, far: bool) -> bool {
        match self.slow {
            Slow::Node => true,
            Slow::Pods(list) => list.contains(&Who::A) || (!far && list.contains(&Who::C)),
            Slow::Uplink => far,
        }
    }
}

/// How many of the captures are of a packet, and whether one has another word than was sent.
fn look(captures: &[Capture], mark: Mark, sent: Word) -> (usize, Option<String>) {
    let of: Vec<&Capture> =
        captures.iter().filter(|one| Mark::find(&one.frame.bytes) == Some(mark)).collect();
    let words = of.iter().map(|one| ip(&one.frame.bytes).and_then(Word::of));
    let other = words.into_iter().find(|word| *word != Some(sent));
    (of.len(), other.map(|word| format!("{sent:x?} was sent, and {word:x?} came")))
}

/// Without the mirror the flows are fast again.
fn again(scene: &mut Scene<'_>) -> Result<Result<String, String>> {
    let addresses = Addresses::of(scene);
    let list = flows();
    let cases: Vec<&Case> = list.iter().collect();
    exec::retry(SOON, "all paths are fast again", || {
        let status = scene.agent(0)?.status()?;
        let reasons = slow_ones(&status);
        ensure!(reasons.is_empty(), "{}", reasons.join("; "));
        Ok(())
    })?;
    Ok(known(scene, &addresses, &cases)?.map(|()| format!("{} flows are cached", cases.len())))
}

/// Lets the caches learn flows until they know all of them at one time: ports that come and go make them forget again, until OVS has
/// revalidated its flows.
fn known(scene: &mut Scene<'_>, addresses: &Addresses, cases: &[&Case]) -> Result<Result<(), String>> {
    let mut unknown = String::new();
    for _ in 0..LESSONS {
        learn(scene, addresses, cases)?;
        let caches = Caches::read(scene)?;
        match cases.iter().find(|case| !caches.know(addresses, case)) {
            Some(case) => unknown = format!("the cache does not know the flow of {}", case.name),
            None => return Ok(Ok(())),
        }
        thread::sleep(ENFORCED);
    }
    Ok(Err(unknown))
}

/// Everything on the node that is not on the fast path, each with its reason.
fn slow_ones(status: &Value) -> Vec<String> {
    let mut list = Vec::new();
    let mut look = |name: &str, path: &Value| {
        if path["path"] != "ebpf" {
            list.push(format!("{name}: {}", path["reason"].as_str().unwrap_or_default()));
        }
    };
    look("node", status);
    look("tunnel", &status["cache"]["tunnel"]);
    look("gateway", &status["cache"]["gateway"]);
    for endpoint in status["endpoints"].as_array().into_iter().flatten() {
        look(endpoint["pod"].as_str().unwrap_or_default(), endpoint);
    }
    list
}

/// Whether the agent says who is slow, and why; what it says.
fn is_slow(scene: &Scene<'_>, trial: &Trial) -> Result<String> {
    let status = scene.agent(0)?.status()?;
    let slow = slow_ones(&status);
    let of = |name: &str| slow.iter().find(|one| one.starts_with(&format!("{name}: ")));
    let wanted: Vec<String> = match trial.slow {
        Slow::Node => vec!["node".to_owned()],
        Slow::Pods(list) => list.iter().map(|who| format!("{NAMESPACE}/{}", who.name())).collect(),
        Slow::Uplink => vec!["tunnel".to_owned(), "gateway".to_owned()],
    };
    for name in &wanted {
        let said = of(name).with_context(|| format!("{name} is not slow: {slow:?}"))?;
        ensure!(said.contains(trial.why), "{said}");
    }
    // And nobody else.
    ensure!(trial.slow == Slow::Node || slow.len() == wanted.len(), "{slow:?}");
    let said = wanted.iter().filter_map(|name| of(name)).cloned().collect::<Vec<_>>();
    Ok(said.join("; "))
}

/// The internal port that gets the copies, with a tap.
struct Copies {
    tap: Tap,
}

impl Copies {
    fn add(scene: &Scene<'_>, bridge: &str) -> Result<Self> {
        let bed = scene.bed;
        bed.vsctl(
            NODE,
            &["--may-exist", "add-port", bridge, COPIES, "--", "set", "Interface", COPIES, "type=internal"],
        )?;
        let mut ip = bed.host(NODE).network_command("ip")?;
        exec::output(ip.args(["link", "set", "dev", COPIES, "addrgenmode", "none", "up"]))?;
        let program = bed.config().program("testbed");
        let tap = Tap::start(bed.host(NODE).network_command(program)?, COPIES, false)?;
        Ok(Self { tap })
    }

    fn remove(self, scene: &Scene<'_>, bridge: &str) -> Result<()> {
        scene.bed.vsctl(NODE, &["--if-exists", "del-port", bridge, COPIES]).map(drop)
    }
}

/// Name of a port on the bridge.
fn name(scene: &Scene<'_>, bridge: &str, port: Port) -> Result<String> {
    let find = |condition: &str| -> Result<String> {
        let args = ["--bare", "--columns=name", "find", "Interface", condition];
        let said = scene.bed.vsctl(NODE, &args)?;
        let on_bridge = scene.bed.vsctl(NODE, &["list-ports", bridge])?;
        let mut names = said.split_whitespace().filter(|name| on_bridge.lines().any(|one| one == *name));
        names.next().map(str::to_owned).with_context(|| format!("no port of {bridge} has {condition}"))
    };
    match port {
        Port::Pod(who) => find(&format!("external_ids:iface-id={NAMESPACE}_{}", who.name())),
        Port::Tunnel => find("type=geneve"),
        Port::Patch => find("type=patch"),
        Port::Uplink => Ok("so-eth0".to_owned()),
        Port::Copies => Ok(COPIES.to_owned()),
    }
}

/// The arguments of ovs-vsctl that make the mirror. `selected`: name of the port that it selects; `output`: of the one that gets copies.
fn arguments(bridge: &str, select: Select, selected: Option<&str>, output: &str) -> Vec<String> {
    let mut words: Vec<&str> = vec!["--", "--id=@output", "get", "Port", output];
    if let Some(port) = selected {
        words.extend(["--", "--id=@selected", "get", "Port", port]);
    }
    words.extend(["--", "--id=@mirror", "create", "Mirror", "name=exact", "output_port=@output"]);
    words.push(match select {
        Select::All => "select_all=true",
        Select::From(_) => "select_src_port=@selected",
        Select::To(_) => "select_dst_port=@selected",
    });
    words.extend(["--", "add", "Bridge", bridge, "mirrors", "@mirror"]);
    words.into_iter().map(str::to_owned).collect()
}

fn set(scene: &Scene<'_>, trial: &Trial) -> Result<()> {
    let selected = match trial.select {
        Select::All => None,
        Select::From(port) | Select::To(port) => Some(name(scene, trial.bridge, port)?),
    };
    let output = name(scene, trial.bridge, trial.output)?;
    let words = arguments(trial.bridge, trial.select, selected.as_deref(), &output);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    scene.bed.vsctl(NODE, &words).map(drop)
}

/// Takes the mirror away, if it is there.
fn unset(scene: &Scene<'_>, bridge: &str) -> Result<()> {
    let there =
        scene.bed.vsctl(NODE, &["--bare", "--columns=name", "find", "Mirror", &format!("name={MIRROR}")])?;
    if there.trim().is_empty() {
        return Ok(());
    }
    scene.bed.vsctl(NODE, &["clear", "Bridge", bridge, "mirrors"]).map(drop)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_mirror_is_made_in_one_transaction() {
        let words = arguments("br-int", Select::From(Port::Tunnel), Some("ovn-n2-0"), "copies").join(" ");
        assert_eq!(
            words,
            "-- --id=@output get Port copies -- --id=@selected get Port ovn-n2-0 -- --id=@mirror create Mirror name=exact \
             output_port=@output select_src_port=@selected -- add Bridge br-int mirrors @mirror"
        );
        let words = arguments("br-int", Select::All, None, "copies").join(" ");
        assert!(words.contains("select_all=true") && !words.contains("@selected"), "{words}");
    }

    #[test]
    fn who_is_slow_is_read_with_the_reason() {
        let fast = json!({"path": "ebpf", "reason": "eligible"});
        let mut status = json!({
            "path": "ebpf", "reason": "eligible",
            "cache": {"tunnel": fast, "gateway": fast},
            "endpoints": [{"pod": "exact/a", "path": "ovs", "reason": "the port is mirrored (mirror exact)"}]
        });
        assert_eq!(slow_ones(&status), ["exact/a: the port is mirrored (mirror exact)"]);
        status["cache"]["tunnel"]["path"] = "ovs".into();
        assert_eq!(slow_ones(&status).len(), 2);
    }

    #[test]
    fn what_has_to_come_to_ovs_is_what_the_slow_one_sends_or_gets() {
        let concerned = |slow| {
            let trial = Trial {
                slow,
                name: "",
                bridge: "",
                select: Select::All,
                output: Port::Copies,
                why: "",
                copies: [true; 2],
            };
            [trial.concerns(false), trial.concerns(true)]
        };
        assert_eq!(concerned(Slow::Node), [true, true]);
        assert_eq!(concerned(Slow::Pods(&[Who::C])), [true, false]);
        assert_eq!(concerned(Slow::Uplink), [false, true]);
    }
}
