//! `cargo xtask agreement`: does serve-bench measure what an independent client measures?
//!
//! A server on the mock device, whose step times do not depend on the machine, is sent the same load by
//! serve-bench and by GuideLLM (PyPI), in turns. Both must count exactly the answers that the server
//! says it has finished, and medians must be within 3%.

mod answers;
mod verdict;

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use serve_bench::store::folder::{FolderError, RunFolder};
use thiserror::Error;

use crate::TaskResult;
use crate::child::{Server, ServerError};
use crate::cli::Agreement;
use crate::{metrics, place, python};
use answers::{Answers, NotAnswers};
use verdict::Verdict;

/// The other client, and the version that the check was written against.
const CLIENT: &str = "guidellm==0.8.1";
/// GuideLLM stops reading what its workers have to say when nothing came for so many seconds, which by
/// default (0.1) loses the last answer of a run now and then. It is longer than any answer here.
const POLL: (&str, &str) = ("GUIDELLM__MP_POLL_INTERVAL", "3");
/// Tokens of every answer.
const OUTPUT_TOKENS: u32 = 32;
/// The exit code of serve-bench for a run whose client was late: on a busy machine the other is as well.
const VOID: i32 = 3;
/// How long the server may take to print its address.
const PATIENCE: Duration = Duration::from_secs(60);

/// A comparison that could not be made.
#[derive(Debug, Error)]
enum AgreementError {
    /// The server failed.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The server does not show its counters.
    #[error("GET {url}: {cause}")]
    Metrics {
        /// What was asked.
        url: String,
        /// Why there is no number.
        cause: String,
    },
    /// A client cannot be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The client.
        program: String,
        /// The operating system's answer.
        source: io::Error,
    },
    /// A client failed.
    #[error("{client} ended with {status}:\n{words}")]
    Client {
        /// Which one.
        client: &'static str,
        /// How it ended.
        status: ExitStatus,
        /// What it printed.
        words: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The rows of serve-bench cannot be read.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// What a client wrote is not what was expected.
    #[error("{}: {cause}", path.display())]
    NotAnswers {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: NotAnswers,
    },
}

/// Starts, lets both measure in turns, compares.
pub(crate) fn run(load: &Agreement) -> TaskResult {
    let target = place::target()?;
    let pair = Pair {
        bench: place::beside("serve-bench")?,
        python: python::with_packages(&target.join("agreement-venv"), &[CLIENT])?,
        folder: target.join("agreement"),
        load: *load,
    };
    let verdict = pair.measure(&place::beside("serve")?)?;
    println!(
        "{} runs of each client in turns, {} requests at {}/s, {} words in, {OUTPUT_TOKENS} tokens out\n\n{}",
        load.runs,
        load.requests,
        load.rate,
        load.words,
        verdict.text(CLIENT)
    );
    Ok(match verdict.agrees() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The two clients and what they are to do.
struct Pair {
    bench: PathBuf,
    python: PathBuf,
    /// Of this comparison alone; what an earlier one left is removed.
    folder: PathBuf,
    load: Agreement,
}

impl Pair {
    fn measure(&self, serve: &Path) -> Result<Verdict, AgreementError> {
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error(&self.folder)(error));
            }
            _ => fs::create_dir_all(&self.folder).map_err(io_error(&self.folder))?,
        }
        let prompts = self.prompts();
        fs::write(&prompts, self.prompt_lines()).map_err(io_error(&prompts))?;
        let mut serve = Command::new(serve);
        serve.args(["--backend", "mock", "--prefix-cache=false", "--log", "off"]);
        let server = Server::start(&mut serve)?;
        let url = server.address(PATIENCE)?;
        let (mut ours, mut theirs) = (Answers::default(), Answers::default());
        for run in 0..self.load.runs {
            println!("run {} of {}", run + 1, self.load.runs);
            for (side, is_ours) in [(&mut ours, true), (&mut theirs, false)] {
                let before = finished(&url)?;
                let measured = match is_ours {
                    true => self.ours(&url, run)?,
                    false => self.theirs(&url, run)?,
                };
                side.add(measured, finished(&url)? - before);
            }
        }
        server.stop()?;
        Ok(Verdict { ours, theirs })
    }

    fn prompts(&self) -> PathBuf {
        self.folder.join("prompts.jsonl")
    }

    /// As many different prompts as there are requests, one JSON object a line.
    fn prompt_lines(&self) -> String {
        const WORDS: [&str; 16] = [
            "the", "of", "and", "to", "in", "is", "it", "you", "that", "he", "was", "for", "on",
            "are", "with", "as",
        ];
        let mut lines = String::new();
        for prompt in 0..self.load.requests as usize {
            let words =
                (0..self.load.words as usize).map(|at| WORDS[(prompt + at * at) % WORDS.len()]);
            let words = words.collect::<Vec<_>>().join(" ");
            // Writing to a string cannot fail.
            let _ = writeln!(lines, "{{\"prompt\":\"{prompt} {words}\"}}");
        }
        lines
    }

    fn ours(&self, url: &str, run: u32) -> Result<Answers, AgreementError> {
        let folder = self.folder.join(format!("serve-bench-{run}"));
        let mut command = Command::new(&self.bench);
        command.args(["run", "--url", url, "--arrivals", "constant", "--rate"]);
        command.arg(self.load.rate.to_string());
        command.arg(format!("--requests={}", self.load.requests));
        command.arg(format!("--max-tokens={OUTPUT_TOKENS}"));
        command.arg("--prompts").arg(self.prompts());
        command.arg("--dir").arg(&folder);
        let status = client("serve-bench", &mut command, &[0, VOID])?;
        let run = RunFolder::at(&folder).open()?;
        let mut answers = Answers::of_rows(&run.records).map_err(|cause| {
            let path = folder.clone();
            AgreementError::NotAnswers { path, cause }
        })?;
        answers.void = u32::from(status.code() == Some(VOID));
        Ok(answers)
    }

    fn theirs(&self, url: &str, run: u32) -> Result<Answers, AgreementError> {
        let file = self.folder.join(format!("guidellm-{run}.json"));
        let backend = serde_json::json!({
            "kind": "openai_http", "target": url, "model": "mock", "max_tokens": OUTPUT_TOKENS,
            "extras": {"body": {"temperature": 0}},
        });
        let mut command = Command::new(&self.python);
        command.env(POLL.0, POLL.1);
        command.args(["-m", "guidellm", "run", "--disable-console", "--backend"]);
        command.arg(backend.to_string());
        command.args([
            "--profile".to_owned(),
            format!("kind=constant,rate={}", self.load.rate),
        ]);
        let count = format!("kind=max_requests,count={}", self.load.requests);
        command.args(["--constraint".to_owned(), count]);
        let data = format!("kind=json_file,path={}", self.prompts().display());
        command.args(["--data".to_owned(), data]);
        let output = format!("kind=json,path={}", file.display());
        command.args(["--output".to_owned(), output]);
        client("guidellm", &mut command, &[0])?;
        let text = fs::read_to_string(&file).map_err(io_error(&file))?;
        Answers::of_guidellm(&text)
            .map_err(|cause| AgreementError::NotAnswers { path: file, cause })
    }
}

/// Runs a client to its end, without its output unless it fails.
fn client(
    name: &'static str,
    command: &mut Command,
    accepted: &[i32],
) -> Result<ExitStatus, AgreementError> {
    let output = command.output().map_err(|source| AgreementError::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    })?;
    if output
        .status
        .code()
        .is_some_and(|code| accepted.contains(&code))
    {
        return Ok(output.status);
    }
    let words = [output.stdout, output.stderr].concat();
    Err(AgreementError::Client {
        client: name,
        status: output.status,
        words: String::from_utf8_lossy(&words).into_owned(),
    })
}

/// How many answers the server says that it has finished.
fn finished(base: &str) -> Result<u64, AgreementError> {
    const COUNTER: &str = "serve_requests_ended_total{end=\"finished\"}";
    let url = format!("{base}/metrics");
    let read = || ureq::get(&url).call()?.body_mut().read_to_string();
    let text = read().map_err(|error| error.to_string());
    let count = text.and_then(|text| {
        let count = metrics::value(&text, COUNTER).map(|count| count as u64);
        count.ok_or_else(|| format!("there is no metric {COUNTER}"))
    });
    count.map_err(|cause| AgreementError::Metrics { url, cause })
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> AgreementError + use<> {
    let path = path.to_owned();
    move |source| AgreementError::Io { path, source }
}
