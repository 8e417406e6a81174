//! The lanes that a request stands in, one at each level of a composed order.

/// How many levels an order can have.
pub const LEVELS_MAX: usize = 6;

/// Lanes inside of lanes, the outermost first, [`LEVELS_MAX`] at most. A path that is shorter than its
/// order has levels goes on in lane 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    lanes: [u32; LEVELS_MAX],
    len: u8,
}

impl Path {
    /// The path of an order of one level.
    pub const fn of(lane: u32) -> Self {
        let mut lanes = [0; LEVELS_MAX];
        lanes[0] = lane;
        Self { lanes, len: 1 }
    }

    /// The same path inside of `lane`. What lies deeper than [`LEVELS_MAX`] is cut off.
    #[must_use]
    pub fn under(self, lane: u32) -> Self {
        let mut lanes = [lane; LEVELS_MAX];
        lanes[1..].copy_from_slice(&self.lanes[..LEVELS_MAX - 1]);
        let len = (self.len + 1).min(LEVELS_MAX as u8);
        Self { lanes, len }
    }

    /// The lanes.
    pub fn lanes(&self) -> &[u32] {
        &self.lanes[..usize::from(self.len)]
    }

    /// The first `levels` lanes.
    pub(crate) fn to(&self, levels: usize) -> &[u32] {
        &self.lanes[..levels]
    }

    /// Makes `lane` the one at `level`, and forgets the deeper ones.
    pub(crate) fn set(&mut self, level: usize, lane: u32) {
        self.lanes[level] = lane;
        self.len = level as u8 + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_put_around_a_path() {
        let path = Path::of(3).under(2).under(1);
        assert_eq!(path.lanes(), [1, 2, 3]);
        assert_eq!(path.to(4), [1, 2, 3, 0]);
        let deep = (4..20).fold(path, Path::under);
        assert_eq!(deep.lanes(), [19, 18, 17, 16, 15, 14]);
    }
}
