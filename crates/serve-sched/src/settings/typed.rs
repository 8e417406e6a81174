//! From the value of a setting to the type that a policy reads it as, and back.

use std::num::NonZeroU32;

use serve_core::Span;

use super::kind::Value;

/// A type that the value of a setting can be read as: one of [`Value`]'s, or an [`Option`] of it for a
/// setting without a default.
pub trait Read: Sized {
    /// The value; `None` is of a setting that nobody has given and that has no default.
    fn read(value: Option<&Value>) -> Self;

    /// The value that reads so; `None` is as if nobody had given the setting.
    fn into_value(self) -> Option<Value>;
}

/// A type that a [`Value`] is.
pub trait Typed: Sized {
    /// The value as this type; `None` for one of another kind.
    fn of(value: &Value) -> Option<Self>;

    /// As a value.
    fn value(self) -> Value;

    /// What stands for a value that is not there. A setting of this type has a default, so it is never
    /// read: [`Setting`](super::Setting)'s constructors see to that.
    fn nothing() -> Self;
}

impl<T: Typed> Read for T {
    fn read(value: Option<&Value>) -> Self {
        value.and_then(T::of).unwrap_or_else(T::nothing)
    }

    fn into_value(self) -> Option<Value> {
        Some(self.value())
    }
}

impl<T: Typed> Read for Option<T> {
    fn read(value: Option<&Value>) -> Self {
        value.and_then(T::of)
    }

    fn into_value(self) -> Option<Value> {
        self.map(T::value)
    }
}

macro_rules! typed {
    ($($type:ty => $kind:ident,)*) => {$(
        impl Typed for $type {
            fn of(value: &Value) -> Option<Self> {
                match value {
                    Value::$kind(value) => Some(value.clone()),
                    _ => None,
                }
            }

            fn value(self) -> Value {
                Value::$kind(self)
            }

            fn nothing() -> Self {
                Self::default()
            }
        }
    )*};
}

typed! {
    Span => Seconds,
    f64 => Number,
    u64 => Whole,
    bool => Switch,
    String => Path,
    &'static str => Name,
    Vec<String> => Classes,
    Vec<(String, u32)> => ByClass,
    Vec<(u32, f64)> => StepTimes,
}

impl Typed for u32 {
    fn of(value: &Value) -> Option<Self> {
        u64::of(value).and_then(|number| number.try_into().ok())
    }

    fn value(self) -> Value {
        u64::from(self).value()
    }

    fn nothing() -> Self {
        0
    }
}

impl Typed for NonZeroU32 {
    fn of(value: &Value) -> Option<Self> {
        u32::of(value).and_then(Self::new)
    }

    fn value(self) -> Value {
        self.get().value()
    }

    fn nothing() -> Self {
        Self::MIN
    }
}
