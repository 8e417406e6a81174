//! Arguments that the commands which pretend a server share: its settings.

use std::error::Error;
use std::path::{Path, PathBuf};

use crate::experiments::servers::ServerSettings;
use crate::experiments::simulate::ServerModel;
use clap::Args;

/// The settings of a pretended server.
#[derive(Args, Debug)]
pub(crate) struct PretendedArgs {
    /// A settings file of `serve` for a pretended server, such as the one that `calibrate` writes
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A setting of the pretended server, by the name that `serve` has for it; it wins over the file
    #[arg(long = "with", value_name = "NAME=VALUE")]
    with: Vec<ServerSettings>,
}

impl PretendedArgs {
    /// Whether nothing was given.
    pub(crate) fn is_empty(&self) -> bool {
        self.config.is_none() && self.with.is_empty()
    }

    /// The server.
    pub(crate) fn model(&self) -> Result<ServerModel, Box<dyn Error>> {
        let file = self.config.as_deref().map(read).transpose()?;
        let settings = file.unwrap_or_default();
        let settings = settings.and(&self.with.iter().cloned().collect());
        Ok(ServerModel::new(&settings)?)
    }
}

fn read(path: &Path) -> Result<ServerSettings, String> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
    ServerSettings::from_toml(&text).map_err(|error| format!("{}: {error}", path.display()))
}
