//! The scripted server without a socket.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use futures::FutureExt;
use tokio::io::duplex;
use tokio::sync::watch;

use crate::store::record::Record;
use crate::tests::server::{Script, answer};
use crate::transport::drive::testing::{rows_until, workload};
use crate::transport::http::connection::{Dial, Stream};
use crate::transport::http::{HttpClient, Target};

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

/// Rows of a workload over `dial`, in the order of its requests and in virtual time.
pub(crate) async fn rows_over(dial: Dial, spec: &str) -> Vec<Record> {
    let workload = workload(spec);
    let target = Target::over(Some(dial), "http://memory", Some("m".to_owned()), None).await;
    let client = HttpClient::new(&target.unwrap(), workload.spec()).unwrap();
    let (_keep, stop) = watch::channel(false);
    rows_until(&workload, client, stop).await
}
