//! Runs eBPF programs on packets in memory (BPF_PROG_TEST_RUN): nothing is sent, but counters are updated.

use api::error::chain;
use std::time::Duration;

use aya::{
    TestRunOptions,
    programs::{SchedClassifier, TestRun, TestRunResult},
    sys::{Stats, enable_stats},
};

use super::{Error, Programs, Unsupported, links, object::Program, probe::release};

/// Verdict of a program for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Passed on to the next at this hook (`TC_ACT_UNSPEC`).
    Pass,
    /// Redirected to another interface (`TC_ACT_REDIRECT`).
    Redirect,
    /// Dropped (`TC_ACT_SHOT`).
    Drop,
    /// Sent back out of the interface (`XDP_TX`).
    SentBack,
    /// Any other return value, which the programs never use.
    Other(i32),
}

/// Bytes of `struct __sk_buff` passed, up to and including `gso_size` (linux/bpf.h).
const CONTEXT_LEN: usize = 180;
const PRIORITY_AT: usize = 32;
const IFINDEX_AT: usize = 40;
const GSO_SIZE_AT: usize = 176;

/// Input packet of a run.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// Bytes from the Ethernet header on.
    pub packet: &'a [u8],
    /// Index of the interface on which the packet is seen.
    pub ifindex: u32,
    /// `skb->priority`, which the programs use as tag of in-flight records.
    pub tag: u32,
    /// Payload bytes per segment of a GSO aggregate; 0 otherwise.
    pub gso_size: u32,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// What the program returned.
    pub verdict: Verdict,
    /// The packet after the run.
    pub packet: Vec<u8>,
    /// `skb->priority` after the run.
    pub tag: u32,
}

fn context(given: Given<'_>) -> [u8; CONTEXT_LEN] {
    let mut context = [0; CONTEXT_LEN];
    for (at, value) in [(PRIORITY_AT, given.tag), (IFINDEX_AT, given.ifindex), (GSO_SIZE_AT, given.gso_size)]
    {
        context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    context
}

fn verdict(value: u32) -> Verdict {
    match value.cast_signed() {
        -1 => Verdict::Pass,
        2 => Verdict::Drop,
        7 => Verdict::Redirect,
        other => Verdict::Other(other),
    }
}

impl Programs {
    /// Runs the program `name` once and returns the packet as the program left it.
    ///
    /// # Errors
    /// The program does not exist, the packet is too short, or the kernel rejects the run.
    pub fn pass(&mut self, name: &str, given: Given<'_>) -> Result<Passed, Error> {
        // The kernel needs space for the complete structure, which grows with kernel versions.
        let (mut data, mut context) = (vec![0; given.packet.len() + 256], vec![0; 512]);
        let options = TestRunOptions {
            data_out: Some(&mut data),
            ctx_out: Some(&mut context),
            ..TestRunOptions::default()
        };
        let result = self.run_on(known(name)?, given, options)?;
        data.truncate(usize::try_from(result.data_size_out).unwrap_or(usize::MAX));
        let mut tag = [0; 4];
        tag.copy_from_slice(&context[PRIORITY_AT..PRIORITY_AT + 4]);
        Ok(Passed { verdict: verdict(result.return_value), packet: data, tag: u32::from_ne_bytes(tag) })
    }

    /// Mean time of one run of the program `name` on a packet, from the kernel's own statistics over `runs` runs on a fresh packet
    /// each. It includes the overhead of the statistics: subtract the time of the program `stop`, which does nothing.
    ///
    /// # Errors
    /// The program cannot be run, or the kernel has no statistics.
    pub fn mean_time(&mut self, name: &str, given: Given<'_>, runs: u32) -> Result<Duration, Error> {
        let program = known(name)?;
        let classifier = links::classifier(&mut self.ebpf, program)?;
        let _statistics = enable_stats(Stats::RunTime).map_err(|error| failed(program, chain(&error)))?;
        let counted = |classifier: &SchedClassifier| {
            let info = classifier.info().map_err(|error| failed(program, chain(&error)))?;
            Ok::<_, Error>((info.run_time(), info.run_count()))
        };
        let before = counted(classifier)?;
        for _ in 0..runs {
            run_on(classifier, program, given, TestRunOptions::default())?;
        }
        let after = counted(classifier)?;
        let count = u32::try_from(after.1.saturating_sub(before.1)).unwrap_or(u32::MAX);
        after
            .0
            .saturating_sub(before.0)
            .checked_div(count)
            .ok_or_else(|| failed(program, "the kernel reports no run in its statistics".to_owned()))
    }

    /// Runs the program `name` on `packet` `repeat` times, as if it were seen on `ifindex`, and as an aggregate of segments of
    /// `gso_size` payload bytes if that is not 0. Returns the verdict and the mean time of one run.
    ///
    /// # Errors
    /// There is no such program, the packet is shorter than 15 bytes or than its IP header, or the kernel rejects the run.
    pub fn dry_run(
        &mut self,
        name: &str,
        packet: &[u8],
        ifindex: u32,
        gso_size: u32,
        repeat: u32,
    ) -> Result<(Verdict, Duration), Error> {
        let given = Given { packet, ifindex, tag: 0, gso_size };
        let options = TestRunOptions { repeat, ..TestRunOptions::default() };
        let result = self.run_on(known(name)?, given, options)?;
        Ok((verdict(result.return_value), result.duration))
    }

    /// Runs a program once and returns its return value.
    pub(super) fn run(&mut self, program: Program, given: Given<'_>) -> Result<u32, Error> {
        Ok(self.run_on(program, given, TestRunOptions::default())?.return_value)
    }

    fn run_on(
        &mut self,
        program: Program,
        given: Given<'_>,
        options: TestRunOptions<'_>,
    ) -> Result<TestRunResult, Error> {
        run_on(links::classifier(&mut self.ebpf, program)?, program, given, options)
    }
}

fn failed(program: Program, text: String) -> Error {
    Error::DryRun { program: program.name().to_owned(), text }
}

/// Checks kernel features that the verifier does not cover (adding and removing a tunnel header) by running a program, as
/// distributions backport features to older versions.
///
/// # Errors
/// The kernel lacks a feature, or the program cannot be run.
pub(super) fn try_kernel(ebpf: &mut aya::Ebpf) -> Result<(), Error> {
    // Ethernet, IPv4 with a header of 20 bytes, UDP without payload; the rest is padding.
    let mut packet = [0; 64];
    packet[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    packet[17] = 50;
    packet[22..24].copy_from_slice(&[64, 17]);
    let given = Given { packet: &packet, ifindex: 0, tag: 0, gso_size: 0 };
    let program = Program::Trial;
    let classifier = links::classifier(ebpf, program)?;
    let what = match run_on(classifier, program, given, TestRunOptions::default())?.return_value {
        0 => return Ok(()),
        1 => "add a tunnel header (Linux 5.13)",
        _ => "remove a tunnel header",
    };
    Err(Unsupported::Kernel { found: release(), what }.into())
}

/// Runs a program on `given` with these options.
fn run_on(
    classifier: &SchedClassifier,
    program: Program,
    given: Given<'_>,
    options: TestRunOptions<'_>,
) -> Result<TestRunResult, Error> {
    let context = context(given);
    let options = TestRunOptions { data_in: Some(given.packet), ctx_in: Some(&context), ..options };
    classifier.test_run(options).map_err(|error| failed(program, chain(&error)))
}

fn known(name: &str) -> Result<Program, Error> {
    let mut all = Program::ALL.into_iter();
    all.find(|program| program.name() == name)
        .ok_or_else(|| Error::DryRun { program: name.to_owned(), text: "no such program".into() })
}
