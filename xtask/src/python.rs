//! Which Python runs the few things here that are Python.

/// The interpreter: what `PYTHON` says, or `python3`.
pub(crate) fn python() -> String {
    let set = std::env::var("PYTHON").ok();
    set.filter(|value| !value.is_empty())
        .unwrap_or_else(|| "python3".to_owned())
}
