//! What a device can hold.

use thiserror::Error;

/// What a device can hold. A plan never exceeds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Segments in one step at most.
    pub sequences_max: u32,
    /// Positions in one step at most, over all segments.
    pub step_tokens_max: u32,
    /// Positions of one request at most.
    pub context_max: u32,
    /// Positions in one KV block.
    pub block_size: u32,
    /// KV blocks in all, the null block included.
    pub blocks: u32,
}

/// Limits under which nothing could ever run.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum InvalidLimits {
    /// A limit is zero.
    #[error("{name} is 0; it must be at least 1")]
    Zero {
        /// The field.
        name: &'static str,
    },
    /// There is no block beside the null block.
    #[error("blocks is {blocks}; it must be at least 2, as block 0 is never allocated")]
    NoBlocks {
        /// The number given.
        blocks: u32,
    },
}

impl Limits {
    /// Blocks that may be allocated: all but the null block.
    pub fn usable_blocks(&self) -> u32 {
        self.blocks.saturating_sub(1)
    }

    /// Blocks that hold `positions` positions.
    pub fn blocks_for(&self, positions: u32) -> u32 {
        positions.div_ceil(self.block_size)
    }

    /// Checks that something can run under these limits.
    ///
    /// # Errors
    ///
    /// [`InvalidLimits`], naming the first limit that makes it impossible.
    pub fn validate(&self) -> Result<(), InvalidLimits> {
        let fields = [
            ("sequences_max", self.sequences_max),
            ("step_tokens_max", self.step_tokens_max),
            ("context_max", self.context_max),
            ("block_size", self.block_size),
        ];
        if let Some(&(name, _)) = fields.iter().find(|(_, value)| *value == 0) {
            return Err(InvalidLimits::Zero { name });
        }
        if self.blocks < 2 {
            return Err(InvalidLimits::NoBlocks {
                blocks: self.blocks,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        sequences_max: 4,
        step_tokens_max: 64,
        context_max: 128,
        block_size: 16,
        blocks: 9,
    };

    #[test]
    fn impossible_limits_are_named() {
        assert_eq!(LIMITS.validate(), Ok(()));
        let zero = Limits {
            block_size: 0,
            ..LIMITS
        };
        assert_eq!(
            zero.validate().unwrap_err().to_string(),
            "block_size is 0; it must be at least 1"
        );
        let none = Limits {
            blocks: 1,
            ..LIMITS
        };
        assert_eq!(none.validate(), Err(InvalidLimits::NoBlocks { blocks: 1 }));
    }

    #[test]
    fn a_partly_filled_block_is_a_block() {
        assert_eq!(LIMITS.blocks_for(16), 1);
        assert_eq!(LIMITS.blocks_for(17), 2);
        assert_eq!(LIMITS.usable_blocks(), 8);
    }
}
