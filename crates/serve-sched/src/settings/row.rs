//! One setting: its name, what it means, what it accepts and what it is where nobody says anything.
//!
//! A policy keeps its settings as constants beside its code, and lists them where it is listed itself:
//!
//! ```ignore
//! const AGE_AFTER: Setting<Span> = Setting::seconds(
//!     "age_after",
//!     "Seconds after which a waiting request goes before all classes; 0 is never",
//!     Span::from_secs(2),
//! );
//! ```

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;

use serve_core::Span;

use super::Settings;
use super::kind::{Kind, Value};
use super::typed::Read;

/// A setting whose value is a `T`: what a policy reads with [`Settings::get`].
#[derive(Debug)]
pub struct Setting<T> {
    /// What it is, without the type.
    pub row: Row,
    of: PhantomData<fn() -> T>,
}

/// A setting, without the type of its value.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name, as in a settings file: `age_after`.
    pub name: &'static str,
    /// What it means, as `--help` has it; without a full stop.
    pub help: &'static str,
    /// What its text may be.
    pub kind: Kind,
    /// What it is where nobody says anything.
    pub usual: Usual,
    /// Under which heading `--help` has it.
    pub group: &'static str,
    /// The switch without which it would change nothing.
    pub switch: Option<&'static Row>,
    /// What is wrong with it beside the others, if it is given.
    pub check: Option<Check>,
}

/// What is wrong with a setting beside the others, to follow its name and a colon.
pub type Check = fn(&Settings) -> Result<(), String>;

/// What a setting is where nobody says anything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Usual {
    /// So many seconds.
    Seconds(Span),
    /// This number.
    Number(f64),
    /// This whole number.
    Whole(u32),
    /// On or off.
    Switch(bool),
    /// This name.
    Name(&'static str),
    /// This name among those that can stand inside of each other.
    Path(&'static str),
    /// These classes.
    Classes(&'static [&'static str]),
    /// Nothing at all; a list is empty.
    Nothing,
    /// Nothing; who reads it does something else then, in these words.
    Else(&'static str),
}

impl Row {
    /// Its flag: `--age-after`.
    pub fn flag(&self) -> String {
        format!("--{}", self.name.replace('_', "-"))
    }
}

impl Usual {
    /// The value, where it is one.
    pub fn value(self) -> Option<Value> {
        Some(match self {
            Self::Seconds(span) => Value::Seconds(span),
            Self::Number(number) => Value::Number(number),
            Self::Whole(number) => Value::Whole(u64::from(number)),
            Self::Switch(on) => Value::Switch(on),
            Self::Name(name) => Value::Name(name),
            Self::Path(path) => Value::Path(path.to_owned()),
            Self::Classes(names) => {
                Value::Classes(names.iter().copied().map(ToOwned::to_owned).collect())
            }
            Self::Nothing | Self::Else(_) => return None,
        })
    }
}

impl fmt::Display for Usual {
    /// The default in words; nothing for [`Usual::Nothing`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.value()) {
            (Self::Else(words), _) => f.write_str(words),
            (_, Some(value)) => write!(f, "{value}"),
            (_, None) => Ok(()),
        }
    }
}

impl<T> Setting<T> {
    /// A setting among the policies.
    const fn new(name: &'static str, help: &'static str, kind: Kind, usual: Usual) -> Self {
        let row = Row {
            name,
            help,
            kind,
            usual,
            group: "Policies",
            switch: None,
            check: None,
        };
        Self {
            row,
            of: PhantomData,
        }
    }

    /// The same under another heading.
    pub const fn in_group(mut self, group: &'static str) -> Self {
        self.row.group = group;
        self
    }

    /// The same, which would change nothing without `switch`.
    pub const fn needs(mut self, switch: &'static Setting<bool>) -> Self {
        self.row.switch = Some(&switch.row);
        self
    }

    /// The same, which `check` looks at beside the others.
    pub const fn checked(mut self, check: Check) -> Self {
        self.row.check = Some(check);
        self
    }
}

impl<T: Read> Setting<T> {
    /// What it is where nobody says anything.
    pub fn usual(&self) -> T {
        T::read(self.row.usual.value().as_ref())
    }
}

impl Setting<Span> {
    /// A time.
    pub const fn seconds(name: &'static str, help: &'static str, usual: Span) -> Self {
        Self::new(name, help, Kind::Seconds, Usual::Seconds(usual))
    }
}

impl Setting<Option<Span>> {
    /// A time, or none where none is given.
    pub const fn seconds_if_given(name: &'static str, help: &'static str) -> Self {
        Self::new(name, help, Kind::Seconds, Usual::Nothing)
    }
}

impl Setting<f64> {
    /// So many in a second; 0, the default, is no limit.
    pub const fn rate(name: &'static str, help: &'static str) -> Self {
        Self::new(name, help, Kind::Rate, Usual::Number(0.0))
    }
}

impl Setting<u32> {
    /// A whole number.
    pub const fn count(name: &'static str, help: &'static str, usual: u32) -> Self {
        Self::new(name, help, Kind::Whole { min: 0 }, Usual::Whole(usual))
    }
}

impl Setting<Option<u32>> {
    /// A whole number, or what `otherwise` says.
    pub const fn count_or(name: &'static str, help: &'static str, otherwise: &'static str) -> Self {
        Self::new(name, help, Kind::Whole { min: 0 }, Usual::Else(otherwise))
    }
}

impl Setting<NonZeroU32> {
    /// A whole number that is not 0.
    pub const fn one_or_more(name: &'static str, help: &'static str, usual: NonZeroU32) -> Self {
        Self::new(
            name,
            help,
            Kind::Whole { min: 1 },
            Usual::Whole(usual.get()),
        )
    }
}

impl Setting<Option<NonZeroU32>> {
    /// A whole number that is not 0, or what `otherwise` says.
    pub const fn one_or_more_or(
        name: &'static str,
        help: &'static str,
        otherwise: &'static str,
    ) -> Self {
        Self::new(name, help, Kind::Whole { min: 1 }, Usual::Else(otherwise))
    }
}

impl Setting<bool> {
    /// Something that is on or off.
    pub const fn switch(name: &'static str, help: &'static str, usual: bool) -> Self {
        Self::new(name, help, Kind::Switch, Usual::Switch(usual))
    }
}

impl Setting<&'static str> {
    /// One of the names that `known` gives.
    pub const fn name(
        name: &'static str,
        help: &'static str,
        usual: &'static str,
        known: fn() -> Vec<&'static str>,
    ) -> Self {
        Self::new(name, help, Kind::Name(known), Usual::Name(usual))
    }
}

impl Setting<String> {
    /// One of the names that `inner` gives, alone or inside of those that `outer` gives.
    pub const fn path(
        name: &'static str,
        help: &'static str,
        usual: &'static str,
        outer: fn() -> Vec<&'static str>,
        inner: fn() -> Vec<&'static str>,
    ) -> Self {
        Self::new(name, help, Kind::Path { outer, inner }, Usual::Path(usual))
    }
}

impl Setting<Vec<(String, u32)>> {
    /// A whole number for some of the classes.
    pub const fn by_class(name: &'static str, help: &'static str) -> Self {
        Self::new(name, help, Kind::ByClass, Usual::Nothing)
    }
}

impl Setting<Vec<String>> {
    /// The names of the classes.
    pub const fn classes(
        name: &'static str,
        help: &'static str,
        usual: &'static [&'static str],
    ) -> Self {
        Self::new(name, help, Kind::Classes, Usual::Classes(usual))
    }
}

impl Setting<Option<f64>> {
    /// A factor above 0, or what `otherwise` says.
    pub const fn factor_or(
        name: &'static str,
        help: &'static str,
        otherwise: &'static str,
    ) -> Self {
        Self::new(name, help, Kind::Factor, Usual::Else(otherwise))
    }

    /// Microseconds, or what `otherwise` says.
    pub const fn micros_or(
        name: &'static str,
        help: &'static str,
        otherwise: &'static str,
    ) -> Self {
        Self::new(name, help, Kind::Micros, Usual::Else(otherwise))
    }
}

impl Setting<Option<u64>> {
    /// Any whole number, or what `otherwise` says.
    pub const fn seed_or(name: &'static str, help: &'static str, otherwise: &'static str) -> Self {
        Self::new(name, help, Kind::Seed, Usual::Else(otherwise))
    }
}

impl Setting<Vec<(u32, f64)>> {
    /// Step times by batch size, or what `otherwise` says.
    pub const fn step_times_or(
        name: &'static str,
        help: &'static str,
        otherwise: &'static str,
    ) -> Self {
        Self::new(name, help, Kind::StepTimes, Usual::Else(otherwise))
    }
}
