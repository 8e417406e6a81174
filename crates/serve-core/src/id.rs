//! Integers of different meaning that must not be mixed.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name($int);

        impl $name {
            /// Wraps a raw number.
            pub const fn new(raw: $int) -> Self {
                Self(raw)
            }

            /// The raw number.
            pub const fn get(self) -> $int {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// One request, unique for the lifetime of a scheduler. Chosen by the caller that submits it.
    RequestId(u64),
    "r"
);
id!(
    /// Whom a request is accounted to. `TenantId::default()` is the anonymous tenant.
    TenantId(u32),
    "t"
);
id!(
    /// One fixed-size block of the KV cache. Block 0 is the null block: never allocated, so a
    /// device may use it as padding.
    BlockId(u32),
    "b"
);
id!(
    /// One step of the engine, counted up from 0.
    StepId(u64),
    "s"
);
id!(
    /// One entry of the model's vocabulary.
    TokenId(u32),
    "#"
);

impl BlockId {
    /// The block that is never allocated.
    pub const NULL: Self = Self(0);
}
