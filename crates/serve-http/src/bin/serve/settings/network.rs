//! The settings of the port: who can reach it, and what one connection and one body may cost.

use std::net::SocketAddr;

use clap::Args;
use clap::builder::BoolishValueParser;
use serde::Serialize;
use serve_http::{AllowedHosts, ConnectionSettings, Origin};

use super::units::{Bytes, Seconds};

/// What the port is told.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Connections")]
pub(crate) struct NetworkSettings {
    /// The address to listen on
    #[arg(long, env = "SERVE_HOST", default_value = "127.0.0.1")]
    pub(crate) host: String,

    /// The port to listen on; 0 takes a free one, which is printed
    #[arg(long, env = "SERVE_PORT", default_value_t = 8000)]
    pub(crate) port: u16,

    /// Serve everybody who can reach the address; without keys, only this machine can otherwise be
    /// listened on
    #[arg(long, env = "SERVE_ALLOW_ANONYMOUS", value_name = "BOOL", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          action = clap::ArgAction::Set, value_parser = BoolishValueParser::new())]
    pub(crate) allow_anonymous: bool,

    /// An address and port of their own for health checks and metrics, served by a thread that does
    /// nothing else, such as 0.0.0.0:8001; port 0 takes a free one, which is printed [default: none; they are served on the main port anyway]
    #[arg(long, env = "SERVE_HEALTH_ADDRESS", value_name = "ADDRESS:PORT")]
    pub(crate) health_address: Option<SocketAddr>,

    /// Have metrics under the names of vLLM too, for dashboards, autoscalers and gateways that ask for these
    #[arg(long, env = "SERVE_VLLM_METRICS", value_name = "BOOL", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          action = clap::ArgAction::Set, value_parser = BoolishValueParser::new())]
    pub(crate) vllm_metrics: bool,

    /// Names by which clients call this server, without ports, separated by commas; others get 403
    /// [default: any; without keys on a loopback address, localhost and loopback addresses]
    #[arg(
        long,
        env = "SERVE_ALLOWED_HOSTS",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub(crate) allowed_hosts: Vec<String>,

    /// Origins of web pages that may use the API, such as `https://chat.example.org`, separated
    /// by commas; * is any [default: none]
    #[arg(
        long,
        env = "SERVE_CORS_ORIGINS",
        value_name = "ORIGIN",
        value_delimiter = ','
    )]
    pub(crate) cors_origins: Vec<Origin>,

    /// How many files may be open, once that is known.
    #[arg(skip)]
    #[serde(skip)]
    files: Option<u32>,

    /// Connections at most; further ones get 429 and are closed; 0 is no limit
    #[arg(
        long,
        env = "SERVE_CONNECTIONS_MAX",
        value_name = "N",
        default_value_t = 8192
    )]
    pub(crate) connections_max: u32,

    /// Seconds that the headers of a request may take; 0 is no limit
    #[arg(
        long,
        env = "SERVE_HEADER_TIMEOUT",
        value_name = "SECONDS",
        default_value = "10"
    )]
    pub(crate) header_timeout: Seconds,

    /// Seconds that the body of a request may take; 0 is no limit
    #[arg(
        long,
        env = "SERVE_BODY_TIMEOUT",
        value_name = "SECONDS",
        default_value = "30"
    )]
    pub(crate) body_timeout: Seconds,

    /// Seconds that a connection is kept without a request; 0 is no limit. It should be more than a
    /// proxy in front keeps its own
    #[arg(
        long,
        env = "SERVE_KEEP_ALIVE_TIMEOUT",
        value_name = "SECONDS",
        default_value = "75"
    )]
    pub(crate) keep_alive_timeout: Seconds,

    /// Seconds that a client may take in nothing of an answer that is ready; 0 is no limit
    #[arg(
        long,
        env = "SERVE_WRITE_TIMEOUT",
        value_name = "SECONDS",
        default_value = "30"
    )]
    pub(crate) write_timeout: Seconds,

    /// Bytes of one request's body at most
    #[arg(
        long,
        env = "SERVE_BODY_BYTES_MAX",
        value_name = "BYTES",
        default_value = "8388608"
    )]
    pub(crate) body_bytes_max: Bytes,

    /// Bytes of all bodies together that are being read; more are refused for now
    #[arg(
        long,
        env = "SERVE_BODIES_BYTES_MAX",
        value_name = "BYTES",
        default_value = "268435456"
    )]
    pub(crate) bodies_bytes_max: Bytes,
}

/// Files that the program itself may open, and connections that are only told that there are too many.
const FILES_OWN: u32 = 64;

impl NetworkSettings {
    /// Lowers the number of connections to what the limit on open files has room for. Returns how many
    /// were asked for if it did. No limit stays none.
    pub(crate) fn fit_files(&mut self, files_max: u64) -> Option<u32> {
        let room = u32::try_from(files_max).unwrap_or(u32::MAX);
        let reserved = (FILES_OWN + self.surplus_max()).min(room / 2);
        self.files = Some(room);
        let asked = self.connections_max;
        let fits = asked == 0 || asked <= room - reserved;
        if !fits {
            self.connections_max = room - reserved;
        }
        (!fits).then_some(asked)
    }

    /// Connections that are told that there are too many: an eighth of a small limit on open files.
    fn surplus_max(&self) -> u32 {
        let usual = ConnectionSettings::default().surplus_max;
        self.files.map_or(usual, |files| usual.min(files / 8))
    }

    /// The names by which the server may be called, where it listens on a loopback address alone and
    /// has no keys.
    pub(crate) fn hosts(&self, is_private: bool) -> AllowedHosts {
        match (is_private, self.allowed_hosts.is_empty()) {
            (true, _) => AllowedHosts::Local(self.allowed_hosts.clone()),
            (false, true) => AllowedHosts::Any,
            (false, false) => AllowedHosts::Only(self.allowed_hosts.clone()),
        }
    }

    /// What the edge is told of them.
    pub(crate) fn connections(&self) -> ConnectionSettings {
        let limit = |seconds: Seconds| seconds.if_on().map(Seconds::duration);
        ConnectionSettings {
            connections_max: self.connections_max,
            surplus_max: self.surplus_max(),
            header_timeout: limit(self.header_timeout),
            body_timeout: limit(self.body_timeout),
            keep_alive_timeout: limit(self.keep_alive_timeout),
            write_timeout: limit(self.write_timeout),
            body_bytes_max: self.body_bytes_max.get(),
            bodies_bytes_max: self.bodies_bytes_max.get(),
        }
    }

    /// Settings that cannot be meant.
    pub(crate) fn contradictions(&self) -> [(&'static str, bool, &'static str); 1] {
        [(
            "--bodies-bytes-max",
            self.bodies_bytes_max < self.body_bytes_max,
            "it must not be below --body-bytes-max",
        )]
    }
}
