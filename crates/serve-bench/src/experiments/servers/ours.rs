//! What is known here of `serve`, the one server that can be started: its program, the paths on which it tells of itself,
//! and the settings that a measurement has to name. The control matrix and the promises, which are experiments on `serve`
//! alone, name more.

/// Its program.
pub(super) const PROGRAM: &str = "serve";
/// What its variables begin with.
pub(super) const VARIABLES: &str = "SERVE_";
/// Where it answers once it is ready.
pub(super) const READY: &str = "/health/ready";
/// Where it tells its settings.
pub(crate) const CONFIG: &str = "/v1/config";

/// What each that is measured is started with: a port that is free, and no line for each request, which would be measured
/// with it.
pub(super) const PORT: (&str, &str) = ("port", "0");
pub(super) const QUIET: (&str, &str) = ("log", "warn");
/// Its settings file.
pub(super) const FILE: &str = "config";
/// The tenants that get a key, separated by commas.
pub(super) const KEYS: &str = "keys";
/// What is found in a cache would be taken for a fast step.
pub(crate) const UNCACHED: (&str, &str) = ("prefix_cache", "false");
/// A mock that takes as long as it is told.
pub(crate) const AS_TOLD: (&str, &str) = ("mock_speed", "1");
/// Sequences in a step at most.
pub(crate) const MAX_BATCH: &str = "max_batch";
/// Prompt tokens in a step at most.
pub(crate) const STEP_TOKENS: &str = "step_tokens";

/// Settings that it is given and does not show.
pub(super) const NEVER_SHOWN: [&str; 1] = [FILE];
/// What differs between any two and decides nothing, and what it tells beside its settings.
pub(super) const NEVER_COUNTED: [&str; 6] = ["build", "host", "log", "port", "running", "version"];

/// What it has for its edge, its files and its devices. In virtual time none of it makes a difference, so a
/// simulation takes it whatever it says.
pub(crate) const WITHOUT_EFFECT: [&str; 41] = [
    "allow_anonymous",
    "allowed_hosts",
    "backend",
    "bodies_bytes_max",
    "body_bytes_max",
    "body_timeout",
    "capacity_status",
    "chat_template",
    "config",
    "connections_max",
    "cors_origins",
    "device",
    "drain_delay",
    "drain_timeout",
    "graphs",
    "header_timeout",
    "health_address",
    "host",
    "idempotency_bytes_max",
    "idempotency_ttl",
    "keep_alive_timeout",
    "keys",
    "log",
    "log_format",
    "log_prompt_blocks",
    "model",
    "port",
    "precision",
    "quantize",
    "revision",
    "served_model_name",
    "stalled_after",
    "upstream",
    "upstream_api_key",
    "upstream_command",
    "upstream_finish_cancelled",
    "upstream_limit",
    "upstream_model",
    "upstream_start_timeout",
    "vllm_metrics",
    "write_timeout",
];
