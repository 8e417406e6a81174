//! Why the process ends, and with which exit code.

use std::io;
use std::path::PathBuf;

use serve_sched::settings::SettingError;
use thiserror::Error;

/// Ended as asked.
pub(crate) const OK: i32 = 0;
/// It had not ended long after it was told to.
pub(crate) const STUCK: i32 = 1;
/// A second signal cut the draining short.
pub(crate) const SECOND_SIGNAL: i32 = 130;

/// The exit codes, as `--help` shows them.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    stopped by SIGTERM or SIGINT (Ctrl-C), accepted requests finished or cancelled
  1    failed while running, or did not end in time after a signal
  2    wrong usage: an unknown or contradictory setting
  3    the model could not be loaded or failed its first request
  4    the address could not be listened on
  130  ended at once by a second signal";

/// Why the server does not run.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// The operating system refused something that a server needs.
    #[error("{0}")]
    Runtime(io::Error),
    /// The limit on addresses is too low for the server to run at all.
    #[error(
        "{threads} threads and what they begin with take {mib} MiB of addresses, more than this process may have \
         (ulimit -v)"
    )]
    AddressSpace { mib: u64, threads: u64 },
    /// A setting is wrong, or two contradict each other.
    #[error("{setting}: {cause}")]
    Usage { setting: String, cause: String },
    /// A setting of the scheduler is wrong, or contradicts another.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The settings file cannot be read or says something wrong.
    #[error("{}: {cause}", path.display())]
    File { path: PathBuf, cause: String },
    /// The command line is wrong, or asks for help: clap's own message.
    #[error(transparent)]
    Message(#[from] clap::Error),
    /// A key that cannot be hashed.
    #[error("hash-key: {0}")]
    Key(String),
    /// The model could not be loaded.
    #[cfg(feature = "model")]
    #[error("the model could not be loaded: {0}")]
    Load(serve_model::load::LoadError),
    /// There is no such model.
    #[cfg(feature = "model")]
    #[error("the model could not be loaded: {0}")]
    Model(String),
    /// The model could not be fetched.
    #[cfg(feature = "model")]
    #[error("the model could not be fetched: {0}")]
    Hub(#[from] serve_model::hub::HubError),
    /// The model's own sampling defaults are out of range.
    #[cfg(feature = "model")]
    #[error("the model could not be loaded: generation_config.json: {0}")]
    Sampling(#[from] serve_core::InvalidSampling),
    /// The thread that loads the model ended without an answer.
    #[error("the model could not be loaded: the loader panicked")]
    LoaderPanicked,
    /// The model was loaded and cannot be served.
    #[error("the model cannot be served: {0}")]
    Launch(serve_http::LaunchError),
    /// Settings that cannot hold while the server runs.
    #[error(transparent)]
    Reload(serve_http::ReloadError),
    /// The address is taken, not there, or not allowed.
    #[error(
        "cannot listen on {host}:{port}: {}; choose another with --host and --port",
        reason(cause)
    )]
    Listen {
        host: String,
        port: u16,
        cause: io::Error,
    },
}

#[cfg(feature = "model")]
impl From<serve_model::load::LoadError> for Failure {
    fn from(error: serve_model::load::LoadError) -> Self {
        match error {
            // Not the model's fault.
            serve_model::load::LoadError::ChatTemplate { .. } => Self::Usage {
                setting: "--chat-template".to_owned(),
                cause: error.to_string(),
            },
            error => Self::Load(error),
        }
    }
}

impl Failure {
    pub(crate) fn exit_code(&self) -> i32 {
        match self {
            Self::Runtime(_) | Self::Reload(_) => 1,
            Self::Usage { .. } | Self::Setting(_) | Self::File { .. } | Self::Key(_) => 2,
            Self::Message(message) => message.exit_code(),
            #[cfg(feature = "model")]
            Self::Load(_) | Self::Model(_) | Self::Hub(_) | Self::Sampling(_) => 3,
            Self::LoaderPanicked | Self::Launch(_) | Self::AddressSpace { .. } => 3,
            Self::Listen { .. } => 4,
        }
    }
}

/// The system's answer without its error number.
fn reason(cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::AddrInUse => "the address is in use".to_owned(),
        io::ErrorKind::AddrNotAvailable => "this machine has no such address".to_owned(),
        io::ErrorKind::PermissionDenied => "it needs more rights than this user has".to_owned(),
        _ => cause.to_string(),
    }
}
