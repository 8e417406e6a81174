//! The bounds of a limit that adapts, and what is said of parameters that make no sense.

use thiserror::Error;

/// Parameters that make no sense.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub enum InvalidLimit {
    /// The bounds are not in order.
    #[error(
        "{policy}: limit_min {min}, limit_initial {initial} and limit_max {max} must be in this \
         order, from 1 up"
    )]
    Bounds {
        /// The limit.
        policy: &'static str,
        /// The lowest.
        min: u32,
        /// The first.
        initial: u32,
        /// The highest.
        max: u32,
    },
    /// A number is out of range.
    #[error("{policy}: {name} is {value}; it must be {accepted}")]
    Range {
        /// The limit.
        policy: &'static str,
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: f64,
        /// What is accepted.
        accepted: &'static str,
    },
}

/// Whether `min <= initial <= max`, from 1 up.
pub(in crate::limit) fn check_bounds(
    policy: &'static str,
    [min, initial, max]: [u32; 3],
) -> Result<(), InvalidLimit> {
    if min >= 1 && min <= initial && initial <= max {
        return Ok(());
    }
    Err(InvalidLimit::Bounds {
        policy,
        min,
        initial,
        max,
    })
}

/// Whether a parameter is what is accepted.
pub(in crate::limit) fn check_range(
    policy: &'static str,
    (name, value): (&'static str, f64),
    accepted: &'static str,
    ok: bool,
) -> Result<(), InvalidLimit> {
    match ok {
        true => Ok(()),
        false => Err(InvalidLimit::Range {
            policy,
            name,
            value,
            accepted,
        }),
    }
}
