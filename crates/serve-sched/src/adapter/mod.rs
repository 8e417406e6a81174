//! A [`Dispatcher`](crate::Dispatcher) in an async program, with the feature `async`: three lines put it
//! in front of an axum service.
//!
//! ```
//! # use axum::{Router, extract::Request, routing::get};
//! # use serve_sched::{Dispatcher, limit::Gradient, order::StrictTiers};
//! use serve_sched::adapter::{Ask, AsyncDispatcher};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! # let app: Router = Router::new().route("/", get(async || "hello"));
//! let tiers = Dispatcher::new(Vec::new(), Box::new(StrictTiers), Box::new(Gradient::default()));
//! let front = AsyncDispatcher::spawn(tiers);
//! let app = app.layer(front.layer(|_: &Request| Ask::new(1, 1)));
//! # let _: Router = app;
//! # }
//! ```
//!
//! - [`AsyncDispatcher`] is the handle: [`admit`](AsyncDispatcher::admit) waits for a [`Permit`].
//! - [`DispatchLayer`] does so for each HTTP request, and holds the permit until the body ends.
//!
//! What happens on drop is the same everywhere: the request is cancelled, and its slot goes to the next,
//! exactly once. `docs/embedding.md` leads from `cargo add` to a service with tiers, tenants and deadlines.

mod admission;
mod ask;
mod body;
mod clock;
mod driver;
mod handle;
mod layer;
mod permit;
mod rejection;
mod response;
mod shared;
mod verdict;

pub use admission::Admission;
pub use ask::Ask;
pub use body::{OutputTokens, PermitBody};
pub use clock::{Clock, Sleep, TokioClock};
pub use driver::Driver;
pub use handle::AsyncDispatcher;
pub use layer::{DispatchLayer, DispatchService};
pub use permit::Permit;
pub use rejection::Rejection;
pub use response::ResponseFuture;
pub use verdict::Verdict;

/// Any error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The blocks of the page are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/embedding.md")]
pub struct EmbeddingPage;
