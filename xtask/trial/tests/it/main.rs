//! The trials in small: the same code as the commands, a few hundred requests each.

mod campaign;
mod promise;
