//! What a routing policy is shown, and what the router and the policies measure with.

mod candidate;
mod lru;
mod speed;
mod work;

pub use candidate::Candidate;
pub(super) use lru::Lru;
pub(super) use speed::Learned;
pub use speed::Speed;
pub use work::{Attempt, Work, chain};
