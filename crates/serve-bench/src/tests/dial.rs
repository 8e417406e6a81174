//! The scripted server without a socket.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use futures::FutureExt;
use tokio::io::duplex;

use crate::tests::server::{Script, answer};
use crate::transport::http::connection::{Dial, Stream};

/// A way to a server inside this process. Nothing but the script takes time, so with the runtime's
/// clock paused every time is exact.
pub(crate) fn dial(scripts: Vec<Script>) -> Dial {
    let (scripts, next) = (Arc::new(scripts), Arc::new(AtomicUsize::new(0)));
    Dial::new(move || {
        let (client, server) = duplex(1 << 16);
        let (scripts, next) = (Arc::clone(&scripts), Arc::clone(&next));
        tokio::spawn(answer(server, scripts, next, Arc::default()));
        async move { Ok(Box::new(client) as Box<dyn Stream>) }.boxed()
    })
}
