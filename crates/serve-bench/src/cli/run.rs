//! `serve-bench run`: one load against one server.

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::analysis::{Analysis, AnalysisOptions};
use crate::experiments::measure::{RunSettings, measure, measure_engine};
use crate::experiments::progress::{Live, interrupted};
use crate::experiments::simulate::ServerModel;
use crate::store::folder::{self, RunFolder};
use crate::store::record::{Outcome, Record, RowWriter};
use crate::transport::engine::Engine;
use crate::transport::http::Target;
use crate::workload::Workload;
use crate::workload::slo::Slo;
use crate::workload::spec::{Arrivals, Lengths, Positive, PromptSet, Spec};
use clap::{Args, ValueEnum};

use super::analyse::{exit_code, print};
use super::pretended::PretendedArgs;
use super::{CommandResult, SloArgs};

/// Arguments of the command.
#[derive(Args, Debug)]
pub(crate) struct Run {
    #[command(flatten)]
    server: ServerArgs,
    /// Ask no server over HTTP, but a pretended one in this process: the scheduler on the mock's device,
    /// under the real clock, with the settings of --config and --with
    #[arg(long, conflicts_with_all = ["url", "model"])]
    in_process: bool,
    #[command(flatten)]
    pretended: PretendedArgs,
    #[command(flatten)]
    load: LoadArgs,
    /// Where to keep the run: a folder with its rows and its manifest
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Where to write the rows alone
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    slo: SloArgs,
}

/// Which server.
#[derive(Args, Debug)]
pub(crate) struct ServerArgs {
    /// The server
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    url: String,
    /// The model to ask for [default: the first that the server lists]
    #[arg(long)]
    model: Option<String>,
    /// Sent as a bearer token
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
}

impl ServerArgs {
    /// The server, if it is up.
    pub(crate) async fn target(&self) -> Result<Target, crate::transport::http::TargetError> {
        Target::new(&self.url, self.model.clone(), self.api_key.clone()).await
    }
}

/// Which workload: a file, or a few words.
#[derive(Args, Debug)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    what: What,
    /// How an open loop spaces its requests
    #[arg(long, value_enum, default_value_t = Spacing::Poisson, conflicts_with_all = ["clients", "spec"])]
    arrivals: Spacing,
    /// How many requests to send [default: what the workload says, or 100]
    #[arg(long)]
    requests: Option<u64>,
    /// Tokens that each answer may have [default: 64]
    #[arg(long, conflicts_with = "spec")]
    max_tokens: Option<u32>,
    /// Fixes arrivals, prompts and sampling [default: what the workload says, or 0]
    #[arg(long)]
    seed: Option<u64>,
    /// Prompts to draw from, one JSON object with a string `prompt` a line [default: a small mix]
    #[arg(long, value_name = "FILE", conflicts_with = "spec")]
    prompts: Option<PathBuf>,
    /// Seconds after which an answer that has not ended has failed [default: what the workload says, or
    /// 600]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// Requests sent before the run and left out of it [default: what the workload says, or 0]
    #[arg(long, value_name = "COUNT")]
    warmup_requests: Option<u64>,
}

/// The three ways to say what is sent.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct What {
    /// A workload in TOML; docs/serve-bench.md is its reference
    spec: Option<PathBuf>,
    /// Open loop: requests a second, however many are under way
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// Closed loop: clients that each wait for their answer
    #[arg(long)]
    clients: Option<u32>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Spacing {
    /// Exponentially distributed gaps
    Poisson,
    /// Equal gaps
    Constant,
}

impl LoadArgs {
    /// The workload, from its file or from the flags; `slo` judges its answers if it is given, and is then what the
    /// manifest says.
    pub(crate) fn workload(
        &self,
        slo: Option<Slo>,
    ) -> Result<Workload, Box<dyn std::error::Error>> {
        let (mut spec, folder) = match &self.what.spec {
            Some(path) => (
                Spec::read(path)?,
                path.parent().unwrap_or(Path::new("")).to_owned(),
            ),
            None => (self.flags()?, PathBuf::new()),
        };
        let requests = self.requests.map(|requests| {
            requests
                .try_into()
                .map_err(|_| "--requests: at least 1 request must be sent")
        });
        spec.requests = requests.transpose()?.or(spec.requests);
        spec.seed = self.seed.unwrap_or(spec.seed);
        spec.measure.warmup_requests = self.warmup_requests.unwrap_or(spec.measure.warmup_requests);
        if let Some(timeout_s) = self.timeout {
            spec.measure.timeout_s = flag("timeout", timeout_s)?;
        }
        if let Some(slo) = slo {
            spec.judge_by(slo);
        }
        spec.check("the workload")?;
        Ok(Workload::new(spec, &folder)?)
    }

    fn flags(&self) -> Result<Spec, Box<dyn std::error::Error>> {
        let arrivals = match (self.what.rate, self.what.clients) {
            (None, clients) => Arrivals::Closed {
                clients: clients
                    .unwrap_or(0)
                    .try_into()
                    .map_err(|_| "--clients: the closed loop needs at least 1 client")?,
                think_ms: None,
            },
            (Some(rate), _) => {
                let rate_per_s = flag("rate", rate)?;
                match self.arrivals {
                    Spacing::Poisson => Arrivals::Poisson { rate_per_s },
                    Spacing::Constant => Arrivals::Constant { rate_per_s },
                }
            }
        };
        let mut spec = Spec::new(arrivals);
        let output_tokens = Lengths::Fixed(self.max_tokens.unwrap_or(64));
        if let Some(file) = &self.prompts {
            spec.prompts = vec![PromptSet {
                name: "file".to_owned(),
                tokens: None,
                file: Some(file.clone()),
                ..spec.prompts.swap_remove(0)
            }];
        }
        for set in &mut spec.prompts {
            set.output_tokens = output_tokens.clone();
        }
        Ok(spec)
    }
}

fn flag(name: &str, value: f64) -> Result<Positive, String> {
    Positive::try_from(value).map_err(|error| format!("--{name}: {error}"))
}

/// Who is asked.
enum Asked {
    Server(Box<Target>),
    Engine(Arc<Engine>),
}

impl Run {
    async fn asked(&self) -> Result<Asked, Box<dyn Error>> {
        match (self.in_process, self.pretended.is_empty()) {
            (true, _) => Ok(Asked::Engine(Arc::new(engine(&self.pretended.model()?)?))),
            (false, true) => Ok(Asked::Server(Box::new(self.server.target().await?))),
            (false, false) => {
                let cause =
                    "--config and --with are settings of --in-process; a server has its own";
                Err(cause.into())
            }
        }
    }
}

/// Starts the engine of a pretended server.
fn engine(server: &ServerModel) -> Result<Engine, Box<dyn Error>> {
    let mut engine = Engine::start(server.scheduler()?, server.device()?, server.terms())?;
    engine.model.name = "mock".to_owned();
    engine.runtime.config = server.runtime().config;
    Ok(engine)
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(target) => write!(f, "{} with model {}", target.url(), target.model()),
            Self::Engine(_) => {
                f.write_str("none; the scheduler on the mock's device, in this process")
            }
        }
    }
}

/// Sends, writes and prints.
pub(crate) async fn run(options: Run) -> CommandResult {
    let workload = options.load.workload(options.slo.given())?;
    let asked = options.asked().await?;
    let mut out = options.out.as_deref().map(create).transpose()?;
    out!("server     {asked}");
    let spec = workload.spec();
    out!(
        "workload   {}: {} requests, {}, seed {}",
        spec.name,
        workload.requests(),
        spec.arrivals,
        spec.seed
    );
    let live = Live::new();
    let bar = live.requests("run", workload.requests());
    let mut written = Ok(());
    let settings = RunSettings {
        folder: options.dir.as_ref().map(RunFolder::at),
        ..RunSettings::new(interrupted(None))
    };
    let on_row = |record: &Record| {
        if let (Some(out), Ok(())) = (&mut out, &written) {
            written = out.write(record);
        }
        bar.ended(record.outcome == Outcome::Ok);
    };
    let measured = match &asked {
        Asked::Server(target) => measure(target, &workload, settings, on_row).await?,
        Asked::Engine(engine) => measure_engine(engine, &workload, settings, on_row).await?,
    };
    drop(bar);
    written?;
    if let Some(out) = out {
        out.finish()?;
    }
    report(&measured.run, options.dir.as_deref())
}

/// Prints the tables.
fn report(run: &folder::Run, dir: Option<&Path>) -> CommandResult {
    let runs = std::slice::from_ref(run);
    let analysis = Analysis::of(runs, &AnalysisOptions::default());
    print(runs, &analysis)?;
    if let Some(dir) = dir {
        out!(
            "\nkept in    {}; `serve-bench analyse` and `serve-bench report` read it again",
            dir.display()
        );
    }
    Ok(exit_code(&analysis))
}

fn create(path: &Path) -> Result<RowWriter<BufWriter<File>>, String> {
    let writer = File::create(path).and_then(|file| RowWriter::new(BufWriter::new(file)));
    writer.map_err(|error| format!("{}: {error}", path.display()))
}
