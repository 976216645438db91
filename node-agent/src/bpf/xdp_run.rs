//! Runs the XDP program on a packet in memory (BPF_PROG_TEST_RUN), as `dry_run` does the others.

use api::error::chain;
use aya::{
    TestRunOptions,
    programs::{ProgramFd, TestRun as _},
};

use super::{
    Error, Programs,
    dry_run::{Given, Passed, Verdict},
    links::xdp::PROGRAM,
    xdp::loaded,
};

/// `struct xdp_md` of linux/bpf.h: where data ends and which interface it is at, at these offsets; zeros beside.
const CONTEXT_LEN: usize = 24;
const DATA_END_AT: usize = 4;
const IFINDEX_AT: usize = 12;

impl Programs {
    /// The file descriptor of the XDP program, for a table of programs.
    ///
    /// # Errors
    /// The program cannot be loaded.
    pub fn xdp_program(&mut self) -> Result<&ProgramFd, Error> {
        let failed = |text: String| Error::DryRun { program: PROGRAM.to_owned(), text };
        let program = loaded(&mut self.ebpf).map_err(|refusal| failed(refusal.to_string()))?;
        program.fd().map_err(|error| failed(chain(&error)))
    }

    /// Runs the XDP program once and returns the packet as the program left it. The interface must be up and have an XDP program or GRO.
    ///
    /// # Errors
    /// The program cannot be loaded, or the kernel rejects the run.
    pub fn pass_xdp(&mut self, given: Given<'_>) -> Result<Passed, Error> {
        let failed = |text: String| Error::DryRun { program: PROGRAM.to_owned(), text };
        let program = loaded(&mut self.ebpf).map_err(|refusal| failed(refusal.to_string()))?;
        let mut context = [0; CONTEXT_LEN];
        let length = u32::try_from(given.packet.len()).map_err(|error| failed(chain(&error)))?;
        for (at, value) in [(DATA_END_AT, length), (IFINDEX_AT, given.ifindex)] {
            context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        let mut data = vec![0; given.packet.len() + 256];
        let options = TestRunOptions {
            data_in: Some(given.packet),
            data_out: Some(&mut data),
            ctx_in: Some(&context),
            ..TestRunOptions::default()
        };
        let result = program.test_run(options).map_err(|error| failed(chain(&error)))?;
        data.truncate(usize::try_from(result.data_size_out).unwrap_or(usize::MAX));
        // `enum xdp_action` of linux/bpf.h.
        let verdict = match result.return_value {
            1 => Verdict::Drop,
            2 => Verdict::Pass,
            3 => Verdict::SentBack,
            other => Verdict::Other(other.cast_signed()),
        };
        Ok(Passed { verdict, packet: data, tag: 0 })
    }
}
