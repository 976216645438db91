//! Stub.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {}
impl Args {
    /// .
    pub fn run(self, _name: &str) -> anyhow::Result<bool> {
        Ok(false)
    }
}
