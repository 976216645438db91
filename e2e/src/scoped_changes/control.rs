//! ovs-vswitchd's control socket, kept open: a trace takes less than a millisecond.

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use testbed::cluster::Bed;

type Replies = serde_json::StreamDeserializer<'static, serde_json::de::IoRead<BufReader<UnixStream>>, Value>;

/// The connection.
pub(super) struct Control {
    stream: UnixStream,
    replies: Replies,
}

impl Control {
    pub(super) fn connect(bed: &Bed, node: &str) -> Result<Self> {
        let directory = bed.host(node).path("/run/openvswitch")?;
        let socket = std::fs::read_dir(&directory)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with("ovs-vswitchd.") && name.ends_with(".ctl")
            })
            .context("ovs-vswitchd has no control socket")?;
        let stream = UnixStream::connect(&socket).with_context(|| socket.display().to_string())?;
        let replies = serde_json::Deserializer::from_reader(BufReader::new(stream.try_clone()?)).into_iter();
        Ok(Self { stream, replies })
    }

    fn call(&mut self, method: &str, arguments: &[&str]) -> Result<String> {
        let request = json!({"id": 0, "method": method, "params": arguments});
        self.stream.write_all(request.to_string().as_bytes())?;
        let reply = self.replies.next().context("ovs-vswitchd closed its control socket")??;
        match (reply["result"].as_str(), &reply["error"]) {
            (Some(text), _) => Ok(text.to_owned()),
            (None, error) => bail!("{method} {arguments:?}: {error}"),
        }
    }

    /// The datapath actions of every pass of a packet through br-int; connection tracking answers with these states.
    pub(super) fn trace(&mut self, flow: &str, states: &[&str]) -> Result<Vec<String>> {
        let mut arguments = vec!["br-int", flow];
        arguments.extend(states.iter().flat_map(|state| ["--ct-next", state]));
        let text = self.call("ofproto/trace", &arguments)?;
        let actions = text.lines().filter_map(|line| line.trim().strip_prefix("Datapath actions: "));
        Ok(actions.map(without_numbers).collect())
    }

    /// OpenFlow ports of br-int by the number of their datapath port.
    pub(super) fn ports(&mut self) -> Result<BTreeMap<u32, u32>> {
        let text = self.call("dpif/show", &[])?;
        let mut bridge = "";
        let mut ports = BTreeMap::new();
        for line in text.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            match words.as_slice() {
                [name] => bridge = name.trim_end_matches(':'),
                [_, numbers, ..] if bridge == "br-int" => {
                    let numbers = numbers.trim_end_matches(':').split_once('/');
                    let numbers = numbers
                        .and_then(|(of, odp)| Some((odp.parse::<u32>().ok()?, of.parse::<u32>().ok()?)));
                    ports.extend(numbers);
                }
                _ => {}
            }
        }
        Ok(ports)
    }
}

/// Without the numbers of recirculations, which differ from trace to trace.
fn without_numbers(line: &str) -> String {
    ["recirc(", "recirc_id="].iter().fold(line.to_owned(), |line, before| {
        let mut parts = line.split(before);
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            out.push_str(before);
            out.push_str(part.trim_start_matches(|c: char| c.is_ascii_alphanumeric()));
        }
        out
    })
}
