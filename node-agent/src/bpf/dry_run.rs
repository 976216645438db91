//! Running a program on a packet in memory (BPF_PROG_TEST_RUN): nothing is sent, but counters count.

use std::time::Duration;

use aya::{TestRunOptions, programs::TestRun};

use super::{Datapath, Error, links, object::Program, probe::chain};

/// What a program did with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Passed on to the next at this hook (`TC_ACT_UNSPEC`).
    Pass,
    /// Redirected to another interface (`TC_ACT_REDIRECT`).
    Redirect,
    /// Dropped (`TC_ACT_SHOT`).
    Drop,
    /// Something the programs never return.
    Other(i32),
}

/// Bytes of `struct __sk_buff` that are handed over, up to and including `gso_size` (linux/bpf.h).
const CONTEXT_LEN: usize = 180;
const IFINDEX_AT: usize = 40;
const GSO_SIZE_AT: usize = 176;

impl Datapath {
    /// Runs the program `name` on `packet`, as if it were seen on `ifindex`, as an aggregate of segments of
    /// `gso_size` payload bytes if that is not 0, `repeat` times. The mean time of one run comes with the verdict.
    ///
    /// # Errors
    /// There is no such program, the packet is shorter than 15 bytes or than its IP header, or the kernel refuses.
    pub fn dry_run(
        &mut self,
        name: &str,
        packet: &[u8],
        ifindex: u32,
        gso_size: u32,
        repeat: u32,
    ) -> Result<(Verdict, Duration), Error> {
        let program = Program::ALL
            .into_iter()
            .find(|program| program.name() == name)
            .ok_or_else(|| Error::DryRun { program: name.to_owned(), text: "no such program".into() })?;
        let mut context = [0; CONTEXT_LEN];
        context[IFINDEX_AT..IFINDEX_AT + 4].copy_from_slice(&ifindex.to_ne_bytes());
        context[GSO_SIZE_AT..GSO_SIZE_AT + 4].copy_from_slice(&gso_size.to_ne_bytes());
        let options = TestRunOptions {
            data_in: Some(packet),
            ctx_in: Some(&context),
            repeat,
            ..TestRunOptions::default()
        };
        let result = links::classifier(&mut self.ebpf, program)?
            .test_run(options)
            .map_err(|error| Error::DryRun { program: name.to_owned(), text: chain(&error) })?;
        let verdict = match result.return_value.cast_signed() {
            -1 => Verdict::Pass,
            2 => Verdict::Drop,
            7 => Verdict::Redirect,
            other => Verdict::Other(other),
        };
        Ok((verdict, result.duration))
    }
}
