//! Arguments that the commands which make many runs share: whose servers, and where the runs go.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::experiments::progress::interrupted;
use crate::experiments::series::{Series, Servers};
use crate::experiments::servers::{Program, ServerSettings};
use clap::Args;

/// Whose servers, and where the runs go.
#[derive(Args, Debug)]
pub(crate) struct LabArgs {
    /// The server binary to start [default: the `serve` beside this program, or on PATH]
    #[arg(long, value_name = "PATH")]
    serve: Option<PathBuf>,
    /// A setting of every server that is started, such as backend=mock; again for another
    #[arg(long = "with", value_name = "NAME=VALUE")]
    with: Vec<ServerSettings>,
    /// A server that runs already, instead of one that is started; its settings stay as they are
    #[arg(long, conflicts_with_all = ["serve", "with"])]
    url: Option<String>,
    /// The model to ask a running server for [default: the first that it lists]
    #[arg(long, requires = "url")]
    model: Option<String>,
    /// Sent to a running server as a bearer token
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Seconds that a server may load before it is ready
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    load_timeout: u64,
    /// The folder of all runs; what is in it already is not measured again
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Minutes after which what is under way is cancelled; the same command goes on where it was
    #[arg(long, value_name = "MINUTES", value_parser = minutes)]
    budget_min: Option<Duration>,
    /// Flags of every server that is started, as `serve` takes them
    #[arg(last = true, value_name = "SERVE_ARGS", conflicts_with = "url")]
    server_args: Vec<String>,
}

impl LabArgs {
    /// The folder of all runs.
    pub(crate) fn out(&self) -> &Path {
        &self.out
    }

    /// A series of runs of these servers, with settings of `extra` below those of the arguments. Its
    /// budget begins now.
    pub(crate) fn series(
        &self,
        extra: &ServerSettings,
        files: &Path,
    ) -> Result<Series, Box<dyn Error>> {
        let servers = match &self.url {
            Some(url) => Servers::Running {
                url: url.clone(),
                model: self.model.clone(),
                api_key: self.api_key.clone(),
            },
            None => Servers::Started {
                program: Program::find(self.serve.clone(), Duration::from_secs(self.load_timeout))?,
                base: extra.clone().and(&self.settings()?),
            },
        };
        let stop = interrupted(self.budget_min);
        Ok(Series::new(servers, &self.out, files, stop))
    }

    /// The settings of every server.
    pub(crate) fn settings(&self) -> Result<ServerSettings, Box<dyn Error>> {
        let settings = ServerSettings::from_flags(&self.server_args)?;
        Ok(settings.and(&self.with.iter().cloned().collect()))
    }

    /// How long it may take.
    pub(crate) fn budget(&self) -> Option<Duration> {
        self.budget_min
    }
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes = text.parse::<f64>().ok();
    let seconds = minutes.map(|minutes| minutes * 60.0);
    let budget = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    budget.ok_or_else(|| "accepted is a number of minutes, such as 30 or 0.5".to_owned())
}
